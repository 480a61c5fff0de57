"""Questions that the tests of the search share."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ppadvisor.engine.problem import Problem
from ppadvisor.search.api import plan
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import Ranked, rank
from ppadvisor.search.results import PlanReport
from ppadvisor.specs.plan import PlanSpec
from tests.problems import FRAMEWORKS, MODELS, cluster, model, plain_schedules, problem

TIGHT = {"memory_bytes": 4 * 2**30}
"""A GPU on which some of the plans for the small models fit and others do not."""
CASES = [(name, framework) for name in MODELS for framework in FRAMEWORKS]
every_case = pytest.mark.parametrize(("name", "framework"), CASES)


def ask(of: Problem, pins: Pins | None = None, **options: Any) -> PlanReport:
    """The answer for this problem, among the plain schedules where none is pinned."""
    return plan(of.model, of.cluster, of.training, pins=plain(of, pins), assumptions=of.assumptions, **options)


def plain(of: Problem, pins: Pins | None = None) -> Pins:
    """The pins, and that on the plain schedules: others have tests of their own, and make a search long."""
    pins = pins or Pins()
    return pins if pins.schedule else pins.with_values(schedule=plain_schedules(of))


@cache
def ranked(name: str, framework: str) -> Ranked:
    """A search in which plans fit, do not, and break rules."""
    of = problem(model(name), machines=cluster(16, **TIGHT), framework=framework, sequence_length=4096)
    return rank(of, plain(of), margin=0.9)


def all_pinned(one: PlanSpec) -> Pins:
    """Every quantity pinned to what this plan has."""
    pins = Pins(**{name: (getattr(one, name),) for name in Pins.__dataclass_fields__})
    return pins.with_values(recompute=(one.recomputation.text,))
