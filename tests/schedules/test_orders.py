"""Every schedule's order of work: complete, in the right sequence, and timed by its declared closed forms."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import ArrayLike

from ppadvisor.errors import InputError
from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import RankOrder, Schedule, VirtualStages
from ppadvisor.schedules.one_f_one_b import steady_period_s
from ppadvisor.schedules.replay import ScheduleDeadlock, replay
from tests.schedules.oracle import (
    by_ranks,
    default_order,
    faults,
    runnable_cases,
    simulate,
    uniform_chunk_times,
    work_missing_or_twice,
)

ALL_CASES = by_ranks(runnable_cases(range(1, 9), range(1, 33)))
SOME_CASES = by_ranks(runnable_cases(range(1, 9), (1, 2, 3, 5, 8, 13, 32)))
SQUARE = by_ranks(runnable_cases(range(1, 17), range(1, 17), ("gpipe", "1f1b")))


def closed_form_faults(
    schedule: Schedule, order: tuple[RankOrder, ...], p: int, m: int, v: int | None = None
) -> list[str]:
    """Which closed forms for equal stages the replayed order does not reproduce; v is the default unless given.

    Those of an asynchronous schedule leave out that the order begins and ends with an empty pipeline.
    """
    v = v or schedule.virtual_stages.default
    result = replay(order, schedule.placement(p, v), 1.0, 2.0, input_grad_s=1.0, weight_grad_s=1.0)
    makespan_s = result.makespan_s - (3.0 * (p - 1) if schedule.asynchronous else 0.0)
    held = schedule.in_flight_microbatches(p, m, v, np.arange(p))
    pairs: dict[str, tuple[ArrayLike, ArrayLike]] = {
        "makespan_s": (makespan_s, schedule.makespan_s(p, m, v, 1.0, 1.0, 1.0)),
        "bubble_fraction": (1 - result.busy_s.sum() / (p * makespan_s), schedule.bubble_fraction(p, m, v)),
        "in_flight_microbatches": (
            result.in_flight_microbatches,
            np.minimum(m, held) if schedule.asynchronous else held,
        ),
    }
    return [name for name, (got, declared) in pairs.items() if not np.allclose(got, declared, rtol=1e-12, atol=1e-12)]


@pytest.mark.parametrize(("name", "p", "counts"), ALL_CASES)
def test_orders_are_complete_free_of_deadlock_and_as_the_closed_forms_say(
    name: str, p: int, counts: tuple[int, ...]
) -> None:
    """Each (chunk, micro-batch) is done once a direction, no rank waits for ever, and the closed forms hold exactly."""
    for m in counts:
        schedule = get(name)
        order, placement = default_order(schedule, p, m)
        # a rank that waits for ever is found by the replay; that it is, is shown below and by the second simulator
        assert work_missing_or_twice(order, placement, m) == []
        assert closed_form_faults(schedule, order, p, m) == []


@pytest.mark.parametrize(("name", "p", "counts"), ALL_CASES)
def test_dependencies_are_kept_and_bounds_hold_for_unequal_times(name: str, p: int, counts: tuple[int, ...]) -> None:
    """No action starts before what it needs has arrived, and the makespan lies where the schedule says."""
    for m in counts:
        rng = np.random.default_rng((p, m))
        schedule = get(name)
        v = schedule.virtual_stages.default
        order, placement = default_order(schedule, p, m)
        times = uniform_chunk_times(rng, placement)
        result = replay(order, placement, **times.to_replay())
        start, end = np.zeros((2, 4, int(placement.max()) + 1, m))
        start[2] = np.inf  # of what has no weight gradient of its own
        for rank, rank_order in enumerate(order):
            row = np.array([0, 1, 1, 2, 3, 3, 3])[rank_order.kind]  # in 3 the head's, which are not looked at here
            what = row, placement[rank, rank_order.chunk], rank_order.microbatch
            start[what], end[what] = result.start_s[rank], result.end_s[rank]
            assert (result.start_s[rank][1:] >= result.end_s[rank][:-1]).all()
        sent = times.handoff_s[:, np.newaxis] - 1e-9
        assert (start[0, 1:] >= end[0, :-1] + sent).all(), "forward before the forward of the stage before"
        assert (start[1, :-1] >= end[1, 1:] + sent).all(), "backward before the backward of the stage after"
        assert (start[1] >= end[0]).all(), "backward before its own forward"
        assert (start[2] >= end[1]).all(), "weight gradient before that of the input"

        totals, makespan_s = times.totals(placement), result.makespan_s
        if schedule.asynchronous:
            makespan_s = m * float(steady_period_s((times.forward_s + times.backward_s)[:, 0], times.handoff_s))
        lower_s, upper_s = schedule.pipeline_time_bounds_s(p, m, v, totals)
        assert lower_s * (1 - 1e-12) <= makespan_s <= upper_s * (1 + 1e-12)
        assert lower_s * (1 - 1e-12) <= schedule.pipeline_time_s(p, m, v, totals) <= upper_s * (1 + 1e-12)


@pytest.mark.parametrize(("name", "p", "counts"), SOME_CASES)
def test_replay_gives_the_times_of_a_second_simulator(name: str, p: int, counts: tuple[int, ...]) -> None:
    """A slow simulator that shares no code with the replay finds the same start and end of every action."""
    for m in counts:
        order, placement = default_order(get(name), p, m)
        times = uniform_chunk_times(np.random.default_rng((p, m, 1)), placement)
        result = replay(order, placement, **times.to_replay())
        expected = simulate(order, placement, times)
        assert expected is not None
        for rank, rank_order in enumerate(order):
            for index, action in enumerate(rank_order):
                key = action.kind.letter.replace("I", "B"), int(placement[rank, action.chunk]), action.microbatch
                got = (result.start_s[rank][index], result.end_s[rank][index])
                assert got == pytest.approx(expected[key], rel=1e-12)


@pytest.mark.parametrize(("name", "p", "counts"), SQUARE)
def test_peak_in_flight_at_every_stage(name: str, p: int, counts: tuple[int, ...]) -> None:
    """GPipe holds m micro-batches and 1F1B min(m, p − r) on rank r (GPipe and Megatron papers), by replay and form."""
    for m in counts:
        schedule = get(name)
        expected = [float(m if name == "gpipe" else min(m, p - rank)) for rank in range(p)]
        order, placement = default_order(schedule, p, m)
        assert replay(order, placement, 1.0, 2.0).in_flight_microbatches.tolist() == expected
        assert schedule.in_flight_microbatches(p, m, 1, np.arange(p)).tolist() == expected


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_swapping_two_actions_is_noticed(name: str) -> None:
    """Each swap of neighbours at p = 4, m = 8 is a fault, breaks a closed form, or is one of four harmless ones.

    The four leave time and memory as they are (two warm-up forwards, or two last backwards, of 1F1B); that these are
    noticed too is shown by the recorded orders, in `test_published_orders`.
    """
    p, m = 4, 8
    schedule = get(name)
    order, placement = default_order(schedule, p, m)
    unnoticed = []
    for rank in range(p):
        for index in range(len(order[rank]) - 1):
            actions = order[rank].actions.copy()
            actions[[index, index + 1]] = actions[[index + 1, index]]
            changed = (*order[:rank], RankOrder(actions), *order[rank + 1 :])
            if not faults(changed, placement, m) and not closed_form_faults(schedule, changed, p, m):
                unnoticed.append(f"{rank}: {order[rank][index]} {order[rank][index + 1]}")
    harmless = ["0: F0.1 F0.2", "0: F0.2 F0.3", "0: B0.4 B0.5", "1: F0.1 F0.2"]
    assert unnoticed == (harmless if name == "1f1b" else [])


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("shift", [-1, 1])
def test_warmup_off_by_one_is_noticed(rank: int, shift: int) -> None:
    """A 1F1B rank with one warm-up forward too few or too many breaks a closed form: time, bubble or memory."""
    p, m = 4, 8
    schedule = get("1f1b")
    order = schedule.rank_orders(p, m)
    of_other_p = schedule.rank_orders(p + shift, m)[rank]  # the same rank of one rank fewer or more: w is off by one
    changed = (*order[:rank], of_other_p, *order[rank + 1 :])
    assert closed_form_faults(schedule, changed, p, m)


@pytest.mark.parametrize(("name", "p", "m"), runnable_cases((2, 4), (1, 4)))
def test_missing_doubled_and_reversed_work_is_noticed(name: str, p: int, m: int) -> None:
    """The checker finds work left out or done twice, and a rank that starts with its last action waits for ever."""
    order, placement = default_order(get(name), p, m)
    last = order[0][-1].kind.letter, int(placement[0, order[0][-1].chunk]), order[0][-1].microbatch
    missing = (RankOrder(order[0].actions[:-1]), *order[1:])
    doubled = (RankOrder(np.concatenate([order[0].actions, order[0].actions[-1:]])), *order[1:])
    reversed_ = (RankOrder(order[0].actions[::-1]), *order[1:])
    assert faults(missing, placement, m) == [f"missing [{last}], too much []"]
    assert faults(doubled, placement, m) == [f"missing [], too much [{last}]"]
    assert faults(reversed_, placement, m) == ["deadlock"]
    with pytest.raises(ScheduleDeadlock):
        replay(reversed_, placement, 1.0, 2.0, input_grad_s=1.0, weight_grad_s=1.0)


def test_array_forms_take_arrays_and_give_what_they_give_one_by_one() -> None:
    """Closed forms broadcast over plans: a table of (m, p) equals the numbers one at a time."""
    p, m = np.array([2, 4, 8]), np.array([[1], [8], [32]])
    for name in ("gpipe", "1f1b"):
        schedule = get(name)
        bubble, held = schedule.bubble_fraction(p, m, 1), schedule.in_flight_microbatches(p, m, 1, 1)
        time_s = schedule.makespan_s(p, m, 1, 1.0, 2.0)
        assert bubble.shape == held.shape == time_s.shape == (3, 3)
        for row, column in np.ndindex(3, 3):
            one = int(p[column]), int(m[row, 0]), 1
            assert bubble[row, column] == schedule.bubble_fraction(*one)
            assert held[row, column] == schedule.in_flight_microbatches(*one, 1)
            assert time_s[row, column] == schedule.makespan_s(*one, 1.0, 2.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_table_and_declaration_agree(name: str) -> None:
    """The id in SCHEDULES is the one the module declares, it cites a source, and its default v is allowed."""
    schedule = get(name)
    assert schedule.id == name
    assert schedule.source
    assert schedule.virtual_stages.allows(schedule.virtual_stages.default)


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "message"),
    [
        ("naive", 4, 8, 1, "schedule naive: num_microbatches must be 1, the whole local batch: got 8"),
        ("naive", 1, 1, 1, "schedule naive: pipeline_parallel must be at least 2: got 1; one rank is"),
        ("none", 2, 8, 1, "schedule none: pipeline_parallel must be 1: got 2"),
        ("1f1b", 4, 8, 2, "schedule 1f1b: virtual_stages must be 1: got 2"),
        ("1f1b", 0, 8, 1, "schedule 1f1b: pipeline_parallel must be at least 1: got 0"),
        ("gpipe", 4, 0, 1, "schedule gpipe: num_microbatches must be at least 1: got 0"),
    ],
)
def test_what_a_schedule_cannot_run_is_bad_input(name: str, p: int, m: int, v: int, message: str) -> None:
    """Sizes that a schedule cannot run are answered with what is allowed and what was given."""
    with pytest.raises(InputError) as caught:
        get(name).rank_orders(p, m, v)
    assert str(caught.value).startswith(message)


def test_the_table_of_schedules_is_light() -> None:
    """The ids can be listed without importing a schedule or numpy."""
    code = "import sys, ppadvisor.schedules; print(sorted({'numpy', 'ppadvisor.schedules.base'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_unknown_schedule_offers_the_nearest() -> None:
    """A misspelt id is bad input, and the message offers the nearest one."""
    with pytest.raises(InputError, match="unknown schedule '1f1c'; did you mean '1f1b'"):
        get("1f1c")


def test_virtual_stages_say_what_they_allow() -> None:
    """A schedule can ask for exactly one v, for any from a least one, or for even ones: the later schedules need it."""
    assert str(VirtualStages()) == "1"
    assert [v for v in range(1, 7) if VirtualStages(2, None).allows(v)] == [2, 3, 4, 5, 6]
    even = VirtualStages(2, 6, 2)
    assert [v for v in range(1, 9) if even.allows(v)] == [2, 4, 6]
    assert str(even) == "2, 4, ..., 6"


def test_an_order_reads_back_as_it_prints() -> None:
    """Text and array are the same order, also with chunks and a split backward."""
    text = "F0.0 F1.0 I1.0 W1.0 B0.0"
    order = RankOrder.parse(text)
    assert str(order) == text
    assert [list(action) for action in order] == order.actions.tolist()
    assert str(order[2]) == "I1.0"
