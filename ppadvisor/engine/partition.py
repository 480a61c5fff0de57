"""Layers on stages: which splits are worth looking at, and what each stage of a split holds.

Embedding on the first stage; final norm, output layer, loss and multi-token prediction on the last, as Megatron-LM
places them without a layout string.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ppadvisor.specs.model import ModelSpec

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Split = tuple[int, ...]

END_WEIGHTS: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (1, 1), (0, 2))
"""Layers that the embedding and the head are counted as when a split is made even, whatever the model.

(0, 0) is the plain even split; (1, 1) is Megatron's --account-for-embedding/loss-in-pipeline-split.
"""


def balanced_split(num_layers: int, pipeline_parallel: int, embedding: int = 0, head: int = 0) -> Split | None:
    """Layers of each stage, as even as possible when embedding and head count as so many layers; None if impossible.

    Stages that must take one layer more are the late ones but not the last: under 1F1B the early ones hold more
    micro-batches, and the last one has the loss.

    >>> balanced_split(30, 4, 1, 1)
    (7, 8, 8, 7)
    """
    base, extra = divmod(num_layers + embedding + head, pipeline_parallel)
    sizes = [base] * pipeline_parallel
    # from the last but one down to the first, the last one at the end
    for stage in [*range(pipeline_parallel - 2, -1, -1), pipeline_parallel - 1][:extra]:
        sizes[stage] += 1
    if sizes[-1] <= head and pipeline_parallel > 1:
        # the head alone outweighs a stage: one layer goes with it, the rest is spread over the others
        others = balanced_split(num_layers - 1, pipeline_parallel - 1, embedding)
        return None if others is None else (*others, 1)
    sizes[0] -= embedding
    sizes[-1] -= head
    return tuple(sizes) if min(sizes) >= 0 else None


def candidate_splits(num_layers: int, num_stages: int, head: float = 0.0) -> tuple[Split, ...]:
    """The splits a search looks at for p v stages, the plain even one first. Empty where there are more than layers.

    `head`: how many layers' work the head is; splits that count it so, rounded either way, are among them. A stage
    without layers is never.
    """
    if num_stages > num_layers:
        return ()
    if num_stages == 1:
        return ((num_layers,),)
    splits: list[Split] = []
    own = tuple((0, layers) for layers in (int(head), int(head) + 1) if layers > 2)
    for embedding, counted in (*END_WEIGHTS, *own):
        split = balanced_split(num_layers, num_stages, embedding, counted)
        if split is not None and min(split) >= 1 and split not in splits:
            splits.append(split)
    return tuple(splits)


Placement = tuple[tuple[int, ...], ...]
"""For each rank, the stage (in model order) of each of its chunks."""


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

    @cached_property
    def layers(self) -> FloatArray:
        """(layouts, groups, kinds): layers of each kind, all chunks of a rank."""
        return np.asarray(sum(self.chunk_layers[:, :, c] * self.chunk_count[:, :, c, None] for c in self._chunks))

    @cached_property
    def has_embedding(self) -> FloatArray:
        """(layouts, groups): embeddings (or shares of one) that a rank holds."""
        return self.all_chunks(self.chunk_embedding)

    @cached_property
    def has_head(self) -> FloatArray:
        """(layouts, groups): heads (or shares of one) that a rank holds."""
        return self.all_chunks(self.chunk_head)

    def all_chunks(self, of_chunks: FloatArray) -> FloatArray:
        """Sum a quantity of each chunk, (layouts, groups, chunks), over the chunks of a rank: (layouts, groups)."""
        return np.asarray(sum(of_chunks[:, :, c] * self.chunk_count[:, :, c] for c in self._chunks))

    @property
    def _chunks(self) -> range:
        return range(self.chunk_count.shape[2])

    @property
    def last_stage(self) -> IntArray:
        """The last rank of each group."""
        return self.first_stage + np.maximum(self.count - 1, 0)

    def take(self, layouts: IntArray) -> Stages:
        """The same for a list of layouts (repeats allowed): one row a plan."""
        return Stages(*(np.take(getattr(self, field.name).T, layouts, axis=-1).T for field in fields(self)))


@dataclass(frozen=True)
class Layout:
    """Layers of each stage in model order, and which rank holds which stages."""

    split: Split
    placement: Placement
    spreads_vocabulary: bool = False
    """Embedding and head are divided over all ranks (Vocabulary Parallelism, arXiv 2411.05288)."""


_Chunk = tuple[tuple[int, ...], float, float, float, float]


_Rank = tuple[int, int, tuple[tuple[int, _Chunk], ...]]
"""The first of a group of ranks, how many they are, and their chunks: how many, and what they hold."""


def _stage_contents(kind_of_layer: tuple[int, ...], mtp_layers: int, layout: Layout) -> list[_Chunk]:
    """For each stage: layers of each kind, shares of embedding and head, whether its neighbours are on its rank."""
    kinds, ranks = max(kind_of_layer) + 1, len(layout.placement)
    rank_of = [-1, *stage_ranks(layout.placement), -1]
    contents, start = [], 0
    for stage, size in enumerate(layout.split):
        last = stage == len(layout.split) - 1
        held = list(kind_of_layer[start : start + size])
        if last:
            held += [kind_of_layer[-1]] * mtp_layers
        counts = tuple(held.count(k) for k in range(kinds))
        ends = (1 / ranks, 1 / ranks) if layout.spreads_vocabulary else (float(stage == 0), float(last))
        before, own, after = rank_of[stage : stage + 3]
        contents.append((counts, *ends, float(own == after), float(own == before)))
        start += size
    return contents


@lru_cache(maxsize=4096)
def _groups(kind_of_layer: tuple[int, ...], mtp_layers: int, layout: Layout, every_stage: bool) -> tuple[_Rank, ...]:
    """Runs of ranks that hold the same, and their chunks, those that hold the same taken together."""
    stages = _stage_contents(kind_of_layer, mtp_layers, layout)
    groups: list[tuple[int, int, list[_Chunk]]] = []
    for rank, held in enumerate(layout.placement):
        chunks = [stages[stage] for stage in held]
        if groups and groups[-1][2] == chunks and not every_stage:
            groups[-1] = (groups[-1][0], groups[-1][1] + 1, chunks)
        else:
            groups.append((rank, 1, chunks))
    return tuple((first, count, _alike(chunks, every_stage)) for first, count, chunks in groups)


def _alike(chunks: list[_Chunk], every_stage: bool) -> tuple[tuple[int, _Chunk], ...]:
    if every_stage:
        return tuple((1, chunk) for chunk in chunks)
    return tuple((number, chunk) for chunk, number in Counter(chunks).items())


def _groups_of(model: ModelSpec, layouts: Sequence[Layout], every_stage: bool) -> list[tuple[_Rank, ...]]:
    _, kind_of_layer = model.layer_kinds()
    return [_groups(tuple(kind_of_layer), model.mtp_num_layers, layout, every_stage) for layout in layouts]


def look_sizes(model: ModelSpec, layouts: Sequence[Layout]) -> list[tuple[int, int]]:
    """(groups of ranks, different chunks of one rank) of each layout: what a search looks at."""
    grouped = _groups_of(model, layouts, every_stage=False)
    return [(len(groups), max(len(chunks) for _, _, chunks in groups)) for groups in grouped]


def stage_ranks(placement: Placement) -> list[int]:
    """The rank of each stage in model order; of two copies the first."""
    rank_of: dict[int, int] = {}
    for chunk in range(len(placement[0])):
        for rank, held in enumerate(placement):
            rank_of.setdefault(held[chunk], rank)
    return [rank_of[stage] for stage in range(len(rank_of))]


def _boundaries(layout: Layout) -> tuple[int, int]:
    """(boundaries between neighbouring ranks, between ranks further apart); those within a rank cost nothing."""
    ranks = stage_ranks(layout.placement)
    steps = [abs(after - before) for before, after in pairwise(ranks)]
    return sum(step == 1 for step in steps), sum(step > 1 for step in steps)


def stages_of(model: ModelSpec, layouts: Sequence[Layout], *, every_stage: bool) -> Stages:
    """The ranks of each layout, in runs of equal ones (`every_stage` False) or one by one."""
    grouped = _groups_of(model, layouts, every_stage)
    shape = (len(layouts), max(len(groups) for groups in grouped))
    chunks = max(len(held) for groups in grouped for _, _, held in groups)
    num_kinds = len(model.layer_kinds()[0])
    order: Literal["C", "F"] = "C" if every_stage else "F"
    stages = Stages(
        np.zeros(shape, dtype=np.int64, order=order),
        np.zeros(shape, dtype=np.int64, order=order),
        np.zeros((*shape, chunks), order=order),
        np.zeros((*shape, chunks, num_kinds), order=order),
        *(np.zeros((*shape, chunks), order=order) for _ in range(4)),
        *np.array([_boundaries(layout) for layout in layouts], dtype=np.float64).T,
    )
    for i, groups in enumerate(grouped):
        for j, (first, count, held) in enumerate(groups):
            stages.first_stage[i, j], stages.count[i, j] = first, count
            for k, (number, (layers, embedding, head, hands_over, takes_over)) in enumerate(held):
                stages.chunk_count[i, j, k], stages.chunk_layers[i, j, k] = number, layers
                stages.chunk_embedding[i, j, k], stages.chunk_head[i, j, k] = embedding, head
                stages.chunk_hands_over[i, j, k], stages.chunk_takes_over[i, j, k] = hands_over, takes_over
    return stages
