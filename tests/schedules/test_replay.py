"""The replay against examples worked out by hand, and what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ppadvisor.errors import InputError
from ppadvisor.schedules import get
from ppadvisor.schedules.base import IntArray, RankOrder, looped_placement, peak_in_flight_chunks
from ppadvisor.schedules.replay import IDLE_CAUSES, Replay, ScheduleDeadlock, ScheduleError, replay
from tests.schedules.oracle import by_ranks, default_order, runnable_cases, uniform_chunk_times

TWO: IntArray = looped_placement(2, 1)
V_SHAPE = np.array([[0, 3], [1, 2]])
BOTH_WAYS = np.array([[0, 1], [1, 0]])


def parse(*ranks: str) -> tuple[RankOrder, ...]:
    """The orders of some ranks, as they print."""
    return tuple(map(RankOrder.parse, ranks))


def idle(result: Replay, rank: int) -> dict[str, float]:
    """The causes of a rank's idle time, those of 0 seconds left out."""
    return {cause: float(result.idle_s[cause][rank]) for cause in IDLE_CAUSES if result.idle_s[cause][rank]}


def test_1f1b_of_two_ranks_by_hand() -> None:
    """p = 2, m = 2, F = 1, B = 2, free links: every start, and who waited for what, worked out on paper."""
    result = replay(get("1f1b").rank_orders(2, 2), TWO, 1.0, 2.0)
    assert result.start_s[0].tolist() == [0, 1, 4, 7]  # F0 F1 B0 B1
    assert result.start_s[1].tolist() == [1, 2, 4, 5]  # F0 B0 F1 B1
    assert result.makespan_s == 9
    assert result.busy_s.tolist() == [6, 6]
    assert idle(result, 0) == {"downstream": 3}
    assert idle(result, 1) == {"fill": 1, "drain": 2}
    assert result.bubble_fraction == pytest.approx(1 / 3)


def test_1f1b_of_two_ranks_with_links_by_hand() -> None:
    """The same with hand-offs of 0.5: what is on the wire counts as link, the wait before it as downstream."""
    result = replay(get("1f1b").rank_orders(2, 2), TWO, 1.0, 2.0, handoff_s=0.5)
    assert result.start_s[0].tolist() == [0, 1, 5, 8]
    assert result.start_s[1].tolist() == [1.5, 2.5, 4.5, 5.5]
    assert idle(result, 0) == {"downstream": 3, "link": 1}
    assert idle(result, 1) == {"fill": 1.5, "drain": 2.5}


def test_a_link_carries_one_tensor_at_a_time() -> None:
    """GPipe, p = 2, m = 2, F = 1, hand-off 3: the second tensor leaves when the first has arrived, at 4, not at 2."""
    result = replay(get("gpipe").rank_orders(2, 2), TWO, 1.0, 2.0, handoff_s=3.0)
    assert result.start_s[1].tolist() == [4, 7, 8, 10]
    assert idle(result, 1) == {"fill": 4, "link": 2, "drain": 6}
    assert result.start_s[0].tolist() == [0, 1, 13, 16]  # the gradients leave at 10 and 13
    assert result.makespan_s == 18


def test_blocking_sends_hold_the_sender_up() -> None:
    """GPipe, p = 2, m = 2, F = 1, B = 2, hand-off 0.5, blocking: a rank goes on when what it sent has arrived."""
    result = replay(get("gpipe").rank_orders(2, 2), TWO, 1.0, 2.0, handoff_s=0.5, blocking=True)
    assert result.start_s[0].tolist() == [0, 1.5, 6.5, 9]
    assert result.start_s[1].tolist() == [1.5, 3, 4, 6.5]
    assert result.makespan_s == 11
    assert idle(result, 0) == {"downstream": 3, "link": 2}
    assert idle(result, 1) == {"fill": 1.5, "drain": 2.5, "link": 1}


def test_split_backward_in_a_v_by_hand() -> None:
    """Two chunks in a V, I and W apart: no hand-off at the turn, W waits for nobody, each start worked out on paper."""
    order = parse("F0.0 F1.0 I1.0 W1.0 I0.0 W0.0", "F0.0 F1.0 I1.0 I0.0 W1.0 W0.0")
    result = replay(order, V_SHAPE, 1.0, input_grad_s=1.0, weight_grad_s=1.0, handoff_s=1.0)
    assert result.start_s[0].tolist() == [0, 5, 6, 7, 11, 12]
    assert result.start_s[1].tolist() == [2, 3, 8, 9, 10, 11]
    assert result.in_flight_chunks.tolist() == [2, 2]
    assert result.in_flight_microbatches.tolist() == [1, 1]
    assert idle(result, 0) == {"upstream": 3, "downstream": 2, "link": 2}
    assert idle(result, 1) == {"fill": 2, "downstream": 3, "link": 1, "drain": 1}


def test_two_directions_with_two_copies_by_hand() -> None:
    """Two whole stages a rank, micro-batch 0 one way and 1 the other (as DualPipe): no idle time, each counts whole."""
    order = parse("F0.0 F1.1 B1.1 B0.0", "F1.1 F0.0 B0.0 B1.1")
    result = replay(order, BOTH_WAYS, 1.0, 2.0)
    assert result.makespan_s == 6
    assert result.bubble_fraction == 0
    assert result.in_flight_microbatches.tolist() == [2, 2]


def test_the_two_bubbles_differ_where_ranks_start_and_end_apart() -> None:
    """p = 2, m = 1: the ranks' spans are 5 and 7 s of 8, their work 3 and 7: 1 − 10/16 and 1 − 10/14."""
    order = parse("F0.0 I0.0 W0.0", "F0.0 I0.0 W0.0")
    result = replay(order, TWO, 1.0, input_grad_s=1.0, weight_grad_s=[1.0, 5.0])
    assert result.bubble_fraction == pytest.approx(1 - 10 / 16)
    assert result.bubble_in_span_fraction == pytest.approx(1 - 10 / 14)


def test_activations_can_be_let_go_in_part_at_the_input_gradient() -> None:
    """Two forwards, then I I W W: 2 held; a third forward after I I holds 3 less what the two I let go."""
    order = parse("F0.0 F0.1 I0.0 I0.1 F0.2 W0.0 W0.1 I0.2 W0.2")
    assert peak_in_flight_chunks(order).tolist() == [3]
    assert peak_in_flight_chunks(order, freed_at_input_grad=0.5).tolist() == [2]


@pytest.mark.parametrize(("name", "p", "counts"), by_ranks(runnable_cases((1, 2, 3, 5, 8), (1, 2, 4, 7, 16))))
@pytest.mark.parametrize("blocking", [False, True])
def test_idle_causes_add_up(name: str, p: int, counts: tuple[int, ...], blocking: bool) -> None:
    """On every rank the causes of idle time add up to the makespan less the work, and none is negative."""
    for m in counts:
        order, placement = default_order(get(name), p, m)
        times = uniform_chunk_times(np.random.default_rng((p, m)), placement)
        result = replay(order, placement, **times.to_replay(), blocking=blocking)
        causes = np.array([result.idle_s[cause] for cause in IDLE_CAUSES])
        assert causes.sum(axis=0) == pytest.approx(result.makespan_s - result.busy_s, abs=1e-9)
        assert causes.min() >= 0


def test_backward_hand_offs_may_take_longer() -> None:
    """p = 2, m = 1, F = 1, B = 2, 0.5 forth and 1 back: 1 + 0.5 + 1 + 2 + 1 + 2."""
    order = get("naive").rank_orders(2, 1)
    assert replay(order, TWO, 1.0, 2.0, handoff_s=[0.5], handoff_backward_s=[1.0]).makespan_s == 7.5


def test_deadlock_names_the_circle() -> None:
    """Rank 1 wants a gradient that rank 2 computes only after the forward which rank 1 has put behind it."""
    order = parse("F0.0 F0.1 B0.0 B0.1", "B0.0 F0.0 F0.1 B0.1", "F0.0 B0.0 F0.1 B0.1")
    with pytest.raises(ScheduleDeadlock) as caught:
        replay(order, looped_placement(3, 1), 1.0, 2.0)
    assert [(wait.rank, str(wait.action), wait.needs_rank) for wait in caught.value.cycle] == [
        (1, "B0.0", 2),
        (2, "F0.0", 1),
    ]
    assert "rank 1 at B0.0 waits for B0.0 of rank 2, rank 2 at F0.0 waits for F0.0 of rank 1" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("B0.0 F0.0", "rank 0 at B0.0 waits for F0.0 of rank 0"),
        ("F0.0 W0.0 I0.0", "rank 0 at W0.0 waits for I0.0 of rank 0"),
    ],
)
def test_a_rank_can_wait_for_itself(text: str, message: str) -> None:
    """A backward before its forward, or a weight gradient before its input gradient, is a circle of one."""
    with pytest.raises(ScheduleDeadlock, match=message):
        replay(parse(text), looped_placement(1, 1), 1.0, 2.0, input_grad_s=1.0, weight_grad_s=1.0)


@pytest.mark.parametrize(
    ("ranks", "placement", "message"),
    [
        (("F0.0 F0.1 B0.0",), looped_placement(1, 1), "backward of micro-batch 1 on stage 0: done 0 times, not once"),
        (("F0.0 B0.0", "F0.0 F0.0 B0.0"), TWO, "forward of micro-batch 0 on stage 1: done 2 times, not once"),
        (("F0.0 I0.0",), looped_placement(1, 1), "each input gradient needs one weight gradient"),
        (("F0.0 B0.0 W0.0",), looped_placement(1, 1), "each input gradient needs one weight gradient"),
        (("F0.0 B1.0", "F0.0 B1.0"), BOTH_WAYS, "must be done by the rank that did its forward"),
    ],
)
def test_impossible_orders_are_named(ranks: tuple[str, ...], placement: IntArray, message: str) -> None:
    """Work that is missing, doubled, half split or on the wrong rank is told with its stage and micro-batch."""
    with pytest.raises(ScheduleError, match=re.escape(message)):
        replay(parse(*ranks), placement, 1.0, 2.0, input_grad_s=1.0, weight_grad_s=1.0)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"forward_s": -1.0}, "forward: times must be finite and not negative"),
        ({"backward_s": float("nan")}, "backward: times must be finite and not negative"),
        ({"forward_s": [1.0, 1.0, 1.0]}, r"forward: got shape (3, 1), needed (2, 1) or one number"),
        ({"handoff_s": [0.1, 0.1]}, r"handoff_s: got shape (2,), needed (1,) or one number"),
        ({"forward_s": 0.0, "backward_s": 0.0}, "all times of the order's actions are 0"),
        ({"backward_s": None}, "the order has B actions, but no time was given for backward"),
    ],
)
def test_times_that_make_no_sense_are_bad_input(times: dict[str, object], message: str) -> None:
    """Negative, not finite, missing or wrongly shaped times are refused with what was given and needed."""
    given = {"forward_s": 1.0, "backward_s": 2.0, **times}
    with pytest.raises(InputError, match=re.escape(message)):
        replay(get("1f1b").rank_orders(2, 2), TWO, **given)  # type: ignore[arg-type]
