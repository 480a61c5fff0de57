"""What schedules have in common that fold or double the pipeline: placements, orders and bounds.

DualPipe and Chimera run two whole pipelines against each other over the same ranks; DualPipeV and Hanayo are one
pipeline that goes down the ranks and up again, the same orders cut in half. PipeDream's two are 1F1B without a flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTotals,
    FloatArray,
    Floats,
    IntArray,
    Ints,
    Kind,
    RankOrder,
    StageTotals,
    over,
)


def two_way_placement(p: int, _v: int) -> IntArray:
    """Two copies of the model: rank r holds stage r of one and stage p − 1 − r of the other."""
    ranks = np.arange(p, dtype=np.int64)
    return np.stack([ranks, p - 1 - ranks], axis=1)


def wave_placement(p: int, v: int) -> IntArray:
    """Chunk c of rank r holds stage c·p + r for even c and c·p + p − 1 − r for odd c: a V for v = 2, W for v = 4."""
    stage = np.arange(p * v, dtype=np.int64).reshape(v, p)
    stage[1::2] = stage[1::2, ::-1]
    return stage.T


class _Phases:
    """Writes what a rank does in two phases, each with micro-batches counted from 0."""

    def __init__(self) -> None:
        self.actions: list[tuple[int, int, int]] = []
        self.paired: list[bool] = []
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.weights_due: deque[tuple[int, int]] = deque()

    def _write(self, kind: Kind, phase: int, microbatch: int, paired: bool = False) -> None:
        self.actions.append((kind, phase, microbatch))
        self.paired.append(paired)

    def forward(self, phase: int, paired: bool = False) -> None:
        self._write(Kind.FORWARD, phase, self.forwards[phase], paired)
        self.forwards[phase] += 1

    def backward(self, phase: int, split: bool = False) -> None:
        microbatch = self.backwards[phase]
        self.backwards[phase] += 1
        self._write(Kind.INPUT_GRAD if split else Kind.BACKWARD, phase, microbatch)
        if split:
            self.weights_due.append((phase, microbatch))

    def weights(self) -> None:
        self._write(Kind.WEIGHT_GRAD, *self.weights_due.popleft())


def dual_phases(half: int, rank: int, m: int) -> RankOrder:
    """What DualPipe's rank `rank` of its first half of `half` ranks does; the chunks are its two phases.

    Phase 0 comes from this end of the pipeline and phase 1 from behind the middle, m micro-batches each, m ≥ 2·half.
    Source: the eight steps of DeepSeek's repository DualPipe, dualpipe.py and dualpipev.py, which differ only in who
    sends to whom.
    """
    work, outer = _Phases(), half - rank - 1
    for _ in range(2 * outer):
        work.forward(0)
    for _ in range(rank + 1):
        work.forward(0)
        work.forward(1)
    for _ in range(outer):
        work.backward(1, split=True)
        work.weights()
        work.forward(1)
    for turn in range(m - 2 * half + rank + 1):
        work.forward(0, paired=turn > 0 or outer > 0)  # apart in the middle's first turn: that saves time
        work.backward(1)
        work.forward(1, paired=True)
        work.backward(0)
    _drain(work, rank, outer)
    return RankOrder(RankOrder.of(work.actions).actions, np.array(work.paired))


def _drain(work: _Phases, rank: int, outer: int) -> None:
    """The steps after the last forward of phase 0; its last backwards are split, so that W fills what would be idle."""
    for _ in range(outer):
        work.backward(1)
        work.forward(1, paired=True)
        work.backward(0)
    for turn in range(2 * (rank + 1)):
        work.backward(1 - turn % 2, split=turn > rank)
    for _ in range(outer):
        work.weights()
        work.backward(0, split=True)
    for _ in range(rank + 1):
        work.weights()


def dual_idle_s(half: Ints, forward_s: Floats, input_grad_s: Floats, weight_grad_s: Floats) -> FloatArray:
    """Seconds that each rank of `dual_phases` idles: (h − 1)·[I − W]⁺ + max(2·(h − 1)·F, (h − 2)·F + (h − 1)·I).

    Equal chunks and free links, a pair run as F and then B, both results sent after it; for any m ≥ 2h. Own derivation.
    Measured: equal to the replay in all of 580 random cases (h 1..6, m 2h..8h, F, I and W that differ fiftyfold). How
    that compares with what DeepSeek prints is said at `dualpipe.published_idle_s`.
    """
    hops = np.asarray(half) - 1
    ahead_s = np.maximum(2.0 * hops * forward_s, (hops - 1) * np.asarray(forward_s) + hops * np.asarray(input_grad_s))
    return over(hops * np.maximum(0.0, np.asarray(input_grad_s) - weight_grad_s) + ahead_s)


def dual_idle_sent_at_once_s(half: Ints, forward_s: Floats, input_grad_s: Floats, weight_grad_s: Floats) -> FloatArray:
    """`dual_idle_s` if what a pair's forward makes left before its backward.

    (h − 1)·[I − W]⁺ + max((h − 1)·F, (h − 1)·I − F, (h − 1)·(2F − I − W)), and 0 for h = 1.
    """
    hops, forward, backward = np.asarray(half) - 1, np.asarray(forward_s), np.asarray(input_grad_s)
    ahead_s = np.maximum(hops * forward, hops * backward - forward)
    ahead_s = np.maximum(ahead_s, hops * (2 * forward - backward - weight_grad_s))
    return over(hops * np.maximum(0.0, backward - weight_grad_s) + ahead_s)


def unit_order(stages: int, rank_stages: IntArray, turn: IntArray, unit: IntArray, batch: IntArray) -> RankOrder:
    """F and B of a rank's stages, one a time slot; chunk c holds stage `rank_stages[c]` and gets `batch[c]`.

    The micro-batch that is number `turn` of its unit passes stage s forward in slot s + 2·turn and backward in slot
    2·stages − 1 − s + 2·turn; the next unit comes 2·stages slots later. `turn`, `unit` (n,), `batch` (chunks, n).
    """
    begin = 2 * stages * unit + 2 * turn
    forward = rank_stages[:, np.newaxis] + begin
    slot = np.stack([forward, 2 * begin + 2 * stages - 1 - forward])
    chunk = np.broadcast_to(np.arange(len(rank_stages))[:, np.newaxis], slot.shape)
    kind = np.broadcast_to(np.array([Kind.FORWARD, Kind.BACKWARD])[:, np.newaxis, np.newaxis], slot.shape)
    actions = np.stack([kind, chunk, np.broadcast_to(batch, slot.shape)], axis=-1).reshape(-1, 3)
    return RankOrder(actions[np.argsort(slot.ravel(), kind="stable")].astype(np.int32))


@dataclass(frozen=True)
class Folded:
    """Plans of a schedule that folds (v chunks a rank, one copy) or doubles (two copies) the pipeline."""

    p: Ints
    m: Ints
    v: Ints
    copies: int
    split: bool
    excess: Floats
    links: float
    """Shares in `folded_guess_s`."""
    makespan_s: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    """(forward_s, input_grad_s, weight_grad_s) -> makespan of equal chunks with free links."""


def folded_bounds_s(plans: Folded, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies, for any chunks and links (not blocking).

    Above: equal chunks that are as long as the longest, or as the lightest and then m·Σ(what each chunk is above it),
    as no path through the dependency graph passes an action twice; every forward and backward longer by the slowest
    hand-off, as if a rank stood still until what it sent has arrived. Below: equal chunks as light as the lightest, the
    heaviest rank's work, all work shared out evenly, one micro-batch through all (links within a rank given as 0). Own
    derivation.
    """
    known, link_s = ChunkTotals.known(totals, plans.v), np.asarray(totals.handoff_max_s)
    m, stages = np.asarray(plans.m), np.asarray(plans.p) * plans.v
    forward_s, backward_s = np.asarray(known.chunk_forward_min_s), np.asarray(known.chunk_backward_min_s)
    heavy_s, weight_s, heavy_weight_s = np.asarray(known.chunk_backward_max_s), np.zeros(()), np.zeros(())
    if plans.split:
        weight_s, heavy_weight_s = np.asarray(known.chunk_weight_grad_min_s), np.asarray(known.chunk_weight_grad_max_s)
        backward_s, heavy_s = np.maximum(0.0, backward_s - heavy_weight_s), heavy_s - weight_s
    above_s = m * np.maximum(0.0, np.asarray(totals.rank_sum_s) - stages * (forward_s + backward_s + weight_s))
    longest_s = plans.makespan_s(known.chunk_forward_max_s + link_s, heavy_s + link_s, heavy_weight_s)
    upper_s = np.minimum(longest_s, plans.makespan_s(forward_s + link_s, backward_s + link_s, weight_s) + above_s)

    busiest_s = m * np.asarray(totals.rank_max_s)
    if plans.copies == 2:
        busiest_s = m * (np.asarray(totals.rank_max_s) + totals.rank_min_s) / 2
    through_s = np.asarray(totals.rank_sum_s) - stages * heavy_weight_s + 2 * np.asarray(totals.handoff_sum_s)
    lower_s = np.maximum(plans.makespan_s(forward_s, backward_s, weight_s), busiest_s)
    lower_s = np.maximum(lower_s, np.maximum(m * np.asarray(totals.rank_sum_s) / plans.p, through_s))
    return Bounds(lower_s, np.maximum(upper_s, lower_s))


def folded_guess_s(plans: Folded, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess between the bounds, for ranking.

    What equal chunks of the mean length take + `excess`·m·(what the heaviest rank is above the mean) + `links`·
    max(1, m/p)·2·Σ x, x one hand-off: a round of p micro-batches through all ranks and back shows the links once. The
    two shares are fitted to the replay, see where they are given. Equal chunks and free links: `makespan_s`.
    """
    m, ranks = np.asarray(plans.m), np.asarray(plans.p)
    stages = ranks * plans.v
    both_s = np.asarray(totals.forward_max_s) + totals.backward_max_s
    share = np.asarray(totals.forward_max_s) / np.where(both_s > 0, both_s, 1.0)
    chunk_s = np.asarray(totals.rank_sum_s) / stages
    weight_s = np.zeros_like(chunk_s)
    if plans.split:
        known = ChunkTotals.known(totals, plans.v)
        longest_s = np.asarray(known.chunk_backward_max_s)
        weight_s = (1 - share) * chunk_s * known.chunk_weight_grad_max_s / np.where(longest_s > 0, longest_s, 1.0)
    equal_s = plans.makespan_s(share * chunk_s, (1 - share) * chunk_s - weight_s, weight_s)
    above_s = np.asarray(totals.rank_max_s) - np.asarray(totals.rank_sum_s) / ranks
    links_s = 2 * np.asarray(totals.handoff_sum_s) * np.maximum(1.0, m / ranks)
    guess_s = equal_s + plans.excess * m * above_s + plans.links * links_s
    return over(np.clip(guess_s, *folded_bounds_s(plans, totals)))


def unflushed_order(p: int, m: int) -> tuple[RankOrder, ...]:
    """1F1B's order of the first m micro-batches: p − r − 1 forwards on rank r, then forward and backward in turn."""
    orders = []
    for rank in range(p):
        ahead = min(p - rank - 1, m)
        steady = np.tile([Kind.FORWARD, Kind.BACKWARD], m - ahead)
        ends = np.full(ahead, Kind.FORWARD), np.full(ahead, Kind.BACKWARD)
        orders.append(RankOrder.counting(np.concatenate([ends[0], steady, ends[1]])))
    return tuple(orders)


def unflushed_bounds_s(p: Ints, m: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which m micro-batches more lie in the steady state of 1F1B, for any stages and links.

    m periods; one is the longest round from a rank to another and back, [Σ(F + B) + 2·Σ x]/(ranks of the round), c = F
    + B of a rank, x a hand-off (`one_f_one_b.steady_period_s`, which needs the stages in full). Below: the heaviest
    rank alone, all ranks, two ranks at the slowest link. Above: max c + 2·Σ x·max x/(Σ x + max x). Own derivation.
    Measured: both hold in all of 5,000 random cases (p 1..16), with log-normal times (σ = 1.2) too.
    """
    links_s, slowest_s = np.asarray(totals.handoff_sum_s), np.asarray(totals.handoff_max_s)
    both_s = links_s + slowest_s
    round_s = np.maximum(totals.rank_max_s, (np.asarray(totals.rank_sum_s) + 2 * links_s) / p)
    round_s = np.maximum(round_s, np.where(np.asarray(p) > 1, np.asarray(totals.rank_min_s) + slowest_s, 0.0))
    upper_s = totals.rank_max_s + 2 * links_s * slowest_s / np.where(both_s > 0, both_s, 1.0)
    return Bounds(over(np.asarray(m) * round_s), over(np.asarray(m) * upper_s, p))
