from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Configuration, Given
from ppadvisor.frameworks.megatron.config import read_script_text
from ppadvisor.frameworks.megatron.launch import launch
from ppadvisor.frameworks.megatron.read_back import plan_values
from ppadvisor.schedules.interleaved_1f1b import group_size
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from ppadvisor.specs.training import TrainingSpec
from tests.frameworks.launched import CHANGED, costs_the_same

GPUS = 64
RUN: dict[str, Any] = {"sequence_length": 2048, "global_batch_size": 256}
"""GPT-3's sequence length, which is as long as its table of positions."""
Sizes = dict[str, Any]
PLANS: dict[str, Sizes] = {
    "even": {"p": 4, "t": 2},
    "sums that do not divide": {"p": 16, "t": 2, "uneven": True},
    "one rank holds the model": {"p": 1, "t": 8, "recompute": "full"},
    "interleaved": {"p": 4, "t": 4, "v": 2, "recompute": "selective"},
    "interleaved, unequal chunks": {"p": 4, "t": 2, "v": 3, "uneven": True, "recompute": "full:block:2"},
    "groups larger than p": {"p": 8, "t": 2, "v": 2, "b": 1, "batch": 60},
    "long sequences": {"p": 2, "t": 4, "c": 4, "recompute": "full:uniform:2"},
    "experts": {"p": 2, "t": 2, "e": 8, "b": 2, "recompute": "selective:core_attn+layernorm"},
    "modules": {"p": 4, "t": 4, "zero": 0, "recompute": "selective:mlp+layernorm"},
}
MODELS = ("llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b", "qwen2.5-7b", "gpt-oss-20b")
PUBLISHED = ("llama-3.1-405b", "gpt2-xl-1.5b", "deepseek-v2-lite", "glm-4.5-355b", "llama-4-scout-109b", "gpt-oss-120b")


def cluster() -> ClusterSpec:
    """NVIDIA's own, 64 GPUs in nodes of 8."""
    return load_cluster("dgx-h100-superpod").changed(num_gpus=GPUS)


def split_of(layers: int, stages: int, *, uneven: bool) -> tuple[int, ...]:
    """Layers over stages; what is left goes to the stages behind the first, or is swapped between two of them."""
    sizes = [layers // stages] * stages
    for stage in range(layers % stages):
        sizes[stage + 1] += 1
    if uneven and stages > 3:
        sizes[1] += 1
        sizes[2] -= 1
    return tuple(sizes)


def plan_of(model: ModelSpec, sizes: Sizes) -> tuple[PlanSpec, int]:
    """(the plan of these sizes, its batch)."""
    p, t, c, v, b = (sizes.get(name, 1) for name in "ptcvb")
    d = GPUS // (p * t * c)
    m = sizes.get("batch", 256) // (d * b)
    chunks = split_of(model.num_layers, p * v, uneven=sizes.get("uneven", False))
    group = int(group_size(p, m)) if v > 1 else p
    plan = PlanSpec(
        pipeline_parallel=p,
        tensor_parallel=t,
        data_parallel=d,
        context_parallel=c,
        expert_parallel=sizes.get("e", 1) if model.moe else 1,
        expert_tensor_parallel=1,
        virtual_stages=v,
        micro_batch_size=b,
        num_microbatches=m,
        schedule="none" if p == 1 else "1f1b" if v == 1 else "interleaved-1f1b",
        microbatch_group_size=None if group == p else group,
        optimizer_sharding=sizes.get("zero", 1),
        layers_per_stage=tuple(sum(chunks[rank::p]) for rank in range(p)),
        layers_per_chunk=chunks,
        **PlanSpec.recomputation_fields(parse_recomputation(sizes.get("recompute", "none"))),
    )
    return plan, m * d * b


def cases() -> list[tuple[str, str]]:
    """Every model with every plan whose t divides its heads and their groups."""
    groups = {name: load_model(name).num_query_groups for name in MODELS}
    return [(name, plan) for name in MODELS for plan in PLANS if groups[name] % PLANS[plan].get("t", 1) == 0]


def written(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> tuple[str, tuple[str, ...], Configuration]:
    """(the script, what it does not say, what it says)."""
    out = launch(model, training, plan, cluster(), one_connection=True)
    return out.text, out.unsaid, read_script_text(out.text, "train.sh", Given())


@pytest.mark.parametrize(("name", "plan_name"), cases())
def test_the_script_says_the_plan(name: str, plan_name: str) -> None:
    """What `check` reads is the same plan in all fields, and costs the same time and memory to the last bit."""
    model = load_model(name)
    plan, batch = plan_of(model, PLANS[plan_name])
    training = TrainingSpec(**{**RUN, "global_batch_size": batch})
    _, unsaid, read = written(model, training, plan)
    assert (unsaid, read.broken, read.num_gpus, read.plan) == ((), (), GPUS, plan)
    assert costs_the_same(model, training, plan, read, cluster())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_script_says_the_model(name: str) -> None:
    """Every value of these models has an option, and no rule of Megatron is broken."""
    model = load_model(name)
    plan, batch = plan_of(model, {"p": 1})
    training = TrainingSpec(sequence_length=1024, global_batch_size=batch)
    assert written(model, training, plan)[1] == ()


@pytest.mark.parametrize(
    "changed",
    CHANGED,
    ids=str,
)
def test_the_script_says_how_it_trains(changed: Sizes) -> None:
    """Precision, optimizer, kernels: all are read as they were asked for."""
    model = load_model("llama-3.1-8b")
    plan, _ = plan_of(model, {"p": 2, "t": 2})
    assert written(model, TrainingSpec(**{**RUN, **changed}), plan)[1] == ()


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("bloom-7b1", {}, "positional_embedding = alibi; Megatron takes none"),
        ("falcon-7b", {}, "parallel_block = True; Megatron takes False"),
        ("gemma-2-9b", {}, "norms_per_layer = 4; Megatron takes 2"),
        ("llama-3.1-8b", {"optimizer": "adam-pure-bf16"}, "optimizer = adam-pure-bf16; Megatron takes adam"),
        ("llama-3.1-8b", {"loss": "torch"}, "loss = torch; Megatron takes native"),
        ("llama-3.1-8b", {"fused_norm": False}, "fused_norm = False; Megatron takes True"),
    ],
)
def test_what_has_no_option_is_told(name: str, changed: Sizes, told: str) -> None:
    """A value that the options cannot say stands in a comment, beside what Megatron takes instead."""
    model = load_model(name)
    plan, _ = plan_of(model, {"p": 1})
    text, unsaid, _ = written(model, TrainingSpec(**{**RUN, **changed}), plan)
    assert told in unsaid
    assert f"# not said, Megatron-LM has no option for it: {told}\n" in text


def test_what_megatron_refuses_is_refused() -> None:
    """A table of 2048 positions is too short for 4096 tokens (arguments.py:1355): no script, one line."""
    model = load_model("gpt3-175b")
    plan, batch = plan_of(model, {"p": 2})
    with pytest.raises(RefusedError, match="2048"):
        written(model, TrainingSpec(sequence_length=4096, global_batch_size=batch), plan)


def test_low_precision_moments_need_the_distributed_optimizer() -> None:
    """optimizer_config.py: --use-precision-aware-optimizer only supported with distributed optimizer."""
    plan, _ = plan_of(load_model("llama-3.1-8b"), {"p": 2, "zero": 0})
    with pytest.raises(RefusedError, match="--use-precision-aware-optimizer needs --use-distributed-optimizer"):
        written(load_model("llama-3.1-8b"), TrainingSpec(**RUN, optimizer="adam-bf16-moments"), plan)


def test_processes_of_a_host() -> None:
    """8 nodes of 8, one node that is not full, and an NVLink domain that is wider than a host."""
    model = load_model("llama-3.1-8b")
    plan, _ = plan_of(model, {"p": 2})
    for of_node, started in ((8, "--nnodes 8 --nproc-per-node 8"), (72, "--nnodes 1 --nproc-per-node 64")):
        machines = cluster().changed(gpus_per_node=of_node)
        text = launch(model, TrainingSpec(**RUN), plan, machines, one_connection=False).text
        assert started in text
        assert ("a host has fewer" in text) == (of_node == 72)


def test_naive_is_1f1b() -> None:
    """One micro-batch: Megatron's order of work is 1F1B's (schedules.py:2277), all else is the plan's."""
    model = load_model("llama-3.1-8b")
    plan, _ = plan_of(model, {"p": 4, "b": 16})
    naive = plan.changed(schedule="naive")
    _, unsaid, read = written(model, TrainingSpec(**RUN), naive)
    assert unsaid == ()
    assert read.plan is not None
    assert plan_values(read.plan) == plan_values(naive)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script() -> None:
    """Bash expands the arrays to the words that the reader saw, patterns and layouts with their signs."""
    model = load_model("deepseek-v3")
    plan, batch = plan_of(model, PLANS["interleaved, unequal chunks"])
    text, _, read = written(model, TrainingSpec(**{**RUN, "global_batch_size": batch}), plan)
    shown = subprocess.run(
        ["bash", "-c", 'torchrun() { printf "%s\\n" "$@"; }\n' + text],
        capture_output=True, text=True, check=True, env={"NODE_RANK": "0", "MASTER_ADDR": "localhost"},
    ).stdout.splitlines()  # fmt: skip
    assert "[0]*3+[1]*58" in shown
    layout = shown[shown.index("--pipeline-model-parallel-layout") + 1]
    assert layout.startswith("Et*")
    assert layout.endswith("mL")
    assert read.plan == plan
