"""How the model is trained: batch, precision, optimizer, kernels, the framework that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from ppadvisor.specs.base import Spec, check_count
from ppadvisor.specs.cluster import Precision

if TYPE_CHECKING:
    from ppadvisor.specs.kinds import Field, PositiveInt

Attention = Literal["flash", "eager"]
GradientPrecision = Literal["fp32", "bf16", "fp16"]
Loss = Literal["native", "fused", "torch"]

MAX_BATCH = 1_000_000
"""Sequences of a step. Plans are replayed micro-batch by micro-batch; published batches are below 100,000."""


@dataclass(frozen=True)
class Optimizer:
    """Bytes of optimizer state per parameter beside the weight and its gradient, with 16-bit weights."""

    main_weight_bytes: int
    """The fp32 copy of the weight; absent (0) where the weight itself is fp32."""
    moments_bytes: int
    source: str


OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Optimizer(4, 8, "fp32 main weight 4, two fp32 moments 8: Rajbhandari et al. 2020, arXiv 1910.02054, 3.1"),
    "adamw": Optimizer(4, 8, "as adam: decoupled weight decay keeps no state"),
    "adam-bf16-moments": Optimizer(4, 4, "as adam with bf16 moments (Megatron-Core precision-aware optimizer)"),
    "adam-pure-bf16": Optimizer(0, 4, "bf16 weights updated in place, two bf16 moments"),
    "sgd": Optimizer(4, 0, "fp32 main weight, no momentum"),
    "sgd-momentum": Optimizer(4, 4, "fp32 main weight, fp32 momentum"),
}


class TrainingSpec(Spec):
    """One training run. A field that is None takes the default of the framework."""

    sequence_length: PositiveInt
    global_batch_size: Annotated[PositiveInt, Field(le=MAX_BATCH)]
    """Sequences in one optimizer step."""
    framework: str = "megatron"
    stack: str | None = None
    """Software stack, a preset: what its kernels reach; None: the framework's of today."""
    precision: Precision = "bf16"
    fp8_weights: bool = False
    """Weights of linears kept in fp8 alone; else their fp8 copies are made beside the 16-bit weights."""
    optimizer: str = "adam"
    gradient_precision: GradientPrecision | None = None
    """Precision of the accumulated gradient."""
    attention: Attention = "flash"
    dropout: bool = False
    fused_norm: bool = True
    """Norms in one kernel that keeps its 16-bit input; else plain torch, which works on a copy in fp32."""
    loss: Loss | None = None
    """Cross entropy: `native` (logits 16 bit, softmax fp32 in place), `fused` (one kernel), `torch` (plain fp32)."""
    sequence_parallel: bool = True
    """Norms and residuals divided over the tensor-parallel ranks (only where t > 1)."""

    def check(self) -> None:
        """ValueError for a batch that is too large, and where fields contradict each other."""
        check_count("global_batch_size", self.global_batch_size, MAX_BATCH)
        if self.fp8_weights and self.precision != "fp8":
            raise ValueError(f"fp8_weights needs precision fp8, got {self.precision}")

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight in 16 bit, or in fp32: as it is handed on, and as fp8 copies are made of it."""
        return 4 if self.precision == "fp32" else 2

    @property
    def activation_bytes(self) -> int:
        """Bytes of an element of an activation tensor."""
        return 4 if self.precision == "fp32" else 2

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length
