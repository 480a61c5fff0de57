"""Layers on stages: which splits are worth looking at, and what each stage of a split holds.

Embedding on the first stage; final norm, output layer, loss and multi-token prediction on the last, as Megatron-LM
places them without a layout string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

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
    a rank, every rank is shown. Arrays that begin with `chunk_` have an axis for the chunks of a rank.
    """

    first_stage: IntArray
    """The first rank of the group."""
    count: IntArray
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
        return np.asarray(self.chunk_layers.sum(axis=2))

    @cached_property
    def has_embedding(self) -> FloatArray:
        """(layouts, groups): embeddings (or shares of one) that a rank holds."""
        return np.asarray(self.chunk_embedding.sum(axis=2))

    @cached_property
    def has_head(self) -> FloatArray:
        """(layouts, groups): heads (or shares of one) that a rank holds."""
        return np.asarray(self.chunk_head.sum(axis=2))

    @property
    def last_stage(self) -> IntArray:
        """The last rank of each group."""
        return self.first_stage + np.maximum(self.count - 1, 0)

    def take(self, layouts: IntArray) -> Stages:
        """The same for a list of layouts (repeats allowed): one row a plan."""
        return Stages(
            self.first_stage[layouts],
            self.count[layouts],
            self.chunk_layers[layouts],
            self.chunk_embedding[layouts],
            self.chunk_head[layouts],
            self.chunk_hands_over[layouts],
            self.chunk_takes_over[layouts],
            self.adjacent[layouts],
            self.far[layouts],
        )


@dataclass(frozen=True)
class Layout:
    """Layers of each stage in model order, and which rank holds which stages."""

    split: Split
    placement: Placement
    spreads_vocabulary: bool = False
    """Embedding and head are divided over all ranks (Vocabulary Parallelism, arXiv 2411.05288)."""


_Chunk = tuple[tuple[int, ...], float, float, float, float]


def _stage_contents(model: ModelSpec, layout: Layout) -> list[_Chunk]:
    """For each stage: layers of each kind, shares of embedding and head, whether its neighbours are on its rank."""
    kinds, kind_of_layer = model.layer_kinds()
    ranks = len(layout.placement)
    rank_of = [-1, *stage_ranks(layout.placement), -1]
    contents, start = [], 0
    for stage, size in enumerate(layout.split):
        last = stage == len(layout.split) - 1
        held = list(kind_of_layer[start : start + size])
        if last:
            held += [kind_of_layer[-1]] * model.mtp_num_layers
        counts = tuple(held.count(k) for k in range(len(kinds)))
        ends = (1 / ranks, 1 / ranks) if layout.spreads_vocabulary else (float(stage == 0), float(last))
        before, own, after = rank_of[stage : stage + 3]
        contents.append((counts, *ends, float(own == after), float(own == before)))
        start += size
    return contents


def _groups(model: ModelSpec, layout: Layout, every_stage: bool) -> list[tuple[int, int, list[_Chunk]]]:
    """Runs of ranks that hold the same: (first rank, number of ranks, its chunks)."""
    stages = _stage_contents(model, layout)
    groups: list[tuple[int, int, list[_Chunk]]] = []
    for rank, held in enumerate(layout.placement):
        chunks = [stages[stage] for stage in held]
        if groups and groups[-1][2] == chunks and not every_stage:
            groups[-1] = (groups[-1][0], groups[-1][1] + 1, chunks)
        else:
            groups.append((rank, 1, chunks))
    return groups


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
    """The ranks of each layout, in runs of equal ones (`every_stage` False) or one by one.

    All layouts must have the same number of chunks a rank.
    """
    grouped = [_groups(model, layout, every_stage) for layout in layouts]
    shape = (len(layouts), max(len(groups) for groups in grouped))
    chunks = len(layouts[0].placement[0])
    num_kinds = len(model.layer_kinds()[0])
    stages = Stages(
        np.zeros(shape, dtype=np.int64),
        np.zeros(shape, dtype=np.int64),
        np.zeros((*shape, chunks, num_kinds)),
        *(np.zeros((*shape, chunks)) for _ in range(4)),
        *np.array([_boundaries(layout) for layout in layouts], dtype=np.float64).T,
    )
    for i, groups in enumerate(grouped):
        for j, (first, count, held) in enumerate(groups):
            stages.first_stage[i, j], stages.count[i, j] = first, count
            layers, *others = zip(*held, strict=True)
            stages.chunk_layers[i, j] = layers
            columns = (stages.chunk_embedding, stages.chunk_head, stages.chunk_hands_over, stages.chunk_takes_over)
            for column, values in zip(columns, others, strict=True):
                column[i, j] = values
    return stages
