"""Of several questions the plan that answers each: the best that fits, else the legal one that comes closest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ppadvisor.engine.evaluate import Measured, PlanStep, measured, steps_of
from ppadvisor.engine.results import PlanMemory, PlanTime
from ppadvisor.engine.tables import plan_of
from ppadvisor.search.ranking import Ranked
from ppadvisor.search.shared import Share
from ppadvisor.search.shortlist import best_of_each, measured_of_each
from ppadvisor.specs.plan import PlanSpec

QUICK_PLANS = 5
"""A quick answer is the fastest of so many plans that the array forms put first, which do not see every idle moment."""

Shares = Mapping[int, Share]
"""Place of a question -> what a search found for it."""


@dataclass(frozen=True)
class Chosen:
    """A plan with what a row shows of it."""

    plan: PlanSpec
    memory: PlanMemory
    step: PlanStep | PlanTime


def chosen_plans(shares: Shares, *, margin: float, quick: bool) -> dict[int, Chosen]:
    """The plan of each question; none where no plan is legal.

    Quick: the fastest of the first QUICK_PLANS of the search, as they stand there: no variants beside them are looked
    at, no better splits.
    """
    chosen = {} if quick else _best(shares, margin)
    looked_at = _first_that_fit(shares, margin) if quick else {}
    looked_at |= _nearest({place: of for place, of in shares.items() if place not in chosen | looked_at}, margin)
    steps = iter(steps_of([one for plans in looked_at.values() for one in plans]))
    for place, plans in looked_at.items():
        of_plans = [Chosen(one.plan, one.memory, next(steps)) for one in plans]
        chosen[place] = min(of_plans, key=lambda one: one.step.step_time_s)
    return chosen


def _best(shares: Shares, margin: float) -> dict[int, Chosen]:
    """What `plan` would rank first, where anything fits."""
    found: dict[int, Chosen] = {}
    for ranked, places in _by_search(shares):
        best = best_of_each(ranked, [shares[place].order for place in places], 1, margin=margin)
        found |= {
            place: Chosen(first.plan, first.memory, first.time)
            for place, of_place in zip(places, best, strict=True)
            for first in of_place
        }
    return found


def _first_that_fit(shares: Shares, margin: float) -> dict[int, list[Measured]]:
    """The first QUICK_PLANS that fit of each question, where any does."""
    found: dict[int, list[Measured]] = {}
    for ranked, places in _by_search(shares):
        orders = [shares[place].order for place in places]
        fitting = measured_of_each(ranked, orders, QUICK_PLANS, margin=margin, balance=False)
        found |= {place: plans for place, plans in zip(places, fitting, strict=True) if plans}
    return found


def _nearest(shares: Shares, margin: float) -> dict[int, list[Measured]]:
    """The legal plan of each question that needs the least memory, alone; where none is legal none."""
    found: dict[int, list[Measured]] = {}
    for ranked, places in _by_search(shares):
        least = {place: ranked.decided.least_peak(shares[place].rows) for place in places}
        plans = {place: plan_of(ranked.plans, row) for place, row in least.items() if row is not None}
        nearest = measured(ranked.problem, list(plans.values()), margin=margin)
        found |= {place: [one] for place, one in zip(plans, nearest, strict=True)}
    return found


def _by_search(shares: Shares) -> list[tuple[Ranked, list[int]]]:
    """The searches, and the questions that have a share of each."""
    places: dict[int, list[int]] = {}
    for place, share in shares.items():
        places.setdefault(id(share.ranked), []).append(place)
    return [(shares[of_search[0]].ranked, of_search) for of_search in places.values()]
