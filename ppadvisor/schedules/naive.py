"""Naive model parallelism: the whole local batch goes through the stages as one, and one rank works at a time."""

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
    over,
)


def constraint(p: int, m: int, v: int) -> str | None:
    """Several ranks and one micro-batch: cut into more it would be another schedule."""
    if p < 2:
        return f"pipeline_parallel must be at least 2: got {p}; one rank is the schedule 'none'"
    return None if m == 1 else f"num_microbatches must be 1, the whole local batch: got {m}"


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """F B on every rank."""
    return (RankOrder.counting(np.array([Kind.FORWARD, Kind.BACKWARD])),) * p


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal stages and free links: 1 − 1/p.

    Source: Huang et al. 2019, GPipe, arXiv 1811.06965, figure 2b: one of p ranks works at any time. Exact. Published:
    an 8-way pipeline runs at 12.5 %.

    >>> float(bubble_fraction(8, 1))
    0.875
    """
    return over(1.0 - 1.0 / np.asarray(p), m, v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: 1 on every rank, and that one is the whole local batch.

    >>> float(in_flight_microbatches(8, 1, 1, rank=0))
    1.0
    """
    return over(1.0, p, m, v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links: p·(F + B).

    >>> float(makespan_s(8, 1, 1, 1.0, 2.0))
    24.0
    """
    return over(p * (forward_s + backward_s + weight_grad_s), m, v)


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end: Σ(F + B) + 2·Σ link. Exact, as nothing overlaps."""
    return over(totals.rank_sum_s + 2 * totals.handoff_sum_s, p, m, v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """`pipeline_time_s` twice, as it is exact."""
    time_s = pipeline_time_s(p, m, v, totals)
    return Bounds(time_s, time_s)


SCHEDULE = Schedule(
    id="naive",
    title="naive model parallelism",
    source="Huang et al. 2019, GPipe, arXiv 1811.06965, figure 2b",
    constraint=constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1)/p",
    in_flight_formula="1",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
)
