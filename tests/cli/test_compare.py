"""`ppadvisor explain A B`: two plans of files side by side, and every way to ask wrongly."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Save

ASKED = "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 8 --seq-len 1024 --global-batch 32"
TOO_LARGE = "--model llama-3.1-405b --gpu a100-sxm-80gb --gpus 8 --seq-len 8k --global-batch 8"


@pytest.fixture(scope="module")
def deep(save: Save) -> Path:
    """Plans of eight stages."""
    return save(f"{ASKED} --pp 8 --micro-batch 1")


@pytest.fixture(scope="module")
def shallow(save: Save) -> Path:
    """Plans of two stages for the same question."""
    return save(f"{ASKED} --pp 2")


def plans_of(path: Path) -> list[dict[str, Any]]:
    """The estimates that `plan` wrote."""
    plans: list[dict[str, Any]] = json.loads(path.read_text())["plans"]
    return plans


def test_two_plans_of_two_files(cli: Cli, deep: Path, shallow: Path) -> None:
    """Each side is the plan of its file with the times and the peak that `plan` wrote for it."""
    result = cli("explain", f"{deep}#2", str(shallow), "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    written = plans_of(deep)[1], plans_of(shallow)[0]
    for side, estimate in zip("ab", written, strict=True):
        shown = result.document[side]
        assert shown["plan"] == estimate["plan"]
        assert shown["step_time_s"] == estimate["time"]["step_time_s"]
        assert shown["memory"]["peak_bytes"] == estimate["memory"]["peak_bytes"]
        parts = {f"{part['name']}_s": part[f"{side}_s"] for part in result.document["parts"]}
        # `plan` has them from a table of several plans, whose sums numpy may round otherwise
        assert parts == pytest.approx(estimate["time"]["terms"], rel=1e-12, abs=1e-15)


def test_what_is_said_of_the_gap(cli: Cli, deep: Path, shallow: Path) -> None:
    """Who is faster and by which share follows from the times that `plan` wrote; then how sure, then what binds."""
    document = cli("explain", str(deep), str(shallow), "--format", "json").document
    times = [plans_of(path)[0]["time"]["step_time_s"] for path in (deep, shallow)]
    letter = "A" if times[0] < times[1] else "B"
    gap, sure, memory = document["summary"]
    assert gap.startswith(f"{letter} is {100 * (1 - min(times) / max(times)):.1f} % faster (")
    assert f"{letter} is the faster one in " in sure
    assert "A binds at stage " in memory


def test_two_plans_of_one_file(cli: Cli, deep: Path) -> None:
    """Both may be of the same file, and the same words give the same bytes."""
    runs = [cli("explain", f"{deep}#1", f"{deep}#2", "--format", "json") for _ in range(2)]
    assert runs[0] == runs[1]
    assert [runs[0].document[side]["plan"] for side in "ab"] == [one["plan"] for one in plans_of(deep)[:2]]


def test_the_page_for_people(cli: Cli, deep: Path, shallow: Path) -> None:
    """80 columns, no colour, both plans, bars of both beside each part, stages and terms of both."""
    page = cli("explain", str(deep), str(shallow)).stdout
    assert max(map(len, page.splitlines())) <= 80
    assert "\x1b" not in page
    for words in ("\nA         p=8 ", "\nB         p=2 ", "Where a step goes", "Stages, each", "The stages that bind"):
        assert words in page
    (compute,) = (line for line in page.splitlines() if line.startswith("compute"))
    assert len([word for word in compute.split() if word.startswith("█")]) == 2


def test_markdown_and_csv(cli: Cli, deep: Path, shallow: Path) -> None:
    """Markdown has the tables; CSV a row a part of the step, a stage, and a term of the stages that bind."""
    assert "| part | A | B | B - A |" in cli("explain", str(deep), str(shallow), "--format", "markdown").stdout
    text = cli("explain", str(deep), str(shallow), "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    first = plans_of(deep)[0]
    assert [row["stage"] for row in rows if row["part"] == "stage"] == [str(stage) for stage in range(8)]
    assert {row["name"] for row in rows if row["part"] == "binding_stages"} == set(
        first["memory"]["stages"][0]["terms"]
    )
    times = {f"{row['name']}_s": float(row["a_s"]) for row in rows if row["part"] == "time"}
    assert times == first["time"]["terms"]


@pytest.mark.parametrize(
    ("options", "stages"),
    [([], {0, 1, 7}), (["--all-stages"], set(range(8))), (["--stage", "3"], {3})],
)
def test_stages_shown(cli: Cli, deep: Path, shallow: Path, options: list[str], stages: set[int]) -> None:
    """Tables show first, binding and last stages of both plans unless told otherwise; JSON has all."""
    binding = {plans_of(path)[0]["memory"]["binding_stage"] for path in (deep, shallow)}
    page = cli("explain", str(deep), str(shallow), *options).stdout
    lines = page.partition("* binds")[2].partition("The stages that bind")[0].splitlines()[3:]
    assert {int(line.split()[0]) for line in lines if line.strip()} == (stages if options else stages | binding)
    document = cli("explain", str(deep), str(shallow), "--format", "json").document
    assert len(document["stages"]) == 8


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (ASKED.replace("355m", "355m --assume hbm_efficiency=0.7"), "assumptions.hbm_efficiency.value 0.8 and 0.7"),
        (ASKED.replace("batch 32", "batch 64"), "training.global_batch_size 32 and 64"),
        (ASKED.replace("len 1024", "len 512"), "training.sequence_length 1024 and 512"),
        (ASKED.replace("gpus 8", "gpus 4"), "cluster 8 x NVIDIA A100 SXM4 80 GB and 4 x NVIDIA A100 SXM4 80 GB"),
        (ASKED.replace("gpt2-medium-355m", "gpt2-124m"), "model GPT-2 medium"),
        (f"{ASKED} --framework generic", "training.framework megatron and generic"),
        (f"{ASKED} --intra-node-bandwidth 100GB/s", "cluster.intra_node_bandwidth_bytes_per_s 300000000000.0 and 1"),
    ],
)
def test_other_questions_are_not_compared(cli: Cli, save: Save, shallow: Path, options: str, named: str) -> None:
    """Plans for another model, cluster, run or other assumptions: one line that names both files and what differs."""
    other = save(f"{options} --pp 2 --micro-batch 1")
    result = cli("explain", str(shallow), str(other))
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr
    assert str(shallow) in result.stderr
    assert str(other) in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_only_describes_is_no_difference(cli: Cli, shallow: Path, tmp_path: Path) -> None:
    """Another name or source of the same numbers is the same question."""
    document = json.loads(shallow.read_text())
    document["problem"]["model"] |= {"name": "mine", "source": "elsewhere"}
    document["problem"]["cluster"]["provenance"] = {"num_gpus": "somebody"}
    path = tmp_path / "renamed.json"
    path.write_text(json.dumps(document))
    assert cli("explain", str(shallow), str(path)).exit_code == 0


def test_a_plan_that_does_not_fit_is_compared_too(cli: Cli, save: Save) -> None:
    """The nearest miss stands beside itself, said on stderr; exit 3."""
    path = save(TOO_LARGE)
    result = cli("explain", str(path), str(path), "--format", "json")
    assert result.exit_code == 3
    assert result.document["a"]["memory"]["fits"] is False
    assert result.stderr.count("its nearest miss is compared") == 2


def test_a_plan_that_is_not_legal_is_told(cli: Cli, shallow: Path, tmp_path: Path) -> None:
    """Where the trainer refuses one of the two, the answer says which and why; exit 3."""
    document = json.loads(shallow.read_text())
    document["problem"]["training"]["sequence_length"] = 1023
    path = tmp_path / "odd.json"
    plan = document["plans"][0]["plan"]
    plan |= {"tensor_parallel": 2, "data_parallel": plan["data_parallel"] * plan["tensor_parallel"] // 2}
    plan["num_microbatches"] = 32 // plan["data_parallel"] // plan["micro_batch_size"]
    path.write_text(json.dumps(document))
    result = cli("explain", str(path), str(path), "--format", "json")
    assert result.exit_code == 3
    assert result.document["note"].startswith("A: the plan is not legal: sequence length 1023")
    assert cli("explain", str(path), str(path)).stdout.startswith("Nothing to compare: A: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{file}#99 {file}", "rank 99 is not there"),
        ("{file} {file}#99", "rank 99 is not there"),
        ("{file} nowhere.json", "no such file"),
        ("{file} {file} {file}", "unexpected extra argument"),
        ("{file} {file} --pp 8", "--pp has no effect beside a file"),
        ("{file} {file} --stage 2", "--stage: got 2; the plan has stages 0 to 1"),
        ("{file} {file} --stage 1 --all-stages", "contradict each other"),
    ],
)
def test_asked_wrongly(cli: Cli, shallow: Path, arguments: str, message: str) -> None:
    """Each wrong or contradicting word is one line on stderr; exit 2, nothing on stdout."""
    result = cli("explain", *arguments.format(file=shallow).split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
