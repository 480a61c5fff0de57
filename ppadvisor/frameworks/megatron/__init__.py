"""NVIDIA Megatron-LM / Megatron-Core with Transformer Engine: what it keeps, runs and enforces.

Source: NVIDIA/Megatron-LM commit d98e8a64 (core 0.20.0 pre-release), files named beside each fact.
"""

from __future__ import annotations

from ppadvisor.frameworks.megatron.layout import split_settings
from ppadvisor.frameworks.megatron.rules import RULES
from ppadvisor.frameworks.profile import FrameworkProfile, Spread, Tensor, When
from ppadvisor.frameworks.tensors import LOSSES, backward_work, layer_tensors, output_gradients
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec


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
            Tensor("attention output, transposed", element * width, Spread.TENSOR, When.MANY_SEQUENCES, selective=True),
            Tensor(
                "attention output before the exchange",
                element * width,
                Spread.TENSOR,
                When.CONTEXT_PARALLEL,
                selective=True,
            ),
        ]
    return (*layer_tensors(model, training, kind, gated_copies=3), *extra)


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
    dummy_weight_gradients=True,
    frees_sent_outputs=True,
    frees_main_gradients=True,
)
