"""A plan: how the GPUs are divided and in what order they work. One for people, a table of them for the engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from ppadvisor.specs.base import Indices, NonNegativeInt, PositiveInt, Spec

IntArray = NDArray[np.int64]

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


class PlanSpec(Spec):
    """One plan, in the words of every report."""

    pipeline_parallel: PositiveInt
    tensor_parallel: PositiveInt
    data_parallel: PositiveInt
    context_parallel: PositiveInt
    expert_parallel: PositiveInt
    expert_tensor_parallel: PositiveInt
    virtual_stages: PositiveInt
    micro_batch_size: PositiveInt
    num_microbatches: PositiveInt
    schedule: str
    microbatch_group_size: PositiveInt | None = None
    """N: micro-batches that an interleaved schedule passes through one chunk in turn, where it is not p."""
    recompute: Recompute
    optimizer_sharding: NonNegativeInt
    """ZeRO stage: 0 nothing, 1 optimizer states (Megatron's distributed optimizer), 2 and gradients, 3 and weights."""
    layers_per_stage: Indices
    """Transformer layers of each rank, first rank first; with two copies of the model, of each stage."""
    layers_per_chunk: Indices
    """Transformer layers of each virtual stage in model order; may be left out where v = 1 makes it the same."""

    @model_validator(mode="before")
    @classmethod
    def _one_chunk_a_rank(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("virtual_stages") == 1:
            return {"layers_per_chunk": data.get("layers_per_stage"), **data}
        return data


@dataclass(frozen=True)
class PlanTable:
    """Plans as rows: one int64 array a column, all of one length.

    `schedule` indexes `schedule_names`, `recompute` indexes RECOMPUTE, `split` indexes `splits`
    (layers of each stage in model order, p v of them).
    """

    pipeline_parallel: IntArray
    tensor_parallel: IntArray
    data_parallel: IntArray
    context_parallel: IntArray
    expert_parallel: IntArray
    expert_tensor_parallel: IntArray
    virtual_stages: IntArray
    micro_batch_size: IntArray
    num_microbatches: IntArray
    schedule: IntArray
    recompute: IntArray
    optimizer_sharding: IntArray
    split: IntArray
    schedule_names: tuple[str, ...]
    splits: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.pipeline_parallel)

    @staticmethod
    def column_names() -> tuple[str, ...]:
        return tuple(f.name for f in fields(PlanTable) if f.name not in ("schedule_names", "splits"))

    def take(self, rows: IntArray | NDArray[np.bool_] | slice) -> PlanTable:
        """The table of some rows only (indices, a mask or a slice)."""
        columns = {name: getattr(self, name)[rows] for name in self.column_names()}
        return PlanTable(**columns, schedule_names=self.schedule_names, splits=self.splits)
