"""1F1B (PipeDream-Flush, DAPPLE): after a warm-up one forward and one backward in turn, so that few are in flight."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    FloatArray,
    Floats,
    Ints,
    Kind,
    RankOrder,
    Schedule,
    StageTotals,
    looped_placement,
    no_constraint,
    over,
)


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Rank r: w forwards, then a forward and a backward in turn, then w backwards; w = min(p − r − 1, m).

    Source: Megatron-Core `forward_backward_pipelining_without_interleaving`. m < p is all warm-up on the first ranks.
    """
    orders = []
    for rank in range(p):
        warmup = min(p - rank - 1, m)
        ends = np.repeat([Kind.FORWARD, Kind.BACKWARD], warmup)
        steady = np.tile([Kind.FORWARD, Kind.BACKWARD], m - warmup)
        orders.append(RankOrder.counting(np.insert(ends, warmup, steady)))
    return tuple(orders)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal stages and free links: (p − 1)/(m + p − 1). Exact for every p, m ≥ 1.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1, who print (p − 1)/m, idle over ideal time
    (`bubble_overhead`); this is the same time over the makespan. Published: 7/39 at p = 8, m = 32.

    >>> round(float(bubble_fraction(8, 32)), 4)
    0.1795
    """
    return over((np.asarray(p) - 1) / (np.asarray(m) + p - 1), v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: min(m, p − r).

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1 ("at most p"); per rank Megatron-Core, its warm-up
    and one more. Recorded from Megatron-Core's own execution at p = 4, m = 8:

    >>> in_flight_microbatches(4, 8, 1, rank=np.arange(4)).tolist()
    [4.0, 3.0, 2.0, 1.0]
    """
    return over(np.minimum(m, np.asarray(p) - rank), v)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links: (m + p − 1)·(F + B). Exact.

    Source: as `bubble_fraction`. Found by two other simulators (Primus', and one of torch's orders) at p = 8, m = 32,
    F = 1, B = 2:

    >>> float(makespan_s(8, 32, 1, 1.0, 2.0))
    117.0
    """
    return over((m + p - 1) * (forward_s + backward_s + weight_grad_s), v)


def steady_period_s(rank_s: FloatArray, handoff_s: FloatArray) -> FloatArray:
    """Seconds between two micro-batches in the steady state, T, of stages listed in full.

    T = max over r ≤ q of [Σ_{r..q}(F + B) + 2·Σ_{r..q−1} x]/(q − r + 1), x one hand-off: rank r holds p − r
    micro-batches and rank q p − q, so q − r + 1 of them pass in one round from r to q and back, and nothing hides the
    links. `rank_s` is F + B, shape (..., p); `handoff_s` (..., p − 1); the result (...). Exact as m grows: each circle
    of the dependency graph can be taken apart into such rounds (own derivation). Measured: lcm(1..p) micro-batches more
    take as many T in the replay, to 1e-13, in all of 600 random cases (p 2..6, m from 20 p).
    Equal stages without links give F + B:

    >>> float(steady_period_s(np.full(8, 3.0), np.zeros(7)))
    3.0
    """
    ranks = rank_s.shape[-1]
    zero = np.zeros((*rank_s.shape[:-1], 1))
    computed = np.concatenate([zero, np.cumsum(rank_s, axis=-1)], axis=-1)
    sent = np.concatenate([zero, np.cumsum(handoff_s, axis=-1)], axis=-1)
    longest_s = rank_s.max(axis=-1)
    for size in range(2, ranks + 1):
        round_s = computed[..., size:] - computed[..., :-size]
        round_s = round_s + 2 * (sent[..., size - 1 :] - sent[..., : ranks - size + 1])
        longest_s = np.maximum(longest_s, round_s.max(axis=-1) / size)
    return over(longest_s)


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal stages and links: a guess between the bounds, for ranking.

    A + max[(m − 1)·max(c_last, A/p, min c + max x), (m − 1)·max c − behind], where c = F + B of a rank, x one hand-off,
    A = Σ c + 2·Σ x one micro-batch through all: the windows of `steady_period_s` that can be told from totals (the last
    rank, all ranks, two ranks at the slowest link, the heaviest rank less what the ranks behind it are lighter).
    Exact where links are free, the last rank is the heaviest and max F + max B ≤ max c + min c; elsewhere no bound.
    Measured error on 3,510 random model-like cases (p 2..24, m 1..8 p; the first stage up to 15 % and the last up to
    60 % heavier, 3 in 10 with another up to 50 %, slow links at node borders): median 0, 95 % within 0.9 %, all within
    −4.9..+5.0 %; with `behind_max_s` unknown 95 % within 3.4 %, all within −4.9..+21 %. On stages that differ tenfold
    95 % within 9.2 %, all within −19..+14 %. Source: own derivation. Published, for equal stages with links: the bubble
    of 1F1B at p = 8, m = 24 in Qi et al. 2024, arXiv 2401.10241, table 5, from T_F, T_B, T_W, T_comm in milliseconds.

    >>> stages = StageTotals.of(np.full(8, 18.522), np.full(8, 18.086 + 9.337), np.full(7, 0.601))
    >>> round(1 - 24 * (18.522 + 18.086 + 9.337) / float(pipeline_time_s(8, 24, 1, stages)), 4)
    0.2431
    """
    lower_s, upper_s = pipeline_time_bounds_s(p, m, v, totals)
    after_first = np.asarray(m) - 1
    through_s = totals.rank_sum_s + 2 * np.asarray(totals.handoff_sum_s)
    period_s = np.maximum(totals.rank_last_s, np.maximum(through_s / p, totals.rank_min_s + totals.handoff_max_s))
    heaviest_s = after_first * totals.rank_max_s - totals.behind_max_s
    guess_s = through_s + np.maximum(after_first * period_s, heaviest_s)
    return over(np.minimum(np.maximum(guess_s, lower_s), upper_s))


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies, for any stages and links (not blocking).

    Symbols as in `pipeline_time_s`. Above: A + (m − 1)·max[max c + 2·Σx·max x/(Σx + max x), f + b − min c], where f and
    b are the longest single forward and backward, hand-off or computation; the first is no less than any window of
    `steady_period_s`, the second is for the paths that turn before the last rank, by warm-up and cool-down. Below: the
    longest of five paths through the dependency graph, see `_longest_path_s`. Own derivation.
    Measured: both hold in all of 10,530 random cases, with log-normal times (σ = 1.2) too; on the model-like ones of
    `pipeline_time_s` the lower is 0.4 % below the replay on average (13 % at worst), the upper 3.5 % above (25 %).

    Equal stages and free links leave nothing between them:

    >>> float(pipeline_time_bounds_s(8, 32, 1, StageTotals.of(np.full(8, 1.0), np.full(8, 2.0))).lower_s)
    117.0
    """
    links_s, slowest_s = np.asarray(totals.handoff_sum_s), np.asarray(totals.handoff_max_s)
    both_s = links_s + slowest_s
    window_s = totals.rank_max_s + 2 * links_s * slowest_s / np.where(both_s > 0, both_s, 1.0)
    ends_s = np.maximum(totals.forward_max_s, slowest_s) + np.maximum(totals.backward_max_s, slowest_s)
    period_s = np.maximum(window_s, ends_s - totals.rank_min_s)
    upper_s = totals.rank_sum_s + 2 * links_s + (np.asarray(m) - 1) * period_s
    return Bounds(over(_longest_path_s(p, m, totals), v), over(upper_s, p, v))


def _longest_path_s(p: Ints, m: Ints, totals: StageTotals) -> FloatArray:
    ranks, after_first = np.asarray(p), np.asarray(m) - 1
    last_s, slowest_s = totals.rank_last_s, np.asarray(totals.handoff_max_s)
    through_s = totals.rank_sum_s + 2 * np.asarray(totals.handoff_sum_s)
    rounds, left = np.divmod(after_first, ranks)
    pairs = np.maximum(after_first - ranks, 0) // 2
    paths = (
        # every micro-batch passes the last rank, which never waits in between
        through_s + after_first * last_s,
        # the heaviest rank does all its work, wherever it is
        np.asarray(m) * totals.rank_max_s,
        # through all; round the heaviest rank, but once with all ranks behind it
        through_s + after_first * totals.rank_max_s - (ranks * totals.rank_max_s - totals.rank_sum_s),
        # through all again and again, and the rest on the last rank
        through_s * (1 + rounds) + left * last_s,
        # through all; round the two ranks at the slowest link, but once with all ranks behind them
        through_s + 2 * pairs * (totals.rank_min_s + slowest_s) + (after_first - 2 * pairs) * totals.rank_min_s,
    )
    longest_s = paths[0]
    for path_s in paths[1:]:
        longest_s = np.maximum(longest_s, path_s)
    return over(longest_s)


SCHEDULE = Schedule(
    id="1f1b",
    title="1F1B",
    source="Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1",
    constraint=no_constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1)/(m+p-1)",
    in_flight_formula="min(m, p-r)",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
)
