"""Rules of Megatron-LM beyond the shared ones; the place in its source stands in each docstring."""

from __future__ import annotations

import numpy as np

from ppadvisor.frameworks.profile import BoolArray, Rule
from ppadvisor.frameworks.rules import COMMON_RULES
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.training import TrainingSpec


def _moe_needs_sequence_parallel(model: ModelSpec, training: TrainingSpec, plans: PlanTable) -> BoolArray:
    """moe_layer.py:636-640: MoE with t > 1 and no sequence parallelism raises in the first forward."""
    if model.moe is None or training.sequence_parallel:
        return np.zeros(len(plans), dtype=np.bool_)
    return plans.tensor_parallel > 1


def _moe_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    return f"MoE with tensor parallel {plan.tensor_parallel} needs sequence parallelism (--sequence-parallel)"


RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    Rule("moe_sequence_parallel", _moe_needs_sequence_parallel, _moe_message),
)
