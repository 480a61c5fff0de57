"""Forwards run as one with the backward after them: when their results leave, how they print, what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ppadvisor.schedules.base import RankOrder, looped_placement
from ppadvisor.schedules.replay import IDLE_CAUSES, ScheduleError, replay

TWO = looped_placement(2, 1)
PAIRED = tuple(map(RankOrder.parse, ("F0.0 F0.1 F0.2+ B0.0 B0.1 B0.2", "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2")))


def test_a_pair_sends_both_results_when_it_is_done() -> None:
    """p = 2, F = 1, B = 2: rank 0's second forward is done at 2 but leaves with B0.0 at 6; apart it leaves at 2."""
    first, second = map(RankOrder.parse, ("F0.0 F0.1+ B0.0 B0.1", "F0.0 B0.0 F0.1 B0.1"))
    late = replay((first, second), TWO, 1.0, 2.0)
    assert late.start_s[0].tolist() == [0, 1, 4, 9]
    assert late.start_s[1].tolist() == [1, 2, 6, 7]
    early = replay((RankOrder(first.actions), second), TWO, 1.0, 2.0)
    assert early.start_s[0].tolist() == [0, 1, 4, 7]
    assert early.start_s[1].tolist() == [1, 2, 4, 5]


def test_two_results_of_a_pair_on_one_link_go_one_after_the_other() -> None:
    """Two directions, hand-offs of 0.5: the pair's backward leaves rank 0 at 5.5, its forward behind it at 6."""
    order = tuple(map(RankOrder.parse, ("F1.1 F0.0+ B1.1 B0.0", "F1.1 F0.0 B0.0 B1.1")))
    result = replay(order, np.array([[0, 1], [1, 0]]), 1.0, 2.0, handoff_s=0.5)
    assert result.start_s[0].tolist() == [1.5, 2.5, 3.5, 10]
    assert result.start_s[1].tolist() == [0, 6.5, 7.5, 9.5]
    assert result.makespan_s == 12


@pytest.mark.parametrize("blocking", [False, True])
def test_idle_causes_add_up_with_pairs(blocking: bool) -> None:
    """On every rank the causes of idle time add up to the makespan less the work, and none is negative."""
    result = replay(PAIRED, TWO, 1.0, 2.0, handoff_s=0.25, blocking=blocking)
    causes = np.array([result.idle_s[cause] for cause in IDLE_CAUSES])
    assert causes.sum(axis=0) == pytest.approx(result.makespan_s - result.busy_s)
    assert causes.min() >= 0
    assert [len(start) for start in result.start_s] == [6, 6]


@pytest.mark.parametrize("text", ["F0.0 B0.0+ F0.1 B0.1", "F0.0+ F0.1 B0.0 B0.1", "F0.0 F0.1 B0.0 B0.1+"])
def test_a_pair_is_a_forward_and_the_backward_after_it(text: str) -> None:
    """Anything else marked as a pair is refused with the action."""
    marked = re.findall(r"(\S+)\+", text)[0]
    with pytest.raises(ScheduleError, match=re.escape(f"{marked} is paired, but no backward comes straight after it")):
        replay((RankOrder.parse(text),), looped_placement(1, 1), 1.0, 2.0)


def test_pairs_read_back_as_they_print() -> None:
    """Text and array are the same order, with and without pairs."""
    text = "F0.0 F1.0+ I1.0 W1.0 B0.0"
    order = RankOrder.parse(text)
    assert str(order) == text
    assert order.paired is not None
    assert order.paired.tolist() == [False, True, False, False, False]
    assert RankOrder.parse("F0.0 B0.0").paired is None
