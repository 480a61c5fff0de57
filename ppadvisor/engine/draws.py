"""Step times over the ranges of the assumptions: every plan under the same draws, so that what is common cancels.

A draw of a plan is one more row of the table: each assumption is then an array, one value a row, and the formulas of
the engine are the same. So an assumption that a formula reads may be a number or an array (plans,).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.step_time import pipeline_s, stage_times, step_times, totals_of
from ppadvisor.engine.tables import table_of
from ppadvisor.specs.assumptions import GIVEN, Assumption, Assumptions
from ppadvisor.specs.plan import PlanSpec

NUM_DRAWS = 200


@lru_cache(maxsize=256)  # of each assumption and of the plans that are compared, asked for several times
def shuffled_shares(name: str, number: int = NUM_DRAWS) -> FloatArray:
    """(1/2, 3/2, ...) / number in an order that hangs on the name alone: the same in every run and on every machine.

    One column of a Latin hypercube: every slice of a range is drawn from once. Source: McKay, Beckman, Conover 1979,
    Technometrics 21(2), section 2.
    """
    slices = list(range(number))
    random.Random(name).shuffle(slices)
    shares = (np.array(slices) + 0.5) / number
    shares.flags.writeable = False
    return shares


def drawn_values(name: str, assumption: Assumption, number: int = NUM_DRAWS) -> FloatArray:
    """`number` values of one assumption, its default the median: evenly below it down to `low`, evenly above to `high`.

    What the user gave is known and stays.
    """
    if assumption.provenance == GIVEN:
        return np.full(number, assumption.value)
    share = shuffled_shares(name, number)
    below = assumption.low + (assumption.value - assumption.low) * 2 * share
    above = assumption.value + (assumption.high - assumption.value) * (2 * share - 1)
    return np.where(share < 0.5, below, above)


def drawn_assumptions(assumptions: Assumptions, number: int = NUM_DRAWS, plans: int = 1) -> Assumptions:
    """Assumptions whose values are arrays: the default of each, then its draws; all that once for each plan."""
    drawn: dict[str, Any] = {}
    for field in fields(assumptions):
        one: Assumption = getattr(assumptions, field.name)
        drawn[field.name] = replace(one, value=_each(one, drawn_values(field.name, one, number), plans))
    return replace(assumptions, **drawn)


def _each(assumption: Assumption, values: FloatArray, plans: int) -> Any:
    """The default and the draws; typed as what it stands for, since only this module makes such assumptions."""
    return np.tile(np.concatenate([[assumption.value], values]), plans)


def steps_by_array_form(problem: Problem, plans: Sequence[PlanSpec], rows: int) -> FloatArray:
    """Step time of each plan by its schedule's array form under `rows` values of the assumptions, (rows, plans).

    The assumptions of the problem have those values for every plan: (rows x plans,), a plan's own in a row.
    """
    table = table_of(*plans).take(np.repeat(np.arange(len(plans)), rows))
    inputs = PlanInputs.of(problem, table, every_stage=False)
    times = stage_times(inputs)
    pipeline = pipeline_s(inputs, totals_of(inputs, times, links=True))
    return step_times(inputs, times, pipeline).step.reshape(len(plans), rows).T


def drawn_step_times(problem: Problem, estimates: Sequence[PlanEstimate], number: int = NUM_DRAWS) -> FloatArray:
    """Step time of each plan under each draw, (number, plans) seconds.

    The array form of the draw, times what the replay of the plan takes over its array form under the defaults: exact
    in stage times and traffic, and where the draws change the shape of the pipeline as near as the array form is.
    """
    drawn = replace(problem, assumptions=drawn_assumptions(problem.assumptions, number, len(estimates)))
    steps = steps_by_array_form(drawn, [estimate.plan for estimate in estimates], 1 + number)
    shown_s = np.array([estimate.time.step_time_s for estimate in estimates])
    return np.asarray(steps[1:] * (shown_s / steps[0]))
