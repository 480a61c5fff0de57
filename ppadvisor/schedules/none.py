"""No pipeline: one rank holds the whole model and works through the micro-batches, forward and backward in turn."""

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
    """One rank, by definition."""
    return None if p == 1 else f"pipeline_parallel must be 1: got {p}"


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """F B F B ...: gradient accumulation."""
    return (RankOrder.counting(np.tile([Kind.FORWARD, Kind.BACKWARD], m)),)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time: 0, as one rank waits for nobody.

    >>> float(bubble_fraction(1, 32))
    0.0
    """
    return over(0.0, p, m, v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: 1, for any m.

    Source: Megatron-Core `forward_backward_no_pipelining`, a backward straight after each forward.

    >>> float(in_flight_microbatches(1, 32, 1, rank=0))
    1.0
    """
    return over(1.0, p, m, v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end: m·(F + B).

    >>> float(makespan_s(1, 32, 1, 1.0, 2.0))
    96.0
    """
    return over(m * (forward_s + backward_s + weight_grad_s), p, v)


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end: m·(F + B). Exact."""
    return over(m * totals.rank_sum_s, p, v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """`pipeline_time_s` twice, as it is exact."""
    time_s = pipeline_time_s(p, m, v, totals)
    return Bounds(time_s, time_s)


SCHEDULE = Schedule(
    id="none",
    title="no pipeline",
    source="gradient accumulation on one rank",
    constraint=constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="0",
    in_flight_formula="1",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
)
