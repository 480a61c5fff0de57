"""ZB-1p: the order that the Zero Bubble paper searches for given times in the memory of 1F1B."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTimes,
    ChunkTotals,
    FloatArray,
    Floats,
    Ints,
    RankOrder,
    Schedule,
    StageTotals,
    looped_placement,
    no_constraint,
    over,
)
from ppadvisor.schedules.split_backward import (
    EqualChunks,
    equal_chunk_bounds_s,
    equal_chunk_guess_s,
    longest_s,
    one_ahead_paths,
)
from ppadvisor.schedules.zero_bubble_auto import equal_times_order, search_order


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """What `search_order` finds for F = I = W and free links with p micro-batches in flight: that is ZB-H1's order.

    Source: Qi et al. 2024, arXiv 2401.10241, section 3.1, whose bubbles of ZB-H1 and ZB-1p are the same in table 5.
    """
    return equal_times_order(p, m, p)


def order_for_times(
    p: int,
    m: int,
    v: int,
    forward_s: ArrayLike,
    input_grad_s: ArrayLike,
    weight_grad_s: ArrayLike,
    handoff_s: ArrayLike = 0.0,
    freed_at_input_grad: float = 0.0,
) -> tuple[RankOrder, ...]:
    """What `search_order` finds for these times with p micro-batches in flight."""
    return search_order(
        p, m, forward_s, input_grad_s, weight_grad_s, handoff_s, p, freed_at_input_grad=freed_at_input_grad
    )


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal stages and free links: (p − 1)/(3·m + p − 1) for m ≥ p.

    Exact; for m < p the idle time is (p − 1) + (p − m). Source: as `order`. At p = 4, m = 8:

    >>> round(float(bubble_fraction(4, 8)), 6)
    0.111111
    """
    return over(1 - 3 * np.asarray(m) / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak, each until its W: min(m, p) on every rank, the limit of the search. Exact.

    Source: Qi et al. 2024, arXiv 2401.10241: ZB-1p is searched with a memory limit of p·M_B.

    >>> in_flight_microbatches(4, 8, 1, rank=np.arange(4)).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    return over(np.minimum(m, p), v, rank)


def _equal_s(p: Ints, m: Ints, chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    return longest_s(one_ahead_paths(p, m), chunk, handoff_s)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links, I = `backward_s`, W = `weight_grad_s`.

    Of `order`, whatever the times: that of ZB-H1, m·(F + I + W) + (p − 1)·max(F + I − W, I, F) for m ≥ p. Exact. An
    order made for the times is no slower. At p = 8, m = 32, F = I = W = 1:

    >>> float(makespan_s(8, 32, 1, 1.0, 1.0, 1.0))
    103.0
    """
    return over(_equal_s(p, m, ChunkTimes(forward_s, backward_s, weight_grad_s)), v)


def _plans(p: Ints, m: Ints) -> EqualChunks:
    return EqualChunks(
        p,
        m,
        1,
        at_least_s=lambda chunk: _equal_s(p, m, chunk),
        at_most_s=lambda chunk: _equal_s(p, m, chunk),
        usual_s=lambda chunk, handoff_s: _equal_s(p, m, chunk, handoff_s),
    )


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal stages and links: a guess, see `equal_chunk_guess_s`.

    Measured error on 264 random model-like cases (p 2..16, m p/2..8 p, W 0.3 to 0.5 of a backward; embedding, a head of
    up to 0.6 ranks, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median +0.2 %, 95 %
    within 4.2 %, all within −6..+10 %; from m = 2 p on 95 % within 2.4 %, all within −3..+6 %. On chunks that
    differ tenfold 95 % within 14 %, all within −11..+23 %.
    """
    return over(equal_chunk_guess_s(_plans(p, m), ChunkTotals.known(totals, 1)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `equal_chunk_bounds_s`.

    Measured: both hold in all 528 random cases, with log-normal times (σ = 1.2) too; on the model-like ones the lower
    is 9 % below the replay on average (31 % at worst), the upper 12 % above (46 %).
    """
    lower_s, upper_s = equal_chunk_bounds_s(_plans(p, m), ChunkTotals.known(totals, 1))
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="zb-1p",
    title="ZB-1p",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1",
    constraint=no_constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1+max(0, p-m))/(3*m+p-1+max(0, p-m))",
    in_flight_formula="min(m, p)",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    order_for_times=order_for_times,
    splits_backward=True,
)
