"""Varied plans whose key numbers are kept, so that no change of a number goes unnoticed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.search.api import make_problem
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import MODEL_VERSION
from tests.problems import plan

FILE = Path(__file__).parent / "plans.json"


@dataclass(frozen=True)
class Case:
    """One plan of one problem: presets, fields of the training run, layers of the stages, fields of the plan."""

    model: str
    cluster: str
    run: dict[str, Any]
    layers: tuple[int, ...]
    plan: dict[str, Any]

    @property
    def num_gpus(self) -> int:
        """As many as the sizes multiply to."""
        names = ("tensor_parallel", "context_parallel", "data_parallel")
        return len(self.layers) * prod(int(self.plan.get(name, 1)) for name in names)


def _case(
    model: str, cluster: str, run: dict[str, Any], layers: tuple[int, ...], **sizes: Any
) -> Case:  # what is left out is 1, 1f1b and no recomputation
    return Case(model, cluster, run, layers, sizes)


A100, H100, B200, CLOUD = "dgx-a100-superpod", "dgx-h100-superpod", "dgx-b200-superpod", "aws-p4d"

CASES: dict[str, Case] = {
    "dense, tensor and pipeline": _case(
        "llama-3.1-70b", H100, {"sequence_length": 8192}, (19, 21, 21, 19), tensor_parallel=4, data_parallel=4
    ),
    "405B, two nodes a stage": _case(
        "llama-3.1-405b", H100, {"sequence_length": 8192}, (7, *[8] * 14, 7), tensor_parallel=8, context_parallel=2
    ),
    "GPT-3, dropout, eager, selective": _case(
        "gpt3-175b",
        A100,
        {"sequence_length": 2048, "dropout": True, "attention": "eager"},
        (12,) * 8,
        tensor_parallel=8,
        data_parallel=2,
        recompute="selective",
        optimizer_sharding=0,
    ),
    "GPipe, full recomputation": _case(
        "gpt3-175b",
        A100,
        {"sequence_length": 2048, "framework": "generic"},
        (12,) * 8,
        tensor_parallel=8,
        schedule="gpipe",
        recompute="full",
    ),
    "naive": _case(
        "llama-2-13b",
        CLOUD,
        {"sequence_length": 4096},
        (20, 20),
        tensor_parallel=4,
        schedule="naive",
        micro_batch_size=8,
        num_microbatches=1,
        recompute="full",
    ),
    "no pipeline, ZeRO-3": _case(
        "llama-3-8b",
        H100,
        {"sequence_length": 4096, "framework": "generic"},
        (32,),
        data_parallel=16,
        optimizer_sharding=3,
        micro_batch_size=2,
    ),
    "context parallel, long sequence": _case(
        "llama-3-8b", H100, {"sequence_length": 131072}, (8,) * 4, tensor_parallel=2, context_parallel=8
    ),
    "experts, one node": _case(
        "mixtral-8x7b", H100, {"sequence_length": 4096}, (8,) * 4, expert_parallel=8, data_parallel=8
    ),
    "experts cut by tensor parallelism": _case(
        "mixtral-8x7b",
        CLOUD,
        {"sequence_length": 4096},
        (16, 16),
        tensor_parallel=4,
        expert_tensor_parallel=4,
        expert_parallel=2,
        data_parallel=2,
    ),
    "latent attention and MTP": _case(
        "deepseek-v3",
        B200,
        {"sequence_length": 4096},
        (7, *[8] * 6, 6),
        expert_parallel=32,
        data_parallel=32,
        recompute="full",
    ),
    "some layers recomputed": _case(
        "llama-3.1-405b",
        H100,
        {"sequence_length": 8192},
        (7, *[8] * 14, 7),
        tensor_parallel=8,
        recompute="full",
        recompute_method="block",
        recompute_num_layers=3,
    ),
    "modules recomputed": _case(
        "deepseek-v3",
        B200,
        {"sequence_length": 4096},
        (7, *[8] * 6, 6),
        expert_parallel=32,
        data_parallel=32,
        recompute="selective",
        recompute_modules=("moe_act", "layernorm", "mla_up_proj"),
    ),
    "windows, tied table, fused loss": _case(
        "gemma-2-9b", H100, {"sequence_length": 8192, "loss": "fused"}, (10, 11, 11, 10), tensor_parallel=2
    ),
    "fp32, sgd": _case(
        "gpt2-124m",
        A100,
        {"sequence_length": 1024, "precision": "fp32", "optimizer": "sgd-momentum", "sequence_parallel": False},
        (6, 6),
        tensor_parallel=2,
        data_parallel=2,
    ),
}


def measure(case: Case) -> dict[str, float]:
    """The key numbers of a case."""
    one = plan(case.layers, **{"num_microbatches": 32, **case.plan})
    batch = one.data_parallel * one.micro_batch_size * one.num_microbatches
    run = TrainingSpec(**case.run, global_batch_size=batch)
    problem = make_problem(load_model(case.model), load_cluster(case.cluster, case.num_gpus), run)
    estimate = estimate_plan(problem, one, margin=0.9)
    return {
        "step_time_s": estimate.time.step_time_s,
        "peak_bytes": estimate.memory.peak_bytes,
        "conservative_bytes": estimate.memory.conservative_bytes,
        "bubble_fraction": estimate.time.bubble_fraction,
    }


def document() -> dict[str, Any]:
    """All cases with the version of the numbers."""
    return {"model_version": MODEL_VERSION, "plans": {name: measure(case) for name, case in CASES.items()}}


def kept() -> dict[str, Any]:
    """What the file holds."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
