"""GIS-H: GIS in groups of half as many micro-batches, which hold about half as much."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTimes,
    FloatArray,
    Floats,
    IntArray,
    Ints,
    RankOrder,
    Schedule,
    StageTotals,
    VirtualStages,
    looped_placement,
    no_constraint,
    over,
)
from ppadvisor.schedules.grouped import (
    Groups,
    grouped_bounds_s,
    grouped_bubble,
    grouped_guess_s,
    grouped_order,
    grouped_s,
    held_microbatches,
)


def group_size(p: Ints) -> IntArray:
    """N = ⌈p/2⌉: for F = I = W no fewer come round all ranks without a wait. Source: the authors' README, "⌈d/2⌉ to d".

    >>> group_size(np.array([4, 5, 8])).tolist()
    [2, 3, 4]
    """
    return np.asarray((np.asarray(p, dtype=np.int64) + 1) // 2)


def _groups(p: Ints, m: Ints, v: Ints) -> Groups:
    return Groups(p, m, v, group_size(p))


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """`grouped_order` with groups of ⌈p/2⌉, --interleave-group-size ⌈p/2⌉ in the authors' program. Source: as there."""
    return grouped_order(p, m, v, int(group_size(p)))


def bubble_fraction(p: Ints, m: Ints, v: Ints = 2) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal chunks and free links; where N divides m that is idle/(3·m·v
    + idle) with idle = 2·(p − 1) + (v − 1)·(p − N). Exact there, for m < N and for v = 2, see `grouped_bubble`;
    elsewhere up to 0.015 too low, 0.004 on average (p 1..16, v 3..8, m up to 2·p + 1).

    Source: as `order`. The authors' own timetable at p = 4, m = 8, v = 2 has 56 slots for 48 of work:

    >>> round(48 / (1 - float(bubble_fraction(4, 8, 2))), 9)
    56.0
    """
    return grouped_bubble(_groups(p, m, v))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: [(v − 1)·N + p − r]/v for m ≥ p; see `held_microbatches`. Exact.

    Source: as `order`. Of the authors' order at p = 4, m = 8, v = 2, in chunks:

    >>> (2 * in_flight_microbatches(4, 8, 2, rank=np.arange(4))).tolist()
    [6.0, 5.0, 4.0, 3.0]
    """
    return held_microbatches(_groups(p, m, v), rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links, I = `backward_s`, W = `weight_grad_s`.

    m·v·(F + I + W) + (p − 1)·(F + I) + (v − 1)·{(p − N)·F + [(p − N)·I − N·W]⁺ + (m/N − 1)·[p·max(F, I) − N·(F + I +
    W)]⁺} where N divides m: the first group waits for itself to come round, the last likewise where gradients do not
    fill the wait. Exact there for W ≤ F + I, as for m < N. Where N does not divide m up to 3 % low, 0.1 % on average
    (times up to three times apart), where W is larger up to 10 %; see `grouped_s`. Own derivation. Slots of the
    authors' timetable:

    >>> float(makespan_s(4, 8, 2, 1.0, 1.0, 1.0))
    56.0
    """
    return over(grouped_s(_groups(p, m, v), ChunkTimes(forward_s, backward_s, weight_grad_s)))


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess, see `equal_chunk_guess_s`.

    Exact for equal chunks and links up to min(F, I, W/2) where N divides m ≥ p. Measured error on 414 random model-like
    cases (p 2..12, v 2..4, m 1..8 p, W 0.3 to 0.5 of a backward; embedding in the first chunk, a head of up to 0.6
    ranks in the last, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median +0.4 %, 95 %
    within 4.3 %, all within −13..+12 %; where p does not divide m, 95 % within 4.2 %, all within −13..+8 %; for m = p/2
    95 % within 6.5 %, all within −1..+10 %. On chunks that differ tenfold 95 % within 15 %, all within −20..+31 %.
    """
    return grouped_guess_s(_groups(p, m, v), totals)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `equal_chunk_bounds_s`.

    Measured: both hold in all 2,226 random cases, with log-normal times (σ = 1.2) too; on the model-like ones the lower
    is 13 % below the replay on average (38 % at worst), the upper 19 % above (62 %).
    """
    return grouped_bounds_s(_groups(p, m, v), totals)


SCHEDULE = Schedule(
    id="gis-h",
    title="GIS-H (PipeOffload)",
    source="Wan et al. 2025, PipeOffload, arXiv 2503.01328; group_interleaved_1f1b.py of its code",
    constraint=no_constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="1-3*m*v/(3*m*v+2*(p-1)+(v-1)*(p-min(N, m)+max(0, p-2*N_last)))",
    in_flight_formula="(min(N, m)*(v-1)+min(m, p-r))/v",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(minimum=2, maximum=None),
    formula_symbols=lambda p, m, v: {"N": int(group_size(p)), "N_last": int(_groups(p, m, v).last)},
    splits_backward=True,
)
