"""A timeline small enough to be looked at: that of the plan, or of the same plan with fewer micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from ppadvisor import schedules
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import plan_of, table_of
from ppadvisor.engine.timeline import Timeline, most_actions, timeline_of_plan
from ppadvisor.specs.plan import PlanSpec

MOST_ACTIONS = 20_000
"""Of a picture in a page: each is more than half a kilobyte."""
GOOD_ACTIONS = 4_000
"""Of a shortened picture, unless p micro-batches have more: a page that can be sent around."""
ENOUGH_ROUNDS = 4
"""Micro-batches for each stage in a shortened picture: what follows repeats its middle."""


@dataclass(frozen=True)
class Drawable:
    """A timeline, and of how many micro-batches it is."""

    timeline: Timeline
    num_microbatches: int


def drawable_timeline(problem: Problem, plan: PlanSpec) -> Drawable | None:
    """The timeline of the plan, with fewer micro-batches where it has too many to draw; None where it has no pipeline,
    or too many ranks.
    """
    if plan.pipeline_parallel == 1:
        return None
    m = _shown_microbatches(plan)
    if m is None:
        return None
    return Drawable(timeline_of_plan(problem, _with_microbatches(plan, m)), m)


def _shown_microbatches(plan: PlanSpec) -> int | None:
    """All, where they are few; else the most up to ENOUGH_ROUNDS p that the schedule runs in groups like the plan's."""
    schedule, p, v = schedules.get(plan.schedule), plan.pipeline_parallel, plan.virtual_stages
    of_each = p * most_actions(schedule, 1, v)
    if plan.num_microbatches * of_each <= MOST_ACTIONS:
        return plan.num_microbatches
    most = min(max(GOOD_ACTIONS // of_each, p), ENOUGH_ROUNDS * p, MOST_ACTIONS // of_each)
    legal = [m for m in range(p, most + 1) if schedule.problem(p, m, v) is None]
    alike = [m for m in legal if _group(_with_microbatches(plan, m)) == plan.microbatch_group_size]
    return max(alike or legal, default=None)


def _with_microbatches(plan: PlanSpec, num_microbatches: int) -> PlanSpec:
    return plan.changed(num_microbatches=num_microbatches)


def _group(plan: PlanSpec) -> int | None:
    return plan_of(table_of(plan), 0).microbatch_group_size
