"""Rules of DeepSpeed's pipeline engine beyond the shared ones."""

from __future__ import annotations

import numpy as np

from ppadvisor.frameworks.deepspeed.split import splits
from ppadvisor.frameworks.profile import BoolArray, Rule
from ppadvisor.frameworks.rules import COMMON_RULES, no_context_rule, option_rule, split_rule
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.training import TrainingSpec

OPTIONS = {
    "precision": ("bf16", "fp16", "fp32"),
    "optimizer": ("adam", "adamw", "sgd", "sgd-momentum"),
}
"""What its configuration can say of a training run; the rest is the program's."""


def _sharded_gradients(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    """PipelineEngine asserts that ZeRO-2 and ZeRO-3 are off (runtime/pipe/engine.py)."""
    return np.asarray((plans.pipeline_parallel > 1) & (plans.optimizer_sharding >= 2))


def _sharded_gradients_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    return (
        f"DeepSpeed's pipeline engine does not run with ZeRO-{plan.optimizer_sharding}; "
        "it allows ZeRO 0 and 1 with p > 1"
    )


RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    Rule("deepspeed_pipeline_zero", _sharded_gradients, _sharded_gradients_message),
    option_rule("deepspeed_options", "DeepSpeed", OPTIONS),
    # runtime/pipe/topology.py has pipe, data and model; Ulysses (deepspeed/sequence) is no ring, and Megatron-DeepSpeed
    # asserts p = t = 1 with it (initialize_model_parallel)
    no_context_rule("deepspeed_context_parallel", "DeepSpeed's pipeline divides a sequence by no ranks of its own"),
    split_rule("deepspeed_split", splits, "DeepSpeed's partition methods take no list of stages"),
)
