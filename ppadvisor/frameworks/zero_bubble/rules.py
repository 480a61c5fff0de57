"""What the zero-bubble fork cannot train: its legacy layers alone have a backward that it splits.

Source: sail-sg/zero-bubble-pipeline-parallelism 39f2c186, megatron/core/zbpp_utils.py:73 (embeddings),
megatron/training/arguments.py:560 (context), megatron/legacy/model/transformer.py (layers).
"""

from __future__ import annotations

from ppadvisor.frameworks.rules import COMMON_RULES, no_context_rule, option_rule, run_rule, split_rule
from ppadvisor.frameworks.zero_bubble.split import splits
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.training import TrainingSpec

TIED = "the fork takes untied embeddings only: --untie-embeddings-and-output-weights"
OPTIONS = {
    "optimizer": ("adam", "adamw", "sgd", "sgd-momentum"),
    "gradient_precision": (None, "fp32", "fp16"),
    "loss": (None, "native"),
    "fused_norm": (True,),
}
"""What its parser can say of a training run."""


def _layers(model: ModelSpec, training: TrainingSpec) -> str | None:
    for holds, what in (
        (model.mla is not None, "latent attention"),
        (model.moe is not None, "experts of this kind"),
        (training.precision == "fp8", "fp8, which needs Transformer Engine"),
    ):
        if holds:
            return f"the legacy layers of the zero-bubble fork have no {what}; megatron would"
    return None


def _tied(model: ModelSpec, _: TrainingSpec) -> str | None:
    return f"{model.name}: {TIED}; a model file says tied_embeddings = false" if model.tied_embeddings else None


RULES = (
    *COMMON_RULES,
    run_rule("zero_bubble_layers", _layers),
    run_rule("untied_embeddings", _tied),
    option_rule("zero_bubble_options", "the fork", OPTIONS),
    no_context_rule("zero_bubble_context_parallel", "the fork's legacy layers do not divide a sequence"),
    split_rule("zero_bubble_split", splits, "the fork has no flag for uneven stages"),
)
