"""The exact bubble is the one that the schedules declare, and the smallest m is the smallest."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppadvisor.engine.bubble import (
    FILL_DRAIN_SCHEDULES,
    bubble_fraction,
    bubble_overhead,
    smallest_num_microbatches,
)
from ppadvisor.schedules import get

STAGES = st.integers(min_value=1, max_value=1000)


@pytest.mark.parametrize("schedule_id", FILL_DRAIN_SCHEDULES)
def test_it_is_what_the_schedules_declare(schedule_id: str) -> None:
    """For p from 2 to 16 and each m that the schedule runs, its closed form is the nearest double of ours."""
    schedule = get(schedule_id)
    for p in range(2, 17):
        for m in (m for m in (1, 2, 7, 64) if schedule.problem(p, m, 1) is None):
            exact = bubble_fraction(pipeline_parallel=p, num_microbatches=m)
            assert float(schedule.bubble_fraction(p, m, 1)) == pytest.approx(float(exact), rel=1e-15)


@given(STAGES, st.integers(min_value=1, max_value=10**6))
def test_bubble_and_overhead_measure_the_same_idle_time(p: int, m: int) -> None:
    """Idle over all is idle over ideal divided by one plus it, exactly."""
    bubble = bubble_fraction(pipeline_parallel=p, num_microbatches=m)
    overhead = bubble_overhead(pipeline_parallel=p, num_microbatches=m)
    assert bubble == overhead / (1 + overhead)


@given(STAGES, st.fractions(min_value=Fraction(1, 10**6), max_value=1))
def test_the_smallest_m_reaches_the_target_and_one_less_does_not(p: int, target: Fraction) -> None:
    """For any depth and target the answer holds, and m - 1 would not."""
    m = smallest_num_microbatches(pipeline_parallel=p, target=target)
    assert bubble_fraction(pipeline_parallel=p, num_microbatches=m) <= target
    assert m == 1 or bubble_fraction(pipeline_parallel=p, num_microbatches=m - 1) > target
