"""Plans written as train configs of torchtitan: what `check` reads of them is the same plan, at the same cost."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ppadvisor import schedules
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Configuration, Given
from ppadvisor.frameworks.torchtitan.config import read_toml_text, recognises
from ppadvisor.frameworks.torchtitan.flavors import model_of
from ppadvisor.frameworks.torchtitan.launch import launch
from ppadvisor.frameworks.torchtitan.plan import of_ranks
from ppadvisor.frameworks.torchtitan.split import own_split
from ppadvisor.frameworks.torchtitan.toml_split import settings
from ppadvisor.search.api import make_problem
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from ppadvisor.specs.training import TrainingSpec
from tests.frameworks.test_megatron_launch import split_of

GPUS = 64
RUN: dict[str, Any] = {"sequence_length": 4096, "framework": "torchtitan"}
Sizes = dict[str, Any]
PLANS: dict[str, Sizes] = {
    "one rank holds the layers": {"p": 1, "t": 8, "zero": 3},
    "weights stay": {"p": 1, "t": 2, "b": 2, "recompute": "full"},
    "1f1b": {"p": 4, "t": 2},
    "gpipe": {"p": 2, "b": 2, "schedule": "gpipe", "zero": 3},
    "interleaved": {"p": 4, "t": 4, "v": 2, "schedule": "interleaved-1f1b", "recompute": "full"},
    "interleaved, groups of their own": {"p": 4, "v": 2, "m": 10, "schedule": "interleaved-1f1b"},
    "interleaved, many chunks": {"p": 2, "t": 2, "v": 6, "schedule": "interleaved-1f1b"},
    "uneven": {"p": 8, "v": 2, "schedule": "interleaved-1f1b", "uneven": True},
    "breadth first": {"p": 4, "v": 2, "c": 2, "schedule": "looped-bfs"},
    "interleaved zero bubble": {"p": 4, "v": 3, "schedule": "interleaved-zero-bubble"},
    "a V": {"p": 4, "t": 2, "v": 2, "schedule": "zb-v", "uneven": True},
    "both ways": {"p": 2, "t": 4, "v": 2, "schedule": "dualpipev"},
    "long sequences": {"p": 2, "t": 4, "c": 4},
    "experts": {"p": 2, "t": 2, "e": 8, "etp": 2},
    "experts over all ranks": {"p": 2, "t": 4, "e": 16},
}
MODELS = (("llama3", "8B"), ("llama3", "70B"), ("llama3", "405B"), ("deepseek_v3", "debugmodel"), ("llama4", "17bx16e"))


def cluster(of_node: int = 8) -> ClusterSpec:
    """NVIDIA's own, 64 GPUs."""
    return load_cluster("dgx-h100-superpod").changed(num_gpus=GPUS, gpus_per_node=of_node)


def plan_of(model: ModelSpec, sizes: Sizes) -> tuple[PlanSpec, TrainingSpec]:
    """The plan of these sizes and its run."""
    p, t, c, v, b = (sizes.get(name, 1) for name in "ptcvb")
    d = GPUS // (p * t * c)
    schedule = sizes.get("schedule", "none" if p == 1 else "1f1b")
    m = sizes.get("m", 4 * p if p > 1 else 1)
    chunks = split_of(model.num_layers, p * v, uneven=sizes.get("uneven", False))
    e = sizes.get("e", 1) if model.moe else 1
    plan = PlanSpec(
        pipeline_parallel=p,
        tensor_parallel=t,
        data_parallel=d,
        context_parallel=c,
        expert_parallel=e,
        expert_tensor_parallel=(sizes.get("etp", 1) if e > 1 else t) if model.moe else 1,
        virtual_stages=v,
        micro_batch_size=b,
        num_microbatches=m,
        schedule=schedule,
        microbatch_group_size=schedules.microbatch_group(schedule, p, m, v),
        optimizer_sharding=sizes.get("zero", 2),
        layers_per_stage=of_ranks(schedule, chunks, p, v),
        layers_per_chunk=chunks,
        **PlanSpec.recomputation_fields(parse_recomputation(sizes.get("recompute", "none"))),
    )
    return plan, TrainingSpec(**RUN, global_batch_size=m * d * b, optimizer=sizes.get("optimizer", "adam"))


def written(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> tuple[str, tuple[str, ...], Configuration]:
    """(the config, what it does not say, what it says)."""
    out = launch(model, training, plan, cluster(), one_connection=True)
    return out.text, out.unsaid, read_toml_text(out.text, "train.toml", Given(GPUS))


def cases() -> list[tuple[str, str, str]]:
    """Every model with every plan that it has layers for; experts only where it has some."""
    found = []
    for name, flavor in MODELS:
        model = model_of(name, flavor)
        for title, sizes in PLANS.items():
            experts = model.moe.num_experts if model.moe else 1
            stages = sizes["p"] * sizes.get("v", 1)
            if experts % sizes.get("e", 1) == 0 and model.num_layers >= stages + 2:
                found.append((name, flavor, title))
    return found


@pytest.mark.parametrize(("name", "flavor", "title"), cases())
def test_the_config_says_the_plan(name: str, flavor: str, title: str) -> None:
    """What `check` reads is the same plan in all fields, and costs the same time and memory to the last bit."""
    model = model_of(name, flavor)
    plan, training = plan_of(model, PLANS[title])
    text, unsaid, read = written(model, training, plan)
    assert recognises(Path("train.toml"), text)
    assert (unsaid, read.broken, read.plan) == ((), (), plan)
    assert read.model is not None
    assert read.training is not None
    before = estimate_plan(make_problem(model, cluster(), training), plan, margin=0.9)
    after = estimate_plan(make_problem(read.model, cluster(), read.training), read.plan or plan, margin=0.9)
    assert before.time.step_time_s == after.time.step_time_s
    assert before.memory.peak_bytes == after.memory.peak_bytes


@pytest.mark.parametrize(
    "changed",
    [
        {"precision": "fp8"},
        {"precision": "fp32"},
        {"optimizer": "adamw"},
        {"optimizer": "adam-pure-bf16", "gradient_precision": "bf16"},
    ],
    ids=str,
)
def test_the_config_says_how_it_trains(changed: Sizes) -> None:
    """Precision and optimizer are read as they were asked for."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, {"p": 2, "t": 2})
    assert written(model, training.changed(**changed), plan)[1] == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"precision": "fp16"}, "precision = fp16; torchtitan takes bf16"),
        ({"dropout": True}, "dropout = True; torchtitan takes False"),
        ({"optimizer": "sgd"}, "optimizer = sgd; torchtitan takes adam"),
        ({"sequence_parallel": False}, "sequence_parallel = False; torchtitan takes True"),
    ],
)
def test_what_has_no_option_is_told(changed: Sizes, told: str) -> None:
    """A value that the options cannot say stands in a comment, beside what torchtitan takes instead."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, {"p": 2, "t": 2})
    text, unsaid, _ = written(model, training.changed(**changed), plan)
    assert told in unsaid
    assert f"# not said, torchtitan has no option for it: {told}\n" in text
    tomllib.loads(text)


def test_prediction_layers_are_not_built() -> None:
    """torchtitan's DeepSeek-V3 has no multi-token prediction: told, the rest is the published model."""
    model = load_model("deepseek-v3")
    plan, training = plan_of(model, {"p": 4, "e": 8})
    assert written(model, training, plan)[1] == ("mtp_num_layers = 1; torchtitan takes 0",)


def test_every_nth_layer_where_that_is_the_plan() -> None:
    """4 of the 8 layers of each stage is every second; 3 and 5 are no every nth: more are recomputed, and told."""
    model = load_model("llama-3.1-8b")
    for layers, told, said in ((4, 0, 'selective_ac_option = "2"'), (3, 1, 'option = "2"'), (5, 2, 'mode = "full"')):
        plan, training = plan_of(model, {"p": 4, "recompute": f"full:block:{layers}"})
        assert plan.layers_per_chunk == (8, 8, 8, 8)
        text, unsaid, _ = written(model, training, plan)
        assert said in text
        assert len(unsaid) == told


@pytest.mark.parametrize(
    ("model", "sizes", "told"),
    [
        ("llama-2-7b", {"p": 2}, "torchtitan has no flavor with the sizes of Llama 2 7B"),
        ("qwen3-32b", {"p": 2}, "qwen3 does not support pipelining"),
        ("llama-3.1-8b", {"p": 8, "m": 4}, "1F1B needs a micro-batch for each of 8 stages, got m = 4"),
        ("deepseek-v2-lite", {"p": 1, "c": 2}, "deepseek_v3 16B has flex"),
    ],
)
def test_what_torchtitan_refuses_is_refused(model: str, sizes: Sizes, told: str) -> None:
    """No config, one line."""
    plan, training = plan_of(load_model(model), sizes)
    with pytest.raises(RefusedError, match=told):
        written(load_model(model), training, plan)


def test_stages_in_the_words_of_toml() -> None:
    """The head was `output` while TOML was read; a schedule of two stages a rank is named with the stages."""
    model = load_model("llama-3.1-8b")
    plan, _ = plan_of(model, {"p": 4, "v": 2, "schedule": "zb-v", "uneven": True})
    said = settings(model, plan)
    assert said["parallelism.pipeline_parallel_schedule"] == "ZBVZeroBubble"
    assert json.loads(said["parallelism.module_fqns_per_model_part"])[-1][-2:] == ["norm", "output"]
    # 32 layers, embedding and head counted as one each, by three: 12 stages, three a rank
    looped, _ = plan_of(model, {"p": 4, "v": 3, "schedule": "interleaved-1f1b"})
    split = (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1)
    assert own_split(32, 12, 1, 1) == split
    named = settings(model, looped.changed(layers_per_chunk=split))
    assert named["parallelism.pipeline_parallel_layers_per_stage"] == "3"


def test_processes_of_a_host() -> None:
    """Nodes need a meeting point, one node none."""
    model = load_model("llama-3.1-8b")
    plan, training = plan_of(model, {"p": 2})
    several = launch(model, training, plan, cluster(), one_connection=True).text
    assert "--nnodes 8 --nproc-per-node 8 --rdzv-backend c10d" in several
    one = launch(model, training, plan, cluster(64), one_connection=True).text
    assert "--nnodes 1 --nproc-per-node 64 -m torchtitan.train" in one
