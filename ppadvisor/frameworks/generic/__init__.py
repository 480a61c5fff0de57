"""No particular trainer: plain PyTorch layers with flash attention and fused norms, any schedule, ZeRO 0 to 3.

Every operation is torch's own and keeps what its autograd formula asks for; norms and flash attention are one kernel
each (`F.layer_norm`, the fused RMSNorm, `F.scaled_dot_product_attention`), q, k and v have projections of their own,
and an expert's output is multiplied by its weight in 16 bit.

Source: saved tensors counted on layers of torch 2.13, tests/published/torch_saved_tensors.json: GPT layer 34 s b h with
dropout and 32 without, Llama-3-8B layer 41 s b h (gate, up, activated gate and product are all kept).
"""

from __future__ import annotations

from ppadvisor.frameworks.gradients import (
    freed_tail,
    input_step_work,
    last_product_work,
    output_gradients,
    plain_backward_work,
)
from ppadvisor.frameworks.profile import FrameworkProfile, Tensor
from ppadvisor.frameworks.rules import COMMON_RULES
from ppadvisor.frameworks.tensors import LOSSES, layer_tensors
from ppadvisor.schedules import SCHEDULES
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """The shared list with an unfused gated activation."""
    return tuple(layer_tensors(model, training, kind, fused=False))


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """All that was saved stays until the weight gradient, and the gradients it needs come on top.

    Counted on torch 2.13's own two steps: the input gradient frees nothing but what the end of a stage's last layer
    kept, and holds 22 s b h more for a GPT layer.
    """
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind))


PROFILE = FrameworkProfile(
    id="generic",
    title="generic PyTorch trainer",
    source="torch 2.13, saved tensors of layers on its meta device",
    schedules=tuple(SCHEDULES),
    stack="torch-eager",
    optimizer_sharding=(0, 1, 2, 3),
    default_optimizer_sharding=1,
    vocab_size_multiple=1,
    losses=LOSSES,
    default_loss="torch",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=plain_backward_work,
    last_product_work=last_product_work,
    rules=COMMON_RULES,
    dummy_weight_gradients=False,
    frees_sent_outputs=False,
    freed_tail=freed_tail,
    input_step_work=input_step_work,
)
