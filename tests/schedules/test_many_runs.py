"""Short cuts of the replay: many at once, and a few rounds continued. Both against replays action by action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppadvisor.schedules import SCHEDULES, get, many_runs
from ppadvisor.schedules.base import IntArray, Kind, RankOrder
from ppadvisor.schedules.many_runs import makespans_s, starts_s
from ppadvisor.schedules.replay import Run, ScheduleDeadlock, build_graph, replay, timed_run
from ppadvisor.schedules.steady import seconds_a_round
from tests.schedules.oracle import Times, default_order, runnable_cases, uniform_chunk_times

CASES = runnable_cases((1, 2, 4, 8), (1, 4, 8, 24))
STEADY = ("1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-half", "interleaved-zero-bubble", "gis")


def run_of(order: tuple[RankOrder, ...], placement: IntArray, times: Times) -> Run:
    """An order with times, not yet run."""
    of = times.to_replay()
    of_kinds: dict[Kind, Any] = dict.fromkeys(Kind, 0.0) | {
        Kind.FORWARD: of["forward_s"],
        Kind.BACKWARD: of["backward_s"],
        Kind.INPUT_GRAD: of["input_grad_s"],
        Kind.WEIGHT_GRAD: of["weight_grad_s"],
    }
    return timed_run(build_graph(order, placement), placement, of_kinds, times.handoff_s, times.handoff_s)


@pytest.mark.parametrize("most_actions", [many_runs.MOST_ACTIONS, 1000])
def test_many_at_once_take_what_each_takes_alone(most_actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every schedule with times of its own: run together, in one batch or several, to the last bit the replay's."""
    monkeypatch.setattr(many_runs, "MOST_ACTIONS", most_actions)
    rng = np.random.default_rng(11)
    runs, expected, starts = [], [], []
    for name, p, m in CASES:
        order, placement = default_order(get(name), p, m)
        times = uniform_chunk_times(rng, placement)
        runs.append(run_of(order, placement, times))
        alone = replay(order, placement, **times.to_replay())
        expected.append(alone.makespan_s)
        starts.append([start.tolist() for start in alone.start_s])
    assert {name for name, _, _ in CASES} == set(SCHEDULES)
    assert makespans_s(runs) == expected
    found = [
        [start.tolist() for start in run.of_ranks(of_run)] for run, of_run in zip(runs, starts_s(runs), strict=True)
    ]
    assert found == starts


def test_a_deadlock_among_many_is_told() -> None:
    """Two ranks that wait for each other stop the whole batch with their own message."""
    placement = np.array([[0], [1]])
    stuck = (RankOrder.parse("F0.0 B0.0 F0.1 B0.1"), RankOrder.parse("F0.1 F0.0 B0.0 B0.1"))
    times = Times(np.ones((2, 1)), np.ones((2, 1)), np.zeros(1))
    good, p = default_order(get("1f1b"), 32, 32)
    runs = [run_of(good, p, uniform_chunk_times(np.random.default_rng(1), p)), run_of(stuck, placement, times)] * 2
    with pytest.raises(ScheduleDeadlock, match=r"rank 0 at B0\.0 waits for B0\.0 of rank 1"):
        makespans_s(runs)


@pytest.mark.parametrize("rounds", [5, 8])
@pytest.mark.parametrize("name", [name for name in SCHEDULES if not get(name).asynchronous])
def test_what_is_periodic_goes_on_so(name: str, rounds: int) -> None:
    """Where a replay of a few rounds is said to be periodic, one of 12 rounds more takes 12 times that round more."""
    rng, p, found = np.random.default_rng(5), 4, 0
    for _ in range(6):
        if get(name).problem(p, rounds * p, get(name).virtual_stages.default) is not None:
            continue
        order, placement = default_order(get(name), p, rounds * p)
        times = uniform_chunk_times(rng, placement)
        short = replay(order, placement, **times.to_replay())
        round_s = seconds_a_round(order, short.start_s, p)
        if round_s is None:
            continue
        found += 1
        long = replay(*default_order(get(name), p, (rounds + 12) * p), **times.to_replay())
        assert short.makespan_s + 12 * round_s == pytest.approx(long.makespan_s, rel=1e-12)
        for rank in range(p):
            assert short.end_s[rank][-1] + 12 * round_s == pytest.approx(long.end_s[rank][-1], rel=1e-12)
    assert found > 0 or name not in STEADY


def test_what_is_not_periodic_is_not_taken_for_it() -> None:
    """GPipe does not alternate at all; a first rank that is a thousandth slower holds the others up after many rounds.

    Of the latter 8 rounds show nothing yet: continued at the rate of the last they would miss what 100 rounds take.
    """
    order, placement = default_order(get("gpipe"), 4, 32)
    assert seconds_a_round(order, replay(order, placement, 1.0, 2.0).start_s, 4) is None
    order, placement = default_order(get("interleaved-1f1b"), 4, 32)
    slow = np.array([1.001, 1.0, 1.0, 1.0])
    assert seconds_a_round(order, replay(order, placement, slow, 2 * slow).start_s, 4) is None
