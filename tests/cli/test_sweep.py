"""`ppadvisor sweep`: the lesson of "Splitting a model across stages", forms of the answer, every way to ask wrongly."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ppadvisor.search.ranking import rank
from ppadvisor.search.sweep import SweepReport
from tests.cli.conftest import Cli, Result

P, MICROBATCHES = 8, (8, 16, 32, 64, 128, 256)
LESSON = (
    "sweep --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 4k --pp 8 --tp 8 --micro-batch 1 "
    "--recompute none --microbatches 8,16,32,64,128,256 --schedule gpipe,1f1b"
)
MACHINES = "--model llama-3.1-8b --gpu h100-sxm-80gb --gpus 8"
SMALL = f"sweep {MACHINES} --seq-len 4k --global-batch 64"

Rows = list[dict[str, Any]]
Ask = Callable[[str], Result]


@pytest.fixture
def ask(cli: Cli) -> Ask:
    """Run the command line of this text."""
    return lambda line: cli(*line.split())


@pytest.fixture
def lesson(ask: Ask) -> Rows:
    """The rows of the lesson."""
    result = ask(f"{LESSON} --format json")
    assert result.exit_code == 0
    rows: Rows = result.document["rows"]
    return rows


def of_schedule(rows: Rows, schedule: str) -> Rows:
    """The rows of one schedule, m ascending."""
    return [row for row in rows if row["schedule"] == schedule]


def test_the_lesson_bubble(lesson: Rows) -> None:
    """The bubble falls with m in both schedules and stays above (p − 1)/(m + p − 1), which equal stages would have.

    That is a bound: a makespan is at least one micro-batch through all stages and m − 1 more on the heaviest. The
    last stage, with the head, and the links cost some more: here never over 8 points.
    """
    for schedule in ("gpipe", "1f1b"):
        rows = of_schedule(lesson, schedule)
        assert [row["num_microbatches"] for row in rows] == list(MICROBATCHES)
        bubbles = [row["bubble_fraction"] for row in rows]
        assert bubbles == sorted(bubbles, reverse=True)
        for m, bubble in zip(MICROBATCHES, bubbles, strict=True):
            formula = (P - 1) / (m + P - 1)
            assert formula <= bubble < formula + 0.08


def test_the_lesson_memory(lesson: Rows) -> None:
    """GPipe holds m micro-batches: its peak grows with m, and past m = 16 no plan fits. 1F1B holds min(m, p): it always
    fits, and from m = p on its memory stays (plans with the same layers on each stage need the same to the byte).
    """
    gpipe, one_f_one_b = of_schedule(lesson, "gpipe"), of_schedule(lesson, "1f1b")
    peaks = [row["peak_bytes"] for row in gpipe]
    assert peaks == sorted(set(peaks))
    assert peaks[-1] > 10 * peaks[0]
    assert [row["fits"] for row in gpipe] == [m <= 16 for m in MICROBATCHES]
    assert {row["reason_code"] for row in gpipe if not row["fits"]} == {"memory"}
    assert all(row["fits"] for row in one_f_one_b)
    by_split: dict[tuple[int, ...], set[int]] = {}
    for row in one_f_one_b:
        by_split.setdefault(tuple(row["layers_per_stage"]), set()).add(row["peak_bytes"])
    assert all(len(same) == 1 for same in by_split.values())
    least, most = (pick(row["peak_bytes"] for row in one_f_one_b) for pick in (min, max))
    assert most < 1.1 * least
    assert most <= peaks[0] * 1.01


def test_the_batch_follows_the_microbatches(lesson: Rows) -> None:
    """p t = 64 of 64 GPUs leaves d = 1; with b = 1 the batch is B = d b m = m."""
    assert all(row["global_batch_size"] == row["num_microbatches"] for row in lesson)
    assert all((row["data_parallel"], row["context_parallel"]) == (1, 1) for row in lesson)


@pytest.mark.parametrize(
    ("pins", "batch"),
    [
        ("--pp 4 --tp 1 --cp 1 --micro-batch 2 --microbatches 8", 2 * 2 * 8),
        ("--dp 4 --micro-batch 2 --microbatches 8", 4 * 2 * 8),
        ("--pp 2 --tp 4 --micro-batch 1 --microbatches 8", 8),
    ],
)
@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_a_batch_that_the_pins_determine(ask: Ask, command: str, pins: str, batch: int) -> None:
    """On 8 GPUs d is as pinned, or 8/(p t c), and B = d b m."""
    document = ask(f"{command} {MACHINES} --seq-len 4k {pins} --format json").document
    found = document["problem"]["training"] if command == "plan" else document["rows"][0]
    assert found["global_batch_size"] == batch


def test_the_axes_and_their_product(ask: Ask) -> None:
    """Lists of more than one value are axes, in the order of the option table, the last one running fastest."""
    pins = "--schedule 1f1b,naive --pp 2,4 --tp 2,2"
    document = ask(f"{SMALL} {pins} --inter-node-bandwidth 100Gb/s,400Gb/s --format json").document
    axes = document["axes"]
    assert list(axes.items()) == [
        ("inter_node_bandwidth_bytes_per_s", [12.5e9, 50e9]),
        ("pipeline_parallel", [2, 4]),
        ("schedule", ["1f1b", "naive"]),
    ]
    assert [tuple(row[name] for name in axes) for row in document["rows"]] == list(itertools.product(*axes.values()))
    assert all(list(row)[:3] == list(axes) for row in document["rows"])
    assert document["fixed"] == {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm-80gb",
        "num_gpus": 8,
        "sequence_length": 4096,
        "global_batch_size": 64,
        "framework": "megatron",
        "tensor_parallel": 2,
    }


def test_a_batch_axis_in_tokens(ask: Ask) -> None:
    """Batches given in tokens are the axis `tokens_per_step`; each row says how many sequences that is."""
    batches = "--seq-len 4k,8k --global-batch 512ktok,1Mtok"
    document = ask(f"sweep {MACHINES} {batches} --pp 2 --format json").document
    assert document["axes"]["tokens_per_step"] == [2**19, 2**20]
    assert [row["global_batch_size"] for row in document["rows"]] == [128, 256, 64, 128]


def test_json_is_what_the_types_say(ask: Ask) -> None:
    """The document is a `SweepReport`, for rows with and without a plan; an axis value is never missing."""
    for line in (LESSON, f"{SMALL} --pp 2,3,100"):
        text = ask(f"{line} --format json").stdout
        assert SweepReport.model_validate_json(text).model_dump(mode="json") == json.loads(text)
    document = json.loads(text)
    document["rows"][0]["num_gpus"] = None
    with pytest.raises(ValidationError):
        SweepReport.model_validate(document)


def test_csv_has_the_keys_of_json(ask: Ask, lesson: Rows) -> None:
    """The columns of csv are the keys of a row in json and what its document says once; the numbers are the same."""
    rows = list(csv.DictReader(io.StringIO(ask(f"{LESSON} --format csv").stdout)))
    assert list(rows[0]) == [*lesson[0], "model_version", "question", "row_digest"]
    assert [float(row["bubble_fraction"]) for row in rows] == [row["bubble_fraction"] for row in lesson]
    assert [row["fits"] == "true" for row in rows] == [row["fits"] for row in lesson]
    assert [json.loads(row["layers_per_stage"]) for row in rows] == [row["layers_per_stage"] for row in lesson]


def test_the_table_for_people(ask: Ask) -> None:
    """80 columns hold it; axes come first, what all points share stands above, the note on the trainer comes once."""
    result = ask(LESSON)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Sweep     12 points: num_microbatches 8,16,32,64,128,256; schedule gpipe,1f1b" in lines
    assert "All plans d 1" in lines
    words = [line.split() for line in lines]
    assert ["#", "m", "schedule", "[s]", "MFU", "bubble", "[GiB]", "stage", "[GiB]", "verdict"] in words
    assert any(line[:3] == ["5", "32", "gpipe"] and line[-3:] == ["does", "not", "fit"] for line in words)
    assert "8 of 12 points have a plan that fits." in lines
    assert result.stderr == "ppadvisor: note: megatron does not run gpipe; taking --framework generic\n"


def test_reasons_stand_below_the_table(ask: Ask) -> None:
    """What keeps points from having a plan is said once for all of them, by their numbers."""
    result = ask(f"{SMALL} --pp 2,3,64 --recompute full,none --format markdown")
    assert result.exit_code == 0
    assert "\n| 3 | 3 | full | - |" in result.stdout
    assert "\n- #3, #4: the pins cannot multiply to 8 GPUs (pipeline_parallel = 3" in result.stdout
    assert "\n- #5, #6: pipeline_parallel: got 64, but Llama 3.1 8B has 32 layers" in result.stdout
    assert "\n- 2 of 6 points have a plan that fits.\n" in result.stdout


def test_many_points_of_one_reason_are_counted(ask: Ask) -> None:
    """A note lists six points and counts the others."""
    result = ask(f"{SMALL} --pp 1,3 --micro-batch 1,2,4,8 --recompute full,none")
    assert "#9, #10, #11, #12, #13, #14 and 2 more: the pins cannot multiply to 8 GPUs" in result.stdout


def test_what_contradicts_at_a_point_is_a_row(ask: Ask) -> None:
    """B = 64 on p = 2, t = 4 with b = 1 is m = 64: the point with m = 32 says so, the other one has its plan."""
    result = ask(f"{SMALL} --pp 2 --tp 4 --micro-batch 1 --microbatches 32,64 --format json")
    first, second = result.document["rows"]
    assert (result.exit_code, first["fits"], second["fits"]) == (0, False, True)
    assert first["reason_code"] == "contradiction"
    assert first["reason"].startswith("num_microbatches: pinned 32 contradicts m = B / (d b) with B = 64")


def test_no_point_fits(ask: Ask) -> None:
    """A 405B model on 8 GPUs has no plan that fits, whatever the batch: exit 3, and the rows are still printed."""
    machines = MACHINES.replace("llama-3.1-8b", "llama-3.1-405b")
    result = ask(f"sweep {machines} --seq-len 4k --global-batch 8,16 --format json")
    assert result.exit_code == 3
    assert [row["verdict"] for row in result.document["rows"]] == ["does_not_fit"] * 2


def test_a_given_framework_stays(ask: Ask) -> None:
    """With --framework the points of a schedule that it does not run say so, and nothing is taken in its place."""
    result = ask(f"{SMALL} --framework megatron --schedule gpipe,1f1b --format json")
    gpipe, one_f_one_b = result.document["rows"]
    assert (gpipe["reason_code"], one_f_one_b["fits"], result.stderr) == ("contradiction", True, "")
    assert "not run by megatron" in gpipe["reason"]


def test_a_sweep_from_a_job_file(ask: Ask, tmp_path: Path) -> None:
    """Lists in a job file are axes, and the same input gives the same bytes, run after run."""
    job = tmp_path / "job.toml"
    job.write_text(
        'model = "llama-3.1-8b"\ngpu = "h100-sxm-80gb"\ngpus = 8\nseq_len = "4k"\nglobal_batch = 64\n'
        "pp = [2, 4]\ndropout = false\n[assumptions]\nworkspace_bytes = 5e8\n"
    )
    from_job = ask(f"sweep --job {job} --format json")
    line = f"{SMALL} --pp 2,4 --no-dropout --assume workspace_bytes=5e8 --format json"
    assert from_job.stdout == ask(line).stdout == ask(line).stdout
    assert from_job.document["assumptions"] == {"workspace_bytes": 5e8}
    assert from_job.document["fixed"]["dropout"] is False


def test_the_margin_decides_what_fits(ask: Ask) -> None:
    """Under a margin below the smallest peak nothing fits, though every plan would fit into the whole memory."""
    result = ask(f"{SMALL} --pp 2,4 --margin 1% --format json")
    assert (result.exit_code, result.document["margin_fraction"]) == (3, 0.01)


def test_ctrl_c_leaves_nothing_half_written(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends a sweep with 130; the file that was to be replaced is as it was, and the rows are beside it."""
    asked = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return rank(*args, **kwargs)

    monkeypatch.setattr("ppadvisor.search.shared.rank", interrupted)
    target = tmp_path / "rows.csv"
    target.write_text("earlier\n")
    result = ask(f"{SMALL} --pp 1,2,4 --jobs 1 --format csv --output {target}")
    assert (result.exit_code, result.stdout, len(asked)) == (130, "", 2)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.partial.csv", "rows.csv"}
    assert target.read_text() == "earlier\n"
    whole = ask(f"{SMALL} --pp 1,2,4 --format csv --jobs 1").stdout
    assert (tmp_path / "rows.partial.csv").read_text() == "".join(whole.splitlines(keepends=True)[:2])
    assert result.stderr == f"ppadvisor: note: interrupted: 1 of 3 points are in '{tmp_path}/rows.partial.csv'\n"


def test_progress_is_shown_on_a_terminal_only(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on stderr sees a progress bar; the answer on stdout is the same without one."""
    line = f"{SMALL} --pp 2,4 --format csv"
    plain = ask(line)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = ask(line)
    assert (plain.stderr, shown.stdout) == ("", plain.stdout)
    assert "points" in shown.stderr


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("--model llama-3.1-8b,lama-3", "unknown model 'lama-3'; did you mean"),
        ("--model llama-3.1-8b,./none/config.json", "none/config.json: no such file"),
        ("--gpu h100-sxm-80gb,h100-sxm-80", "--gpu: h100-sxm-80gb is given twice"),
        ("--gpu h100-sxm-80gb,h1000", "unknown gpu 'h1000'; did you mean"),
        ("--gpu h100", "gpu 'h100' is ambiguous"),
        ("--framework megatron,megatrom", "--framework: unknown framework 'megatrom'; did you mean 'megatron'?"),
        ("--optimizer adam,adamm", "--optimizer: unknown optimizer 'adamm'; did you mean 'adam'?"),
        ("--schedule 1f1b,gpip", "--schedule: unknown schedule 'gpip'; did you mean 'gpipe'?"),
        ("--recompute full,ful", "--recompute: unknown recompute 'ful'; did you mean 'full'?"),
        ("--attention flash,slow", "--attention: unknown attention kernel 'slow'"),
        ("--inter-node-bandwidth 100Gb/s,400", "--inter-node-bandwidth: '400' has no unit"),
        ("--seq-len 4k,", "--seq-len: '4k,' has an empty item"),
        ("--pp 2,0", "--pp: '0' must be above zero"),
        ("--global-batch 64,1Mtok", "--global-batch: give either all values in sequences or all in tokens"),
        ("--assume gemm_eficiency=0.5", "unknown assumption 'gemm_eficiency'; did you mean 'gemm_efficiency'?"),
        ("--layers 3", "--layers has no effect beside --model"),
        ("--pp 3", "error: the pins cannot multiply to 8 GPUs"),
        ("--pp 3,5", "error: every point contradicts itself; the first: the pins cannot multiply to 8 GPUs"),
        ("--top 3", "no such option '--top'"),
    ],
)
def test_what_is_wrong_with_every_point_ends_the_command(ask: Ask, changed: str, message: str) -> None:
    """One line on stderr, exit 2, nothing on stdout."""
    result = ask(f"{SMALL} {changed}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["--model", "--gpu", "--gpus", "--seq-len", "--global-batch"])
def test_a_missing_option_is_named(ask: Ask, missing: str) -> None:
    """What no point can do without is an error of the command."""
    before, _, after = f"{SMALL} --pp 2,4".partition(f"{missing} ")
    result = ask(before + after.partition(" ")[2])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"error: {missing} is missing" in result.stderr
