"""What one evaluation is about: the model, the machines, the training run, the trainer, the assumptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ppadvisor.errors import InputError
from ppadvisor.frameworks.profile import FrameworkProfile, Tensor
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec, Precision
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import OPTIMIZERS, Optimizer, TrainingSpec

TensorsOf = Callable[[ModelSpec, TrainingSpec, LayerKind], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Problem:
    """Everything that does not change between the plans of one search."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    framework: FrameworkProfile
    assumptions: Assumptions = field(default_factory=Assumptions)

    @property
    def optimizer(self) -> Optimizer:
        return OPTIMIZERS[self.training.optimizer]

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of one GPU in the precision of the matrix products. InputError where the GPU has none."""
        return self._peak(self.training.precision)

    @property
    def attention_peak_flops_per_s(self) -> float:
        """Peak for the attention core, which stays in 16 bit under fp8."""
        return self._peak("bf16" if self.training.precision == "fp8" else self.training.precision)

    def tensors(self, of: TensorsOf, kind: LayerKind) -> tuple[Tensor, ...]:
        """What the trainer says of a layer of this kind, worked out once: `problem.framework.saved_tensors`, ..."""
        if (of, kind) not in self._tensors:
            self._tensors[of, kind] = of(self.model, self.training, kind)
        return self._tensors[of, kind]

    @cached_property
    def _tensors(self) -> dict[tuple[TensorsOf, LayerKind], tuple[Tensor, ...]]:
        return {}

    def _peak(self, precision: Precision) -> float:
        peaks = self.cluster.gpu.peak_flops_per_s
        if precision not in peaks:
            raise InputError(
                f"precision {precision!r}: {self.cluster.gpu.name} has no such matrix rate; allowed: {', '.join(peaks)}"
            )
        return peaks[precision]
