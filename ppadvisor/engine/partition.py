"""Layers on stages: which splits are worth looking at, and what each stage of a split holds.

Embedding on the first stage; final norm, output layer, loss and multi-token prediction on the last, as Megatron-LM
places them without a layout string.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from ppadvisor.engine.stages import Stages as Stages
from ppadvisor.specs.model import ModelSpec

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


@lru_cache(maxsize=4096)
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


def stage_ranks(placement: Placement) -> list[int]:
    """The rank of each stage in model order; of two copies the first."""
    rank_of: dict[int, int] = {}
    for chunk in range(len(placement[0])):
        for rank, held in enumerate(placement):
            rank_of.setdefault(held[chunk], rank)
    return [rank_of[stage] for stage in range(len(rank_of))]


@lru_cache(maxsize=1024)
def _boundaries(placement: Placement) -> tuple[int, int]:
    """(boundaries between neighbouring ranks, between ranks further apart); those within a rank cost nothing."""
    steps = [abs(after - before) for before, after in pairwise(stage_ranks(placement))]
    return sum(step == 1 for step in steps), sum(step > 1 for step in steps)


def stages_of(model: ModelSpec, layouts: Sequence[Layout], *, every_stage: bool) -> Stages:
    """The ranks of each layout, in runs of equal ones (`every_stage` False) or one by one."""
    grouped = _groups_of(model, layouts, every_stage)
    shape = (len(layouts), max((len(groups) for groups in grouped), default=1))
    chunks = max((len(held) for groups in grouped for _, _, held in groups), default=1)
    num_kinds = len(model.layer_kinds()[0])
    boundaries = np.array([_boundaries(layout.placement) for layout in layouts], dtype=np.float64).reshape(-1, 2)
    order: Literal["C", "F"] = "C" if every_stage else "F"
    stages = Stages(
        np.zeros(shape, dtype=np.int64, order=order),
        np.zeros(shape, dtype=np.int64, order=order),
        np.zeros((*shape, chunks), order=order),
        np.zeros((*shape, chunks, num_kinds), order=order),
        *(np.zeros((*shape, chunks), order=order) for _ in range(4)),
        *boundaries.T,
    )
    for i, groups in enumerate(grouped):
        for j, (first, count, held) in enumerate(groups):
            stages.first_stage[i, j], stages.count[i, j] = first, count
            for k, (number, (layers, embedding, head, hands_over, takes_over)) in enumerate(held):
                stages.chunk_count[i, j, k], stages.chunk_layers[i, j, k] = number, layers
                stages.chunk_embedding[i, j, k], stages.chunk_head[i, j, k] = embedding, head
                stages.chunk_hands_over[i, j, k], stages.chunk_takes_over[i, j, k] = hands_over, takes_over
    return stages
