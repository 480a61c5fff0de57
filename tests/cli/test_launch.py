"""`ppadvisor launch`: the way from `plan` to `check`, and what is refused with which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

QUESTION = (
    *("--model", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", "16", "--seq-len", "8k", "--global-batch", "128"),
    *("--format", "json"),
)
GPU = ("--gpu", "h100-sxm-80gb")


def saved(cli: Cli, folder: Path, *more: str) -> Path:
    """The answer of `plan` in a file."""
    path = folder / "plan.json"
    assert cli("plan", *QUESTION, *more, "--output", str(path)).exit_code == 0
    return path


def changed(path: Path, **fields: Any) -> Path:
    """The same file, its first plan changed."""
    document = json.loads(path.read_text())
    document["plans"][0]["plan"] |= fields
    path.write_text(json.dumps(document))
    return path


def test_from_plan_to_check(cli: Cli, tmp_path: Path) -> None:
    """Every plan that `plan` shows comes back from `check` the same, at the same time and peak."""
    path = saved(cli, tmp_path, "--pp", "2,4", "--top", "4")
    script = tmp_path / "train.sh"
    shown = json.loads(path.read_text())["plans"]
    for rank, wanted in enumerate(shown, 1):
        result = cli("launch", f"{path}#{rank}", "--output", str(script))
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
        answer = cli("check", str(script), *GPU, "--format", "json").document
        read = answer["estimate"]
        assert answer["plan"] == wanted["plan"]
        assert read["time"]["step_time_s"] == wanted["time"]["step_time_s"]
        assert read["memory"]["peak_bytes"] == wanted["memory"]["peak_bytes"]
    assert len(shown) == 4


def test_the_same_bytes_again(cli: Cli, tmp_path: Path) -> None:
    """The same file gives the same bytes, and no line of it is longer than a reader of code expects."""
    path = saved(cli, tmp_path, "--pp", "2")
    first, second = (cli("launch", str(path)).stdout for _ in range(2))
    assert first == second
    assert max(map(len, first.splitlines())) <= 120


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_a_schedule_of_others(cli: Cli, tmp_path: Path, schedule: str) -> None:
    """Megatron has neither GPipe nor zero bubble: exit code 3, and who has it."""
    path = changed(saved(cli, tmp_path, "--pp", "2", "--schedule", "1f1b"), schedule=schedule)
    result = cli("launch", str(path))
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"megatron does not run schedule {schedule}; " in result.stderr
    assert "torchtitan" in result.stderr or "zero-bubble" in result.stderr


def test_another_trainers_plan(cli: Cli, tmp_path: Path) -> None:
    """Of another trainer only where that is asked for; what Megatron lacks stays refused."""
    path = saved(cli, tmp_path, "--framework", "generic", "--pp", "2", "--schedule", "1f1b", "--zero", "2")
    refused = cli("launch", str(path))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the plan is for generic" in refused.stderr
    sharded = cli("launch", str(path), "--framework", "megatron")
    assert (sharded.exit_code, sharded.stdout) == (3, "")
    assert "megatron has no ZeRO 2; allowed: 0, 1" in sharded.stderr
    taken = cli("launch", str(changed(path, optimizer_sharding=1)), "--framework", "megatron")
    assert taken.exit_code == 0
    assert "--use-distributed-optimizer" in taken.stdout


def test_no_plan_and_no_file(cli: Cli, tmp_path: Path) -> None:
    """A file that is none, and a rank that is not there: exit code 2, one line."""
    path = saved(cli, tmp_path, "--pp", "2", "--top", "1")
    for reference in (str(tmp_path / "none.json"), f"{path}#9"):
        result = cli("launch", reference)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1


def test_what_has_no_option_is_told_twice(cli: Cli, tmp_path: Path) -> None:
    """Falcon's parallel blocks: in the script, and beside it on stderr."""
    path = tmp_path / "plan.json"
    cli("plan", *QUESTION, "--model", "falcon-7b", "--seq-len", "2k", "--tp", "1", "--output", str(path))
    result = cli("launch", str(path))
    assert result.exit_code == 0
    assert "parallel_block = True; Megatron takes False" in result.stdout
    assert "parallel_block = True; Megatron takes False" in result.stderr


def test_more_recomputation_is_told_with_its_cost(cli: Cli, tmp_path: Path) -> None:
    """3 of 8 layers are no every nth of torchtitan's: 4 are written, with the cost of both, as `check` reads it."""
    path, written = saved(cli, tmp_path, "--framework", "torchtitan", "--pp", "4", "--top", "1"), tmp_path / "job.toml"
    fields = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 3}
    split = {"layers_per_stage": [8] * 4, "layers_per_chunk": [8] * 4, "virtual_stages": 1, "schedule": "1f1b"}
    result = cli("launch", str(changed(path, **fields, **split)), "--output", str(written))
    assert result.exit_code == 0
    assert "recompute_num_layers = 3; torchtitan takes 4" in result.stderr
    read = cli("check", str(written), *GPU, "--gpus", "16", "--format", "json").document
    assert read["plan"]["recompute_num_layers"] == 4
    told = next(line for line in result.stderr.splitlines() if "more is recomputed" in line)
    assert f"{read['estimate']['memory']['peak_bytes'] / 2**30:.1f} GiB instead of" in told


@pytest.mark.parametrize("option", ["--no-fused-norm", "--loss fused", "--optimizer adam-pure-bf16"])
def test_what_costs_otherwise_is_not_written(cli: Cli, tmp_path: Path, option: str) -> None:
    """Megatron has no option for it and would run at another time or peak: exit code 3, nothing written."""
    path, written = saved(cli, tmp_path, "--pp", "2", "--top", "1", *option.split()), tmp_path / "train.sh"
    result = cli("launch", str(path), "--output", str(written))
    assert (result.exit_code, result.stdout, written.exists()) == (3, "", False)
    assert result.stderr.startswith("ppadvisor: error: megatron has no option for what changes memory or time: ")


def test_what_the_program_decides_is_said_to_check(cli: Cli, tmp_path: Path) -> None:
    """DeepSpeed's file says neither dropout nor the kernels: launch names the options that `check` has to be told."""
    options = ("--framework", "deepspeed", "--pp", "2", "--tp", "2", "--top", "1", "--dropout", "--loss", "native")
    path, written = saved(cli, tmp_path, *options, "--no-sequence-parallel"), tmp_path / "ds.json"
    result = cli("launch", str(path), "--output", str(written))
    words = result.stderr.splitlines()[-1].partition("ppadvisor check FILE ")[2].split()
    assert {"--dropout", "--no-sequence-parallel", "--loss"} <= set(words)
    words[words.index("MODEL")] = "llama-3.1-8b"
    answer = cli("check", str(written), *words, *GPU, "--format", "json").document
    wanted = json.loads(path.read_text())["plans"][0]
    assert answer["estimate"]["time"]["step_time_s"] == wanted["time"]["step_time_s"]
    assert answer["estimate"]["memory"]["peak_bytes"] == wanted["memory"]["peak_bytes"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--framework deepspeed --precision fp8", "precision = fp8: DeepSpeed has no option for it"),
        ("--framework torchtitan --optimizer sgd", "optimizer = sgd: torchtitan has no option for it"),
        ("--framework torchtitan --optimizer adam-pure-bf16", "torchtitan takes bf16 with adam-pure-bf16"),
        ("--framework zero-bubble --model gpt2-xl-1.5b --seq-len 1k", "untied embeddings only"),
    ],
)
def test_nothing_is_planned_that_could_not_be_launched(cli: Cli, options: str, message: str) -> None:
    """What a trainer has no way for, whatever the plan, is one line with exit code 3, from `plan` already."""
    result = cli("plan", *QUESTION, *options.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--framework", "torchtitan", "--model", "qwen3-32b", "--pp", "2"), "torchtitan_pipelining"),
        (("--framework", "torchtitan", "--tp", "2", "--no-sequence-parallel"), "torchtitan_sequence_parallel"),
        (("--framework", "zero-bubble", "--cp", "2"), "zero_bubble_context_parallel"),
    ],
)
def test_no_plan_is_legal_that_could_not_be_launched(cli: Cli, options: tuple[str, ...], code: str) -> None:
    """What a trainer has no way for in these plans is a rule, with exit code 3."""
    result = cli("plan", *QUESTION, *options)
    assert result.exit_code == 3
    assert set(result.document["rejected"]) >= {code}
    assert result.document["plans"] == []
