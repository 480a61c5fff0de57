"""Evaluate a space and put the plans that fit in order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, estimate_plan, evaluate
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, Rejection
from ppadvisor.errors import unknown_name
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.pins import Pins
from ppadvisor.search.space import Space, build_space
from ppadvisor.specs.plan import RECOMPUTE, PlanTable

IntArray = NDArray[np.int64]

SORT_KEYS: tuple[str, ...] = ("step_time_s", "peak_bytes", "bubble_fraction")

REPLAY_RESERVE = 4
"""Plans replayed beyond those shown: the array forms order near-ties by bounds, the replay decides."""


@dataclass(frozen=True)
class Ranked:
    """An evaluated space."""

    problem: Problem
    space: Space
    plans: PlanTable
    """Legal plans."""
    estimates: EstimateTable
    order: IntArray
    """Rows of `plans` that fit, best first by the array forms; of plans that differ in the split alone, the best."""
    num_fitting: int
    """Plans that fit, every split counted."""
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
    keys = [estimates.step_time_s, estimates.peak_bytes, moving_parts(plans)]
    keys.insert(0, getattr(estimates, sort))
    order = fitting[np.lexsort(tuple(key[fitting] for key in reversed(keys)))]
    order = order[_first_of_each(plans.take(order))]
    rejected = space.rejected + counts
    for verdict, code in (("borderline", "memory_borderline"), ("does_not_fit", "memory")):
        number = int((estimates.verdict == VERDICTS.index(verdict)).sum())
        if number:
            rejected[code] = number
    return Ranked(problem, space, plans, estimates, order, len(fitting), rejected, examples)


def _first_of_each(plans: PlanTable) -> IntArray:
    """Rows that differ in more than the split of the layers from every earlier row: the best split stands for all."""
    names = [name for name in PlanTable.column_names() if name != "split"]
    columns = np.stack([getattr(plans, name) for name in names], axis=1)
    return np.sort(np.unique(columns, axis=0, return_index=True)[1])


def best_estimates(ranked: Ranked, top: int, *, margin: float, sort: str = "step_time_s") -> list[PlanEstimate]:
    """The `top` best plans, every stage and replayed; the replayed numbers decide their order."""
    rows = ranked.order[: top + REPLAY_RESERVE]
    estimates = [estimate_plan(ranked.problem, ranked.plans.plan(int(row)), margin=margin) for row in rows]
    fitting = [estimate for estimate in estimates if estimate.memory.fits]
    key = {
        "step_time_s": lambda e: e.time.step_time_s,
        "peak_bytes": lambda e: e.memory.peak_bytes,
        "bubble_fraction": lambda e: e.time.bubble_fraction,
    }[sort]
    # sorted() is stable: ties keep the order by memory and moving parts
    return sorted(fitting, key=key)[:top]


def nearest_row(ranked: Ranked) -> int | None:
    """The legal plan with the smallest peak, or None where there is none."""
    return int(np.argmin(ranked.estimates.peak_bytes)) if len(ranked.plans) else None
