"""What all pictures of a timeline are drawn from: intervals that tile the time, memory that ends where it began."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.engine.timeline import (
    MAX_ACTIONS,
    MAX_RANKS,
    PassTimes,
    Timeline,
    most_actions,
    rank_timelines,
    timeline_of_times,
)
from ppadvisor.errors import InputError
from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import Kind, RankOrder, looped_placement
from ppadvisor.schedules.replay import IDLE_CAUSES, replay

DRAWN = [name for name in SCHEDULES if name not in ("none", "naive")]


def shown(timeline: Timeline, rank: int) -> list[tuple[str, float, float]]:
    """(cause, start, end) of a rank's idle intervals."""
    idle = timeline.ranks[rank].idle
    columns = zip(idle.cause.tolist(), idle.start_s.tolist(), idle.end_s.tolist(), strict=True)
    return [(IDLE_CAUSES[cause], start, end) for cause, start, end in columns]


def test_a_case_by_hand() -> None:
    """1F1B, p = m = 2, F = 1, B = 2: rank 0 waits for the gradients from 2 to 4 and from 6 to 7, rank 1 at its ends."""
    timeline = timeline_of_times("1f1b", 2, 2, None, PassTimes())
    assert timeline.makespan_s == 9.0
    assert timeline.ranks[0].start_s.tolist() == [0.0, 1.0, 4.0, 7.0]
    assert timeline.ranks[1].end_s.tolist() == [2.0, 4.0, 5.0, 7.0]
    assert shown(timeline, 0) == [("downstream", 2.0, 4.0), ("downstream", 6.0, 7.0)]
    assert shown(timeline, 1) == [("fill", 0.0, 1.0), ("drain", 7.0, 9.0)]
    assert timeline.bubble_fraction == pytest.approx(1 / 3)
    assert timeline.bubble_in_span_fraction == pytest.approx(1 / 3)


def test_a_link_by_hand() -> None:
    """With a hand-off of 0.5 rank 0 waits for the gradient until 4.5, and until 5 while it is on the wire."""
    timeline = timeline_of_times("1f1b", 2, 1, None, PassTimes(handoff_s=0.5))
    assert shown(timeline, 0) == [("downstream", 1.0, 4.5), ("link", 4.5, 5.0)]
    assert shown(timeline, 1) == [("fill", 0.0, 1.5), ("drain", 4.5, 7.0)]


def test_a_blocked_sender_by_hand() -> None:
    """Where sending blocks, the link comes first: rank 0 sends until 1.5, then waits for the gradient."""
    orders = get("1f1b").rank_orders(2, 1)
    result = replay(orders, looped_placement(2, 1), 1.0, 2.0, handoff_s=0.5, blocking=True)
    idle = rank_timelines(orders, looped_placement(2, 1), result)[0].idle
    assert [IDLE_CAUSES[cause] for cause in idle.cause] == ["link", "downstream", "link"]
    assert (idle.start_s.tolist(), idle.end_s.tolist()) == ([1.0, 1.5, 4.5], [1.5, 4.5, 5.0])


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("blocking", [False, True])
def test_intervals_tile_the_time(name: str, blocking: bool) -> None:
    """Work and idle time of a rank follow each other without gap or overlap, and add up to the replay's own totals."""
    schedule, rng = get(name), np.random.default_rng(7)
    p, m, v = 4, 8, schedule.virtual_stages.default
    orders, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
    forward, input_grad, weight_grad = rng.uniform(0.5, 2.0, (3, *placement.shape))
    links = rng.uniform(0.0, 0.6, int(placement.max()))
    passes = {"input_grad_s": input_grad, "weight_grad_s": weight_grad, "vocabulary_forward_s": 0.2, "meeting_s": 0.1}
    result = replay(orders, placement, forward, input_grad + weight_grad, handoff_s=links, blocking=blocking, **passes)
    for rank in rank_timelines(orders, placement, result):
        begins = np.concatenate([rank.start_s, rank.idle.start_s])
        ends = np.concatenate([rank.end_s, rank.idle.end_s])
        real = ends > begins
        turn = np.argsort(begins[real])
        assert begins[real][turn] == pytest.approx([0.0, *ends[real][turn][:-1]], abs=1e-6)
        assert ends.max() == pytest.approx(result.makespan_s)
        for index, cause in enumerate(IDLE_CAUSES):
            spent = (rank.idle.end_s - rank.idle.start_s)[rank.idle.cause == index].sum()
            assert spent == pytest.approx(result.idle_s[cause][rank.rank], abs=1e-6)
            assert spent == pytest.approx(rank.idle_s[cause], abs=1e-6)


@pytest.mark.parametrize("name", DRAWN)
def test_memory_peaks_where_the_replay_says(name: str) -> None:
    """The curve of a rank peaks at the in-flight micro-batches of the replay and ends at nothing."""
    for rank in timeline_of_times(name, 4, 8, None, PassTimes()).ranks:
        assert rank.held_microbatches.peak == rank.in_flight_microbatches > 0
        assert rank.held_microbatches.value[-1] == 0
        assert (np.diff(rank.held_microbatches.time_s) >= 0).all()


def test_bytes_by_hand() -> None:
    """A forward keeps 10, from I to W 4 of it: two forwards 20, after an I 14, and 8 before the last W but one."""
    order = RankOrder.parse("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1")
    result = replay([order], looped_placement(1, 1), 1.0, input_grad_s=1.0, weight_grad_s=1.0)
    held = rank_timelines([order], looped_placement(1, 1), result, np.array([[10.0]]), np.array([[4.0]]))[0].held_bytes
    assert held is not None
    assert held.time_s.tolist() == [0.0, 1.0, 3.0, 4.0, 5.0, 6.0]
    assert held.value.tolist() == [10.0, 20.0, 14.0, 8.0, 4.0, 0.0]
    assert held.peak == 20.0
    assert held.at(np.array([-1.0, 0.5, 1.0, 9.0])).tolist() == [0.0, 10.0, 20.0, 0.0]


def test_an_order_is_made_for_the_times() -> None:
    """A schedule that searches its order is given the times, and does better than with its order for F = I = W."""
    schedule, times = get("zb-2p"), PassTimes(forward_s=1.0, input_grad_s=3.0, weight_grad_s=1.0)
    plain = replay(schedule.rank_orders(4, 8), schedule.placement(4, 1), 1.0, input_grad_s=3.0, weight_grad_s=1.0)
    assert timeline_of_times("zb-2p", 4, 8, None, times).makespan_s < plain.makespan_s


def test_whole_backward_where_it_is_not_split() -> None:
    """B takes as long as I and W together."""
    rank = timeline_of_times("1f1b", 2, 2, None, PassTimes(1.0, 0.25, 0.5)).ranks[0]
    took = (rank.end_s - rank.start_s)[rank.order.kind == Kind.BACKWARD]
    assert took == pytest.approx(0.75)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_size_is_known_before(name: str) -> None:
    """An order has the actions that are counted without it; fewer only where some backwards of several are whole."""
    schedule = get(name)
    p, m = {"none": (1, 8), "naive": (4, 1)}.get(name, (4, 8))
    v = schedule.virtual_stages.default
    orders = schedule.rank_orders(p, m, v)
    kinds = set(np.concatenate([order.kind for order in orders]).tolist())
    actions, counted = sum(map(len, orders)), p * most_actions(schedule, m, v)
    assert actions == counted or (actions < counted and {Kind.BACKWARD, Kind.INPUT_GRAD} <= kinds)


@pytest.mark.parametrize(("p", "m"), [(4, MAX_ACTIONS // 8 + 1), (MAX_RANKS + 1, 1), (10**15, 10**15)])
def test_too_large_is_refused(p: int, m: int) -> None:
    """More actions or ranks than are allowed are refused before any is listed."""
    with pytest.raises(InputError, match="is too large; allowed: 1,0"):
        timeline_of_times("1f1b", p, m, None, PassTimes())
