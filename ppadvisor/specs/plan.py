"""A plan: how the GPUs are divided and in what order they work. One for people, a table of them for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ppadvisor.specs.base import Spec
from ppadvisor.specs.recomputation import (
    CORE_ATTENTION,
    FULL,
    MODULES,
    SELECTIVE,
    Recomputation,
    Recompute,
    RecomputeMethod,
)

if TYPE_CHECKING:
    from ppadvisor.specs.kinds import Field, Indices, NonNegativeInt, PositiveInt

IntArray = NDArray[np.int64]


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
    recompute_modules: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """What `selective` drops, where it is not the attention core."""
    recompute_method: RecomputeMethod | None = None
    """Of `full`: uniform (every layer, in groups) or block (some layers of each chunk), where it is not every layer."""
    recompute_num_layers: PositiveInt | None = None
    """block: layers of each chunk that are recomputed; uniform: layers of a group."""
    optimizer_sharding: NonNegativeInt
    """ZeRO stage: 0 nothing, 1 optimizer states (Megatron's distributed optimizer), 2 and gradients, 3 and weights."""
    layers_per_stage: Indices
    """Transformer layers of each rank, first rank first; with two copies of the model, of each stage."""
    layers_per_chunk: Indices
    """Transformer layers of each virtual stage in model order; may be left out where v = 1 makes it the same."""

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """With one chunk a rank, its layers are those of the rank."""
        if values.get("virtual_stages") == 1:
            return {"layers_per_chunk": values.get("layers_per_stage"), **values}
        return values

    def check(self) -> None:
        """ValueError where the fields of recomputation contradict each other."""
        if self.recompute_modules is not None:
            unknown = [name for name in self.recompute_modules if name not in MODULES]
            if unknown or not self.recompute_modules or self.recompute != "selective":
                raise ValueError(
                    f"recompute_modules: got {list(self.recompute_modules)}; goes with recompute selective alone, "
                    f"allowed: {', '.join(MODULES)}"
                )
        given = (self.recompute_method is not None, self.recompute_num_layers is not None)
        if any(given) and not (all(given) and self.recompute == "full"):
            raise ValueError("recompute_method and recompute_num_layers go together, and with recompute full alone")

    @property
    def recomputation(self) -> Recomputation:
        """The choice as one value."""
        if self.recompute == "selective":
            return Recomputation("selective", self.recompute_modules or CORE_ATTENTION)
        if self.recompute_method is None or self.recompute_num_layers is None:
            return Recomputation(self.recompute)
        return Recomputation(self.recompute, method=self.recompute_method, num_layers=self.recompute_num_layers)

    @staticmethod
    def recomputation_fields(choice: Recomputation) -> dict[str, Any]:
        """The fields of a plan that say so; those that a plain choice leaves open are None."""
        modules = choice.modules if choice.kind == "selective" and choice != SELECTIVE else None
        layers = choice.kind == "full" and choice != FULL
        return {
            "recompute": choice.kind,
            "recompute_modules": modules,
            "recompute_method": choice.method if layers else None,
            "recompute_num_layers": choice.num_layers if layers else None,
        }


LARGEST_KEY = 2**62
"""Rows are told apart by one whole number, which must not overflow."""


def distinct_rows(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """(the first row of each distinct one, which of them each row is) of columns of whole numbers from 0 on."""
    number = len(columns[0])
    # equal rows mostly follow each other: only the first of each run is sorted
    begins = np.ones(number, dtype=np.bool_)
    begins[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    starts = np.flatnonzero(begins)
    _, first, run = np.unique(row_keys([column[starts] for column in columns]), return_index=True, return_inverse=True)
    return starts[first], np.repeat(run, np.diff(np.append(starts, number)))


def distinct_values(numbers: IntArray) -> tuple[IntArray, IntArray]:
    """(the distinct ones of some whole numbers from 0 on, in order; which of them each is)."""
    found = values_in(numbers)
    if not len(found) or found[-1] >= _MOST_COUNTED * len(numbers):
        return found, np.searchsorted(found, numbers)
    place = np.zeros(found[-1] + 1, dtype=np.int64)
    place[found] = np.arange(len(found))
    return found, place[numbers]


def distinct_first(numbers: IntArray) -> tuple[IntArray, IntArray]:
    """(which of the distinct ones each number is, the place of the first of each)."""
    found, index = distinct_values(numbers)
    first = np.zeros(len(found), dtype=np.int64)
    first[index[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return index, first


_MOST_COUNTED = 64
"""Up to so many times their number values are counted, not sorted."""


def values_in(numbers: IntArray) -> IntArray:
    """The distinct ones of some whole numbers from 0 on, in order."""
    most = int(numbers.max(initial=0))
    if most >= _MOST_COUNTED * len(numbers):
        # without the counts it imports numpy.ma, for a fiftieth of a small question
        return np.unique(numbers, return_counts=True)[0]
    there = np.zeros(most + 1, dtype=np.bool_)
    there[numbers] = True
    return np.flatnonzero(there)


def row_keys(columns: Sequence[IntArray]) -> IntArray:
    """A whole number for each row, which only equal rows share."""
    key, size = np.zeros_like(columns[0]), 1
    for column in columns:
        values = int(column.max(initial=0)) + 1
        if size * values > LARGEST_KEY:
            used, key = np.unique(key, return_inverse=True)
            size = len(used)
        key, size = key * values + column, size * values
    return key


@dataclass(frozen=True)
class PlanTable:
    """Plans as rows: one int64 array a column, all of one length.

    `schedule` indexes `schedule_names`, `recompute` indexes `recomputations`, `split` indexes `splits`
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
    recomputations: tuple[Recomputation, ...]

    def __len__(self) -> int:
        return len(self.pipeline_parallel)

    @staticmethod
    @cache
    def column_names() -> tuple[str, ...]:
        names = ("schedule_names", "splits", "recomputations")
        return tuple(f.name for f in fields(PlanTable) if f.name not in names)

    def take(self, rows: IntArray | NDArray[np.bool_] | slice) -> PlanTable:
        """The table of some rows only (indices, a mask or a slice)."""
        if isinstance(rows, slice):
            return replace(self, **{name: getattr(self, name)[rows] for name in self.column_names()})
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return replace(self, **{name: getattr(self, name).take(numbers) for name in self.column_names()})

    @property
    def pipeline_sizes(self) -> tuple[IntArray, IntArray, IntArray]:
        """(p, m, v), what a schedule asks for."""
        return self.pipeline_parallel, self.num_microbatches, self.virtual_stages

    def distinct_sizes(self) -> tuple[IntArray, IntArray]:
        """(a row of each distinct size, which of them each row has): all but who works when and what is kept."""
        left_out = ("schedule", "virtual_stages", "split", "recompute")
        return distinct_rows([getattr(self, name) for name in self.column_names() if name not in left_out])

    def recomputed_fully(self) -> NDArray[np.bool_]:
        """Rows in which whole layers are recomputed, all of them or some."""
        return np.array([choice.kind == "full" for choice in self.recomputations])[self.recompute]
