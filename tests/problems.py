"""Small problems that several tests share: a GPU with round numbers, a few unlike models, tables of random plans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from ppadvisor import frameworks
from ppadvisor.engine.problem import Problem
from ppadvisor.search.space import divisors
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.specs.load import load_stack
from ppadvisor.specs.model import MlaSpec, ModelSpec, MoeSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.recomputation import FULL, NONE, SELECTIVE, Recomputation, parse_recomputation
from ppadvisor.specs.training import TrainingSpec

SIZES: dict[str, Any] = {
    "num_layers": 12,
    "hidden_size": 512,
    "ffn_hidden_size": 2048,
    "num_attention_heads": 8,
    "num_query_groups": 8,
    "head_dim": 64,
    "vocab_size": 5000,
    "gated_mlp": False,
    "tied_embeddings": True,
    "normalization": "layernorm",
    "positional_embedding": "learned",
    "max_position_embeddings": 4096,
    "qkv_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
}
LLAMA: dict[str, Any] = {
    "num_query_groups": 2,
    "ffn_hidden_size": 1792,
    "gated_mlp": True,
    "tied_embeddings": False,
    "normalization": "rmsnorm",
    "positional_embedding": "rope",
    "max_position_embeddings": None,
    "qkv_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
}
MOE = MoeSpec(
    num_experts=8,
    experts_per_token=2,
    moe_ffn_hidden_size=512,
    num_shared_experts=1,
    shared_expert_ffn_hidden_size=512,
    first_dense_layers=3,
)
MLA = MlaSpec(q_lora_rank=192, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64)


FRAMEWORKS = ("megatron", "generic")
"""Those that tests of the engine and of the search go through."""
SCHEDULES = ("naive", "gpipe", "1f1b")
"""Those of random plans: one chunk a rank, any p and m (naive: m = 1)."""


RECOMPUTATIONS = (
    NONE,
    SELECTIVE,
    FULL,
    *map(
        parse_recomputation,
        (
            "full:block:1",
            "full:block:3",
            "full:uniform:2",
            "selective:mlp+moe",
            "selective:core_attn+shared_experts+moe_act+layernorm+mla_up_proj",
            "selective:layernorm+activation+dropout",
        ),
    ),
)
"""Those of random plans."""


def plain_schedules(of: Problem) -> tuple[str, ...]:
    """Of what the framework runs: without a pipeline, and with one of SCHEDULES."""
    return tuple(name for name in ("none", *SCHEDULES) if name in of.framework.schedules)


def model(name: str = "gpt", **changed: object) -> ModelSpec:
    """One of `MODELS`, some of its fields changed."""
    return ModelSpec(**{"name": name, **SIZES, **MODELS[name], **changed})


MODELS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": LLAMA,
    "windowed": {**LLAMA, "sliding_window": 512, "sliding_window_period": 4, "tied_embeddings": True},
    "moe": {**LLAMA, "moe": MOE},
    "mla-mtp": {**LLAMA, "num_query_groups": 8, "moe": MOE, "mla": MLA, "mtp_num_layers": 1},
}
"""Tied with biases and learned positions; grouped and gated; two windows; dense and MoE layers; latent with MTP."""


def gpu(**changed: object) -> GpuSpec:
    """A GPU of 80 GiB, 400 TFLOP/s, 2 TB/s, in nodes of 8 with links of 300 and 25 GB/s."""
    fields: dict[str, Any] = {
        "name": "test GPU",
        "source": "made up",
        "memory_bytes": 80 * 2**30,
        "memory_source": "made up",
        "peak_flops_per_s": {"bf16": 400e12, "fp16": 400e12, "fp32": 100e12},
        "hbm_bandwidth_bytes_per_s": 2e12,
        "intra_node_bandwidth_bytes_per_s": 300e9,
        "inter_node_bandwidth_bytes_per_s": 25e9,
        "inter_node_source": "made up",
        "gpus_per_node": 8,
    }
    return GpuSpec(**{**fields, **changed})


def cluster(num_gpus: int, **changed: object) -> ClusterSpec:
    """`num_gpus` of them; what the GPU and the cluster both have is changed in the cluster."""
    device = gpu(**{name: value for name, value in changed.items() if name in GpuSpec.names()})
    fields: dict[str, Any] = {
        "name": "test cluster",
        "source": "made up",
        "num_gpus": num_gpus,
        "gpus_per_node": min(8, num_gpus),
        "intra_node_bandwidth_bytes_per_s": device.intra_node_bandwidth_bytes_per_s,
        "inter_node_bandwidth_bytes_per_s": device.inter_node_bandwidth_bytes_per_s,
    }
    own = {name: value for name, value in changed.items() if name in ClusterSpec.names()}
    return ClusterSpec(**{**fields, **own, "gpu": device})


def training(**changed: object) -> TrainingSpec:
    """64 sequences of 2048 tokens, generic framework."""
    fields: dict[str, Any] = {"sequence_length": 2048, "global_batch_size": 64, "framework": "generic"}
    return TrainingSpec(**{**fields, **changed})


def problem(
    of: ModelSpec | None = None,
    num_gpus: int = 16,
    machines: ClusterSpec | None = None,
    assume: Assumptions | None = None,
    **changed: object,
) -> Problem:
    """A problem on the small cluster; `changed` are fields of the training run."""
    run, on = training(**changed), machines or cluster(num_gpus)
    framework = frameworks.get(run.framework)
    assumed = load_stack(run.stack or framework.stack).applied(assume or Assumptions(), on.gpu.architecture)
    return Problem(of or model(), on, run, framework, assumed)


def plan(layers_per_stage: Sequence[int], **changed: object) -> PlanSpec:
    """A 1F1B plan with these layers on its stages; everything else 1 and no recomputation unless changed."""
    p = len(layers_per_stage)
    fields: dict[str, Any] = {
        "pipeline_parallel": p,
        "tensor_parallel": 1,
        "data_parallel": 1,
        "context_parallel": 1,
        "expert_parallel": 1,
        "expert_tensor_parallel": 1,
        "virtual_stages": 1,
        "micro_batch_size": 1,
        "num_microbatches": 8,
        "schedule": "1f1b" if p > 1 else "none",
        "recompute": "none",
        "optimizer_sharding": 1,
        "layers_per_stage": tuple(layers_per_stage),
        "layers_per_chunk": tuple(layers_per_stage),
    }
    return PlanSpec(**{**fields, **changed})


def table_of(plans: Sequence[PlanSpec]) -> PlanTable:
    """The plans as the rows of one table, equal splits and schedules shared."""
    schedules = sorted({one.schedule for one in plans})
    splits = sorted({one.layers_per_chunk for one in plans})
    choices = list(dict.fromkeys(one.recomputation for one in plans))
    columns = {
        name: np.array([_number(one, name, schedules, splits, choices) for one in plans], dtype=np.int64)
        for name in PlanTable.column_names()
    }
    return PlanTable(**columns, schedule_names=tuple(schedules), splits=tuple(splits), recomputations=tuple(choices))


def _number(
    one: PlanSpec, column: str, schedules: list[str], splits: list[tuple[int, ...]], choices: list[Recomputation]
) -> int:
    if column == "schedule":
        return schedules.index(one.schedule)
    if column == "recompute":
        return choices.index(one.recomputation)
    if column == "split":
        return splits.index(one.layers_per_chunk)
    return int(getattr(one, column))


def random_plans(of: Problem, count: int, *, seed: int = 0) -> list[PlanSpec]:
    """Plans that multiply to the GPUs and the batch, with random splits, all schedules and every kind of sharding."""
    rng = random.Random(seed)
    return [_random_plan(of, rng) for _ in range(count)]


def _random_plan(of: Problem, rng: random.Random) -> PlanSpec:
    gpus, batch, layers = of.cluster.num_gpus, of.training.global_batch_size, of.model.num_layers
    p = rng.choice([d for d in divisors(gpus) if d <= layers])
    t = rng.choice([d for d in divisors(gpus // p) if of.model.num_attention_heads % d == 0])
    c = rng.choice([d for d in divisors(gpus // (p * t)) if d <= 4])
    d = gpus // (p * t * c)
    experts = of.model.moe.num_experts if of.model.moe else 1
    etp = rng.choice([1, t]) if of.model.moe else 1
    e = rng.choice([x for x in divisors(experts) if (t * c * d) % (x * etp) == 0])
    schedule = "none" if p == 1 else rng.choice(plain_schedules(of)[1:])
    b = batch // d if schedule == "naive" else rng.choice(divisors(batch // d))
    return plan(
        random_split(layers, p, rng),
        tensor_parallel=t,
        context_parallel=c,
        data_parallel=d,
        expert_parallel=e,
        expert_tensor_parallel=etp,
        micro_batch_size=b,
        num_microbatches=batch // (d * b),
        schedule=schedule,
        **PlanSpec.recomputation_fields(rng.choice(RECOMPUTATIONS)),
        optimizer_sharding=rng.choice(of.framework.optimizer_sharding),
    )


def random_split(layers: int, p: int, rng: random.Random) -> tuple[int, ...]:
    """Layers on p stages, at least one each; mostly even, so that runs of equal stages occur."""
    sizes = [layers // p + (stage < layers % p) for stage in range(p)]
    for _ in range(rng.randrange(3)):
        giver, taker = rng.randrange(p), rng.randrange(p)
        if sizes[giver] > 1:
            sizes[giver] -= 1
            sizes[taker] += 1
    return tuple(sizes)
