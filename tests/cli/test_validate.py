"""`ppadvisor validate`: its forms, and what it answers to bad input."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_schema import check
from tests.evidence.samples import lines, sample


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """A file with one run for memory and for fits."""
    path = tmp_path / "runs.jsonl"
    measured = {"peak_allocated_gib": 10.0, "peak_reserved_gib": 11.0, "out_of_memory": False}
    path.write_text(lines(sample(measured=measured, usable_for=["memory", "oom"])))
    return str(path)


def test_a_line_a_source_and_quantity(cli: Cli, runs: str) -> None:
    """The table has the user's source, each quantity and all together, within 80 columns, and the defaults."""
    result = cli("validate", runs)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "memory: 2 numbers of 1 records labelled tests" in result.stdout
    words = [line.split()[:3] for line in result.stdout.splitlines()]
    assert [["own", quantity, "1"] in words for quantity in ("allocated", "reserved")] == [True, True]
    assert ["all", "all", "2"] in words
    assert "plan.recompute = none (1)" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("kind", ["memory", "oom"])
def test_json_follows_its_schema(cli: Cli, runs: str, kind: str) -> None:
    """The document has the promised keys, rows whether or not they were asked for, and validates."""
    document = cli("validate", runs, "--kind", kind, "--format", "json").document
    check(document, "validate")
    assert document["kind"] == kind
    assert document["sources"]["own"] == document["summary"]
    row = document["rows"][0]
    assert {"id", "quantity", "predicted", "measured", "error_fraction", "verdict"} <= set(row)
    if kind == "memory":
        assert row["measured"] == 10 * 2**30
        assert row["error_fraction"] == row["predicted"] / row["measured"] - 1
    else:
        assert (row["verdict"], row["predicted"], row["measured"]) == ("fits", 0.0, 0.0)


def test_the_largest_errors_stand_below(cli: Cli, tmp_path: Path) -> None:
    """Of six peaks of one plan that needs far less, the five furthest away are listed, the worst first."""
    path = tmp_path / "many.jsonl"
    runs = [sample(id=f"run-{number}", measured={"peak_allocated_gib": 100.0 + number}) for number in range(6)]
    path.write_text(lines(*runs))
    for form in ("table", "markdown"):
        text = cli("validate", str(path), "--format", form).stdout
        below = text.partition("The largest errors")[2].split()
        order = list(dict.fromkeys(word for word in below if word.startswith("run-")))
        assert order == ["run-5", "run-4", "run-3", "run-2", "run-1"]
        assert "optimizer_states" in text
    assert "largest errors" not in cli("validate", str(path), "--rows").stdout
    assert "largest errors" not in cli("validate", str(path), "--format", "csv").stdout


def test_megatrons_formula_stands_beside(cli: Cli, runs: str, tmp_path: Path) -> None:
    """In the table of memory and of fits, in csv, and where it is not defined the reason."""
    for kind in ("memory", "oom"):
        text = " ".join(cli("validate", runs, "--kind", kind).stdout.split())
        assert "where it is defined" in text
        scores = cli("validate", runs, "--kind", kind, "--format", "csv").stdout
        assert next(csv.DictReader(io.StringIO(scores)))["megatron_formula.n"] == "1"
    path = tmp_path / "zero3.jsonl"
    path.write_text(lines(sample(training={"optimizer_sharding": "zero3"})))
    text = " ".join(cli("validate", str(path)).stdout.split())
    assert "Megatron's formula is not defined for 1: gradients or weights are divided" in text
    assert "gradients or weights" in cli("validate", str(path), "--rows", "--format", "csv").stdout


@pytest.fixture
def ranked(tmp_path: Path) -> str:
    """A file with two plans for one question, of which the second took half as long."""
    path = tmp_path / "ranked.jsonl"
    plans = {
        "slow": ({"pipeline_parallel": 4, "data_parallel": 1}, 2.0),
        "fast": ({"pipeline_parallel": 1, "data_parallel": 4}, 1.0),
    }
    runs = [
        sample(id=id, plan={**plan, "micro_batch_size": 2}, measured={"step_time_s": time}, usable_for=["time"])
        for id, (plan, time) in plans.items()
    ]
    path.write_text(lines(*runs))
    return str(path)


def test_the_order_of_plans_is_scored(cli: Cli, ranked: str) -> None:
    """`--kind rank` has a line a source with questions, pairs and regret, within 80 columns, and the simple rules."""
    result = cli("validate", ranked, "--kind", "rank")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "rank: 1 groups of records labelled tests" in result.stdout
    words = [line.split()[:4] for line in result.stdout.splitlines()]
    assert ["own", "1", "2", "1"] in words
    assert "random" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_ranking_as_json_follows_its_schema(cli: Cli, ranked: str) -> None:
    """The document of `rank` has the same frame as the other kinds', and a row a question."""
    document = cli("validate", ranked, "--kind", "rank", "--format", "json").document
    check(document, "validate")
    assert document["kind"] == "rank"
    assert document["sources"]["own"] == document["summary"]
    (row,) = document["rows"]
    assert (row["chosen"][0]["id"], row["fastest"]["id"], row["regret_fraction"]) == ("fast", "fast", 0.0)
    assert {"groups", "mean_regret_fraction", "worst_regret_fraction", "kendall_tau"} < document["summary"].keys()
    rules = {"largest_data_parallel", "smallest_bubble", "most_microbatches_a_stage", "random"}
    assert rules < document["summary"]["baselines"].keys()


def test_one_run_has_no_order(cli: Cli, tmp_path: Path) -> None:
    """A single run is no question: that is said in place of an empty table."""
    path = tmp_path / "one.jsonl"
    path.write_text(lines(sample(measured={"step_time_s": 1.0}, usable_for=["time"])))
    result = cli("validate", str(path), "--kind", "rank")
    assert result.exit_code == 0
    assert "Nothing to compare" in result.stdout
    assert "Skipped 1 (own-1): no other plan that ran answers the same question" in result.stdout
    assert "regret:" not in result.stdout


def test_bubbles_in_every_form(cli: Cli, tmp_path: Path) -> None:
    """The unit, percentage points, stands in each table and in the keys of csv and JSON."""
    path = tmp_path / "bubble.jsonl"
    path.write_text(lines(sample(measured={"bubble_fraction": 0.002}, usable_for=["bubble"])))
    args = ("validate", str(path), "--kind", "bubble")
    for form in ("table", "markdown"):
        text = cli(*args, "--format", form).stdout
        assert "[points]" in text
        assert "percentage points" in text
        assert "largest errors" in text
        assert "[points]" in cli(*args, "--rows", "--format", form).stdout
    rows = list(csv.DictReader(io.StringIO(cli(*args, "--format", "csv").stdout)))
    document = cli(*args, "--format", "json").document
    check(document, "validate")
    error = document["rows"][0]["error_points"]
    assert error == pytest.approx(100 * (document["rows"][0]["predicted"] - 0.002))
    assert [float(row["mean_abs_error_points"]) for row in rows] == [error, error]
    assert document["summary"]["bias_points"] == error


def test_parts_of_memory_and_the_fullest_stage(cli: Cli, tmp_path: Path) -> None:
    """The peaks of all stages are lines of kind parts; of kind memory they tell whether we name the fullest."""
    path = tmp_path / "parts.jsonl"
    path.write_text(lines(sample(measured={"peak_allocated_gib": 10.0, "peak_by_stage_gib": [10.0, 9.0, 8.0, 9.0]})))
    assert "Fullest stage named right: 1 of 1 runs" in cli("validate", str(path)).stdout
    words = [line.split() for line in cli("validate", str(path), "--kind", "parts").stdout.splitlines()]
    assert ["own", "each", "stage", "4"] in [line[:4] for line in words]


def test_rows_of_times_stay_within_80_columns(cli: Cli, tmp_path: Path) -> None:
    """With an id as long as the longest that ships, which every line names."""
    path = tmp_path / "time.jsonl"
    run = sample(id="selective_recompute_table5-0011", measured={"step_time_s": 10.0}, usable_for=["time"])
    path.write_text(lines(run))
    text = cli("validate", str(path), "--kind", "time", "--rows").stdout
    assert "selective_recompute_table5-0011" in text
    assert max(map(len, text.splitlines())) <= 80


def test_questions_in_every_form(cli: Cli, ranked: str) -> None:
    """`--rows` names our first choice and the fastest plan of each question."""
    for form in ("table", "markdown"):
        assert "p1 t1 d4 b2, 1 s" in " ".join(
            cli("validate", ranked, "--kind", "rank", "--rows", "--format", form).stdout.split()
        )
    text = cli("validate", ranked, "--kind", "rank", "--rows", "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["chosen_ids"], row["fastest.id"], row["plans"]) for row in rows] == [("fast", "fast", "2")]
    scores = cli("validate", ranked, "--kind", "rank", "--format", "csv").stdout
    assert [row["groups"] for row in csv.DictReader(io.StringIO(scores))] == ["1", "1"]


def test_a_record_follows_its_schema() -> None:
    """The printed schema of a record takes a record."""
    check(sample(), "record")


def test_rows_in_every_form(cli: Cli, runs: str) -> None:
    """`--rows` names each number with its largest terms, as a table, markdown and csv."""
    for form in ("table", "markdown", "csv"):
        text = cli("validate", runs, "--rows", "--format", form).stdout
        assert "own-1" in text
        assert "optimizer_states" in text
    rows = list(csv.DictReader(io.StringIO(cli("validate", runs, "--rows", "--format", "csv").stdout)))
    assert [row["quantity"] for row in rows] == ["allocated", "reserved"]
    assert "verdict" in cli("validate", runs, "--kind", "oom", "--rows").stdout


def test_scores_as_csv(cli: Cli, runs: str) -> None:
    """A line a score, with the keys of the JSON."""
    rows = list(csv.DictReader(io.StringIO(cli("validate", runs, "--kind", "oom", "--format", "csv").stdout)))
    assert [(row["source"], row["right_fraction"], row["fitted.fits"]) for row in rows] == [
        ("own", "1.0", "1"),
        ("all", "1.0", "1"),
    ]


def test_what_is_skipped_is_told(cli: Cli, tmp_path: Path) -> None:
    """A run that is not modelled is no error: it is counted with its reason."""
    path = tmp_path / "runs.jsonl"
    path.write_text(lines(sample(plan={"schedule": "po-h"})))
    result = cli("validate", str(path))
    assert result.exit_code == 0
    assert "Skipped 1 (own-1): schedule po-h: PipeOffload moves activations to the host" in result.stdout
    assert "Nothing to compare" in result.stdout
    assert "source" not in result.stdout
    assert cli("validate", str(path), "--rows").exit_code == 0


def test_the_map_of_frameworks_is_printed(cli: Cli) -> None:
    """`--frameworks` shows what each framework of a record is taken for."""
    rows = cli("validate", "--frameworks", "--format", "json").document["rows"]
    profiles = {row["framework"]: (row["profile"], row["loss"]) for row in rows}
    assert profiles["nemo"] == ("megatron", "native")
    assert profiles["llm-foundry"] == ("torchtitan", "torch")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--kind", "memry"), "unknown kind 'memry'; did you mean 'memory'?"),
        (("--label", "test"), "did you mean 'tests'?"),
        (("--kind", "oom", "--partial"), "--partial: no record is partial for kind oom"),
        (("--frameworks", "--rows"), "--frameworks prints the table of frameworks alone"),
        (("--label", "calibrates"), "no record is usable for memory with label calibrates"),
        (("--kind", "time"), "no record is usable for time with label tests"),
        (("--kind", "rank"), "no record is usable for rank with label tests"),
    ],
)
def test_bad_options_are_one_line(cli: Cli, runs: str, args: tuple[str, ...], message: str) -> None:
    """Wrong names, options without effect and an empty choice are answered on stderr, exit 2."""
    result = cli("validate", runs, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bad_file_is_one_line(cli: Cli, tmp_path: Path) -> None:
    """A missing file and a wrong line are answered with their place."""
    assert "no such file" in cli("validate", str(tmp_path / "none.jsonl")).stderr
    path = tmp_path / "runs.jsonl"
    path.write_text(lines(sample(), sample(id="b", usable_for=["speed"])))
    result = cli("validate", str(path))
    assert result.exit_code == 2
    assert f"{path}, line 2: usable_for.0: got 'speed'" in result.stderr


@pytest.mark.parametrize("args", [("validate",), ("calibrate", "--records")])
def test_a_wrong_name_in_a_record_is_bad_input(cli: Cli, tmp_path: Path, args: tuple[str, ...]) -> None:
    """It is no run that is not modelled: exit 2, with file, line, field and the nearest name, whoever reads records."""
    path = tmp_path / "runs.jsonl"
    path.write_text(lines(sample(), sample(id="b", plan={"schedule": "1f1bb"})))
    result = cli(*args, str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{path}, line 2: plan.schedule: unknown schedule '1f1bb'; did you mean '1f1b'?" in result.stderr
