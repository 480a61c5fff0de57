"""1F1B with the head spread over all ranks, two meetings a micro-batch (Vocab-1)."""

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
from ppadvisor.schedules.spread_head import (
    spread_head_bounds_s,
    spread_head_bubble_fraction,
    spread_head_makespan_s,
    spread_head_order,
    spread_head_time_s,
)


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """1F1B with two more warm-up forwards, S and T in between; see `spread_head_order`.

    Algorithm 1: T gives the gradient of the hidden states, which the last stage's backward waits for. All ranks meet
    twice, after S and after T. In the authors' code this is `--disable-backward-fusion`, in their sheets "synctwice".
    """
    return spread_head_order(p, m, 2, Kind.VOCABULARY_BACKWARD)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal stages and free links, the head counted as no time: 1F1B's.

    (p − 1)/(m + p − 1). Exact for B = 2F. Source: Yeung et al. 2024, arXiv 2411.05288; the authors' README has the same
    bubble B for 1F1B and all of its vocabulary schedules.

    >>> round(float(bubble_fraction(8, 32)), 4)
    0.1795
    """
    return over(spread_head_bubble_fraction(p, m), v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: min(m, p − r + 2). Exact.

    Source: Yeung et al. 2024, figure 10 ("p + 2"). What they measured at p = 8 fits 2
    micro-batches more than 1F1B holds, on the first and on the last rank.

    >>> in_flight_microbatches(4, 8, 1, rank=np.arange(4)).tolist()
    [6.0, 5.0, 4.0, 3.0]
    """
    return over(np.minimum(m, np.asarray(p) - rank + 2), v)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links, the head counted as no time.

    (m + p − 1)·(F + B). Exact for B = 2F; for B up to 2.6F the replay takes at most 2.3 % longer, for 1.9F 3 %, for
    1.6F 13.5 %, as S and T are placed for B = 2F.

    >>> float(makespan_s(8, 32, 1, 1.0, 2.0))
    117.0
    """
    return makespan_with_head_s(p, m, v, forward_s, np.asarray(backward_s) + weight_grad_s, 0.0, 0.0)


def makespan_with_head_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, first_s: Floats, second_s: Floats
) -> FloatArray:
    """`makespan_s` with S and T of each rank and micro-batch: m·(F + B + S + T) + (p − 1)·(F + B)."""
    return over(spread_head_makespan_s(p, m, forward_s, backward_s, first_s, second_s), v)


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal stages and links: a guess between the bounds, for ranking.

    See `spread_head_time_s`. Measured on random model-like stages (p 2..12, m p/2..8p, the last up to 60 % heavier):
    95 % within 2.8 % of the replay, all within −6.5..+2.8 %; on stages that differ tenfold 95 % within 15 %, all within
    −25..+7 %.
    """
    return over(spread_head_time_s(p, m, totals, pipeline_time_bounds_s(p, m, 1, totals)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `spread_head_bounds_s`.

    Measured: both hold in all of 360 random cases, with log-normal times (σ = 1.2) too; on the model-like ones of
    `pipeline_time_s` the lower is 1.5 % below the replay on average (16 % at worst), the
    upper 24 % above (60 %).
    """
    lower_s, upper_s = spread_head_bounds_s(p, m, totals, ratio=2.0)
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="1f1b-vocab-1",
    title="1F1B, vocabulary parallel, two meetings",
    source="Yeung et al. 2024, arXiv 2411.05288, algorithm 1 and figure 10a",
    constraint=no_constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1)/(m+p-1)",
    in_flight_formula="min(m, p-r+2)",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    spreads_head=True,
    head_buffers=(9, 18),  # counted in the authors' code: what is broadcast and reduced, inputs and gradients of S
)
