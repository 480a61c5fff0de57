"""What the ranks of a pipeline hold: layers, embedding and head, one row a layout or one a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppadvisor.specs.plan import distinct_rows

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
NumberT = TypeVar("NumberT", bound=np.generic)


def _once_per_layout(function: Callable[[Stages], FloatArray]) -> cached_property[FloatArray]:
    """What follows from the chunks of a rank, (layouts, groups, ...): of plans looked up at their layouts."""

    @wraps(function)
    def answer(stages: Stages) -> FloatArray:
        if stages.of_layouts is None:
            return function(stages)
        whole, layouts = stages.of_layouts
        known: FloatArray = getattr(whole, function.__name__)
        return known if layouts is None else _of_plans(known[:, : stages.count.shape[1]], layouts)

    return cached_property(answer)


@dataclass(frozen=True)
class Stages:
    """What the ranks of several layouts hold: arrays (layouts, groups), padded with groups of count 0.

    A group is a run of ranks that hold the same, so that in a search one look at each group is enough. With one group
    a rank, every rank is shown. Arrays that begin with `chunk_` have an axis for the chunks of a rank, in a search one
    entry for all that hold the same. There plans lie next to each other in memory (Fortran order), for a table is long
    and the other axes are short.
    """

    first_stage: IntArray
    """The first rank of the group."""
    count: IntArray
    chunk_count: FloatArray
    """(layouts, groups, chunks): how many chunks of the rank hold the same; 0 where there is none."""
    chunk_layers: FloatArray
    """(layouts, groups, chunks, kinds): layers of each kind, multi-token-prediction layers included."""
    chunk_embedding: FloatArray
    """(layouts, groups, chunks): 1 where the chunk holds the embedding; a share of it where that is spread."""
    chunk_head: FloatArray
    chunk_hands_over: FloatArray
    """1 where the next stage of the model is on the same rank, so that nothing is sent."""
    chunk_takes_over: FloatArray
    """1 where the stage before is."""
    adjacent: FloatArray
    """(layouts,): boundaries between stages on neighbouring ranks."""
    far: FloatArray
    """(layouts,): boundaries between stages on ranks further apart (from the last rank back to the first)."""
    of_layouts: tuple[Stages, IntArray | None] | None = field(default=None, repr=False, kw_only=True)
    """The stages of which these are some, and which of them; None: all."""

    @_once_per_layout
    def layers(self) -> FloatArray:
        """(layouts, groups, kinds): layers of each kind, all chunks of a rank."""
        return np.asarray(sum(self.chunk_layers[:, :, c] * self.chunk_count[:, :, c, None] for c in self._chunks))

    @_once_per_layout
    def has_embedding(self) -> FloatArray:
        """(layouts, groups): embeddings (or shares of one) that a rank holds."""
        return self.all_chunks(self.chunk_embedding)

    @_once_per_layout
    def has_head(self) -> FloatArray:
        """(layouts, groups): heads (or shares of one) that a rank holds."""
        return self.all_chunks(self.chunk_head)

    def all_chunks(self, of_chunks: FloatArray) -> FloatArray:
        """Sum a quantity of each chunk, (layouts, groups, chunks), over the chunks of a rank: (layouts, groups)."""
        total = of_chunks[:, :, 0] * self.chunk_count[:, :, 0]
        for c in self._chunks[1:]:
            total = total + of_chunks[:, :, c] * self.chunk_count[:, :, c]
        return np.asarray(total)

    @property
    def _chunks(self) -> range:
        return range(self.chunk_count.shape[2])

    @property
    def last_stage(self) -> IntArray:
        """The last rank of each group."""
        return self.first_stage + np.maximum(self.count - 1, 0)

    @_once_per_layout
    def holds(self) -> FloatArray:
        """(layouts, groups, kinds): 1 where a rank holds layers of the kind."""
        return (self.layers > 0).astype(np.float64)

    @_once_per_layout
    def with_embedding(self) -> FloatArray:
        """(layouts, groups, kinds): layers of the chunks of a rank that hold the embedding, or a share of it."""
        there = self.chunk_count * (self.chunk_embedding > 0)
        return np.asarray(sum(self.chunk_layers[:, :, c] * there[:, :, c, None] for c in self._chunks))

    @_once_per_layout
    def head_with_embedding(self) -> FloatArray:
        """(layouts, groups): heads (or shares of one) on those chunks."""
        return self.all_chunks(self.chunk_head * (self.chunk_embedding > 0))

    @_once_per_layout
    def head_beside_embedding(self) -> FloatArray:
        """(layouts, groups): heads (or shares of one) of ranks that hold embeddings too."""
        return self.has_head * (self.has_embedding > 0)

    @_once_per_layout
    def ranks(self) -> FloatArray:
        """(layouts, groups): `count` as a factor."""
        return self.count.astype(np.float64)

    @_once_per_layout
    def padding(self) -> FloatArray:
        """(layouts, groups): infinite where there is no rank, else 0."""
        return np.where(self.count > 0, 0.0, np.inf)

    @property
    def chunk_padding(self) -> FloatArray:
        """(layouts, groups, chunks): infinite where there is no chunk, else 0."""
        return np.where(self.chunk_count > 0, 0.0, np.inf)

    @_once_per_layout
    def largest_chunk(self) -> FloatArray:
        """(layouts, groups): layers of the largest chunk of a rank."""
        return np.asarray(self.chunk_layers.sum(axis=3).max(axis=2))

    @cached_property
    def sizes(self) -> tuple[IntArray, IntArray]:
        """(groups, most chunks of a group) of each layout, (layouts,) each."""
        return (self.count > 0).sum(axis=1), (self.chunk_count > 0).sum(axis=2).max(axis=1)

    @cached_property
    def whole_ranks(self) -> Stages:
        """The same with all chunks of a rank as one; what follows from single chunks is not forgotten."""
        real = (self.count > 0).astype(np.float64)[:, :, None]
        ends, none = (self.has_embedding[:, :, None], self.has_head[:, :, None]), np.zeros_like(real)
        chunks = real, self.layers[:, :, None], *ends, none, none
        return Stages(self.first_stage, self.count, *chunks, self.adjacent, self.far, of_layouts=(self, None))

    @cached_property
    def contents(self) -> Stages:
        """What single chunks hold, all that differ, as if each were on a rank of its own: (layouts, contents, 1)."""
        layout, group, chunk = np.nonzero(self.chunk_count)
        layers, *ends = (of[layout, group, chunk] for of in (self.chunk_layers, self.chunk_embedding, self.chunk_head))
        columns = [layout, *layers.T.astype(np.int64), *((end > 0).astype(np.int64) for end in ends)]
        first, _ = distinct_rows(columns)
        layout = layout[first]
        place = np.arange(len(first)) - np.searchsorted(layout, layout)
        shape = len(self.count), int(place.max(initial=0)) + 1, 1

        def table(values: FloatArray) -> FloatArray:
            result = np.zeros((*shape, *values.shape[1:]))
            result[layout, place, 0] = values
            return result

        real, none = table(np.ones(len(first))), np.zeros(shape)
        embedding, head = (table(end[first]) for end in ends)
        count = real[:, :, 0].astype(np.int64)
        chunks = real, table(layers[first]), embedding, head, none, none
        return Stages(np.zeros_like(count), count, *chunks, self.adjacent, self.far)

    def take(self, layouts: IntArray) -> Stages:
        """The same for a list of layouts (repeats allowed), one row a plan, no longer than the longest of them."""
        groups, chunks = (int(size[layouts].max(initial=1)) for size in self.sizes)
        arrays: dict[str, Any] = {"adjacent": self.adjacent[layouts], "far": self.far[layouts]}
        for name in ("first_stage", "count"):
            arrays[name] = _of_plans(getattr(self, name)[:, :groups], layouts)
        for name in (one.name for one in fields(self) if one.name.startswith("chunk_")):
            arrays[name] = _of_plans(getattr(self, name)[:, :groups, :chunks], layouts)
        return Stages(**arrays, of_layouts=(self, layouts))


def _of_plans(values: NDArray[NumberT], layouts: IntArray) -> NDArray[NumberT]:
    """(layouts, ...) -> (plans, ...), plans next to each other."""
    return np.take(values.T, layouts, axis=-1).T
