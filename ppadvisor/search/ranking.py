"""Evaluate a space and put the plans that fit in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.evaluate import VERDICTS, EstimateTable
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Rejection, Verdict
from ppadvisor.errors import unknown_name
from ppadvisor.search.constraints import legal_of_sizes
from ppadvisor.search.decided import Decided, decided
from ppadvisor.search.fewest_layers import SOME_LAYERS, joined, with_fewest_layers
from ppadvisor.search.pins import Pins
from ppadvisor.search.space import Space, build_space
from ppadvisor.specs.plan import PlanTable
from ppadvisor.specs.recomputation import NONE, parse_recomputation

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

SORT_KEYS: tuple[str, ...] = ("step_time_s", "peak_bytes", "bubble_fraction")

MEMORY_REASONS: dict[Verdict, str] = {"borderline": "memory_borderline", "does_not_fit": "memory"}
"""Verdict -> the code under which a plan that does not fit is counted."""


@dataclass(frozen=True)
class Ranked:
    """An evaluated space."""

    space: Space
    decided: Decided
    """Legal plans."""
    order: IntArray
    """Rows of `plans` that fit, best first by the array forms."""
    rejected: Counter[str]
    examples: list[Rejection]

    @property
    def problem(self) -> Problem:
        return self.decided.problem

    @property
    def plans(self) -> PlanTable:
        """Legal plans."""
        return self.decided.plans

    @property
    def estimates(self) -> EstimateTable:
        """Of the plans; of those that do not fit some are only bounded, see `Decided`."""
        return self.decided.estimates


def moving_parts(plans: PlanTable, rows: IntArray | slice = slice(None)) -> IntArray:
    """How many kinds of parallelism and tricks the plans of some rows use; ties go to the plan with fewer."""
    sizes = (
        plans.pipeline_parallel,
        plans.tensor_parallel,
        plans.context_parallel,
        plans.expert_parallel,
        plans.virtual_stages,
    )
    recomputes = np.array([choice != NONE for choice in plans.recomputations], dtype=np.int64)
    uneven = np.array([len(set(split)) > 1 for split in plans.splits], dtype=np.int64)
    count = recomputes[plans.recompute[rows]] + uneven[plans.split[rows]]
    for size in sizes:
        count += size[rows] > 1
    return count


def rank(
    problem: Problem, pins: Pins, *, margin: float, sort: str = "step_time_s", asked: Sequence[Pins] = ()
) -> Ranked:
    """Build the space, drop what may not run, estimate the rest, order what fits.

    `asked`: questions with one value of each pin that `pins` puts together; each then finds its own plans in the table.
    InputError for contradicting pins (from the space) and for an unknown sort key.
    """
    if sort not in SORT_KEYS:
        raise unknown_name("sort key", sort, SORT_KEYS)
    space = build_space(problem, pins)
    plans, size, counts, examples = legal_of_sizes(problem, space.plans, space.size)
    every = decided(problem, plans, margin=margin, size=size)
    questions = [np.flatnonzero(rows_with(plans, one)) for one in asked]
    between = None if pins.recompute else with_fewest_layers(every, questions)
    if between is not None:
        space = space.extended(len(between.plans), "recompute", SOME_LAYERS)
        every = joined(every, between)
    plans, estimates = every.plans, every.estimates
    fitting = np.flatnonzero(estimates.verdict == VERDICTS.index("fits"))
    first = [as_printed(getattr(estimates, name)[fitting]) for name in dict.fromkeys((sort, "step_time_s"))]
    # a part of a byte comes from the order in which terms were added up
    keys = (*first, np.round(estimates.peak_bytes[fitting]), moving_parts(plans, fitting))
    order = fitting[np.lexsort(keys[::-1])]
    rejected = space.rejected + counts
    of_verdict = np.bincount(estimates.verdict, minlength=len(VERDICTS)).tolist()
    for verdict, code in MEMORY_REASONS.items():
        if of_verdict[VERDICTS.index(verdict)]:
            rejected[code] = of_verdict[VERDICTS.index(verdict)]
    return Ranked(space, every, order, rejected, examples)


def rows_with(plans: PlanTable, pins: Pins) -> BoolArray:
    """Which of the plans have the pinned values, one of each pin."""
    own = np.ones(len(plans), dtype=np.bool_)
    for name, (value,) in pins.given().items():
        own &= getattr(plans, name) == _as_in_table(plans, name, value)
    return own


def _as_in_table(plans: PlanTable, name: str, value: int | str) -> int:
    """How a column has a value."""
    if name == "schedule":
        return plans.schedule_names.index(str(value))
    return plans.recomputations.index(parse_recomputation(str(value))) if name == "recompute" else int(value)


def as_printed(values: FloatArray) -> FloatArray:
    """Values to the four digits that a report shows: what reads the same is a tie, and memory decides."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-30)))
    return np.asarray(np.round(values / 10**size, 3) * 10**size)


def same_as_printed(one: float, other: float) -> bool:
    """Whether two numbers read the same to four digits."""
    printed = as_printed(np.array([one, other]))
    return bool(printed[0] == printed[1])


def nearest_row(ranked: Ranked) -> int | None:
    """The legal plan with the smallest peak, or None where there is none."""
    return ranked.decided.least_peak(np.arange(len(ranked.plans)))
