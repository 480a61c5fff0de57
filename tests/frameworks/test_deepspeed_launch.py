"""Plans written as configurations of DeepSpeed: what `check` reads of them is the same plan, at the same cost."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Configuration, Given, Launch
from ppadvisor.frameworks.deepspeed.config import read_json_text, recognises
from ppadvisor.frameworks.deepspeed.launch import launch
from ppadvisor.frameworks.deepspeed.split import METHODS, split_of
from ppadvisor.search.api import make_problem
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from ppadvisor.specs.training import TrainingSpec

GPUS = 64
Sizes = dict[str, Any]
PLANS: dict[str, Sizes] = {
    "replicas": {"p": 1, "zero": 3, "b": 2, "m": 2},
    "replicas that recompute": {"p": 1, "zero": 2, "recompute": "full"},
    "attention again": {"p": 2, "recompute": "selective"},
    "pipeline": {"p": 4, "t": 2, "m": 16},
    "embedding counts": {"p": 4, "counted": (1, 0), "zero": 0},
    "head counts": {"p": 2, "t": 4, "counted": (0, 1)},
    "both count": {"p": 8, "t": 2, "counted": (1, 1), "recompute": "full"},
    "every second input": {"p": 2, "t": 2, "recompute": "full:uniform:2"},
    "one micro-batch": {"p": 2, "b": 4, "m": 1},
    "experts": {"p": 2, "e": 4},
}
MODELS = ("llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "qwen2.5-7b")


def cluster() -> ClusterSpec:
    """NVIDIA's own, 64 GPUs."""
    return load_cluster("dgx-h100-superpod").changed(num_gpus=GPUS)


def plan_of(model: ModelSpec, sizes: Sizes) -> tuple[PlanSpec, TrainingSpec]:
    """The plan of these sizes and its run."""
    p, t, b = (sizes.get(name, 1) for name in "ptb")
    m = sizes.get("m", 8)
    d = GPUS // (p * t)
    split = split_of(model.num_layers, p, *sizes.get("counted", (0, 0)))
    plan = PlanSpec(
        pipeline_parallel=p,
        tensor_parallel=t,
        data_parallel=d,
        context_parallel=1,
        expert_parallel=sizes.get("e", 1) if model.moe else 1,
        expert_tensor_parallel=1,
        virtual_stages=1,
        micro_batch_size=b,
        num_microbatches=m,
        schedule="none" if p == 1 else "1f1b",
        optimizer_sharding=sizes.get("zero", 1),
        layers_per_stage=split,
        layers_per_chunk=split,
        **PlanSpec.recomputation_fields(parse_recomputation(sizes.get("recompute", "none"))),
    )
    return plan, TrainingSpec(sequence_length=2048, global_batch_size=m * d * b, framework="deepspeed")


def read_again(out: Launch, model: ModelSpec) -> Configuration:
    """As the last line beside it says: its options are what `check` is given."""
    words = shlex.split(out.beside[-1].partition("ppadvisor check FILE ")[2])
    said = dict(zip(words[::2], words[1::2], strict=True))
    number = {name: int(said[name]) if name in said else None for name in ("--tp", "--ep", "--gpus", "--seq-len")}
    given = Given(
        num_gpus=number["--gpus"],
        model=model,
        tensor_parallel=number["--tp"],
        expert_parallel=number["--ep"],
        sequence_length=number["--seq-len"],
        recompute=said.get("--recompute"),
    )
    return read_json_text(out.text, "ds.json", given)


@pytest.mark.parametrize("title", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_the_file_says_the_plan(name: str, title: str) -> None:
    """With what stands beside it `check` reads the same plan in all fields, at the same time and memory."""
    model = load_model(name)
    plan, training = plan_of(model, PLANS[title])
    out = launch(model, training, plan, cluster(), one_connection=True)
    assert recognises(Path("ds.json"), out.text)
    read = read_again(out, model)
    assert (out.unsaid, read.broken, read.plan) == ((), (), plan)
    assert read.training is not None
    before = estimate_plan(make_problem(model, cluster(), training), plan, margin=0.9)
    after = estimate_plan(make_problem(model, cluster(), read.training), read.plan or plan, margin=0.9)
    assert before.time.step_time_s == after.time.step_time_s
    assert before.memory.peak_bytes == after.memory.peak_bytes


def test_the_program_is_told_its_part() -> None:
    """p and the partition are arguments of PipelineModule, which DeepSpeed takes from no file."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, PLANS["both count"])
    out = launch(model, training, plan, cluster(), one_connection=True)
    assert "topology=PipeModelDataParallelTopology(8, 2, 4)" in out.beside[0]
    assert repr(METHODS[1, 1]) in out.beside[0]
    assert json.loads(out.text)["pipeline"]["activation_checkpoint_interval"] == 1
    plan, training = plan_of(model, {"p": 2})
    alone = launch(model, training, plan, cluster(), one_connection=True)
    assert "num_stages=2" in alone.beside[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"precision": "fp16", "gradient_precision": "fp16"},
        {"precision": "fp32"},
        {"gradient_precision": "bf16"},
        {"optimizer": "adamw"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd-momentum"},
    ],
    ids=str,
)
def test_the_file_says_how_it_trains(changed: Sizes) -> None:
    """Precision and optimizer are read as they were asked for."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, {"p": 2, "t": 2})
    out = launch(model, training.changed(**changed), plan, cluster(), one_connection=True)
    assert out.unsaid == ()


def test_what_has_no_option_is_told() -> None:
    """fp8 is none of DeepSpeed's types."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, {"p": 2})
    out = launch(model, training.changed(precision="fp8"), plan, cluster(), one_connection=True)
    assert out.unsaid == ("precision = fp8; DeepSpeed takes bf16",)


@pytest.mark.parametrize(
    ("sizes", "changed", "told"),
    [
        ({"p": 2, "zero": 2}, {}, "pipeline engine does not run with ZeRO 2"),
        ({"p": 2, "zero": 0}, {"precision": "fp16"}, "cannot accumulate gradients in fp32 without ZeRO"),
    ],
)
def test_what_deepspeed_refuses_is_refused(sizes: Sizes, changed: Sizes, told: str) -> None:
    """No file, one line."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, sizes)
    with pytest.raises(RefusedError, match=told):
        launch(model, training.changed(**changed), plan, cluster(), one_connection=True)
