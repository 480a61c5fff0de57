"""Layers on stages: which splits are worth looking at, and what each stage of a split holds.

Embedding on the first stage; final norm, output layer, loss and multi-token prediction on the last, as Megatron-LM
places them without a layout string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.specs.model import ModelSpec

IntArray = NDArray[np.int64]

Split = tuple[int, ...]

END_WEIGHTS: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (1, 1), (0, 2))
"""Layers that the embedding and the head are counted as when a split is made even.

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
    sizes[0] -= embedding
    sizes[-1] -= head
    return tuple(sizes) if min(sizes) >= 0 else None


def candidate_splits(num_layers: int, pipeline_parallel: int) -> tuple[Split, ...]:
    """The splits a search looks at for p stages, the plain even one first. Empty where p > L.

    A middle stage without layers is never among them.
    """
    if pipeline_parallel > num_layers:
        return ()
    if pipeline_parallel == 1:
        return ((num_layers,),)
    splits: list[Split] = []
    for embedding, head in END_WEIGHTS:
        split = balanced_split(num_layers, pipeline_parallel, embedding, head)
        if split is not None and min(split) >= 1 and split not in splits:
            splits.append(split)
    return tuple(splits)


@dataclass(frozen=True)
class Stages:
    """What the stages of several splits hold: arrays (splits, groups), padded with groups of count 0.

    A group is a run of stages that hold the same; its first stage holds the most micro-batches in flight, so
    in a search one look at each group is enough. With one group a stage, every stage is shown.
    """

    first_stage: IntArray
    count: IntArray
    layers: NDArray[np.float64]
    """(splits, groups, kinds): layers of each kind, multi-token-prediction layers included."""
    has_embedding: NDArray[np.float64]
    has_head: NDArray[np.float64]

    def take(self, splits: IntArray) -> Stages:
        """The same for a list of splits (repeats allowed): one row a plan."""
        return Stages(
            self.first_stage[splits],
            self.count[splits],
            self.layers[splits],
            self.has_embedding[splits],
            self.has_head[splits],
        )


def _contents(model: ModelSpec, split: Split) -> list[tuple[tuple[int, ...], bool, bool]]:
    """For each stage: layers of each kind, holds the embedding, holds the head."""
    kinds, kind_of_layer = model.layer_kinds()
    contents, start = [], 0
    for stage, size in enumerate(split):
        last = stage == len(split) - 1
        held = list(kind_of_layer[start : start + size])
        if last:
            held += [kind_of_layer[-1]] * model.mtp_num_layers
        counts = tuple(held.count(k) for k in range(len(kinds)))
        contents.append((counts, stage == 0, last))
        start += size
    return contents


def stages_of(model: ModelSpec, splits: Sequence[Split], *, every_stage: bool) -> Stages:
    """The stages of each split, in runs of equal ones (`every_stage` False) or one by one."""
    grouped = []
    for split in splits:
        groups: list[tuple[int, int, tuple[tuple[int, ...], bool, bool]]] = []
        for stage, content in enumerate(_contents(model, split)):
            if groups and groups[-1][2] == content and not every_stage:
                groups[-1] = (groups[-1][0], groups[-1][1] + 1, content)
            else:
                groups.append((stage, 1, content))
        grouped.append(groups)
    shape = (len(splits), max(len(g) for g in grouped))
    num_kinds = len(model.layer_kinds()[0])
    stages = Stages(
        np.zeros(shape, dtype=np.int64),
        np.zeros(shape, dtype=np.int64),
        np.zeros((*shape, num_kinds)),
        np.zeros(shape),
        np.zeros(shape),
    )
    for i, groups in enumerate(grouped):
        for j, (first, count, (layers, embedding, head)) in enumerate(groups):
            stages.first_stage[i, j], stages.count[i, j] = first, count
            stages.layers[i, j] = layers
            stages.has_embedding[i, j], stages.has_head[i, j] = embedding, head
    return stages
