"""Questions that differ in their pins alone, searched as one: each is then shown the rows that are its own.

Nobody can tell from an answer which other questions were asked with it: rows and their order are those of a search of
its own, and so are their numbers, to the bit. For that each pin must leave one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.search.pins import Pins, check_pins
from ppadvisor.search.ranking import IntArray, Ranked, rank, rows_with

MOST_WASTE = 4
"""Combinations of the pinned values, for each question, that are searched together: questions need not fill a grid."""

Question = tuple[Problem, Pins]
Group = dict[int, Pins]
"""Place of a question -> its pins: of one problem, so that they can be searched together."""


@dataclass(frozen=True)
class Share:
    """What one question has of a search."""

    ranked: Ranked
    """Perhaps with the plans of other questions too."""
    rows: IntArray
    """Its legal plans."""
    order: IntArray
    """Those of them that fit, best first by the array forms."""

    @property
    def work(self) -> int:
        """How much there is to look at: its plans, and the forwards of the first, p v m, in microseconds of a core."""
        p, m, v = self.ranked.plans.pipeline_sizes
        first = np.concatenate([self.order[:1], self.rows[:1]])[:1]
        return len(self.rows) + int((p[first] * v[first] * m[first]).sum())


def shares(asked: Sequence[Question | InputError], *, margin: float) -> Iterator[Share | InputError]:
    """Of each question the share that answers it; the error of one that contradicts itself.

    A question that shares its search with no other is not searched before it comes up.
    """
    questions = {place: one for place, one in enumerate(asked) if not isinstance(one, InputError)}
    found: dict[int, Share] = {}
    for problem, group in _groups(questions):
        found |= _searched_together(problem, group, margin)
    for place, one in enumerate(asked):
        yield one if isinstance(one, InputError) else found.get(place) or _searched_alone(*one, margin)


def _searched_alone(problem: Problem, pins: Pins, margin: float) -> Share | InputError:
    try:
        ranked = rank(problem, pins, margin=margin)
    except InputError as error:
        return error
    return Share(ranked, np.arange(len(ranked.plans)), ranked.order)


def _groups(questions: Mapping[int, Question]) -> list[tuple[Problem, Group]]:
    """The questions that can be searched together."""
    groups: list[tuple[Problem, Group]] = []
    for place, (problem, pins) in questions.items():
        if not _can_share(problem, pins):
            continue
        for other, group in reversed(groups):
            if other == problem and next(iter(group.values())).given().keys() == pins.given().keys():
                group[place] = pins
                break
        else:
            groups.append((problem, {place: pins}))
    return groups


def _can_share(problem: Problem, pins: Pins) -> bool:
    if not pins.given() or any(len(values) != 1 for values in pins.given().values()):
        return False
    try:
        check_pins(problem, pins)
    except InputError:
        return False
    return True


def _searched_together(problem: Problem, group: Group, margin: float) -> dict[int, Share]:
    """The shares of those that have legal plans; what is wrong with the others, a search of their own says."""
    if len(group) < 2:
        return {}
    together = _together(list(group.values()))
    if prod(map(len, together.given().values())) > MOST_WASTE * len(group):
        places = list(group)
        halves = places[: len(places) // 2], places[len(places) // 2 :]
        first, second = ({place: group[place] for place in half} for half in halves)
        return _searched_together(problem, first, margin) | _searched_together(problem, second, margin)
    try:
        ranked = rank(problem, together, margin=margin, asked=list(group.values()))
    except InputError:
        return {}
    own = ((place, rows_with(ranked.plans, pins)) for place, pins in group.items())
    return {
        place: Share(ranked, np.flatnonzero(rows), ranked.order[rows[ranked.order]])
        for place, rows in own
        if rows.any()
    }


def _together(several: Sequence[Pins]) -> Pins:
    """All values that are pinned."""
    given = [pins.given() for pins in several]
    values = {name: tuple(dict.fromkeys(value for pins in given for value in pins[name])) for name in given[0]}
    return Pins(**values)  # type: ignore[arg-type]  # each field has values of its own kind
