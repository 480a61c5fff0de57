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

from ppadvisor.engine.bounds import least_bytes, least_steps_s
from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, evaluate
from ppadvisor.engine.inputs import Sizes, sizes_of
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
    sizes: Sizes
    """Those of the plans."""
    margin: float
    estimates: EstimateTable
    """Of a bounded row the verdict, `does_not_fit`, and as its peak the bound; its times are infinite."""
    bounded: BoolArray
    """Rows that are not evaluated."""

    def complete(self, rows: IntArray) -> None:
        """Evaluate those of the rows that are only bounded."""
        rows = rows[self.bounded[rows]]
        if len(rows):
            self.estimates.put(rows, _evaluated(self.problem, self.plans, self.sizes, rows, self.margin))
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
        return least_steps_s(self.problem, self.sizes) * SURE

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


def decided(problem: Problem, plans: PlanTable, *, margin: float) -> Decided:
    """A verdict for each plan: by a bound where that is enough, else by its estimates."""
    if len(plans) < FEW_PLANS:
        return evaluated(problem, plans, margin=margin)
    capacity, sizes = problem.cluster.gpu.memory_bytes, sizes_of(problem, plans)
    least = least_bytes(problem, plans, sizes) * SURE
    # the conservative end is never below the middle
    bounded = least > max(margin, 1.0) * capacity
    estimates = too_large(least)
    rows = np.flatnonzero(~bounded)
    estimates.put(rows, _evaluated(problem, plans, sizes, rows, margin))
    return Decided(problem, plans, sizes, margin, estimates, bounded)


def _evaluated(problem: Problem, plans: PlanTable, sizes: Sizes, rows: IntArray, margin: float) -> EstimateTable:
    """The estimates of some rows."""
    distinct, size = sizes
    return evaluate(problem, plans.take(rows), margin=margin, sizes=(distinct, size[rows]))


def evaluated(problem: Problem, plans: PlanTable, *, margin: float, sizes: Sizes | None = None) -> Decided:
    """The same without bounds."""
    sizes = sizes or sizes_of(problem, plans)
    estimates = evaluate(problem, plans, margin=margin, sizes=sizes)
    return Decided(problem, plans, sizes, margin, estimates, np.zeros(len(plans), dtype=np.bool_))


def too_large(peak_bytes: FloatArray) -> EstimateTable:
    """Plans of which nothing but a bound on the peak is known, which does not fit."""
    number = len(peak_bytes)
    never = np.full(number, np.inf)
    verdict = np.full(number, VERDICTS.index("does_not_fit"))
    return EstimateTable(never, np.ones(number), peak_bytes, peak_bytes.copy(), np.zeros(number, np.int64), verdict)
