"""What the array forms for unequal stages and links are worth, over the samples that their docstrings name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from ppadvisor.schedules import get
from ppadvisor.schedules.base import StageTotals
from ppadvisor.schedules.one_f_one_b import steady_period_s
from ppadvisor.schedules.replay import replay
from tests.schedules.oracle import Times, default_order, log_normal_times, model_like_times, uniform_times

Draw = Callable[[np.random.Generator, int], Times]
RANKS = (2, 3, 4, 6, 8, 12, 16)


def ratios(name: str, draw: Draw, samples: int, form: str) -> np.ndarray:
    """The array form over the replayed makespan, for `samples` random times at each of m = p/2, p, 2p, 4p, 8p."""
    rng = np.random.default_rng(7)
    schedule = get(name)
    found = []
    for p in RANKS:
        for m in (p // 2, p, 2 * p, 4 * p, 8 * p)[: 5 if p < 12 else 4]:
            order, placement = default_order(schedule, p, m)
            for _ in range(samples):
                times = draw(rng, p)
                makespan_s = replay(order, placement, *times[:2], handoff_s=times.handoff_s).makespan_s
                value = getattr(schedule, form)(p, m, 1, StageTotals.of(*times))
                found.append(np.asarray(value) / makespan_s)
    return np.array(found)


@pytest.mark.parametrize("draw", [model_like_times, uniform_times, log_normal_times])
def test_gpipe_time_is_exact_for_unequal_stages_and_links(draw: Draw) -> None:
    """GPipe's form for unequal stages equals the replay, links slower than a stage included."""
    assert np.abs(ratios("gpipe", draw, 4, "pipeline_time_s") - 1).max() < 1e-12


@pytest.mark.parametrize("draw", [model_like_times, uniform_times, log_normal_times])
def test_1f1b_bounds_are_bounds(draw: Draw) -> None:
    """1F1B's lower and upper bound hold on model-like, wild and absurd stage times and links."""
    found = ratios("1f1b", draw, 8, "pipeline_time_bounds_s")
    assert found[:, 0].max() <= 1 + 1e-12
    assert found[:, 1].min() >= 1 - 1e-12


def test_1f1b_guess_is_as_good_as_its_docstring_says() -> None:
    """On model-like stages 95 % of the guesses are within 1.5 % of the replay, and all within 8 %."""
    off = np.abs(ratios("1f1b", model_like_times, 12, "pipeline_time_s") - 1)
    assert np.quantile(off, 0.95) < 0.015
    assert off.max() < 0.08
    assert np.median(off) < 1e-9


@pytest.mark.parametrize("draw", [model_like_times, uniform_times, log_normal_times])
def test_1f1b_steady_period_is_exact(draw: Draw) -> None:
    """After a long start, lcm(1..p) more micro-batches take exactly that many periods."""
    rng = np.random.default_rng(3)
    schedule = get("1f1b")
    for p in (2, 3, 4, 5, 6):
        times = draw(rng, p)
        more = math.lcm(*range(1, p + 1))
        ends = [
            replay(*default_order(schedule, p, m), *times[:2], handoff_s=times.handoff_s).makespan_s
            for m in (20 * p, 20 * p + more)
        ]
        period_s = steady_period_s(times.forward_s + times.backward_s, times.handoff_s)
        assert (ends[1] - ends[0]) / more == pytest.approx(float(period_s), rel=1e-9)


def test_totals_of_full_lists() -> None:
    """The totals say of the listed stages what a search needs; ties of the heaviest count from the last of them."""
    forward, backward = np.array([[1.0, 2.0, 1.0, 2.0, 1.5]]), np.array([[2.0, 4.0, 2.0, 4.0, 3.0]])
    totals = StageTotals.of(forward, backward, np.array([[0.1, 0.2, 0.1, 0.4]]))
    assert np.asarray(totals.rank_sum_s).tolist() == [22.5]
    assert np.asarray(totals.rank_max_s).tolist() == [6.0]
    assert np.asarray(totals.rank_min_s).tolist() == [3.0]
    assert np.asarray(totals.rank_last_s).tolist() == [4.5]
    assert np.asarray(totals.behind_max_s).tolist() == [1.5]
    assert np.asarray(totals.handoff_sum_s).tolist() == pytest.approx([0.8])
    assert np.asarray(totals.handoff_max_s).tolist() == [0.4]


def test_guess_and_bounds_work_on_a_table_of_plans() -> None:
    """Arrays over plans with different p and m give what each plan gives alone."""
    rng = np.random.default_rng(5)
    plans = [(p, m, StageTotals.of(*model_like_times(rng, p))) for p in (2, 4, 8) for m in (3, 16)]
    fields = {name: np.array([getattr(plan[2], name) for plan in plans]) for name in vars(plans[0][2])}
    p, m = np.array([plan[0] for plan in plans]), np.array([plan[1] for plan in plans])
    for name in ("gpipe", "1f1b"):
        schedule = get(name)
        together = schedule.pipeline_time_s(p, m, 1, StageTotals(**fields))
        alone = [float(schedule.pipeline_time_s(a, b, 1, totals)) for a, b, totals in plans]
        assert together.tolist() == pytest.approx(alone, rel=1e-12)
