"""What schedules share that do the gradient of the input, I, and that of the weights, W, apart.

With an order given, the makespan is the longest path through its dependency graph. For equal chunks a path is told by
how many F, I, W and hand-offs it passes, and a few paths are the longest of all, whatever the times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ppadvisor.schedules.base import Bounds, ChunkTimes, ChunkTotals, FloatArray, Floats, Ints, Kind, RankOrder, over

Counts = Floats | Ints


class Path(NamedTuple):
    """How often a path passes each kind of action, and hand-offs. Not whole where it stands for several."""

    forward: Counts
    input_grad: Counts
    weight_grad: Counts
    handoff: Counts = 0


def longest_s(paths: Iterable[Path], chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    """Seconds of the longest of these paths."""
    found_s: FloatArray | None = None
    for path in paths:
        path_s = np.asarray(path.handoff * np.asarray(handoff_s), dtype=np.float64)
        for count, seconds in zip(path[:3], chunk, strict=True):
            path_s = path_s + count * np.asarray(seconds)
        found_s = path_s if found_s is None else np.maximum(found_s, path_s)
    if found_s is None:
        raise ValueError("no path given")
    return over(found_s)


def extremes(chunk: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """The shortest and the longest of F, I and W."""
    forward_s, input_s, weight_s = map(np.asarray, chunk)
    least_s = np.minimum(np.minimum(forward_s, input_s), weight_s)
    return over(least_s), over(np.maximum(np.maximum(forward_s, input_s), weight_s))


@dataclass(frozen=True)
class EqualChunks:
    """Plans of a schedule that splits the backward, and what equal chunks take. Links are free but in `usual_s`."""

    p: Ints
    m: Ints
    v: Ints
    at_least_s: Callable[[ChunkTimes], FloatArray]
    at_most_s: Callable[[ChunkTimes], FloatArray]
    usual_s: Callable[[ChunkTimes, FloatArray], FloatArray]
    """(times, mean hand-off) -> the best guess."""
    hidden: float = 0.25
    """Micro-batches a rank, of whose work that is above the others' is done while it would wait. Fitted to the replay
    of the model-like times in `tests/schedules/test_zero_bubble.py`."""
    looped: bool = False
    """Every boundary is one between two ranks; else all but (p − 1)·v are within one."""


def _crossed_s(plans: EqualChunks, totals: ChunkTotals) -> FloatArray:
    """No more than the sum of the hand-offs between ranks: a boundary within a rank is left out, as if the slowest."""
    if plans.looped:
        return over(totals.handoff_sum_s)
    within_s = (np.asarray(plans.v) - 1) * np.asarray(totals.handoff_max_s)
    return over(np.maximum(0.0, np.asarray(totals.handoff_sum_s) - within_s))


def equal_chunk_bounds_s(plans: EqualChunks, totals: ChunkTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies, for any chunks and links (not blocking).

    Above, the smaller of: equal chunks as long as the longest; equal chunks as short as the shortest, and m times what
    all chunks together are above them, as no path passes an action twice. In both F and I are longer by the slowest
    hand-off: a rank that stands still until what it sent has arrived, and so never finds a link taken, is no faster.
    Below, the largest of: equal chunks as short as the shortest; the heaviest rank's work; one micro-batch through all
    chunks and back, but for all weight gradients but one. Own derivation.
    """
    batches, stages = np.asarray(plans.m), np.asarray(plans.p) * plans.v
    link_s, least, most = np.asarray(totals.handoff_max_s), totals.lightest, totals.heaviest
    heavy_s, light_s = (
        plans.at_most_s(ChunkTimes(chunk.forward_s + link_s, chunk.input_grad_s + link_s, chunk.weight_grad_s))
        for chunk in (most, least)
    )
    above_s = batches * np.maximum(0.0, totals.rank_sum_s - stages * least.all_s)
    through_s = totals.rank_sum_s - stages * np.asarray(most.weight_grad_s) + least.weight_grad_s
    through_s = through_s + 2 * _crossed_s(plans, totals)
    lower_s = np.maximum(plans.at_least_s(least), np.maximum(batches * totals.rank_max_s, through_s))
    return Bounds(over(lower_s), over(np.minimum(heavy_s, light_s + above_s)))


def equal_chunk_guess_s(plans: EqualChunks, totals: ChunkTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess between the bounds, for ranking.

    What equal chunks and links take, chunks as the mean one of the ranks but the heaviest, links as the mean one; and
    what the heaviest rank is above, max(m − `hidden`·p, m/2) times. Own derivation.
    """
    usual = totals.usual(plans.p, plans.v)
    links = np.maximum(np.asarray(plans.p) * plans.v - 1 if plans.looped else (np.asarray(plans.p) - 1) * plans.v, 1)
    equal_s = plans.usual_s(usual, _crossed_s(plans, totals) / links)
    above_s = np.maximum(0.0, totals.rank_max_s - plans.v * usual.all_s)
    seen = np.maximum(plans.m - plans.hidden * np.asarray(plans.p), np.asarray(plans.m) / 2)
    return over(np.clip(equal_s + seen * above_s, *equal_chunk_bounds_s(plans, totals)))


def alternating_order(p: int, m: int, *, forwards_ahead: int) -> tuple[RankOrder, ...]:
    """One forward, one input gradient in turn: ZB-H1 (`forwards_ahead` 1) and ZB-H2 (2).

    Rank r starts with a·(p − r) − a + 1 forwards, a = `forwards_ahead`, and does each W a·r micro-batches late, so that
    all ranks hold a·(p − 1) + 1 micro-batches. Source: Qi et al. 2024, arXiv 2401.10241, sections 2.1 and 2.2.

    >>> print(alternating_order(2, 3, forwards_ahead=1)[1])
    F0.0 I0.0 F0.1 I0.1 W0.0 F0.2 I0.2 W0.1 W0.2
    """
    batch = np.arange(m)
    kind = np.repeat([Kind.FORWARD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD], m)
    actions = np.stack([kind, np.zeros_like(kind), np.tile(batch, 3)], axis=1).astype(np.int32)
    orders = []
    for rank in range(p):
        ahead = forwards_ahead * (p - rank - 1) + 1
        turns = np.concatenate([np.maximum(batch - ahead, -1), batch, np.minimum(batch + forwards_ahead * rank, m)])
        after = np.repeat([2, 0, 1], m)  # within a turn I, W, and then the F of the next one
        orders.append(RankOrder(actions[np.lexsort((after, turns))]))
    return tuple(orders)


def one_ahead_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """The longest paths through ZB-H1: without links of all, for all times and m; links while they are short.

    Source: Qi et al. 2024, arXiv 2401.10241, table 2, for the first where m ≥ p; else own derivation.
    """
    ranks, batches = np.asarray(p), np.asarray(m)
    hops, once = ranks - 1, np.minimum(batches, ranks)
    through = batches + hops
    # a round of p micro-batches passes all links twice, where no weight gradients hide them
    linked = 2 * hops * (1 + np.maximum(0, batches - 1) / ranks)
    return (
        Path(through, through, batches - once + 1, 2 * hops + 2 * np.maximum(0, once - 1)),
        Path(through + 1 - once, through, batches, 2 * hops),
        Path(through, through + 1 - once, batches, 2 * hops + once - 1),
        Path(through, through, 1, linked),
    )


def two_ahead_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """The longest paths through ZB-H2, as `one_ahead_paths`; links where m ≥ 2·p − 1."""
    ranks, batches = np.asarray(p), np.asarray(m)
    hops, once = ranks - 1, np.minimum(batches, 2 * ranks - 1)
    through, half, even = batches + hops, once // 2, 1 - once % 2
    linked = 2 * hops * (1 + np.maximum(0, batches - 1) / (2 * ranks - 1))
    return (
        Path(through, through, batches - once + 1, 2 * hops),
        Path(through + 1 - once, through, batches, 2 * hops),
        Path(through, through - half, batches, hops),
        # with an even number of micro-batches in the way the turn is in the middle of one
        Path(through, through - half + even, batches - even, hops),
        Path(through - even, through - half + even, batches, hops),
        Path(through, through, 1, linked),
    )
