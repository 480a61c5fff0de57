"""ZB-H1: 1F1B with the backward split; weight gradients wait where 1F1B holds less, and fill its end."""

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
    one_ahead_paths,
)


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Rank r: 1F1B's order of F and I, each I followed by the W of r micro-batches before; then the last r W.

    Source: Qi et al. 2024, arXiv 2401.10241, section 2.1: 1F1B, the start of W put off by as many micro-batches as the
    rank has fewer warm-up forwards than the first. torch 2.13 `ScheduleInterleavedZeroBubble` is it with v = 1.
    """
    return alternating_order(p, m, forwards_ahead=1)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal stages and free links: (p − 1)/(3·m + p − 1) for m ≥ p.

    Exact; for m < p the idle time is (p − 1) + (p − m). Source: as `makespan_s`. Of torch's own order at p = 4, m = 8:

    >>> round(float(bubble_fraction(4, 8)), 6)
    0.111111
    """
    return over(1 - 3 * np.asarray(m) / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak, each until its W: min(m, p) on every rank. Exact.

    Source: Qi et al. 2024, section 2.1: all ranks hold as many as 1F1B's first. Measured on torch's own execution at
    p = 4, m = 8:

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

    m·(F + I + W) + max[(p − 1)·(F + I) − (q − 1)·W, (p − q)·F + (p − 1)·I, (p − 1)·F + (p − q)·I], q = min(m, p); that
    is m·(F + I + W) + (p − 1)·max(F + I − W, I, F) for m ≥ p. Exact for all times. Source: Qi et al. 2024, arXiv
    2401.10241, table 2, who print (p − 1)·(F + I − W), which is right where W ≤ F and W ≤ I; else own derivation.
    Found by two other simulators at p = 8, m = 32, F = I = W = 1:

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

    With the stage and hand-off times of Qi et al. 2024, arXiv 2401.10241, table 6, it has the bubble of their table 5:

    >>> ones = np.ones((8, 1))
    >>> totals = ChunkTotals.of_chunks(18.522 * ones, 27.423 * ones, np.full(7, 0.601), weight_grad_s=9.337 * ones)
    >>> round(1 - 24 * 45.945 / float(pipeline_time_s(8, 24, 1, totals)), 4)
    0.1585
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
    id="zb-h1",
    title="ZB-H1",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1",
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
    splits_backward=True,
)
