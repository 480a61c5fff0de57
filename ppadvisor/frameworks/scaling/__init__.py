"""Aleph Alpha's scaling: plain torch layers with tensor parallelism, 1F1B and ZeRO-1 of its own.

Source: Aleph-Alpha/scaling, commit 737f855 (2024), src/scaling/core; the paths below are in there. The code behind the
runs of 2023 (arXiv 2311.05610) was not published; this is taken for it.
"""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.frameworks.gradients import last_product_work, output_gradients, plain_backward_work
from ppadvisor.frameworks.profile import FrameworkProfile, LossProfile, Spread, Tensor
from ppadvisor.frameworks.scaling.rules import RULES
from ppadvisor.frameworks.scaling.split import split_settings
from ppadvisor.frameworks.tensors import ATTENTION_NORM, FEED_FORWARD_NORM, LOSSES, layer_tensors
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec

TORCH = LossProfile(
    "plain fp32 cross entropy of the gathered logits",
    16,
    6,
    10,
    36,
    16,
    "losses/cross_entropy.py:24,74. 16-bit logits of both buffers 2 and 2; in the loss's backward the fp32 log-softmax "
    "4, its gradient 4 and that of its input 4; then both logits and their 16-bit gradient",
    kept_bytes=2,
)
"""The last stage never takes its own output, so that the pipeline's other buffer holds it (parallel_module.py:628)."""


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Plain torch layers, whose norms gather their output: the linears keep it whole (norm/rms_norm.py:101)."""
    gathered = (ATTENTION_NORM, FEED_FORWARD_NORM)
    shared = layer_tensors(model, training, kind, fused=False)
    return tuple(replace(t, spread=Spread.WHOLE) if t.name in gathered else t for t in shared)


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """No schedule of it splits the backward; what torch would keep."""
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind))


PROFILE = FrameworkProfile(
    id="scaling",
    title="Aleph Alpha scaling",
    source="Aleph-Alpha/scaling, commit 737f855",
    schedules=("none", "naive", "1f1b"),
    stack="torch-eager",
    optimizer_sharding=(0, 1),
    default_optimizer_sharding=1,
    vocab_size_multiple=1,
    losses={**LOSSES, "torch": TORCH},
    default_loss="torch",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=plain_backward_work,
    last_product_work=last_product_work,
    rules=RULES,
    split_settings=split_settings,
    dummy_weight_gradients=False,
    frees_sent_outputs=False,
    # optimizer/parameter_group.py:158-181, :368: 16-bit gradients, an fp32 copy of the rank's share at the step
    default_gradient_precision="weights",
    frees_main_gradients=True,
    # optimizer/allreduce.py:7-14, optimizer.py:141-148: called in the step, bucket by bucket; parameter_group.py:470
    reduces_at_the_end=True,
    # linear/column_parallel_linear.py:46 and lm_head.py:25
    gathers_logits=True,
    eager_temporaries=True,
    # checkpointing of every layer, or of a stage as one
    recompute_modules=(),
    recompute_methods=("uniform",),
)
