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


def _fp8_weights_need_sharding(_: ModelSpec, training: TrainingSpec, plans: PlanTable) -> BoolArray:
    """arguments.py:1092-1094: --fp8-param-gather needs the distributed optimizer."""
    if not training.fp8_weights:
        return np.zeros(len(plans), dtype=np.bool_)
    return np.asarray(plans.optimizer_sharding == 0)


def _fp8_weights_message(_: ModelSpec, __: TrainingSpec, ___: PlanSpec) -> str:
    return "weights in fp8 alone (--fp8-param-gather) need ZeRO 1 (--use-distributed-optimizer)"


RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    Rule("moe_sequence_parallel", _moe_needs_sequence_parallel, _moe_message, of_sizes=True),
    Rule("fp8_weights", _fp8_weights_need_sharding, _fp8_weights_message, of_sizes=True),
)
