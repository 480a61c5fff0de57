"""Rules that every framework shares: what must divide what. A framework adds its own and lists all it enforces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ppadvisor.frameworks.profile import BoolArray, Rule, Split
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.training import TrainingSpec


def _no(plans: PlanTable) -> BoolArray:
    return np.zeros(len(plans), dtype=np.bool_)


def _heads(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    return np.asarray(model.num_attention_heads % plans.tensor_parallel != 0)


def _heads_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    return f"{model.num_attention_heads} attention heads are not divisible by tensor parallel {plan.tensor_parallel}"


def _groups(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    if model.mla:
        return _no(plans)
    groups, t = model.num_query_groups, plans.tensor_parallel
    return np.asarray((groups % t != 0) & (t % groups != 0))


def _groups_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    return (
        f"{model.num_query_groups} key/value groups and tensor parallel {plan.tensor_parallel}: "
        "neither divides the other"
    )


def _ffn(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    has_dense = any(not kind.moe for kind in model.layer_kinds()[0])
    violated = (model.ffn_hidden_size % plans.tensor_parallel != 0) if has_dense else _no(plans)
    if model.moe:
        violated = violated | (model.moe.moe_ffn_hidden_size % plans.expert_tensor_parallel != 0)
    return np.asarray(violated)


def _ffn_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    return (
        f"feed-forward width {model.ffn_hidden_size} (experts: "
        f"{model.moe.moe_ffn_hidden_size if model.moe else 'none'}) is not divisible by tensor parallel "
        f"{plan.tensor_parallel} (experts: {plan.expert_tensor_parallel})"
    )


def _sequence(_: ModelSpec, training: TrainingSpec, plans: PlanTable) -> BoolArray:
    s, c, t = training.sequence_length, plans.context_parallel, plans.tensor_parallel
    # Causal load balancing cuts the sequence into 2 c pieces; sequence parallelism cuts a rank's piece into t.
    by_context = (c > 1) & (s % (2 * c) != 0)
    by_sequence = (t > 1) & (s % (c * t) != 0) if training.sequence_parallel else _no(plans)
    return np.asarray(by_context | by_sequence)


def _sequence_message(_: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> str:
    return (
        f"sequence length {training.sequence_length} is not divisible by 2 x context parallel "
        f"{plan.context_parallel} and by context x tensor parallel {plan.context_parallel * plan.tensor_parallel}"
    )


def _experts(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    experts = model.moe.num_experts if model.moe else 1
    return np.asarray(experts % plans.expert_parallel != 0)


def _experts_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    if model.moe is None:
        return f"expert parallel {plan.expert_parallel} needs a model with experts"
    return f"{model.moe.num_experts} experts are not divisible by expert parallel {plan.expert_parallel}"


def _expert_ranks(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    ranks = plans.tensor_parallel * plans.context_parallel * plans.data_parallel
    return np.asarray(ranks % (plans.expert_parallel * plans.expert_tensor_parallel) != 0)


def _expert_ranks_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    ranks = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    return (
        f"the {ranks} ranks of a stage (t c d) are not divisible by expert parallel {plan.expert_parallel} x "
        f"expert tensor parallel {plan.expert_tensor_parallel}"
    )


def _eager_context(_: ModelSpec, training: TrainingSpec, plans: PlanTable) -> BoolArray:
    return np.asarray((plans.context_parallel > 1) & (training.attention == "eager"))


def _eager_context_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    return f"context parallel {plan.context_parallel} needs flash attention"


COMMON_RULES: tuple[Rule, ...] = (
    Rule("attention_heads", _heads, _heads_message, of_sizes=True),
    Rule("key_value_groups", _groups, _groups_message, of_sizes=True),
    Rule("feed_forward_width", _ffn, _ffn_message, of_sizes=True),
    Rule("sequence_length", _sequence, _sequence_message, of_sizes=True),
    Rule("expert_count", _experts, _experts_message, of_sizes=True),
    Rule("expert_ranks", _expert_ranks, _expert_ranks_message, of_sizes=True),
    Rule("context_parallel_attention", _eager_context, _eager_context_message, of_sizes=True),
)


def split_rule(code: str, splits: Callable[[ModelSpec, int, int], tuple[Split, ...]], why: str) -> Rule:
    """The rule of a framework that builds some splits only; each distinct (p, v, split) is looked up once."""

    def violated(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
        sizes = np.stack([plans.pipeline_parallel, plans.virtual_stages, plans.split], axis=1)
        distinct, rows = np.unique(sizes, axis=0, return_inverse=True)
        barred = [p > 1 and plans.splits[split] not in splits(model, p, v) for p, v, split in distinct.tolist()]
        return np.array(barred, dtype=np.bool_)[rows.reshape(-1)]

    def message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
        can = splits(model, plan.pipeline_parallel, plan.virtual_stages)
        built = " or ".join(" ".join(map(str, split)) for split in can) or "none"
        return f"layers {' '.join(map(str, plan.layers_per_chunk))}: {why}; it builds {built}"

    return Rule(code, violated, message)


def run_rule(code: str, problem: Callable[[ModelSpec, TrainingSpec], str | None]) -> Rule:
    """The rule of a framework that cannot train this model, or not in this way, whatever the plan."""

    def violated(model: ModelSpec, training: TrainingSpec, plans: PlanTable) -> BoolArray:
        return np.full(len(plans), problem(model, training) is not None)

    def message(model: ModelSpec, training: TrainingSpec, _: PlanSpec) -> str:
        return problem(model, training) or ""

    return Rule(code, violated, message, of_run=problem)


def option_rule(code: str, trainer: str, allowed: Mapping[str, tuple[Any, ...]]) -> Rule:
    """The rule of a framework without options for other values of these fields of a training run."""

    def problem(_: ModelSpec, training: TrainingSpec) -> str | None:
        for name, values in allowed.items():
            value = getattr(training, name)
            if value not in values:
                known = ", ".join(str(one) for one in values if one is not None)
                return f"{name} = {value}: {trainer} has no option for it; allowed: {known}"
        return None

    return run_rule(code, problem)


def no_context_rule(code: str, why: str) -> Rule:
    """The rule of a framework whose attention sees the whole sequence of a rank."""

    def violated(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
        return np.asarray(plans.context_parallel > 1)

    def message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
        return f"context parallel {plan.context_parallel}: {why}"

    return Rule(code, violated, message)
