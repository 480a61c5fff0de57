"""ZB-H2: ZB-H1 with twice the forwards ahead, so that no rank idles between its first action and its last."""

from __future__ import annotations

import numpy as np

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
    alternating_order,
    equal_chunk_bounds_s,
    equal_chunk_guess_s,
    longest_s,
    two_ahead_paths,
)


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Rank r: 2·(p − r) − 1 forwards, then I and F in turn, each I followed by the W of 2·r micro-batches before.

    Source: Qi et al. 2024, arXiv 2401.10241, section 2.2 and figure 3: more forwards in the warm-up fill the wait for
    the first gradient, and the W at the end make a parallelogram of the trapezoid.
    """
    return alternating_order(p, m, forwards_ahead=2)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal stages and free links: (p − 1)/(3·m + p − 1) for m ≥ 2·p − 1.

    Exact; for fewer micro-batches the idle time is 2·(p − 1) − ⌊m/2⌋. No rank idles between its first start and its
    last end (`bubble_in_span_fraction` is 0, m ≥ 2·p − 1): what is left is that they start one after the other, which
    is nothing only where the next step need not wait for the last rank. Source: as `makespan_s`. At p = 8, m = 32:

    >>> round(float(bubble_fraction(8, 32)), 6)
    0.067961
    """
    return over(1 - 3 * np.asarray(m) / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak, each until its W: min(m, 2·p − 1) on every rank. Exact.

    Source: Qi et al. 2024, arXiv 2401.10241, section 2.2 and table 2: (2p − 1)·M_B.

    >>> in_flight_microbatches(4, 8, 1, rank=np.arange(4)).tolist()
    [7.0, 7.0, 7.0, 7.0]
    """
    return over(np.minimum(m, 2 * np.asarray(p) - 1), v, rank)


def _equal_s(p: Ints, m: Ints, chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    return longest_s(two_ahead_paths(p, m), chunk, handoff_s)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links, I = `backward_s`, W = `weight_grad_s`.

    m·(F + I + W) + (p − 1)·max(F + I − 2·W, I − F, F) for m ≥ 2·p − 1; otherwise see `two_ahead_paths`. Exact for all
    times and m. Source: own derivation; Qi et al. 2024, arXiv 2401.10241, table 2, print (p − 1)·(F + I − 2·W) for the
    idle time in a rank's own span, which is the first of the three. Without links and F = I = W nothing but p − 1
    forwards is idle:

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
    up to 0.6 ranks, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median −0.4 %, 95 %
    within 4.4 %, all within −6..+10 %; from m = 2 p on 95 % within 3.9 %, all within −3..+7 %. On chunks that
    differ tenfold 95 % within 15 %, all within −19..+24 %.

    With the stage and hand-off times of Qi et al. 2024, arXiv 2401.10241, table 6, it has the bubble of their table 5:

    >>> ones = np.ones((8, 1))
    >>> totals = ChunkTotals.of_chunks(18.522 * ones, 27.423 * ones, np.full(7, 0.601), weight_grad_s=9.337 * ones)
    >>> round(1 - 24 * 45.945 / float(pipeline_time_s(8, 24, 1, totals)), 4)
    0.1083
    """
    return over(equal_chunk_guess_s(_plans(p, m), ChunkTotals.known(totals, 1)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `equal_chunk_bounds_s`.

    Measured: both hold in all 528 random cases, with log-normal times (σ = 1.2) too; on the model-like ones the lower
    is 8 % below the replay on average (31 % at worst), the upper 12 % above (45 %).
    """
    lower_s, upper_s = equal_chunk_bounds_s(_plans(p, m), ChunkTotals.known(totals, 1))
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="zb-h2",
    title="ZB-H2",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.2",
    constraint=no_constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="max(p-1, 2*(p-1)-half)/(3*m+max(p-1, 2*(p-1)-half))",
    in_flight_formula="min(m, 2*p-1)",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    formula_symbols=lambda _p, m, _v: {"half": m // 2},
    splits_backward=True,
)
