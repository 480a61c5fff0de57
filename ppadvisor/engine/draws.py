"""Step times over the ranges of the assumptions: every plan under the same draws, so that what is common cancels.

A draw of a plan is one more row of the table: each assumption is then an array, one value a row, and the formulas of
the engine are the same. So an assumption that a formula reads may be a number or an array (plans,).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields, replace
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


def shuffled_shares(name: str, number: int = NUM_DRAWS) -> FloatArray:
    """(1/2, 3/2, ...) / number in an order that hangs on the name alone: the same in every run and on every machine.

    One column of a Latin hypercube: every slice of a range is drawn from once. Source: McKay, Beckman, Conover 1979,
    Technometrics 21(2), section 2.
    """
    slices = list(range(number))
    random.Random(name).shuffle(slices)
    return (np.array(slices) + 0.5) / number


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


def drawn_assumptions(assumptions: Assumptions, number: int = NUM_DRAWS) -> Assumptions:
    """Assumptions whose values are arrays: first the default of each, then its draws, (1 + number,)."""
    drawn: dict[str, Any] = {}
    for field in fields(assumptions):
        one: Assumption = getattr(assumptions, field.name)
        drawn[field.name] = replace(one, value=_each(one, drawn_values(field.name, one, number)))
    return replace(assumptions, **drawn)


def _each(assumption: Assumption, values: FloatArray) -> Any:
    """The default and the draws; typed as what it stands for, since only this module makes such assumptions."""
    return np.concatenate([[assumption.value], values])


def steps_by_array_form(problem: Problem, plan: PlanSpec, rows: int) -> FloatArray:
    """Step time of one plan by the schedule's array form under each of `rows` values of the assumptions, (rows,)."""
    table = table_of(plan).take(np.zeros(rows, dtype=np.int64))
    inputs = PlanInputs.of(problem, table, every_stage=False)
    times = stage_times(inputs)
    pipeline = pipeline_s(inputs, totals_of(inputs, times, links=True))
    return step_times(inputs, times, pipeline).step


def drawn_step_times(problem: Problem, estimates: Sequence[PlanEstimate], number: int = NUM_DRAWS) -> FloatArray:
    """Step time of each plan under each draw, (number, plans) seconds.

    The array form of the draw, times what the replay of the plan takes over its array form under the defaults: exact
    in stage times and traffic, and where the draws change the shape of the pipeline as near as the array form is.
    """
    drawn = replace(problem, assumptions=drawn_assumptions(problem.assumptions, number))
    result = np.zeros((number, len(estimates)))
    for column, estimate in enumerate(estimates):
        steps = steps_by_array_form(drawn, estimate.plan, 1 + number)
        result[:, column] = steps[1:] * (estimate.time.step_time_s / steps[0])
    return result
