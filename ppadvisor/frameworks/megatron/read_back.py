"""What a launch script says, held against what it should say: values that Megatron has no option for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppadvisor.frameworks.configuration import Configuration
from ppadvisor.frameworks.megatron.launch_model import feed_forward_bias
from ppadvisor.frameworks.read_back import differences, training_values
from ppadvisor.frameworks.read_back import plan_values as plan_values
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

NAMES = ("name", "source", "declared_parameters")


def unsaid(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, read: Configuration, *, trainer: str = "Megatron"
) -> Iterator[str]:
    """Each value that the script does not say, and what it says instead."""
    if read.model is None or read.training is None or read.plan is None:
        yield "the whole: no model, training run or plan follows from the options"
        return
    wanted, found = (training_values(one, plan, loss="native") for one in (training, read.training))
    yield from differences(model_values(model), model_values(read.model), trainer)
    yield from differences(wanted, found, trainer)
    yield from differences(plan_values(plan), plan_values(read.plan), trainer)


def model_values(model: ModelSpec) -> dict[str, Any]:
    """What a model costs by, each in one way of saying it."""
    values = model.as_dict((*NAMES, "norm_bias", "moe"))
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
        experts = model.moe.as_dict(places | shared)
        values |= {f"moe.{name}": value for name, value in experts.items()}
        values["moe.shared_experts_ffn_hidden_size"] = model.moe.shared_experts_ffn_hidden_size
        values["moe.layers"] = tuple(layer for layer in layers if model.is_moe_layer(layer))
    return values
