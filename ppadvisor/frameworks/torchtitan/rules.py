"""Rules of torch.distributed.pipelining beyond the shared ones, as its schedule classes raise them (torch 2.13)."""

from __future__ import annotations

import numpy as np

from ppadvisor.frameworks.profile import BoolArray, Rule
from ppadvisor.frameworks.rules import COMMON_RULES, option_rule, run_rule
from ppadvisor.frameworks.torchtitan.flavors import NO_PIPELINE, flavor_of
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec, PlanTable
from ppadvisor.specs.training import TrainingSpec

ROUNDS = ("interleaved-1f1b", "interleaved-zero-bubble")
OPTIONS = {
    "precision": ("bf16", "fp32", "fp8"),
    "optimizer": ("adam", "adamw", "adam-pure-bf16"),
    "attention": ("flash",),
    "dropout": (False,),
    "fused_norm": (True,),
    "loss": (None, "torch"),
}
"""What its options and its own models can say of a training run."""
SPLIT = ("interleaved-zero-bubble", "zb-v", "dualpipev")


def _runs(plans: PlanTable, names: tuple[str, ...]) -> BoolArray:
    return np.isin(np.array(plans.schedule_names)[plans.schedule], names)


def _too_few(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    """Schedule1F1B refuses fewer micro-batches than stages."""
    return np.asarray(_runs(plans, ("1f1b",)) & (plans.num_microbatches < plans.pipeline_parallel))


def _too_few_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    return (
        f"torch's Schedule1F1B needs num_microbatches >= pipeline_parallel: got m = {plan.num_microbatches}, "
        f"p = {plan.pipeline_parallel}"
    )


def _rounds(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    """Interleaved schedules need m to be a multiple of max(1, m // p)."""
    m, p = plans.num_microbatches, plans.pipeline_parallel
    return np.asarray(_runs(plans, ROUNDS) & (m % np.maximum(1, m // p) != 0))


def _rounds_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    m, p = plan.num_microbatches, plan.pipeline_parallel
    return f"torch's {plan.schedule} needs m to be a multiple of max(1, m // p) = {max(1, m // p)}: got m = {m}"


def _groups(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    """torchtitan's tensor parallel plan shards the key/value heads and never replicates them."""
    if model.mla:
        return np.zeros(len(plans), dtype=np.bool_)
    return np.asarray(model.num_query_groups % plans.tensor_parallel != 0)


def _groups_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    return f"{model.num_query_groups} key/value heads are not divisible by tensor parallel {plan.tensor_parallel}"


def _empty(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    """A stage between the first and the last without layers has no parameters, which no optimizer of torch's takes."""
    empty = np.array([0 in split[1:-1] for split in plans.splits], dtype=np.bool_)
    return np.asarray(empty[plans.split])


def _empty_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    stage = plan.layers_per_chunk.index(0, 1)
    return (
        f"stage {stage} has no layers, and torchtitan makes an optimizer of each stage's parameters: torch refuses one "
        "without any (ValueError: optimizer got an empty parameter list); only the first and the last may have none"
    )


def _gradients(_: ModelSpec, training: TrainingSpec) -> str | None:
    """`training.dtype` is that of weights, gradients and moments alike."""
    given, pure = training.gradient_precision or "fp32", training.optimizer == "adam-pure-bf16"
    takes = "bf16" if pure else "fp32"
    return (
        None if given == takes else f"gradient_precision = {given}: torchtitan takes {takes} with {training.optimizer}"
    )


def _no_sequence_parallel(_: ModelSpec, training: TrainingSpec, plans: PlanTable) -> BoolArray:
    return np.asarray((plans.tensor_parallel > 1) & (not training.sequence_parallel))


def _no_sequence_parallel_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    return f"torchtitan's tensor parallel {plan.tensor_parallel} always divides norms and residuals too"


def _pipeline(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    """Some of its models have no pipelining function (train.py:219-223)."""
    cut = plans.pipeline_parallel > 1
    return np.asarray(cut & (cut.any() and (flavor_of(model) or ("", ""))[0] in NO_PIPELINE))


def _pipeline_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    name, flavor = flavor_of(model) or ("", "")
    return f"{name} {flavor} of torchtitan does not support pipelining: p {plan.pipeline_parallel}"


RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    option_rule("torchtitan_options", "torchtitan", OPTIONS),
    run_rule("torchtitan_gradients", _gradients),
    Rule("torchtitan_sequence_parallel", _no_sequence_parallel, _no_sequence_parallel_message),
    Rule("torchtitan_pipelining", _pipeline, _pipeline_message),
    Rule("torch_1f1b_microbatches", _too_few, _too_few_message),
    Rule("torch_interleaved_microbatches", _rounds, _rounds_message),
    Rule("torchtitan_key_value_heads", _groups, _groups_message),
    Rule("torchtitan_empty_stage", _empty, _empty_message),
)
