"""The best plan of each schedule: what a reader compares schedules by, also those far behind or out of reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppadvisor import frameworks, schedules
from ppadvisor.engine.evaluate import estimate_plans
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import plan_of
from ppadvisor.search.advise import miss_note
from ppadvisor.search.ranking import Ranked
from ppadvisor.search.results import ScheduleBest
from ppadvisor.search.shortlist import fitting_of_each


def best_of_each_schedule(ranked: Ranked, shown: Sequence[PlanEstimate], *, margin: float) -> tuple[ScheduleBest, ...]:
    """Each schedule with its best plan, replayed; where none fits the one that needs least; fastest first.

    Schedules without a legal plan come last, with the reason.
    """
    names = ranked.space.plans.schedule_names
    # what is shown was chosen with more care than one look at the array forms' first
    found = {
        index: of_schedule[0]
        for index, name in enumerate(names)
        if (of_schedule := sorted((e for e in shown if e.plan.schedule == name), key=lambda e: e.time.step_time_s))
    }
    for look in (_first_that_fits, _least):
        found |= look(ranked, [index for index in range(len(names)) if index not in found], margin)
    best = [_best(ranked, index, found.get(index)) for index in range(len(names))]
    return tuple(sorted(best, key=_rank_key))


def _rank_key(best: ScheduleBest) -> tuple[int, float]:
    if best.estimate is None:
        return 2, 0.0
    # schedules with the same order of work are told apart by nothing, least of all by how their sums are rounded
    return int(not best.estimate.memory.fits), float(f"{best.estimate.time.step_time_s:.10g}")


def _first_that_fits(ranked: Ranked, schedule_indices: list[int], margin: float) -> dict[int, PlanEstimate]:
    """The best plan that fits of each of these schedules."""
    orders = [ranked.order[ranked.plans.schedule[ranked.order] == index] for index in schedule_indices]
    fitting = zip(schedule_indices, fitting_of_each(ranked, orders, 1, margin=margin), strict=True)
    return {index: found[0] for index, found in fitting if found}


def _least(ranked: Ranked, schedule_indices: list[int], margin: float) -> dict[int, PlanEstimate]:
    """The legal plan that needs least of each of these schedules."""
    legal = {index: np.flatnonzero(ranked.plans.schedule == index) for index in schedule_indices}
    least = {index: row for index, rows in legal.items() if (row := ranked.decided.least_peak(rows)) is not None}
    plans = [plan_of(ranked.plans, row) for row in least.values()]
    return dict(zip(least, estimate_plans(ranked.problem, plans, margin=margin), strict=True))


def _best(ranked: Ranked, index: int, estimate: PlanEstimate | None) -> ScheduleBest:
    name = ranked.space.plans.schedule_names[index]
    said = "fits" if estimate is not None and estimate.memory.fits else None
    note = said or (miss_note(estimate.memory) if estimate else _why_illegal(ranked, index))
    return ScheduleBest(schedule=name, estimate=estimate, note=note, run_by=frameworks.who_runs(name))


def _why_illegal(ranked: Ranked, index: int) -> str:
    """What the schedule, else the first broken rule, says of the combination with the most micro-batches."""
    plans, of = ranked.space.plans, ranked.problem
    rows = np.flatnonzero(plans.schedule == index)
    if not len(rows):
        return "no combination of the sizes gives it a pipeline"
    row = int(rows[np.argmax(plans.num_microbatches[rows])])
    sizes = (int(plans.pipeline_parallel[row]), int(plans.num_microbatches[row]), int(plans.virtual_stages[row]))
    problem = schedules.get(plans.schedule_names[index]).problem(*sizes)
    if problem is not None:
        return problem
    one = plans.take(np.array([row]))
    broken = (rule for rule in of.framework.rules if rule.violated(of.model, of.training, one).any())
    return next((rule.message(of.model, of.training, plan_of(plans, row)) for rule in broken), "no plan is legal")
