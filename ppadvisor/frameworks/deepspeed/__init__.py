"""DeepSpeed's pipeline engine with plain torch layers: 1F1B only, ZeRO 0 and 1 under pipelining.

Source: microsoft/DeepSpeed, deepspeed/runtime/pipe/schedule.py (TrainSchedule is 1F1B) and engine.py: the pipeline
engine refuses ZeRO-2 and ZeRO-3.
"""

from __future__ import annotations

from ppadvisor.frameworks.deepspeed.rules import RULES
from ppadvisor.frameworks.deepspeed.split import split_settings, splits
from ppadvisor.frameworks.profile import FrameworkProfile, Tensor
from ppadvisor.frameworks.tensors import LOSSES, backward_work, layer_tensors, output_gradients
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Plain torch layers: gate, up, activated gate and product of a gated feed-forward are all kept."""
    return tuple(layer_tensors(model, training, kind, gated_copies=4))


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """No schedule of it splits the backward; what torch would keep."""
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind))


PROFILE = FrameworkProfile(
    id="deepspeed",
    title="DeepSpeed pipeline engine",
    source="microsoft/DeepSpeed, deepspeed/runtime/pipe",
    schedules=("none", "naive", "1f1b"),
    optimizer_sharding=(0, 1, 2, 3),
    default_optimizer_sharding=1,
    vocab_size_multiple=1,
    losses=LOSSES,
    default_loss="torch",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=backward_work,
    rules=RULES,
    split_settings=split_settings,
    splits=splits,
    dummy_weight_gradients=False,
    frees_sent_outputs=False,
    keeps_autograd_gradients=True,
)
