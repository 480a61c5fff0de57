"""What a launch script says, held against what it should say: values that Megatron has no option for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppadvisor.frameworks.configuration import Configuration
from ppadvisor.frameworks.megatron.launch_model import feed_forward_bias, shared_width
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

NAMES = ("name", "source", "declared_parameters")
NOT_OPTIONS = ("framework", "stack")
"""Of a training run, what is no option of the trainer."""


def unsaid(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, read: Configuration, *, trainer: str = "Megatron"
) -> Iterator[str]:
    """Each value that the script does not say, and what it says instead."""
    if read.model is None or read.training is None or read.plan is None:
        yield "the whole: no model, training run or plan follows from the options"
        return
    pairs = (
        (model_values(model), model_values(read.model)),
        (training_values(training, plan), training_values(read.training, plan)),
        (plan_values(plan), plan_values(read.plan)),
    )
    for wanted, taken in pairs:
        for name, value in wanted.items():
            if taken.get(name) != value:
                yield f"{name} = {value}; {trainer} takes {taken.get(name)}"


def model_values(model: ModelSpec) -> dict[str, Any]:
    """What a model costs by, each in one way of saying it."""
    values = model.model_dump(exclude={*NAMES, "norm_bias", "moe"})
    values |= {"norm_bias": model.has_norm_bias, "mlp_bias": feed_forward_bias(model)}
    layers = range(model.num_layers)
    windows = ("sliding_window", "sliding_window_period", "full_attention_layers")
    values = {name: value for name, value in values.items() if name not in windows}
    values["windows"] = tuple(model.attention_window(layer) for layer in layers)
    if model.mla:
        # latent attention has neither; its own norms are part of it
        values |= {"num_query_groups": None, "qk_norm": None}
    if model.moe:
        places = {"first_dense_layers", "layer_period", "layer_offset", "moe_layers"}
        shared = {"num_shared_experts", "shared_expert_ffn_hidden_size"}
        experts = model.moe.model_dump(exclude=places | shared)
        values |= {f"moe.{name}": value for name, value in experts.items()}
        values["moe.shared_width"] = shared_width(model.moe)
        values["moe.layers"] = tuple(layer for layer in layers if model.is_moe_layer(layer))
    return values


def training_values(training: TrainingSpec, plan: PlanSpec) -> dict[str, Any]:
    """What a run costs by, with Megatron's defaults where it is silent."""
    values = training.model_dump(exclude=set(NOT_OPTIONS))
    values["gradient_precision"] = training.gradient_precision or "fp32"
    values["sequence_parallel"] = training.sequence_parallel and plan.tensor_parallel > 1
    # Megatron's adam decays weights as adamw does
    values["optimizer"] = "adam" if training.optimizer == "adamw" else training.optimizer
    values["loss"] = training.loss or "native"
    return values


def plan_values(plan: PlanSpec) -> dict[str, Any]:
    """All of a plan; naive is 1F1B with one micro-batch (schedules.py:2277)."""
    values = plan.model_dump()
    values["schedule"] = "1f1b" if plan.schedule == "naive" else plan.schedule
    return values
