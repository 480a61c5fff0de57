"""Plans with a verdict each: those that a bound shows not to fit are evaluated only where somebody asks for more.

Most plans of a search are far too large. A bound on the memory of their first rank says so at a fiftieth of the cost,
and of the rest of their numbers a report wants few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.bounds import least_memory, least_steps_s
from ppadvisor.engine.distinct import Distinct, distinct_of
from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, evaluate
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.plan import IntArray, PlanTable

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

FEW_PLANS = 1_000
"""So many are evaluated sooner than bounded."""
AT_A_TIME = 256
"""Bounded plans that are evaluated together where the least of some is looked for; doubled each time."""
SURE = 1 - 1e-9
"""A bound counts only where rounding could not turn it."""


@dataclass(frozen=True)
class Decided:
    """A table of plans with its verdicts; `complete` fills in what is missing of some rows."""

    problem: Problem
    plans: PlanTable
    distinct: Distinct
    """What the plans share."""
    margin: float
    estimates: EstimateTable
    """Of a bounded row the verdict, `does_not_fit`, and as its peak the bound; its times are infinite."""
    bounded: BoolArray
    """Rows that are not evaluated."""

    def complete(self, rows: IntArray) -> None:
        """Evaluate those of the rows that are only bounded."""
        rows = rows[self.bounded[rows]]
        if len(rows):
            found = evaluate(self.problem, self.plans, margin=self.margin, distinct=self.distinct, rows=rows)
            self.estimates.put(rows, found)
            self.bounded[rows] = False

    def least_peak(self, rows: IntArray) -> int | None:
        """The row with the smallest peak of all, the first of equals; None where there is no row."""
        return self._least(rows, lambda: self.estimates.peak_bytes[rows])

    def fastest_below(self, rows: IntArray, peak_bytes: float) -> int | None:
        """The fastest of the rows whose peak is below so many bytes, the first of equals; None where there is none."""

        def seconds() -> FloatArray:
            known = np.where(self.bounded[rows], self.least_steps_s[rows], self.estimates.step_time_s[rows])
            return np.where(self.estimates.peak_bytes[rows] < peak_bytes, known, np.inf)

        return self._least(rows, seconds)

    @cached_property
    def least_steps_s(self) -> FloatArray:
        """Seconds that the step of each plan is not below."""
        return least_steps_s(self.distinct) * SURE

    def _least(self, rows: IntArray, values: Callable[[], FloatArray]) -> int | None:
        """The row with the least value, evaluating those whose bound is not above the least that is known."""
        number = AT_A_TIME
        while len(rows):
            found, bounded = values(), self.bounded[rows]
            least = found[~bounded].min(initial=np.inf)
            open_ = np.flatnonzero(bounded & (found <= least) & np.isfinite(found))
            if not len(open_):
                return int(rows[np.argmin(found)]) if np.isfinite(least) else None
            self.complete(rows[open_[np.argsort(found[open_])[:number]]])
            number *= 2
        return None


def decided(problem: Problem, plans: PlanTable, *, margin: float, size: IntArray | None = None) -> Decided:
    """A verdict for each plan: by a bound where that is enough, else by its estimates.

    `size`: a number of each plan that those of equal sizes share, where known.
    """
    capacity, distinct = problem.cluster.gpu.memory_bytes, distinct_of(problem, plans, size)
    if len(plans) < FEW_PLANS:
        return evaluated(problem, plans, margin=margin, distinct=distinct)
    least = least_memory(plans, distinct)
    peak, conservative = least.peak * SURE, least.conservative * SURE
    bounded = (peak > margin * capacity) & (conservative > capacity)
    estimates = too_large(peak, conservative)
    rows = np.flatnonzero(~bounded)
    estimates.put(rows, evaluate(problem, plans, margin=margin, distinct=distinct, rows=rows))
    return Decided(problem, plans, distinct, margin, estimates, bounded)


def evaluated(problem: Problem, plans: PlanTable, *, margin: float, distinct: Distinct | None = None) -> Decided:
    """The same without bounds."""
    distinct = distinct or distinct_of(problem, plans)
    estimates = evaluate(problem, plans, margin=margin, distinct=distinct)
    return Decided(problem, plans, distinct, margin, estimates, np.zeros(len(plans), dtype=np.bool_))


def too_large(peak_bytes: FloatArray, conservative_bytes: FloatArray) -> EstimateTable:
    """Plans of which nothing is known but bounds on the peak and its conservative end, which do not fit."""
    number = len(peak_bytes)
    never = np.full(number, np.inf)
    verdict = np.full(number, VERDICTS.index("does_not_fit"))
    return EstimateTable(never, np.ones(number), peak_bytes, conservative_bytes, verdict)
