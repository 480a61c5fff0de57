"""NVIDIA Megatron-LM / Megatron-Core with Transformer Engine: what it keeps, runs and enforces.

Source: NVIDIA/Megatron-LM commit d98e8a64 (core 0.20.0 pre-release), files named beside each fact.
"""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.frameworks.gradients import backward_work, output_gradients
from ppadvisor.frameworks.megatron.fp8 import TRANSPOSED, quantized
from ppadvisor.frameworks.megatron.layout import split_settings
from ppadvisor.frameworks.megatron.rules import RULES
from ppadvisor.frameworks.profile import FrameworkProfile, Spread, Tensor, When
from ppadvisor.frameworks.tensors import ATTENTION_NORM, FEED_FORWARD_NORM, LOSSES, layer_tensors
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.recomputation import CORE_ATTENTION
from ppadvisor.specs.training import TrainingSpec


def _copy(name: str, size: int, when: When) -> Tensor:
    return Tensor(name, size, Spread.TENSOR, when, modules=CORE_ATTENTION, attention_share=1.0)


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """The shared list with the fused gated activation, and two copies that Transformer Engine's attention makes."""
    heads = model.num_attention_heads
    width = heads * (model.mla.v_head_dim if model.mla else model.head_dim)
    element = training.activation_bytes
    extra = []
    if training.attention == "flash":
        extra = [
            # FlashAttention writes [b, s, ..]; transposed back to [s, b, ..] the output is a second tensor. Both copies
            # are made inside the attention core, which selective recomputation repeats (attention.py,
            # _checkpointed_attention_forward); only what the output projection reads stays.
            _copy(TRANSPOSED, element * width, When.MANY_SEQUENCES),
            _copy("attention output before the exchange", element * width, When.CONTEXT_PARALLEL),
        ]
    norms = {ATTENTION_NORM: ("layernorm",) if model.mla else (), FEED_FORWARD_NORM: _second_norm(kind)}
    shared = layer_tensors(model, training, kind, fused=True)
    tensors = (*(replace(tensor, modules=norms.get(tensor.name, tensor.modules)) for tensor in shared), *extra)
    return tuple(quantized(tensors, kind, element)) if training.precision == "fp8" else tensors


def _second_norm(kind: LayerKind) -> tuple[str, ...]:
    """What drops the feed-forward's normed input.

    Transformer Engine fuses a norm into the linear behind it, so that only the separate ones (in front of experts and
    of MLA) can be recomputed by themselves (gpt_layer_specs.py, core 0.16.1, :248, :279, :291).
    """
    return ("layernorm",) if kind.moe else ("mlp",)


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """All that was saved stays until the weight gradient, and the gradients it needs come on top.

    Measured on torch 2.13's own engine: the input gradient frees nothing, and holds 22 s b h more for a GPT layer.
    """
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind))


PROFILE = FrameworkProfile(
    id="megatron",
    title="Megatron-LM (Megatron-Core with Transformer Engine)",
    source="NVIDIA/Megatron-LM, commit d98e8a64 (2026-08-22)",
    # naive is 1F1B with one micro-batch: legal, since 1F1B has no constraint on m (schedules.py:2277).
    schedules=("none", "naive", "1f1b", "interleaved-1f1b"),
    stack="megatron",
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
    fp8_weights=True,
    dummy_weight_gradients=True,
    frees_sent_outputs=True,
    frees_main_gradients=True,
    # transformer_config.py; a dense activation and dropout have no module there
    recompute_modules=("core_attn", "mlp", "moe", "shared_experts", "moe_act", "layernorm", "mla_up_proj"),
)
