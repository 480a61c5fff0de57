"""DeepSpeed's pipeline engine with plain torch layers: 1F1B only, ZeRO 0 and 1 under pipelining.

Source: microsoft/DeepSpeed, deepspeed/runtime/pipe/schedule.py (TrainSchedule is 1F1B) and engine.py: the pipeline
engine refuses ZeRO-2 and ZeRO-3.
"""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.frameworks.deepspeed.rules import RULES
from ppadvisor.frameworks.deepspeed.split import split_settings, splits
from ppadvisor.frameworks.gradients import last_product_work, output_gradients, plain_backward_work
from ppadvisor.frameworks.profile import FrameworkProfile, Tensor
from ppadvisor.frameworks.tensors import LOSSES, layer_tensors
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Plain torch layers: gate, up, activated gate and product of a gated feed-forward are all kept."""
    return tuple(layer_tensors(model, training, kind, fused=False))


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """No schedule of it splits the backward; what torch would keep."""
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind))


NATIVE = replace(
    LOSSES["native"],
    title="Megatron's vocabulary-parallel cross entropy of logits that the last layer casts to fp32",
    forward_bytes=14,
    backward_bytes=10,
    saved_bytes=8,
    kept_bytes=8,
    source="16-bit logits 2, fp32 ones of both pipeline buffers 4 and 4, exponentials 4: Megatron-DeepSpeed "
    "gpt_model.py:292 (commit ae6277f5), DeepSpeed runtime/pipe/engine.py:690, which never clears the last stage's",
)
TORCH = replace(
    LOSSES["torch"],
    forward_bytes=LOSSES["torch"].forward_bytes + 2,
    backward_bytes=LOSSES["torch"].backward_bytes + 2,
    kept_bytes=4,
    source=LOSSES["torch"].source + "; 16-bit logits of both pipeline buffers, which are never cleared: "
    "runtime/pipe/engine.py:690",
)


PROFILE = FrameworkProfile(
    id="deepspeed",
    title="DeepSpeed pipeline engine",
    source="microsoft/DeepSpeed, deepspeed/runtime/pipe",
    schedules=("none", "naive", "1f1b"),
    stack="torch-eager",
    optimizer_sharding=(0, 1, 2, 3),
    default_optimizer_sharding=1,
    vocab_size_multiple=1,
    losses={**LOSSES, "native": NATIVE, "torch": TORCH},
    default_loss="torch",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=plain_backward_work,
    last_product_work=last_product_work,
    rules=RULES,
    split_settings=split_settings,
    splits=splits,
    dummy_weight_gradients=False,
    frees_sent_outputs=False,
    # by Megatron (mpu/initialize.py:118-166) and by DeepSpeed (runtime/pipe/topology.py:309-362)
    groups_made_twice=True,
    eager_temporaries=True,
    keeps_received_inputs=True,
    partitions_boundaries=True,
    reduction_bucket_elements=5e8,  # runtime/zero/constants.py:68
    keeps_autograd_gradients=True,
    # Megatron-DeepSpeed's checkpoint_num_layers; no modules but the attention core of a Megatron layer
    recompute_modules=("core_attn",),
    recompute_methods=("uniform",),
)
