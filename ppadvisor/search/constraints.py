"""Which plans cannot run: the schedule's own constraints and the framework's rules, counted by reason."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Rejection
from ppadvisor.engine.tables import plan_of
from ppadvisor.frameworks.profile import BoolArray, Rule
from ppadvisor.search.recomputations import beyond_chunks, beyond_chunks_message
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import IntArray, PlanSpec, PlanTable, distinct_first, distinct_rows
from ppadvisor.specs.training import TrainingSpec


def _schedule_violated(_: ModelSpec, __: TrainingSpec, plans: PlanTable) -> BoolArray:
    """Asks each schedule once per distinct (p, m, v)."""
    columns = (plans.schedule, *plans.pipeline_sizes)
    first, row = distinct_rows(columns)
    sizes = zip(*(column[first].tolist() for column in columns), strict=True)
    problems = [schedules.get(plans.schedule_names[s]).problem(p, m, v) is not None for s, p, m, v in sizes]
    return np.array(problems, dtype=np.bool_)[row]


def _schedule_message(_: ModelSpec, __: TrainingSpec, plan: PlanSpec) -> str:
    schedule = schedules.get(plan.schedule)
    reason = schedule.problem(plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    return f"schedule {plan.schedule}: {reason}"


CONSTRAINTS: tuple[Rule, ...] = (
    Rule("schedule", _schedule_violated, _schedule_message),
    Rule("recompute_layers", beyond_chunks, beyond_chunks_message),
)
"""What holds whatever the framework; the framework's own rules, which bar whole divisions, are asked first."""


def legal_plans(problem: Problem, plans: PlanTable) -> tuple[PlanTable, Counter[str], list[Rejection]]:
    """(the plans that may run, how many were refused by each rule, one example of each).

    A plan that breaks several rules is counted under the first.
    """
    legal, _, counts, examples = legal_of_sizes(problem, plans, plans.distinct_sizes()[1])
    return legal, counts, examples


def legal_of_sizes(
    problem: Problem, plans: PlanTable, size: IntArray
) -> tuple[PlanTable, IntArray, Counter[str], list[Rejection]]:
    """The same where a number of each plan is known that those of equal sizes share, with that of each legal one."""
    counts: Counter[str] = Counter()
    examples = []
    index, first = distinct_first(size)
    sized = plans.take(first)
    for rule in (*problem.framework.rules, *CONSTRAINTS):
        if not len(plans):
            break
        violated = rule.violated(problem.model, problem.training, sized if rule.of_sizes else plans)
        if rule.of_sizes and violated.any():
            violated = violated[index]
        if violated.any():
            counts[rule.code] += int(violated.sum())
            plan = plan_of(plans, int(np.argmax(violated)))
            message = rule.message(problem.model, problem.training, plan)
            examples.append(Rejection(code=rule.code, message=message, plan=plan))
            plans, size, index = plans.take(~violated), size[~violated], index[~violated]
    return plans, size, counts, examples
