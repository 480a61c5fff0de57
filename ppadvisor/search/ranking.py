"""Evaluate a space and put the plans that fit in order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, estimate_plan, evaluate
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, Rejection, Verdict
from ppadvisor.errors import unknown_name
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.pins import Pins
from ppadvisor.search.space import Space, build_space
from ppadvisor.specs.plan import RECOMPUTE, PlanTable

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SORT_KEYS: tuple[str, ...] = ("step_time_s", "peak_bytes", "bubble_fraction")

MEMORY_REASONS: dict[Verdict, str] = {"borderline": "memory_borderline", "does_not_fit": "memory"}
"""Verdict -> the code under which a plan that does not fit is counted."""

REPLAY_RESERVE = 4
"""Plans replayed beyond those shown: the array forms order near-ties by bounds, the replay decides."""


CLEARLY_LESS = 0.98
"""A variant of a better plan is shown where its peak is below this share of the better one's."""


@dataclass(frozen=True)
class Ranked:
    """An evaluated space."""

    problem: Problem
    space: Space
    plans: PlanTable
    """Legal plans."""
    estimates: EstimateTable
    order: IntArray
    """Rows of `plans` that fit, best first by the array forms."""
    rejected: Counter[str]
    examples: list[Rejection]


def moving_parts(plans: PlanTable) -> IntArray:
    """How many kinds of parallelism and tricks a plan uses; ties go to the plan with fewer."""
    sizes = (
        plans.pipeline_parallel,
        plans.tensor_parallel,
        plans.context_parallel,
        plans.expert_parallel,
        plans.virtual_stages,
    )
    count = np.zeros(len(plans), dtype=np.int64)
    for size in sizes:
        count += size > 1
    uneven = np.array([len(set(split)) > 1 for split in plans.splits], dtype=np.int64)
    return count + (plans.recompute > RECOMPUTE.index("none")) + uneven[plans.split]


def rank(problem: Problem, pins: Pins, *, margin: float, sort: str = "step_time_s") -> Ranked:
    """Build the space, drop what may not run, estimate the rest, order what fits.

    InputError for contradicting pins (from the space) and for an unknown sort key.
    """
    if sort not in SORT_KEYS:
        raise unknown_name("sort key", sort, SORT_KEYS)
    space = build_space(problem, pins)
    plans, counts, examples = legal_plans(problem, space.plans)
    estimates = evaluate(problem, plans, margin=margin)
    fitting = np.flatnonzero(estimates.verdict == VERDICTS.index("fits"))
    first_key = as_printed(getattr(estimates, sort))
    keys = [first_key, as_printed(estimates.step_time_s), estimates.peak_bytes, moving_parts(plans)]
    order = fitting[np.lexsort(tuple(key[fitting] for key in reversed(keys)))]
    rejected = space.rejected + counts
    for verdict, code in MEMORY_REASONS.items():
        number = int((estimates.verdict == VERDICTS.index(verdict)).sum())
        if number:
            rejected[code] = number
    return Ranked(problem, space, plans, estimates, order, rejected, examples)


def as_printed(values: FloatArray) -> FloatArray:
    """Values to the four digits that a report shows: what reads the same is a tie, and memory decides."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-30)))
    return np.asarray(np.round(values / 10**size, 3) * 10**size)


def distinct_rows(ranked: Ranked, limit: int) -> list[int]:
    """The first `limit` rows of the order that tell a reader something new.

    A plan that differs from a better one only in its split, or in its recomputation without needing clearly less
    memory, is passed over: otherwise variants of the best would fill the table.
    """
    variants = ("split", "recompute")
    columns = [getattr(ranked.plans, name) for name in PlanTable.column_names() if name not in variants]
    least: dict[tuple[int, ...], float] = {}
    seen: set[tuple[int, ...]] = set()
    rows: list[int] = []
    for row in ranked.order:
        if len(rows) == limit:
            break
        sizes = tuple(int(column[row]) for column in columns)
        variant = (*sizes, int(ranked.plans.recompute[row]))
        peak = float(ranked.estimates.peak_bytes[row])
        if variant not in seen and peak < least.get(sizes, np.inf) * CLEARLY_LESS:
            rows.append(int(row))
            least[sizes] = peak
        seen.add(variant)
    return rows


def best_estimates(ranked: Ranked, top: int, *, margin: float, sort: str = "step_time_s") -> list[PlanEstimate]:
    """The `top` best plans, every stage and replayed; the replayed numbers decide their order."""
    rows = distinct_rows(ranked, top + REPLAY_RESERVE)
    estimates = [estimate_plan(ranked.problem, ranked.plans.plan(row), margin=margin) for row in rows]
    fitting = [estimate for estimate in estimates if estimate.memory.fits]
    printed = as_printed(np.array([_sort_value(estimate, sort) for estimate in fitting], dtype=np.float64))
    # a stable sort: ties keep the order by memory and moving parts
    return [fitting[i] for i in np.argsort(printed, kind="stable")][:top]


def _sort_value(estimate: PlanEstimate, sort: str) -> float:
    return float(estimate.memory.peak_bytes if sort == "peak_bytes" else getattr(estimate.time, sort))


def nearest_row(ranked: Ranked) -> int | None:
    """The legal plan with the smallest peak, or None where there is none."""
    return int(np.argmin(ranked.estimates.peak_bytes)) if len(ranked.plans) else None
