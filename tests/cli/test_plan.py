"""`ppadvisor plan` from the command line: the shape of its answer and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.search.api import plan
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION
from tests.cli.conftest import Cli

SIZES = ("--layers", "12", "--hidden", "512", "--heads", "8", "--kv-heads", "2", "--vocab", "5000")
GPUS = ("--gpu", "h100-sxm-80gb", "--gpus", "8")
RUN = ("--seq-len", "2k", "--global-batch", "64")
SMALL = (*SIZES, *GPUS, *RUN)
"""A question that is answered in a moment."""
PINNED = ("--pp", "4", "--tp", "1", "--cp", "1", "--micro-batch", "2", "--schedule", "1f1b", "--recompute", "full")
TOO_LARGE = ("--model", "llama-3.1-405b", *GPUS, "--seq-len", "8k", "--global-batch", "64", "--pp", "8", "--zero", "1")


def test_the_json_has_what_was_promised(cli: Cli) -> None:
    """Every field that issue 2 names is there, with numbers as numbers and the unit in the key."""
    result = cli("plan", *SMALL, *PINNED, "--top", "3", "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = result.document
    assert document["format_version"] == FORMAT_VERSION
    assert document["model_version"] == MODEL_VERSION
    assert (
        document["problem"]["total_parameters"]
        == 12 * (2 * 512 * 640 + 3 * 512 * 2048 + 2 * 512) + 2 * 5000 * 512 + 512
    )
    assert document["problem"]["training"]["global_batch_size"] == 64
    assert document["problem"]["training"]["sequence_length"] == 2048
    first = document["plans"][0]
    layers = first["plan"].pop("layers_per_stage")
    assert (len(layers), sum(layers)) == (4, 12)
    expected = {
        "pipeline_parallel": 4,
        "tensor_parallel": 1,
        "data_parallel": 2,
        "context_parallel": 1,
        "expert_parallel": 1,
        "expert_tensor_parallel": 1,
        "virtual_stages": 1,
        "micro_batch_size": 2,
        "num_microbatches": 16,
        "schedule": "1f1b",
        "recompute": "full",
        "optimizer_sharding": 1,
    }
    assert {name: first["plan"][name] for name in expected} == expected
    assert isinstance(document["rejected"], dict)
    check_memory(first["memory"])
    check_time(first["time"])


def check_memory(memory: dict[str, Any]) -> None:
    """The fields of `memory`, and that they agree with each other."""
    for name in ("peak_bytes", "capacity_bytes", "binding_stage"):
        assert type(memory[name]) is int
    assert memory["fits"] is True
    assert [stage["stage"] for stage in memory["stages"]] == [0, 1, 2, 3]
    for stage in memory["stages"]:
        assert stage["total_bytes"] == sum(stage["terms"].values()) <= memory["peak_bytes"]
    assert memory["stages"][memory["binding_stage"]]["total_bytes"] == memory["peak_bytes"]


def check_time(time: dict[str, Any]) -> None:
    """The fields of `time`, and that they agree with each other."""
    assert time["step_time_s"] == pytest.approx(sum(time["terms"].values()), rel=1e-12)
    assert 0 < time["bubble_fraction"] < 1
    assert time["tokens_per_s"] == pytest.approx(64 * 2048 / time["step_time_s"], rel=1e-12)
    assert 0 < time["model_flops_utilization"] < 1
    assert all(name.endswith("_s") for name in time["terms"])


def test_two_runs_give_the_same_bytes() -> None:
    """The JSON is byte-identical from run to run, whatever order a process gives to its sets."""
    command = [sys.executable, "-m", "ppadvisor", "plan", *SMALL, "--format", "json"]
    runs = [
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert json.loads(runs[0])["plans"]


def test_python_gives_the_same_answer(cli: Cli) -> None:
    """`ppadvisor.plan` returns what the command prints."""
    shown = cli("plan", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16", *RUN, "--format", "json")
    training = TrainingSpec(sequence_length=2048, global_batch_size=64)
    report = plan(load_model("llama-3-8b"), load_cluster("dgx-h100-superpod", 16), training)
    assert shown.document["plans"] == report.as_dict()["plans"]


def test_csv_has_a_row_a_plan(cli: Cli) -> None:
    """The CSV is the ranked table alone: a header, then as many rows as plans were asked for."""
    rows = list(csv.DictReader(io.StringIO(cli("plan", *SMALL, "--top", "4", "--format", "csv").stdout)))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("format", ["table", "markdown"])
def test_a_person_reads_why(cli: Cli, format: str) -> None:
    """Header, ranked table, why first, baselines and rejections, at most 80 columns wide in a table."""
    result = cli("plan", *SMALL, "--format", format)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in ("parameters, 12 layers", "8 x NVIDIA H100", "64 x 2048 tokens = 131,072 a step", "Why the first is"):
        assert words in result.stdout
    assert "without pipelining" in result.stdout
    assert format == "markdown" or max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "flash attention; megatron"),
        (("--no-fused-norm",), "norms not fused"),
        (("--precision", "fp8", "--fp8-weights"), "weights in fp8 alone"),
        (("--loss", "torch"), "torch loss"),
        (("--grad-precision", "bf16"), "bf16 gradients"),
        (("--no-sequence-parallel",), "no sequence parallelism"),
        (("--stack", "torch-eager"), "(stack torch-eager)"),
    ],
)
def test_the_header_says_what_was_chosen(cli: Cli, flags: tuple[str, ...], words: str) -> None:
    """What changes every number is named in the header; the trainer's own defaults go without saying."""
    assert words in " ".join(cli("plan", *SMALL, *flags, "--top", "1").stdout.split())


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("megatron", "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 1"),
        ("torchtitan", "pipeline_parallel_degree = 4"),
        ("deepspeed", "partition_method = type:"),
        ("zero-bubble", "--pipeline-model-parallel-size 4"),
        ("scaling", "topology.pipe_parallel_size = 4; topology.pipe_partition_"),
        ("generic", " faster"),
    ],
)
def test_the_stages_are_written_for_the_trainer(cli: Cli, framework: str, words: str) -> None:
    """Twelve layers under a large vocabulary: how the stages are told to each trainer, and what they gain.

    The last of four stages has the head and fewer layers than the even three.
    """
    heavy = ("--layers", "13", "--hidden", "512", "--heads", "8", "--vocab", "60000", *GPUS, *RUN)
    pins = (*PINNED, "--framework", framework)
    result = cli("plan", *heavy, *pins)
    assert (result.exit_code, result.stderr) == (0, "")
    text = " ".join(result.stdout.split())
    assert words in text.partition("Stages of the first:")[2]
    assert max(map(len, result.stdout.splitlines())) <= 80
    document = cli("plan", *heavy, *pins, "--format", "json").document
    assert len(document["split_settings"]) == len(document["plans"])
    own = framework in ("deepspeed", "zero-bubble")
    assert (document["even_split"] is None) == own
    assert own or "than the even split" in text


def test_an_answer_may_go_into_a_file(cli: Cli, tmp_path: Path) -> None:
    """`--output` holds what stdout would, and stdout nothing."""
    target = tmp_path / "plan.json"
    written = cli("plan", *SMALL, "--format", "json", "--output", str(target))
    assert (written.exit_code, written.stdout, written.stderr) == (0, "", "")
    assert target.read_text(encoding="utf-8") == cli("plan", *SMALL, "--format", "json").stdout


def test_nothing_fits_is_exit_3_with_the_answer(cli: Cli) -> None:
    """405 B parameters on 8 GPUs: exit 3, JSON printed, the nearest miss with stage and bytes, no traceback."""
    result = cli("plan", *TOO_LARGE, "--format", "json")
    assert (result.exit_code, result.stderr) == (3, "")
    document = result.document
    assert document["plans"] == []
    assert document["rejected"]["memory"] > 0
    miss = document["nearest_miss"]
    assert miss["short_by_bytes"] > 0
    assert miss["estimate"]["memory"]["fits"] is False
    table = cli("plan", *TOO_LARGE)
    assert table.exit_code == 3
    assert "No plan fits." in table.stdout
    assert "nearest miss: " in table.stdout


def test_no_legal_plan_is_exit_3_with_the_reason(cli: Cli) -> None:
    """Where the framework's rules leave nothing, the rule and its numbers are the answer."""
    sizes = ("--layers", "12", "--hidden", "768", "--heads", "12", "--vocab", "5000")
    result = cli("plan", *sizes, *GPUS, *RUN, "--tp", "8")
    assert result.exit_code == 3
    assert "12 attention heads are not divisible by tensor parallel 8" in " ".join(result.stdout.split())


def test_a_framework_that_runs_the_schedule_is_taken(cli: Cli) -> None:
    """`--schedule gpipe` takes the generic framework, and says so on stderr."""
    result = cli("plan", *SMALL, "--schedule", "gpipe", "--format", "json")
    assert result.exit_code == 0
    assert "megatron does not run gpipe; taking --framework generic" in result.stderr
    assert result.document["problem"]["framework"] == "generic"


def test_pins_take_lists(cli: Cli) -> None:
    """Comma lists restrict what is searched to their values."""
    document = cli("plan", *SMALL, "--pp", "2,4", "--micro-batch", "1,4", "--format", "json").document
    assert document["problem"]["searched"]["pipeline_parallel"] == [2, 4]
    assert document["problem"]["searched"]["micro_batch_size"] == [1, 4]


def test_a_batch_in_tokens_is_the_same_batch(cli: Cli) -> None:
    """128ktok of 2k sequences are 64 sequences."""
    in_tokens = cli("plan", *SIZES, *GPUS, "--seq-len", "2048", "--global-batch", "128ktok", "--format", "json")
    assert in_tokens.stdout == cli("plan", *SMALL, "--format", "json").stdout


JOB = {
    "layers": 12,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 2,
    "vocab": 5000,
    "gpu": "h100-sxm-80gb",
    "gpus": 8,
    "seq_len": "2k",
    "global_batch": 64,
    "pp": [2, 4],
    "top": 3,
}


@pytest.mark.parametrize("suffix", ["json", "toml", "yaml"])
def test_a_job_file_says_the_same(cli: Cli, tmp_path: Path, suffix: str) -> None:
    """The same keys in a file give the same bytes, in each of its three forms; a list is a comma list."""
    job = tmp_path / f"job.{suffix}"
    separator = {"json": "", "toml": " = ", "yaml": ": "}[suffix]
    lines = [f"{key.replace('_', '-')}{separator}{json.dumps(value)}" for key, value in JOB.items()]
    job.write_text(json.dumps(JOB) if suffix == "json" else "\n".join(lines), encoding="utf-8")
    asked = cli("plan", *SMALL, "--pp", "2,4", "--top", "3", "--format", "json")
    assert cli("plan", "--job", str(job), "--format", "json") == asked
    won = cli("plan", "--job", str(job), "--pp", "8", "--format", "json").document
    assert won["problem"]["searched"]["pipeline_parallel"] == [8]


def test_an_assumption_may_be_replaced(cli: Cli) -> None:
    """`--assume` changes the answer, and the answer says who gave the number."""
    plain, slow = (
        cli("plan", *SMALL, *PINNED, *more, "--format", "json").document
        for more in ((), ("--assume", "gemm_efficiency=0.3"))
    )
    (assumed,) = (one for one in slow["problem"]["assumptions"] if one["name"] == "gemm_efficiency")
    assert (assumed["value"], assumed["provenance"]) == (0.3, "given by the user")
    assert slow["plans"][0]["time"]["step_time_s"] > plain["plans"][0]["time"]["step_time_s"]
