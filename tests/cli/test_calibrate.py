"""`ppadvisor calibrate`: from a log and a plan to a cluster file that every command reads; answers to bad input."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_schema import check
from tests.evidence import written_logs as written
from tests.evidence.samples import lines, sample
from tests.evidence.written_logs import GIB, text

ASKED = [
    *("--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--seq-len", "4k", "--global-batch", "64"),
    *("--pp", "2,4", "--tp", "2", "--cp", "1", "--micro-batch", "1", "--recompute", "none", "--schedule", "1f1b"),
]
SECONDS = 2.1


class Ran(NamedTuple):
    """A run: its log, its plan, a place for the cluster file."""

    log: str
    plan: str
    out: Path

    @property
    def words(self) -> list[str]:
        return ["calibrate", self.log, "--plan", self.plan]


@pytest.fixture
def ran(cli: Cli, tmp_path: Path) -> Ran:
    """The first plan of a search, and a log of it: 2.1 s a step, 8 % reserved above what is allocated."""
    plan = tmp_path / "plan.json"
    assert cli("plan", *ASKED, "--format", "json", "--output", str(plan)).exit_code == 0
    p = json.loads(plan.read_text())["plans"][0]["plan"]["pipeline_parallel"]
    memory = [written.megatron_memory(rank, 30 * GIB, 32.5 * GIB) for rank in range(0, 16, 16 // p)]
    log = tmp_path / "run.log"
    log.write_text(text([*written.megatron([9.0, *[SECONDS] * 40]), *memory]))
    return Ran(str(log), str(plan), tmp_path / "cluster.toml")


def test_the_file_serves_every_command(cli: Cli, ran: Ran) -> None:
    """What -o writes makes `plan` predict the measured time, and `explain` call two assumptions calibrated."""
    result = cli(*ran.words, "-o", str(ran.out), "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    check(result.document, "calibration")
    assert result.document["runs"][0]["step_time_s"] == SECONDS
    asked = ["--cluster" if word == "--gpu" else str(ran.out) if word == "h100-sxm-80gb" else word for word in ASKED]
    best = cli("plan", *asked, "--format", "json").document["plans"]
    plan = result.document["runs"][0]["plan"]
    assert next(one for one in best if one["plan"] == plan)["time"]["step_time_s"] == pytest.approx(SECONDS, rel=0.01)
    assert "Calibrated gemm_efficiency" in cli("plan", *asked).stdout
    explained = cli("explain", *asked, "--assume", "hbm_efficiency=0.75", "--format", "json").document
    origins = {one["name"]: one["provenance"] for one in explained["assumptions"]}
    assert (origins["gemm_efficiency"], origins["allocator_overhead"]) == ("calibrated", "calibrated")
    assert (origins["hbm_efficiency"], origins["layer_launch_s"]) == ("given by the user", "default assumption")
    source = next(one["source"] for one in explained["assumptions"] if one["name"] == "gemm_efficiency")
    assert source.startswith("calibrated on 2026-11-28 to run.log, 31 Megatron iteration lines, iterations 11-41")
    given = cli("explain", *asked, "--assume", "gemm_efficiency=0.7", "--format", "json").document["assumptions"]
    assert given[0]["value"] == 0.7


def test_a_sweep_and_a_saved_plan_take_it_too(cli: Cli, ran: Ran) -> None:
    """`sweep` reads the file, and a plan saved with it explains to the same step time."""
    cli(*ran.words, "-o", str(ran.out))
    asked = ["--cluster" if word == "--gpu" else str(ran.out) if word == "h100-sxm-80gb" else word for word in ASKED]
    assert cli("sweep", *asked).exit_code == 0
    saved = str(ran.out.with_name("again.json"))
    cli("plan", *asked, "--format", "json", "--output", saved)
    first = json.loads(Path(saved).read_text())["plans"][0]["time"]["step_time_s"]
    assert cli("explain", saved, "--format", "json").document["time"]["step_time_s"] == first


def test_every_form(cli: Cli, ran: Ran) -> None:
    """The table is readable at 80 columns and says what was read, fitted and refused; csv has the constants."""
    table = cli(*ran.words).stdout
    assert max(map(len, table.splitlines())) <= 80
    for said in (
        "gemm_efficiency",
        "allocator_overhead",
        "10 lines of warm-up",
        "needs runs of several sequence lengths",
    ):
        assert said in " ".join(table.split())
    rows = list(csv.DictReader(io.StringIO(cli(*ran.words, "--format", "csv").stdout)))
    assert [row["name"] for row in rows] == ["gemm_efficiency", "allocator_overhead"]
    markdown = cli(*ran.words, "--format", "markdown").stdout
    assert "| gemm_efficiency |" in markdown


def test_the_same_input_gives_the_same_bytes(cli: Cli, ran: Ran) -> None:
    """Answer and file are byte-identical from run to run, and a day may be given."""
    first = cli(*ran.words, "-o", str(ran.out), "--format", "json"), ran.out.read_bytes()
    again = cli(*ran.words, "-o", str(ran.out), "--format", "json"), ran.out.read_bytes()
    assert first == again
    cli(*ran.words, "-o", str(ran.out), "--date", "2026-11-29")
    source = tomllib.loads(ran.out.read_text())["calibrated"]["gemm_efficiency"]["source"]
    assert source.startswith("calibrated on 2026-11-29 to run.log")


def test_several_logs_with_their_plans(cli: Cli, ran: Ran) -> None:
    """One plan serves several logs; a plan each is taken in order."""
    two = cli("calibrate", ran.log, ran.log, "--plan", f"{ran.plan}#1", "--format", "json")
    assert len(two.document["runs"]) == 2
    each = cli("calibrate", ran.log, ran.log, "--plan", f"{ran.plan}#1", "--plan", f"{ran.plan}#2", "--format", "json")
    assert each.document["runs"][0]["plan"] != each.document["runs"][1]["plan"]


def test_a_log_of_a_rank_may_hold_memory_alone(cli: Cli, ran: Ran) -> None:
    """Launchers write a file a rank: the last has the steps, the others their memory."""
    other = ran.out.with_name("rank3.log")
    other.write_text(text([written.megatron_memory(3, 30 * GIB, 33 * GIB)]))
    both = cli("calibrate", ran.log, str(other), "--plan", ran.plan, "--format", "json").document
    assert [run["step_time_s"] for run in both["runs"]] == [SECONDS, None]
    alone = cli("calibrate", str(other), "--plan", ran.plan)
    assert (alone.exit_code, alone.stderr) == (
        2,
        "ppadvisor: error: no step time was measured: nothing to calibrate step times with\n",
    )


def test_records_in_place_of_logs(cli: Cli, tmp_path: Path) -> None:
    """Measured runs as records need no plan; those that are not modelled are named in the answer."""
    path, out = tmp_path / "runs.jsonl", tmp_path / "cluster.toml"
    measured = {"step_time_s": 2.0, "peak_allocated_gib": 10.0, "peak_reserved_gib": 11.0}
    path.write_text(lines(sample(measured=measured), sample(id="other", plan={"schedule": "po-h"})))
    result = cli("calibrate", "--records", str(path), "-o", str(out), "--format", "json")
    assert result.exit_code == 0
    assert [one["id"] for one in result.document["skipped"]] == ["other"]
    assert tomllib.loads(out.read_text())["gpu"] == "a100-sxm-80gb"


def wrong(ran: Ran, name: str, content: str) -> str:
    """Another log beside the good one."""
    path = Path(ran.log).with_name(name)
    path.write_text(content)
    return str(path)


CUT = (
    "using world size: 8, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: None, "
)


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        ("", [], "bad.log: is empty, or holds no whole line"),
        ("hello\n", [], "bad.log: holds no step line of Megatron-LM"),
        (text(written.megatron([2.0] * 9, batch=32)), [], "its global batch is 32, the plan's is 64"),
        (
            text(
                [CUT + "tensor-model-parallel size: 2, pipeline-model-parallel size: 2", *written.megatron([2.0] * 9)]
            ),
            [],
            "bad.log: was written with num_gpus 8, the plan has 16",
        ),
        (text([*written.megatron([2.0] * 9), written.megatron_memory(16, GIB, GIB)]), [], "tells of rank 16"),
        (text(written.megatron([2.0])), [], "has one step line, which is its warm-up"),
        (text(written.megatron([2.0] * 9)), ["--framework", "torchtitan"], "--framework megatron"),
        (text(written.megatron([2.0] * 9)), ["--framework", "generic"], "unknown log of framework 'generic'"),
        (text(written.megatron([2.0] * 9)), ["--date", "yesterday"], "--date: got 'yesterday'; needs YYYY-MM-DD"),
        (text(written.megatron([2.0] * 9)), ["--records", "x"], "LOG has no effect beside --records"),
        (text(written.megatron([2.0] * 9)), ["--plan", "a", "--plan", "b"], "--plan: got 3 for 1 logs"),
    ],
)
def test_bad_input_writes_nothing(cli: Cli, ran: Ran, content: str, words: list[str], says: str) -> None:
    """Each mistake is one line on stderr with exit code 2, nothing on stdout, and the file stays as it was."""
    ran.out.write_text("as it was")
    result = cli("calibrate", wrong(ran, "bad.log", content), "--plan", ran.plan, "-o", str(ran.out), *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert ran.out.read_text() == "as it was"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give the LOG of a run with --plan FILE, or --records FILE"),
        (["none.log"], "--plan: got 0 for 1 logs"),
        (["--records", "none.jsonl"], "none.jsonl: no such file"),
        (["none.log", "--plan", "none.json"], "none.json: no such file"),
    ],
)
def test_what_is_missing_is_said(cli: Cli, words: list[str], says: str) -> None:
    """Without a log, a plan or a file that exists: one line, exit code 2."""
    result = cli("calibrate", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


def test_nothing_identified_is_refused(cli: Cli, ran: Ran) -> None:
    """Where the user gave what the run could tell, nothing is left to fit: said in one line, and nothing is written."""
    plan = ran.out.with_name("given.json")
    words = ["--assume", "gemm_efficiency=0.6", "--assume", "allocator_overhead=0.05"]
    cli("plan", *ASKED, *words, "--format", "json", "--output", str(plan))
    result = cli("calibrate", ran.log, "--plan", str(plan), "-o", str(ran.out))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the runs identify no assumption (gemm_efficiency: given by the user" in result.stderr
    assert not ran.out.exists()


def test_a_broken_plan_is_named(cli: Cli, ran: Ran) -> None:
    """A plan file that was edited into another batch is refused by its name."""
    document: dict[str, Any] = json.loads(Path(ran.plan).read_text())
    document["plans"][0]["plan"]["num_microbatches"] += 1
    edited = Path(ran.plan).with_name("edited.json")
    edited.write_text(json.dumps(document))
    result = cli("calibrate", ran.log, "--plan", str(edited))
    assert result.exit_code == 2
    assert "edited.json" in result.stderr
