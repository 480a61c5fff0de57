"""Rules of Aleph Alpha's scaling beyond the shared ones (Aleph-Alpha/scaling, commit 737f855, src/scaling)."""

from __future__ import annotations

import numpy as np

from ppadvisor.frameworks.profile import BoolArray, Rule
from ppadvisor.frameworks.rules import COMMON_RULES, no_context_rule
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.training import TrainingSpec


def _experts(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    """transformer/model/layers has one kind of feed-forward, a dense one."""
    return np.full(len(plans), model.moe is not None)


def _experts_message(model: ModelSpec, _: TrainingSpec, __: PlanSpec) -> str:
    return f"scaling has no layers with experts, {model.name} does"


def _checkpointing(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    """ActivationCheckpointingType knows every_layer and every_pipe_stage (core/topology/topology_config.py:14)."""
    layers = np.array([choice.num_layers for choice in plans.recomputations])[plans.recompute]
    largest = np.array([max(split) for split in plans.splits])[plans.split]
    return np.asarray((layers > 1) & (layers < largest))


def _checkpointing_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    return (
        f"recompute {plan.recomputation.text}: scaling recomputes layer by layer (full) or a whole stage at once "
        f"(full:uniform:{max(plan.layers_per_chunk)})"
    )


RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    # core/topology/topology_config.py: model, pipe and data parallel sizes, and no other
    no_context_rule("scaling_context_parallel", "scaling divides a sequence by no ranks but the tensor-parallel ones"),
    Rule("scaling_experts", _experts, _experts_message),
    Rule("scaling_checkpointing", _checkpointing, _checkpointing_message),
)
