"""What the schedules have in common that spread the head over all ranks (vocabulary parallelism) under 1F1B.

A micro-batch's head is work of every rank: S, its share of the logits and sums, and T, its share of the gradients.
Source of all: Yeung et al. 2024, arXiv 2411.05288, and the authors' repository VocabularyParallelism.
"""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import Bounds, FloatArray, Floats, Ints, Kind, RankOrder, StageTotals, over


class _Steps:
    """Writes what a rank does: forwards, backwards and steps of the head, each with micro-batches counted from 0.

    Step k of the head is T (or U) of micro-batch k − 1 and S of micro-batch k.
    """

    def __init__(self, m: int, second: Kind) -> None:
        self.m, self.second = m, second
        self.actions: list[tuple[int, int, int]] = []
        self.forwards, self.steps = 0, 0

    def forward(self) -> None:
        if self.forwards < self.m:
            self.actions.append((Kind.FORWARD, 0, self.forwards))
            self.forwards += 1

    def head(self, steps: int) -> None:
        """The next step of the head, if that is one of the first `steps`."""
        if self.steps >= steps:
            return
        if self.steps:
            self.actions.append((self.second, 0, self.steps - 1))
        if self.steps < self.m:
            self.actions.append((Kind.VOCABULARY_FORWARD, 0, self.steps))
        self.steps += 1


def spread_head_order(p: int, m: int, extra: int, second: Kind) -> tuple[RankOrder, ...]:
    """1F1B with `extra` more warm-up forwards, and one step of the head to each backward; `second` is T or U.

    Rank r: p − r forwards, then `extra` times a step and a forward, then steps alone until its first gradient comes;
    ⌈(2d + 1)/3⌉ of them where it is d > 0 ranks from the last; then backward, step, forward in turn (backward, forward,
    step where d is 3, 6, 9, ...). These places are what the authors' code finds for B = 2F, the times it assumes before
    it has measured any (vocab_parallel_schedule.py): they keep the ranks' steps of one micro-batch at the same time.
    """
    return tuple(_rank_order(p - rank, m, extra, second) for rank in range(p))


def _rank_order(forwards: int, m: int, extra: int, second: Kind) -> RankOrder:
    work, distance = _Steps(m, second), forwards - 1
    in_turn = m + (second == Kind.VOCABULARY_BACKWARD)  # the last U waits for the end
    for _ in range(forwards):
        work.forward()
    for _ in range(extra):
        work.head(m + 1)
        work.forward()
    for _ in range((2 * distance + 3) // 3 if distance else 0):
        work.head(in_turn)
    for microbatch in range(m):
        work.actions.append((Kind.BACKWARD, 0, microbatch))
        if distance and distance % 3 == 0:
            work.forward()
            work.head(in_turn)
        else:
            work.head(in_turn)
            work.forward()
    for _ in range(m + 1):
        work.head(m + 1)
    return RankOrder.of(work.actions)


def spread_head_makespan_s(
    p: Ints, m: Ints, forward_s: Floats, backward_s: Floats, first_s: Floats, second_s: Floats
) -> FloatArray:
    """Seconds from first start to last end, equal stages, free links and meetings: m·(F + B + S + T) + (p − 1)·(F + B).

    Nobody waits for the head but while the pipeline fills and drains as 1F1B's does. Exact for B = 2F and any S and T:
    equal to the replay for p 1..16, m 1..64. See each schedule for other B.
    """
    layers_s = np.asarray(forward_s) + backward_s
    return over(np.asarray(m) * (layers_s + first_s + second_s) + (np.asarray(p) - 1) * layers_s)


def spread_head_bubble_fraction(p: Ints, m: Ints) -> FloatArray:
    """(p − 1)/(m + p − 1), as 1F1B's: the head counted as no time, for B = 2F."""
    return over((np.asarray(p) - 1) / (np.asarray(m) + p - 1))


def spread_head_bounds_s(p: Ints, m: Ints, totals: StageTotals, ratio: float) -> Bounds:
    """Seconds between which the time lies for unequal stages and links, S, T and meetings of no time, not blocking.

    Above: equal stages of F and B = `ratio`·F (or more, for 1), F so long that no forward or backward with its hand-off
    is longer: all paths through the dependency graph can only be longer then. Below: every micro-batch passes the last
    rank, which never waits in between; the heaviest rank does all its work. Own derivation.
    """
    link_s, through_s = np.asarray(totals.handoff_max_s), totals.rank_sum_s + 2 * np.asarray(totals.handoff_sum_s)
    backward_s = np.asarray(totals.backward_max_s) + link_s
    forward_s = np.asarray(totals.forward_max_s) + link_s
    if ratio > 1:
        forward_s = np.maximum(forward_s, backward_s / ratio)
        backward_s = ratio * forward_s
    upper_s = spread_head_makespan_s(p, m, forward_s, np.maximum(forward_s, backward_s), 0.0, 0.0)
    lower_s = np.maximum(through_s + (np.asarray(m) - 1) * totals.rank_last_s, np.asarray(m) * totals.rank_max_s)
    return Bounds(over(lower_s, p), upper_s)


def spread_head_time_s(p: Ints, m: Ints, totals: StageTotals, bounds: Bounds) -> FloatArray:
    """The best guess between the bounds, for ranking: with A one micro-batch through all, c = F + B of a rank, x a
    hand-off, A + max[(m − 1)·max(c_last, A/p, min c + max x), (m − 1)·max c − behind], as 1F1B's.
    """
    after_first = np.asarray(m) - 1
    through_s = totals.rank_sum_s + 2 * np.asarray(totals.handoff_sum_s)
    period_s = np.maximum(totals.rank_last_s, np.maximum(through_s / p, totals.rank_min_s + totals.handoff_max_s))
    heaviest_s = after_first * totals.rank_max_s - totals.behind_max_s
    guess_s = through_s + np.maximum(after_first * period_s, heaviest_s)
    return over(np.clip(guess_s, bounds.lower_s, bounds.upper_s))
