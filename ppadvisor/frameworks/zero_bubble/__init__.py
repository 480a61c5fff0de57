"""The zero-bubble fork of Megatron-LM: Megatron's memory, and the schedules with a split backward.

Source: sail-sg/zero-bubble-pipeline-parallelism (Qi et al. 2024, arXiv 2401.10241 and 2405.15362).
"""

from __future__ import annotations

from ppadvisor.frameworks.profile import FrameworkProfile, Tensor
from ppadvisor.frameworks.rules import COMMON_RULES, split_rule
from ppadvisor.frameworks.tensors import LOSSES, backward_work, layer_tensors, output_gradients
from ppadvisor.frameworks.zero_bubble.split import split_settings, splits
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec


def saved_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Megatron's legacy layers with a fused gated activation."""
    return tuple(layer_tensors(model, training, kind, gated_copies=3))


def waiting_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """The inputs of the linears stay, which is less than all that was saved; counted whole, on the heavy side."""
    return (*saved_tensors(model, training, kind), *output_gradients(model, training, kind))


PROFILE = FrameworkProfile(
    id="zero-bubble",
    title="zero-bubble fork of Megatron-LM",
    source="sail-sg/zero-bubble-pipeline-parallelism",
    schedules=("none", "naive", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"),
    optimizer_sharding=(0, 1),
    default_optimizer_sharding=1,
    vocab_size_multiple=128,
    losses=LOSSES,
    default_loss="native",
    saved_tensors=saved_tensors,
    waiting_tensors=waiting_tensors,
    backward_work=backward_work,
    rules=(*COMMON_RULES, split_rule("zero_bubble_split", splits, "the fork has no flag for uneven stages")),
    split_settings=split_settings,
    splits=splits,
    dummy_weight_gradients=False,
    frees_sent_outputs=True,
    frees_main_gradients=True,
)
