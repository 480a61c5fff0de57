"""1F1B with the head spread over all ranks, which all turn to it at the same time, as tensor parallelism would."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    KIND_LETTERS,
    Bounds,
    FloatArray,
    Floats,
    Ints,
    RankOrder,
    Schedule,
    StageTotals,
    looped_placement,
    over,
)
from ppadvisor.schedules.spread_head import (
    spread_head_bounds_s,
    spread_head_bubble_fraction,
    spread_head_makespan_s,
    spread_head_time_s,
)


def constraint(p: int, m: int, v: int) -> str | None:
    """Even p: there are p/2 more warm-up forwards."""
    return f"pipeline_parallel must be even: got {p}" if p % 2 else None


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """S and T of a micro-batch straight after each other on all ranks; p/2 more warm-up forwards hide the wait.

    Rank r: w = min(3p/2 − r, m) forwards; p − r heads; while the forwards ahead last, backward and head; then forward,
    backward, head in turn (backward first on every other rank); backward and head; the last p − r backwards.
    Source: Lin et al. 2024 (nnScaler, OSDI), as in the authors' code of Yeung et al. 2024, interlaced_schedule.py.
    """
    return tuple(_rank_order(p, rank, m) for rank in range(p))


def _rank_order(p: int, rank: int, m: int) -> RankOrder:
    warmup, behind = min(3 * p // 2 - rank, m), min(p - rank, m)
    waiting = max(0, warmup - behind - (p - rank - 1) // 2)
    forward_first = rank % 2 == 0
    kinds = "F" * warmup + "ST" * behind + "BST" * waiting
    kinds += ("FBST" if forward_first else "BFST") * (m - warmup)
    kinds += "BST" * (warmup - behind - waiting) + "B" * behind
    return RankOrder.counting(np.array([KIND_LETTERS.index(letter) for letter in kinds]))


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal stages and free links, the head counted as no time: 1F1B's.

    (p − 1)/(m + p − 1). Exact for B ≥ F. Source: Yeung et al. 2024, arXiv 2411.05288; the authors' README has the same
    bubble B for 1F1B and all of its vocabulary schedules.

    >>> round(float(bubble_fraction(8, 32)), 4)
    0.1795
    """
    return over(spread_head_bubble_fraction(p, m), v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: min(m, 3p/2 − r). Exact.

    Source: Yeung et al. 2024, the authors' README: 1.5p. What they measured at p = 8 fits 4 micro-batches
    more than 1F1B holds, on the first and on the last rank.

    >>> in_flight_microbatches(4, 8, 1, rank=np.arange(4)).tolist()
    [6.0, 5.0, 4.0, 3.0]
    """
    return over(np.minimum(m, np.asarray(p) * 3 // 2 - rank), v)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links, the head counted as no time.

    (m + p − 1)·(F + B). Exact for B ≥ F.

    >>> float(makespan_s(8, 32, 1, 1.0, 2.0))
    117.0
    """
    return makespan_with_head_s(p, m, v, forward_s, np.asarray(backward_s) + weight_grad_s, 0.0, 0.0)


def makespan_with_head_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, first_s: Floats, second_s: Floats
) -> FloatArray:
    """`makespan_s` with S and T of each rank and micro-batch: m·(F + B + S + T) + (p − 1)·(F + B).

    Meetings that take time are not hidden here as in the other two: each adds m times as much.
    """
    return over(spread_head_makespan_s(p, m, forward_s, backward_s, first_s, second_s), v)


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal stages and links: a guess between the bounds, for ranking.

    See `spread_head_time_s`. Measured on random model-like stages (p 2..12, m p/2..8p, the last up to 60 % heavier):
    95 % within 2.8 % of the replay, all within −6.5..+8.0 %; on stages that differ tenfold 95 % within 15 %, all within
    −23..+11 %.
    """
    return over(spread_head_time_s(p, m, totals, pipeline_time_bounds_s(p, m, 1, totals)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `spread_head_bounds_s`.

    Measured: both hold in all of 300 random cases, with log-normal times (σ = 1.2) too; on the model-like ones of
    `pipeline_time_s` the lower is 1.3 % below the replay on average (10 % at worst), the
    upper 14 % above (31 %).
    """
    lower_s, upper_s = spread_head_bounds_s(p, m, totals, ratio=1.0)
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="1f1b-interlaced-vocab",
    title="1F1B, vocabulary parallel, interlaced",
    source="Lin et al. 2024 (nnScaler); Yeung et al. 2024, arXiv 2411.05288, interlaced_schedule.py",
    constraint=constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1)/(m+p-1)",
    in_flight_formula="min(m, 3*p/2-r)",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    spreads_head=True,
    head_buffers=(5, 6),  # counted in the authors' code: what is broadcast and reduced, inputs and gradients of S
)
