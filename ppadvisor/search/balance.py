"""The plans that are shown get the best split their trainer can build; what that gains over the even one is told."""

from __future__ import annotations

from ppadvisor.engine.balanced import balanced_plan, faster_plan, with_split
from ppadvisor.engine.evaluate import estimate_fitting, estimate_plan
from ppadvisor.engine.partition import balanced_split
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import table_of
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.results import EvenSplit
from ppadvisor.specs.plan import PlanSpec


def fitting_with_best_split(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate | None:
    """The plan with the faster of its own split and the balanced one, of those that fit; None where neither does."""
    faster = _faster(problem, plan, margin=margin)
    plans = [plan] if faster is None else [faster, plan]
    fitting = (estimate_fitting(problem, one, margin=margin) for one in plans)
    return next((estimate for estimate in fitting if estimate is not None), None)


def with_fastest_split(problem: Problem, estimate: PlanEstimate, *, margin: float) -> PlanEstimate:
    """A plan that deserves a closer look, with the fastest split that is known for it."""
    faster = _faster(problem, estimate.plan, margin=margin, thorough=True)
    better = estimate_fitting(problem, faster, margin=margin) if faster else None
    return better if better and better.time.step_time_s < estimate.time.step_time_s else estimate


def _faster(problem: Problem, plan: PlanSpec, *, margin: float, thorough: bool = False) -> PlanSpec | None:
    """`faster_plan`, where the trainer takes any split; None where its chunks are too small for the recomputation."""
    if problem.framework.splits is not None:
        return None
    faster = faster_plan(problem, plan, margin=margin, thorough=thorough)
    return faster if faster and _legal(problem, faster) else None


def _legal(problem: Problem, plan: PlanSpec) -> bool:
    return len(legal_plans(problem, table_of(plan))[0]) > 0


def with_fewer_layers(problem: Problem, estimate: PlanEstimate, *, margin: float) -> PlanEstimate:
    """The plan with the fewest recomputed layers that fit, where that is faster, on its own split or the even one.

    The split that is best with a number of layers need not be the best with fewer, which more equal chunks allow.
    """
    plan = estimate.plan
    if plan.recompute_method != "block" or not plan.recompute_num_layers or plan.recompute_num_layers == 1:
        return estimate
    fewer = plan.model_copy(update={"recompute_num_layers": plan.recompute_num_layers - 1})
    even = balanced_split(problem.model.num_layers, len(plan.layers_per_chunk))
    splits = {plan.layers_per_chunk}
    if even and problem.framework.splits is None:
        splits.add(even)
    tried = [with_split(fewer, split) for split in sorted(splits)]
    fitting = [estimate_fitting(problem, one, margin=margin) for one in tried if _legal(problem, one)]
    best = min([estimate, *filter(None, fitting)], key=lambda one: one.time.step_time_s)
    return estimate if best is estimate else with_fewer_layers(problem, best, margin=margin)


def split_that_fits(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate | None:
    """The fastest split with which a plan fits into memory that does not as it is; None where there is none."""
    if problem.framework.splits is not None:
        return None
    balanced = balanced_plan(problem, plan, margin=margin)
    return estimate_fitting(problem, balanced, margin=margin) if balanced and _legal(problem, balanced) else None


def against_even(problem: Problem, estimate: PlanEstimate, *, margin: float) -> EvenSplit | None:
    """The plan with its layers spread as evenly as they go, embedding and head not counted; None where it is that."""
    plan = estimate.plan
    split = balanced_split(problem.model.num_layers, len(plan.layers_per_chunk))
    if split is None or split == plan.layers_per_chunk or problem.framework.splits is not None:
        return None
    even = estimate_plan(problem, with_split(plan, split), margin=margin)
    return EvenSplit(
        layers_per_stage=even.plan.layers_per_stage,
        layers_per_chunk=even.plan.layers_per_chunk,
        step_time_s=even.time.step_time_s,
        peak_bytes=even.memory.peak_bytes,
        fits=even.memory.fits,
        step_time_saved_fraction=1 - estimate.time.step_time_s / even.time.step_time_s,
        peak_saved_bytes=even.memory.peak_bytes - estimate.memory.peak_bytes,
    )
