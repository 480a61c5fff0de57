"""Schedules that never flush: what m micro-batches more take and hold, and the versions of the weights."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.errors import InputError
from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import Kind, StageTotals
from ppadvisor.schedules.one_f_one_b import steady_period_s
from ppadvisor.schedules.replay import replay
from tests.schedules.oracle import Times, default_order, log_normal_times, model_like_times, uniform_times

ASYNCHRONOUS = ("pipedream", "pipedream-2bw")


def test_these_are_marked_and_no_others() -> None:
    """Only PipeDream's two are asynchronous; of the others none keeps several versions of its weights."""
    assert tuple(name for name in SCHEDULES if get(name).asynchronous) == ASYNCHRONOUS
    assert tuple(name for name in SCHEDULES if get(name).weight_versions is not None) == ASYNCHRONOUS


@pytest.mark.parametrize("name", ASYNCHRONOUS)
@pytest.mark.parametrize("p", range(1, 9))
def test_a_further_step_takes_its_work_and_no_more(name: str, p: int) -> None:
    """The replays of 1, 2, 3 and 4 steps differ by m·(F + B); p − r micro-batches are held from the second step on."""
    schedule = get(name)
    for m in (p, p + 3, 4 * p):
        results = [replay(*default_order(schedule, p, steps * m), 1.0, 2.0) for steps in (1, 2, 3, 4)]
        more_s = np.diff([result.makespan_s for result in results])
        assert more_s.tolist() == [float(schedule.makespan_s(p, m, 1, 1.0, 2.0))] * 3 == [3.0 * m] * 3
        held = schedule.in_flight_microbatches(p, m, 1, np.arange(p))
        assert results[1].in_flight_microbatches.tolist() == held.tolist()
        assert (results[1].busy_s / m).tolist() == [6.0] * p


@pytest.mark.parametrize("p", [1, 2, 4, 7])
def test_versions_of_pipedream_are_those_its_order_uses(p: int) -> None:
    """Each backward makes new weights and uses those of its forward: counted along the order, p − r are kept."""
    schedule = get("pipedream")
    assert schedule.weight_versions is not None
    kept = []
    for rank_order in schedule.rank_orders(p, 4 * p):
        version, used_by, most = 0, dict[int, int](), 1
        for kind, _, microbatch in rank_order:
            if kind == Kind.FORWARD:
                used_by[microbatch] = version
                most = max(most, len({version, *used_by.values()}))
            else:
                del used_by[microbatch]
                version += 1
        kept.append(most)
    assert kept == schedule.weight_versions(p, np.arange(p)).tolist() == list(range(p, 0, -1))


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (4, 4), (4, 6), (7, 7), (8, 32)])
def test_pipedream_2bw_needs_two_versions(p: int, m: int) -> None:
    """New weights with every m-th backward, used from the next forward on: no rank keeps more than 2 while m ≥ p."""
    schedule = get("pipedream-2bw")
    assert schedule.weight_versions is not None
    for rank, rank_order in enumerate(schedule.rank_orders(p, 5 * m)):
        version, used_by, most = 0, dict[int, int](), 1
        for kind, _, microbatch in rank_order:
            if kind == Kind.FORWARD:
                used_by[microbatch] = version
                most = max(most, len({version, *used_by.values()}))
            else:
                del used_by[microbatch]
                version += (microbatch + 1) % m == 0
        assert most <= schedule.weight_versions(p, rank) == 2


def test_pipedream_2bw_refuses_fewer_microbatches_than_ranks() -> None:
    """With m < p a third version would be in use."""
    with pytest.raises(InputError, match="num_microbatches must be at least pipeline_parallel, 4: got 3"):
        get("pipedream-2bw").rank_orders(4, 3)


@pytest.mark.parametrize("draw", [model_like_times, uniform_times, log_normal_times])
def test_steady_bounds_are_bounds(draw: object) -> None:
    """m periods lie between them for unequal stages and links; on model-like ones 9 of 10 guesses are exact."""
    rng, off = np.random.default_rng(4), []
    for _ in range(600):
        p, m = int(rng.integers(1, 17)), int(rng.integers(16, 99))
        times = draw(rng, p) if p > 1 else Times(np.ones(1), np.ones(1), np.zeros(0))  # type: ignore[operator]
        steady_s = m * float(steady_period_s(times.forward_s + times.backward_s, times.handoff_s))
        for name in ASYNCHRONOUS:
            totals = StageTotals.of(*times)
            lower_s, upper_s = get(name).pipeline_time_bounds_s(p, m, 1, totals)
            assert lower_s * (1 - 1e-12) <= steady_s <= upper_s * (1 + 1e-12)
        off.append(abs(float(get(name).pipeline_time_s(p, m, 1, totals)) / steady_s - 1))
    if draw is model_like_times:
        assert np.mean(np.array(off) < 1e-9) > 0.9
        assert max(off) < 0.12
