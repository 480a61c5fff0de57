"""The smallest change that gains most: a few options free at a time, the rest of the plan pinned, each searched."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ppadvisor.engine.evaluate import estimate_fitting, estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import plan_of
from ppadvisor.errors import InputError
from ppadvisor.search.balance import fitting_with_best_split
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.specs.plan import PlanSpec

WORTH_SAYING = 0.01
"""A change that saves less of the step is not told."""

LEVERS: tuple[tuple[str, ...], ...] = (
    ("recompute",),
    ("optimizer_sharding",),
    ("micro_batch_size", "num_microbatches"),
    ("virtual_stages", "schedule"),
    ("recompute", "micro_batch_size", "num_microbatches"),
    ("tensor_parallel", "data_parallel", "num_microbatches", "expert_tensor_parallel"),
    ("pipeline_parallel", "data_parallel", "num_microbatches", "virtual_stages", "schedule"),
    ("context_parallel", "data_parallel", "num_microbatches"),
    ("tensor_parallel", "pipeline_parallel", "virtual_stages", "schedule", "expert_tensor_parallel"),
)
"""What moves together: of equal gains the earlier wins."""

FIELDS = (
    *("pipeline_parallel", "tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel"),
    *("virtual_stages", "micro_batch_size", "optimizer_sharding"),
)
"""Fields of a plan that a trainer's option says, whichever others follow from them."""


@dataclass(frozen=True)
class Moved:
    """A plan with few options changed."""

    estimate: PlanEstimate
    fields: tuple[str, ...]
    """What differs from the plan of the file."""


def pins_of(plan: PlanSpec) -> Pins:
    """Every quantity of a plan, pinned."""
    values = {name: (getattr(plan, name),) for name in (*FIELDS, "data_parallel", "num_microbatches", "schedule")}
    return Pins(**values, recompute=(plan.recomputation.text,))


def changed_fields(before: PlanSpec, after: PlanSpec) -> tuple[str, ...]:
    """What an option has to say anew; other layers on the same stages count as one."""
    found = [name for name in FIELDS if getattr(before, name) != getattr(after, name)]
    if _orders_differ(before, after):
        found.append("schedule")
    if before.recomputation != after.recomputation:
        found.append("recompute")
    same_stages = len(before.layers_per_chunk) == len(after.layers_per_chunk)
    if same_stages and before.layers_per_chunk != after.layers_per_chunk:
        found.append("layers_per_stage")
    return tuple(found)


def _orders_differ(before: PlanSpec, after: PlanSpec) -> bool:
    """Whether an option has to name another schedule: other p and v say it themselves, and naive is 1F1B's m = 1."""
    same = (before.pipeline_parallel, before.virtual_stages) == (after.pipeline_parallel, after.virtual_stages)
    names = {before.schedule, after.schedule}
    return same and len(names) == 2 and "naive" not in names


def best_move(problem: Problem, current: PlanEstimate, *, margin: float, fixed: tuple[str, ...] = ()) -> Moved | None:
    """The move that saves most time per option changed; where the plan does not fit, the fastest that does.

    What is `fixed` stays as it is.
    """
    moves = [move for move in _moves(problem, current.plan, margin, fixed) if move.fields]
    if not current.memory.fits:
        return min(moves, key=lambda move: (len(move.fields), move.estimate.time.step_time_s), default=None)
    step = current.time.step_time_s
    worth = [move for move in moves if 1 - move.estimate.time.step_time_s / step >= WORTH_SAYING]
    return max(worth, key=lambda move: (1 - move.estimate.time.step_time_s / step) / len(move.fields), default=None)


def with_sequence_parallel(problem: Problem) -> Problem:
    """The same with norms and residuals divided over t, which costs nothing where t > 1."""
    return replace(problem, training=problem.training.changed(sequence_parallel=True))


def _moves(problem: Problem, plan: PlanSpec, margin: float, fixed: tuple[str, ...]) -> list[Moved]:
    found = []
    if plan.tensor_parallel > 1 and not problem.training.sequence_parallel:
        divided = estimate_fitting(with_sequence_parallel(problem), plan, margin=margin)
        found += [Moved(divided, ("sequence_parallel",))] if divided else []
    other_split = fitting_with_best_split(problem, plan, margin=margin)
    if other_split is not None:
        found.append(Moved(other_split, changed_fields(plan, other_split.plan)))
    pins = pins_of(plan)
    for lever in LEVERS:
        estimate = _best(problem, pins.without(*(name for name in lever if name not in fixed)), margin)
        if estimate is not None:
            found.append(Moved(estimate, changed_fields(plan, estimate.plan)))
    return found


def _best(problem: Problem, pins: Pins, margin: float) -> PlanEstimate | None:
    try:
        ranked = rank(problem, pins, margin=margin)
    except InputError:
        return None  # these values make no space of plans
    if not len(ranked.order):
        return None
    estimate = estimate_plan(problem, plan_of(ranked.plans, int(ranked.order[0])), margin=margin)
    return estimate if estimate.memory.fits else None
