"""The best split of layers over stages, exactly: dynamic programming over the boundaries, on arrays alone.

Stage k holds the layers i .. i + n - 1; `cost[k, i, n]` is what that costs it, in seconds or bytes, embedding and head
included: the linear partition problem with costs of its own for each stage. Source of the recurrence: Narayanan et al.
2019, PipeDream, section 3.1 (there with replication); the order of criteria and the chunks are an own derivation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

NumberT = TypeVar("NumberT", bound=np.generic)
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Split = tuple[int, ...]

Combine = np.ufunc
"""How the costs of stages are put together: `np.maximum` or `np.add`."""

SAME = 1e-9
"""What differs by less than this share is a tie: floats added up in another order."""


def best_split(allowed: BoolArray, criteria: Sequence[tuple[Combine, FloatArray]]) -> Split | None:
    """Layers of each stage, exact; None where no split is allowed.

    The least of the first criterion, among those of the second, ...; of what is left the most layers on the first
    stage, then on the second, .... A criterion is a cost and how stages put theirs together, `np.maximum` or `np.add`:
    V_k(i) = min over n of max(cost[k, i, n], V_{k+1}(i + n)), or + for max; U_k(i) likewise from the front. A choice
    (k, i, n) stays where max(U_k(i), cost[k, i, n], V_{k+1}(i + n)), or their sum, is V_0(0): a maximum is the least
    exactly where each choice taken is no more, and a sum where all of them lie on least ways. `allowed` and all costs
    have the shape (stages, layers + 1, sizes), sizes 0 .. N: with fewer sizes than layers it is exact among splits of
    at most N layers a stage. O(stages x layers x N) for each criterion.

    Four layers of 1 s, a head of 1.5 s on the last of two stages: 3 and 1 + 1.5, not 2 and 2 + 1.5.

    >>> seconds = np.arange(5.0) + np.array([0.0, 1.5])[:, None]
    >>> cost = np.repeat(seconds[:, None], 5, axis=1)
    >>> best_split(np.ones((2, 5, 5), dtype=bool), [(np.maximum, cost), (np.add, cost**2)])
    (3, 1)
    """
    # within, the sizes come before the layers: the least over a few sizes is found along many layers
    ways = np.ascontiguousarray(allowed.swapaxes(1, 2))
    for combine, cost in criteria:
        barred = np.where(ways, cost.swapaxes(1, 2), np.inf)
        to_go = _to_go(barred, combine)
        least = to_go[0, 0]
        if not np.isfinite(least):
            return None
        limit = least * (1 + SAME)
        ways = barred <= limit if combine is np.maximum else _on_least_ways(barred, to_go, limit)
    return _walk(ways)


def _to_go(cost: FloatArray, combine: Combine) -> FloatArray:
    """V_k(i): the best of the stages from k on with the layers from i on, (stages + 1, layers + sizes)."""
    stages, sizes, starts = cost.shape
    value = np.full((stages + 1, starts - 1 + sizes), np.inf)
    value[stages, starts - 1] = 0.0
    after, whole = _after(value, sizes), np.empty_like(cost[0])
    for stage in reversed(range(stages)):
        combine(cost[stage], after[stage + 1], out=whole).min(axis=0, out=value[stage, :starts])
    return value


def _after(value: NDArray[NumberT], sizes: int) -> NDArray[NumberT]:
    """(stages + 1, sizes, starts): of a value at each boundary the one behind n layers more, a view."""
    return np.lib.stride_tricks.sliding_window_view(value, value.shape[1] + 1 - sizes, axis=1)


def _on_least_ways(cost: FloatArray, to_go: FloatArray, limit: float) -> BoolArray:
    """Choices that lie on a way of no more than the limit: the least sum up to it, its cost, and the least from it."""
    stages, sizes, starts = cost.shape
    whole, after = np.empty_like(cost), _after(to_go, sizes)
    # layers before the boundary j: n of them on this stage, j - n before it; a view of j - n for all n and j
    here = np.full((sizes, sizes - 1 + starts), np.inf)
    row, item = here.strides
    before = np.lib.stride_tricks.as_strided(here[:, sizes - 1 :], (sizes, starts), (row - item, item))
    from_front = np.where(np.arange(starts) == 0, 0.0, np.inf)
    for stage in range(stages):
        np.add(from_front, cost[stage], out=here[:, sizes - 1 :])
        np.add(here[:, sizes - 1 :], after[stage + 1], out=whole[stage])
        before.min(axis=0, out=from_front)
    return np.asarray(whole <= limit)


def _walk(allowed: BoolArray) -> Split | None:
    """Of the allowed ways the one with the largest size first; None where there is none."""
    stages, sizes, starts = allowed.shape
    ends = np.zeros((stages + 1, starts - 1 + sizes), dtype=np.bool_)
    ends[stages, starts - 1] = True
    after = _after(ends, sizes)
    for stage in reversed(range(stages)):
        (allowed[stage] & after[stage + 1]).any(axis=0, out=ends[stage, :starts])
    if not ends[0, 0]:
        return None
    start, split = 0, list[int]()
    for stage in range(stages):
        open_ways = allowed[stage, :, start] & after[stage + 1, :, start]
        split.append(int(np.flatnonzero(open_ways)[-1]))
        start += split[-1]
    return tuple(split)


def aligned_chunks(
    rank_layers: Sequence[int], end_s: FloatArray, layer_s: float, *, below_ends: bool = True
) -> IntArray:
    """Layers of each chunk of each rank, (ranks, chunks), each at least one: the ranks' totals put in step.

    While one chunk of all ranks is at work, the pipeline runs at the pace of its heaviest rank. So a round takes
    sum_c max_r t[r, c], which is no less than the heaviest rank's sum_c t[r, c]. Here it is that, for layers of one
    kind: the heaviest rank's chunks, as equal as can be, bound those of all others, which fit below since no rank is
    heavier. Exact up to the smaller of two loads `end_s` (embedding, head) in chunks of different index. What a rank
    has less than the bound goes from its fullest chunks, the first ones first: they hold the most micro-batches.

    A large head makes such chunks unlike each other, and the pace changes from one to the next; without `below_ends`
    the bound is as equal as can be, and the head stands out. Which is faster depends on m: replay both.

    `end_s` (ranks, chunks): what a chunk takes without layers; `layer_s`: one layer. Own derivation.
    Five chunks on eight ranks, a head of a bit more than a layer: Llama 3 70B's layers, 11 on one rank. As many as in
    the layout of NVIDIA-NeMo/Megatron-Bridge, pull request 5391:

    >>> head = np.zeros((8, 5))
    >>> head[7, 4] = 1.08
    >>> aligned_chunks([10, 10, 10, 11, 10, 10, 10, 9], head, 1.0)[[0, 3, 7]].tolist()
    [[2, 2, 2, 2, 2], [2, 2, 2, 2, 3], [2, 2, 2, 2, 1]]
    """
    totals = np.asarray(rank_layers)
    heaviest = int(np.argmax(totals * layer_s + end_s.sum(axis=1)))
    if below_ends:
        bound_s = _bounds_s(int(totals[heaviest]), end_s[heaviest], end_s.max(axis=0), layer_s)
    else:
        bare = int(np.floor(totals[heaviest] + end_s[heaviest].sum() / layer_s + SAME))
        bound_s = _bounds_s(bare, 0.0 * end_s[0], 0.0 * end_s[0], layer_s)
    room = np.maximum(np.floor((bound_s - end_s) / layer_s + SAME), 1).astype(np.int64)
    for rank, total in enumerate(totals):
        while room[rank].sum() > total:
            room[rank, np.argmax(room[rank])] -= 1
        while room[rank].sum() < total:
            above_s = (room[rank] + 1) * layer_s + end_s[rank] - bound_s
            room[rank, _last_least(above_s)] += 1
    return room


def _bounds_s(total: int, own_s: FloatArray, most_s: FloatArray, layer_s: float) -> FloatArray:
    """Seconds of the heaviest rank's chunks: a layer above `most_s` fits into each, as equal as that leaves."""
    layers = np.maximum(np.ceil((most_s - own_s) / layer_s - SAME) + 1, 1).astype(np.int64)
    while layers.sum() > total and layers.max() > 1:
        layers[np.argmax(layers)] -= 1
    while layers.sum() < total:
        layers[_last_least(layers * layer_s + own_s)] += 1
    return np.asarray(layers * layer_s + own_s)


def _last_least(values: FloatArray) -> int:
    """The last index of the least value, whatever rounding did to equal ones."""
    least = values.min() + SAME * max(float(np.abs(values).max()), 1e-30)
    return int(np.flatnonzero(values <= least)[-1])


def round_s(chunk_s: FloatArray) -> tuple[float, float]:
    """(heaviest rank, sum over the chunks of the heaviest rank's) of chunk times (ranks, chunks): see `aligned_chunks`.

    >>> round_s(np.array([[2.0, 3.0], [3.0, 1.0]]))
    (5.0, 6.0)
    """
    return float(chunk_s.sum(axis=1).max()), float(chunk_s.max(axis=0).sum())
