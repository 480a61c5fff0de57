"""The best plan of each schedule: what a reader compares schedules by, also those far behind or out of reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppadvisor import frameworks, schedules
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import plan_of
from ppadvisor.search.advise import miss_note
from ppadvisor.search.ranking import Ranked
from ppadvisor.search.results import ScheduleBest
from ppadvisor.search.shortlist import fitting_estimates


def best_of_each_schedule(ranked: Ranked, shown: Sequence[PlanEstimate], *, margin: float) -> tuple[ScheduleBest, ...]:
    """Each schedule with its best plan, replayed; where none fits the one that needs least; fastest first.

    Schedules without a legal plan come last, with the reason.
    """
    found = [_best(ranked, shown, index, margin) for index in range(len(ranked.space.plans.schedule_names))]
    return tuple(sorted(found, key=_rank_key))


def _rank_key(best: ScheduleBest) -> tuple[int, float]:
    if best.estimate is None:
        return 2, 0.0
    # schedules with the same order of work are told apart by nothing, least of all by how their sums are rounded
    return int(not best.estimate.memory.fits), float(f"{best.estimate.time.step_time_s:.10g}")


def _best(ranked: Ranked, shown: Sequence[PlanEstimate], index: int, margin: float) -> ScheduleBest:
    name = ranked.space.plans.schedule_names[index]
    run_by = frameworks.who_runs(name)
    # what is shown was chosen with more care than one look at the array forms' first
    for estimate in sorted((e for e in shown if e.plan.schedule == name), key=lambda e: e.time.step_time_s):
        return ScheduleBest(schedule=name, estimate=estimate, note="fits", run_by=run_by)
    rows = ranked.order[ranked.plans.schedule[ranked.order] == index]
    for estimate in fitting_estimates(ranked, rows, 1, margin=margin):
        return ScheduleBest(schedule=name, estimate=estimate, note="fits", run_by=run_by)
    least = ranked.decided.least_peak(np.flatnonzero(ranked.plans.schedule == index))
    if least is not None:
        estimate = estimate_plan(ranked.problem, plan_of(ranked.plans, least), margin=margin)
        note = "fits" if estimate.memory.fits else miss_note(estimate)
        return ScheduleBest(schedule=name, estimate=estimate, note=note, run_by=run_by)
    return ScheduleBest(schedule=name, estimate=None, note=_why_illegal(ranked, index), run_by=run_by)


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
