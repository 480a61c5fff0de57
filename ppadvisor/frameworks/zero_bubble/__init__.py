"""The zero-bubble fork of Megatron-LM: Megatron's memory, and the schedules with a split backward.

Source: sail-sg/zero-bubble-pipeline-parallelism (Qi et al. 2024, arXiv 2401.10241 and 2405.15362).
"""

from __future__ import annotations

from ppadvisor.frameworks.gradients import backward_work, output_gradients
from ppadvisor.frameworks.profile import FrameworkProfile, Spread, Tensor
from ppadvisor.frameworks.tensors import (
    ACTIVATION,
    ATTENTION_NORM,
    ATTENTION_OUTPUT,
    FEED_FORWARD_NORM,
    LOSSES,
    layer_tensors,
)
from ppadvisor.frameworks.zero_bubble.rules import RULES
from ppadvisor.frameworks.zero_bubble.split import split_settings, splits
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec

LINEAR_INPUTS = (ATTENTION_NORM, FEED_FORWARD_NORM, ATTENTION_OUTPUT, ACTIVATION)
"""Of what a dense layer saves, the inputs of its linears."""


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Megatron's legacy layers with a fused gated activation."""
    return tuple(layer_tensors(model, training, kind, fused=True))


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """What the store of weight gradients keeps: input and output gradient of every linear, 14 h + 18 h for a GPT layer.

    The inputs as they are saved (gathered again where they are needed), the rest of the layer is freed. The gradients
    behind a row-parallel linear are whole on every rank. Source: megatron/core/tensor_parallel/layers.py:522-531 and
    weight_grad_store.py, commit 39f2c186. Latent attention and experts are counted whole, on the heavy side.
    """
    saved = saved_tensors(model, training, kind)
    if kind.moe or model.mla:
        return (*saved, *output_gradients(model, training, kind))
    element, width = training.activation_bytes, model.num_attention_heads * model.head_dim
    attention = element * (width + 2 * model.num_query_groups * model.head_dim)
    gates = 2 if model.gated_mlp else 1
    return (
        *(tensor for tensor in saved if tensor.name in LINEAR_INPUTS),
        Tensor("gradients of q, k, v", attention, Spread.TENSOR),
        Tensor("gradients of the feed-forward", gates * element * model.ffn_hidden_size, Spread.TENSOR),
        Tensor("gradients of the outputs", 2 * element * model.hidden_size, Spread.WHOLE),
    )


PROFILE = FrameworkProfile(
    id="zero-bubble",
    title="zero-bubble fork of Megatron-LM",
    source="sail-sg/zero-bubble-pipeline-parallelism",
    schedules=(
        "none",
        "naive",
        "1f1b",
        "interleaved-1f1b",
        "gis",
        "gis-h",
        "zb-h1",
        "zb-h2",
        "zb-v",
        "v-half",
        "v-min",
    ),
    stack="megatron-2023",
    optimizer_sharding=(0, 1),
    default_optimizer_sharding=1,
    vocab_size_multiple=128,
    losses=LOSSES,
    default_loss="native",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=backward_work,
    rules=RULES,
    split_settings=split_settings,
    splits=splits,
    dummy_weight_gradients=False,
    frees_sent_outputs=True,
    frees_in_input_gradient=True,
    frees_main_gradients=True,
    # --recompute-granularity selective; --recompute-lgd (megatron/legacy/model/transformer.py:292, :975, :1315)
    recompute_modules=("core_attn", "layernorm", "activation", "dropout"),
)
