"""torchtitan on torch.distributed.pipelining: FSDP2, torch's own schedules, plain torch layers.

Source: torch 2.13, torch/distributed/pipelining/schedules.py (constraints: its constructors); pytorch/torchtitan.
"""

from __future__ import annotations

from functools import partial

from ppadvisor.frameworks.gradients import (
    freed_tail,
    input_step_work,
    last_product_work,
    output_gradients,
    plain_backward_work,
)
from ppadvisor.frameworks.profile import FrameworkProfile, Tensor
from ppadvisor.frameworks.tensors import LOSSES, layer_tensors
from ppadvisor.frameworks.torchtitan.repeats import repeats
from ppadvisor.frameworks.torchtitan.rules import RULES
from ppadvisor.frameworks.torchtitan.split import split_settings
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Plain torch layers: gate, up, activated gate and product of a gated feed-forward are all kept."""
    return tuple(layer_tensors(model, training, kind, fused=False, gathered=True))


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """torch's engine frees nothing at the input gradient, and keeps the gradients that the weight gradients need."""
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind, gathered=True))


PROFILE = FrameworkProfile(
    id="torchtitan",
    title="torchtitan (torch.distributed.pipelining, FSDP2)",
    source="torch 2.13; pytorch/torchtitan",
    schedules=(
        "none",
        "gpipe",
        "1f1b",
        "interleaved-1f1b",
        "looped-bfs",
        "interleaved-zero-bubble",
        "zb-v",
        "dualpipev",
    ),
    # FSDP2 without resharding after forward (its default under pipelining) and with it
    stack="torchtitan",
    optimizer_sharding=(2, 3),
    default_optimizer_sharding=2,
    vocab_size_multiple=1,
    losses=LOSSES,
    default_loss="torch",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=plain_backward_work,
    last_product_work=last_product_work,
    rules=RULES,
    split_settings=split_settings,
    dummy_weight_gradients=False,
    frees_sent_outputs=False,
    keeps_gathered_inputs=True,
    freed_tail=freed_tail,
    accumulates_whole_gradients=True,
    keeps_all_receive_buffers=True,
    keeps_input_gradients=True,
    # both are loops with the output in a variable: pipelining/schedules.py:900-925, 1049-1143
    holds_logits=("gpipe", "1f1b"),
    input_step_work=partial(input_step_work, gathered=True),
    repeats=repeats,
    whole_backward_on_first=True,
    recompute_modules=("core_attn",),
    recompute_methods=("block",),
)
