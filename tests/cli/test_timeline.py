"""`ppadvisor timeline`: of bare numbers, of a plan, into files; every way to ask wrongly."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ppadvisor.cli.main import main
from tests.cli.conftest import Cli
from tests.test_architecture import imported_by

SMALL = "--schedule 1f1b --pp 2 --microbatches 2"
PROBLEM = "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 8 --seq-len 1024 --global-batch 32 --micro-batch 1"
ASKED = f"{PROBLEM} --pp 8"
"""Eight stages, one GPU each, m = 32."""
TOO_LARGE = "--model llama-3.1-405b --gpu a100-sxm-80gb --gpus 8 --seq-len 8k --global-batch 8"
ILLEGAL = (
    "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 24 --gpus-per-node 3 --seq-len 1024 --global-batch 32 --tp 3"
)
"""16 heads are not divisible by t = 3."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JSON of `plan` for `ASKED`."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", *ASKED.split(), "--format", "json", "--output", str(path)]) == 0
    return path


def document_of(cli: Cli, arguments: str) -> Any:
    """The JSON that these arguments answer with."""
    result = cli("timeline", *arguments.split(), "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.document


# --- bare numbers -----------------------------------------------------------------------------------------------------


def test_a_page_by_hand(cli: Cli) -> None:
    """1F1B, p = m = 2 in 80 columns: drawing, axis, legend, totals and idle time by cause, all by hand."""
    assert cli("timeline", *SMALL.split()).stdout == (
        "1F1B, p = 2, m = 2; one stage: F 1 s, B 2 s; hand-off 0 s\n"
        "\n"
        "rank\n"
        "   0 F0======F1======................B0==============........B1==============\n"
        "   1 ........F0======B0==============F1======B1==============................\n"
        "     |0 s    |1      |2      |3      |4      |5      |6      |7      |8\n"
        "F forward; B backward; = goes on; number: micro-batch; . idle; a column: 0.125 s\n"
        "\n"
        "Makespan  9 s, of which a rank works 6 s on average\n"
        "Bubble    33.3 % of the makespan; 33.3 % in span (a rank's first to last action)\n"
        "In flight at most 2 micro-batches, on rank 0\n"
        "\n"
        "Idle time by cause\n"
        "                                              upstream  downstream  link      in\n"
        "rank  busy [s]    idle  fill [s]  drain [s]        [s]         [s]   [s]  flight\n"
        "────────────────────────────────────────────────────────────────────────────────\n"
        "   0         6  33.3 %         0          0          0           3     0       2\n"
        "   1         6  33.3 %         1          2          0           0     0       1\n"
    )


def test_the_document(cli: Cli) -> None:
    """The JSON holds what the contract names, every action with its times, and follows its printed schema."""
    document = document_of(cli, SMALL)
    assert {"format_version", "model_version"} <= document.keys()
    assert (document["schedule"], document["makespan_s"]) == ("1f1b", 9.0)
    assert document["bubble_fraction"] == document["bubble_in_span_fraction"] == pytest.approx(1 / 3)
    assert document["times"] == {"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 1.0, "handoff_s": 0.0}
    first = document["ranks"][0]
    assert first["in_flight_microbatches"] == 2.0
    assert first["idle_s"] == {"fill": 0.0, "drain": 0.0, "upstream": 0.0, "downstream": 3.0, "link": 0.0}
    shared = {"chunk": 0, "stage": 0}
    assert first["actions"] == [
        {"kind": "F", "microbatch": 0, "start_s": 0.0, "end_s": 1.0} | shared,
        {"kind": "F", "microbatch": 1, "start_s": 1.0, "end_s": 2.0} | shared,
        {"kind": "B", "microbatch": 0, "start_s": 4.0, "end_s": 6.0} | shared,
        {"kind": "B", "microbatch": 1, "start_s": 7.0, "end_s": 9.0} | shared,
    ]
    assert first["idle_intervals"][0] == {"cause": "downstream", "start_s": 2.0, "end_s": 4.0}
    Draft202012Validator(cli("schema", "timeline").document).validate(document)


@pytest.mark.parametrize(
    ("name", "makespan_s", "in_flight"),
    [
        # torch 2.13's own orders replayed by another program, F = I = W = 1 a chunk; p = 4, m = 8
        ("gpipe", 33.0, [8, 8, 8, 8]),
        ("1f1b", 33.0, [4, 3, 2, 1]),
        ("interleaved-1f1b", 57.0, [5.5, 4.5, 3.5, 2.5]),
        ("interleaved-zero-bubble", 51.0, [4, 4, 4, 4]),
        ("zb-v", 51.0, [4, 4, 4, 4]),
        ("dualpipev", 54.0, [4.5, 4.5, 4.5, 4.5]),
    ],
)
def test_totals(cli: Cli, name: str, makespan_s: float, in_flight: list[float]) -> None:
    """Makespan and peaks are those that an independent simulator found; work and idle time add up to the makespan."""
    chunks = "--vp 2" if name.startswith("interleaved") else ""
    document = document_of(cli, f"--schedule {name} --pp 4 --microbatches 8 {chunks}")
    assert document["makespan_s"] == makespan_s
    assert [rank["in_flight_microbatches"] for rank in document["ranks"]] == in_flight
    for rank in document["ranks"]:
        assert rank["busy_s"] + sum(rank["idle_s"].values()) == pytest.approx(makespan_s)
        assert len(rank["actions"]) == len({(a["kind"], a["chunk"], a["microbatch"]) for a in rank["actions"]})


def test_times_of_one_chunk(cli: Cli) -> None:
    """Times are those of a chunk, in seconds or with their unit; B is both gradients where they are not split."""
    whole = document_of(cli, f"{SMALL} --t-f 1ms --t-b 0.5ms --t-w 1500us")
    assert whole["makespan_s"] == pytest.approx(0.009)
    linked = document_of(cli, f"{SMALL} --t-comm 0.5")
    assert linked["makespan_s"] == 10.0  # by hand: F0 and a hand-off 1.5, F B F B of rank 1 6, a hand-off and B1 2.5
    half = document_of(cli, "--schedule interleaved-1f1b --pp 2 --vp 2 --microbatches 2 --t-f 0.5 --t-b 0.5 --t-w 0.5")
    assert half["makespan_s"] == 7.5  # torch's order: 15 with 1 s each


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-v", "dualpipev", "1f1b"])
def test_eighty_columns(cli: Cli, name: str) -> None:
    """Piped, no line is wider than 80 columns and there is no colour."""
    for times in ("", "--t-f 3ms --t-b 4.1ms --t-w 2.7ms --t-comm 0.4ms"):
        text = cli("timeline", *f"--schedule {name} --pp 4 --microbatches 8 {times}".split()).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "\x1b" not in text


def test_csv_and_markdown(cli: Cli) -> None:
    """CSV has a row a rank with raw seconds, markdown the same table under the totals."""
    table = list(csv.DictReader(io.StringIO(cli("timeline", *SMALL.split(), "--format", "csv").stdout)))
    assert [(row["rank"], row["busy_s"], row["idle_s.drain"]) for row in table] == [
        ("0", "6.0", "0.0"),
        ("1", "6.0", "2.0"),
    ]
    text = cli("timeline", *SMALL.split(), "--format", "markdown").stdout
    assert "- Bubble 33.3 % of the makespan; 33.3 % in span" in text
    assert "| rank | busy [s] | idle | fill [s] | drain [s] |" in text
    assert "| 1 | 6 | 33.3 % | 1 | 2 | 0 | 0 | 0 | 1 |" in text


def test_an_asynchronous_schedule_is_marked(cli: Cli) -> None:
    """What never drains in a run is drawn with both ends, and says so."""
    text = cli("timeline", *SMALL.replace("1f1b", "pipedream").split()).stdout
    assert "asynchronous: drawn from an empty pipeline to an empty one" in text


# --- files ------------------------------------------------------------------------------------------------------------


def test_all_files_at_once(cli: Cli, tmp_path: Path) -> None:
    """Each option writes its file beside the answer on stdout, the same bytes each time."""
    words = [
        *SMALL.split(),
        *(word for kind in ("svg", "html", "trace", "csv") for word in (f"--{kind}", f"{tmp_path}/{kind}")),
    ]
    alone = cli("timeline", *SMALL.split()).stdout
    assert cli("timeline", *words).stdout == alone
    first = {name: (tmp_path / name).read_bytes() for name in sorted(os.listdir(tmp_path))}
    assert list(first) == ["csv", "html", "svg", "trace"]
    assert first["csv"] == b"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert first["svg"].startswith(b"<svg ")
    assert first["html"].startswith(b"<!doctype html>")
    assert json.loads(first["trace"])["traceEvents"]
    cli("timeline", *words)
    assert first == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}


@pytest.mark.parametrize("kind", ["svg", "html", "trace", "csv", "output"])
def test_a_folder_that_is_not_there(cli: Cli, tmp_path: Path, kind: str) -> None:
    """A place that cannot be written is one line that names the option; nothing is written, not even what could be."""
    good = "csv" if kind == "svg" else "svg"
    words = [*SMALL.split(), f"--{kind}", f"{tmp_path}/missing/file", f"--{good}", f"{tmp_path}/good"]
    result = cli("timeline", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--{kind}: cannot write" in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_help_is_light() -> None:
    """The help imports no library that takes time but click."""
    modules = imported_by("from ppadvisor.cli.main import main; main(['timeline', '--help'])")
    assert not modules & {"numpy", "pydantic", "rich", "yaml"}


# --- a plan -----------------------------------------------------------------------------------------------------------


def test_a_plan_of_a_file(cli: Cli, saved: Path) -> None:
    """FILE#2 draws the second plan: its bubble and makespan are those of `plan`, its activations are in bytes."""
    second = json.loads(saved.read_text())["plans"][1]
    document = document_of(cli, f"{saved}#2")
    assert document["plan"] == second["plan"]
    assert document["makespan_s"] == second["time"]["pipeline_s"]
    assert document["bubble_fraction"] == pytest.approx(second["time"]["bubble_fraction"])
    assert document["times"] is None
    for rank, stage in zip(document["ranks"], second["memory"]["stages"], strict=True):
        assert rank["in_flight_microbatches"] == stage["in_flight_microbatches"]
        assert rank["activations_peak_bytes"] > 0
    Draft202012Validator(cli("schema", "timeline").document).validate(document)


def test_bytes_are_those_of_the_plan(cli: Cli, saved: Path) -> None:
    """Where all micro-batches are alive at the peak, their bytes are the saved activations that `plan` shows."""
    first = json.loads(saved.read_text())["plans"][0]
    assert first["plan"]["schedule"] == "1f1b"
    peaks = [rank["activations_peak_bytes"] for rank in document_of(cli, str(saved))["ranks"]]
    kept = [(s["moment"], s["terms"]["saved_activations"]) for s in first["memory"]["stages"]]
    checked = [(peak, term) for peak, (moment, term) in zip(peaks, kept, strict=True) if moment == "layer_backward"]
    assert checked
    assert [peak for peak, _ in checked] == pytest.approx([term for _, term in checked], rel=1e-6)


def test_options_and_a_file_give_the_same_bytes(cli: Cli, saved: Path) -> None:
    """`--rank N` of the same options is plan N of the file."""
    searched = cli("timeline", *ASKED.split(), "--rank", "2", "--format", "json")
    assert searched.exit_code == 0
    assert searched.stdout == cli("timeline", f"{saved}#2", "--format", "json").stdout


def test_the_page_of_a_plan(cli: Cli, saved: Path) -> None:
    """What it is a timeline of stands above it, the bytes of activations in the table, all in 80 columns."""
    text = cli("timeline", str(saved)).stdout
    assert text.startswith("Model     GPT-2 medium")
    assert "activations at most" in text
    assert "activations [GiB]" in text
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_fits(cli: Cli) -> None:
    """Where no plan fits the nearest miss is drawn; exit 3, with the document."""
    result = cli("timeline", *TOO_LARGE.split(), "--format", "json")
    assert result.exit_code == 3
    assert "no plan fits; the nearest miss is drawn" in result.stderr
    assert result.document["makespan_s"] > 0


def test_nothing_is_legal(cli: Cli, tmp_path: Path) -> None:
    """Where no plan is legal the answer says why in every format and no figure is written; exit 3."""
    result = cli("timeline", *ILLEGAL.split(), "--format", "json", "--svg", f"{tmp_path}/a.svg")
    assert result.exit_code == 3
    assert result.document["plan"] is None
    assert "16 attention heads are not divisible" in result.document["note"]
    assert "Nothing to draw: no plan is legal" in cli("timeline", *ILLEGAL.split()).stdout
    assert cli("timeline", *ILLEGAL.split(), "--format", "csv").stdout.startswith("rank,busy_s,")
    assert os.listdir(tmp_path) == []
    Draft202012Validator(cli("schema", "timeline").document).validate(result.document)


# --- asked wrongly ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give a file that `plan --format json` wrote, the options of `plan`, or --schedule"),
        ("--schedule 1fb1 --pp 2 --microbatches 2", "unknown schedule '1fb1'; did you mean '1f1b'?"),
        ("--pp 2 --microbatches 2", "--schedule is missing"),
        ("--schedule 1f1b --pp 2", "--microbatches is missing"),
        ("--schedule 1f1b --pp 2,4 --microbatches 2", "--pp: a timeline is of one value; got 2,4"),
        ("--schedule dualpipev --pp 4 --microbatches 4", "num_microbatches must be at least 2 x pipeline_parallel"),
        ("--schedule zb-v --pp 4 --microbatches 8 --vp 3", "schedule zb-v: virtual_stages must be 2: got 3"),
        ("--schedule naive --pp 4 --microbatches 8", "schedule naive"),
        (f"{SMALL} --t-f -1", "--t-f: '-1' must not be negative"),
        (f"{SMALL} --t-b nan", "--t-b: 'nan' is not a quantity"),
        (f"{SMALL} --t-comm 1d", "--t-comm: '1d' has the wrong unit 'd'; allowed: a time"),
        (f"{SMALL} --t-f 0 --t-b 0 --t-w 0", "all times of the order's actions are 0"),
        (f"{SMALL} --t-f 1 --model gpt2-124m", "--t-f and --model contradict each other"),
        (f"{SMALL} --tp 2", "--tp belongs to a plan, which needs a model and GPUs"),
        ("{file} --t-f 1", "--t-f has no effect beside a file"),
        ("{file} --pp 8", "--pp has no effect beside a file"),
        ("missing.json", "no such file"),
        ("--schedule 1f1b --pp 4 --microbatches 1000000", "is too large; allowed: 1,000,000"),
        ("--schedule 1f1b --pp 16 --microbatches 4000 --svg {folder}/a.svg", "--svg: 128,000 actions are too many"),
        ("--schedule chimera --pp 4 --microbatches 4 --csv {folder}/a.csv", "--csv: torch.distributed.pipelining"),
        (f"{SMALL} --svg {{folder}}/a --html {{folder}}/a", "--svg and --html both name"),
    ],
)
def test_asked_wrongly(cli: Cli, saved: Path, tmp_path: Path, arguments: str, message: str) -> None:
    """Each wrong or contradicting option is one line on stderr; exit 2, nothing on stdout, no file."""
    result = cli("timeline", *arguments.format(file=saved, folder=tmp_path).split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_job_file_of_bare_numbers(cli: Cli, tmp_path: Path) -> None:
    """The numbers may stand in a job file, and options win."""
    path = tmp_path / "job.toml"
    path.write_text('schedule = "1f1b"\npp = 2\nmicrobatches = 4\nt_f = 1\nt_comm = "0s"\n')
    told = cli("timeline", *SMALL.split(), "--format", "json").stdout
    assert cli("timeline", "--job", str(path), "--microbatches", "2", "--format", "json").stdout == told
