"""Work in several processes: the same results in the same order, and nobody left over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from ppadvisor.errors import InputError, PpadvisorError
from ppadvisor.search.workers import ordered_map


def slow_where_even(number: int) -> tuple[int, int]:
    """The number and who looked at it; the first ones take longest."""
    time.sleep(0.2 if number < 2 else 0)
    return number, os.getpid()


def slow(number: int) -> int:
    """The number, a moment later."""
    time.sleep(0.02)
    return number


def refuse_three(number: int) -> int:
    """An answer for all but 3."""
    if number == 3:
        raise InputError("three is refused")
    return number


def die_at_three(number: int) -> int:
    """What the system does to a process that takes too much memory."""
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_results_come_in_the_order_of_the_items() -> None:
    """Two processes answer, the first items last; the results stand as `map` has them, and no process stays."""
    with closing(ordered_map(slow_where_even, range(12), 2)) as results:
        found = list(results)
    assert [number for number, _ in found] == list(range(12))
    assert len({process for _, process in found} - {os.getpid()}) == 2
    assert multiprocessing.active_children() == []


def test_one_job_is_this_process() -> None:
    """Nothing is started where nothing is to be shared."""
    assert {process for _, process in ordered_map(slow_where_even, range(3), 1)} == {os.getpid()}
    assert list(ordered_map(slow_where_even, [], 4)) == []


def test_items_are_asked_for_as_they_are_needed() -> None:
    """The first results are out while most of the items are not yet asked for."""
    asked = []

    def items() -> Iterator[int]:
        for number in range(500):
            asked.append(number)
            yield number

    with closing(ordered_map(slow, items(), 2)) as results:
        assert next(results) == 0
        assert len(asked) < 500


def test_an_error_comes_out_where_it_belongs() -> None:
    """What the function raises is raised here with its type and text, and ends the other processes."""
    with pytest.raises(InputError, match="three is refused"):
        list(ordered_map(refuse_three, range(9), 2))
    assert multiprocessing.active_children() == []


def test_a_process_that_is_killed_is_told() -> None:
    """The death of a process is an error of one line, not a wait without end."""
    with pytest.raises(PpadvisorError, match="was ended from outside"):
        list(ordered_map(die_at_three, range(9), 2))
    assert multiprocessing.active_children() == []


def test_who_stops_reading_stops_the_work() -> None:
    """Closing the results ends the processes, as Ctrl-C does."""
    results = ordered_map(refuse_three, range(3), 2)
    assert next(results) == 0
    results.close()
    assert multiprocessing.active_children() == []
