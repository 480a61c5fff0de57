"""The plans that are shown get the best split their trainer can build; what that gains over the even one is told."""

from __future__ import annotations

from collections.abc import Sequence

from ppadvisor.engine.balanced import balanced_plan, faster_plans, with_split
from ppadvisor.engine.evaluate import Measured, estimate_fitting, estimate_plan, estimates_of, measured
from ppadvisor.engine.partition import balanced_split
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import table_of
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.results import EvenSplit
from ppadvisor.specs.plan import PlanSpec


def fitting_with_best_split(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate | None:
    """The plan with the faster of its own split and the balanced one, of those that fit; None where neither does."""
    (found,) = first_that_fit(problem, splits_to_try(problem, (plan,), margin=margin), margin=margin)
    return estimates_of((found,))[0] if found else None


def splits_to_try(problem: Problem, plans: Sequence[PlanSpec], *, margin: float) -> list[list[PlanSpec]]:
    """Of each plan the one with the balanced split where that is faster, then the plan as it is."""
    faster = _faster(problem, plans, margin=margin)
    return [[plan] if other is None else [other, plan] for plan, other in zip(plans, faster, strict=True)]


def first_that_fit(problem: Problem, tried: Sequence[Sequence[PlanSpec]], *, margin: float) -> list[Measured | None]:
    """Of several lists of plans the first of each that fits into memory, None where none does; measured together."""
    found: dict[int, Measured] = {}
    for turn in range(max(map(len, tried), default=0)):
        open_ = [index for index, plans in enumerate(tried) if index not in found and len(plans) > turn]
        of_turn = measured(problem, [tried[index][turn] for index in open_], margin=margin)
        found |= {index: one for index, one in zip(open_, of_turn, strict=True) if one.memory.fits}
    return [found.get(index) for index in range(len(tried))]


def with_fastest_splits(problem: Problem, estimates: Sequence[PlanEstimate], *, margin: float) -> list[PlanEstimate]:
    """Plans that deserve a closer look, each with the fastest split that is known for it; looked at together."""
    faster = _faster(problem, [estimate.plan for estimate in estimates], margin=margin, thorough=True)
    fitting = first_that_fit(problem, [[plan] if plan else [] for plan in faster], margin=margin)
    others = iter(estimates_of([one for one in fitting if one]))
    better = [next(others) if one else None for one in fitting]
    return [
        other if other and other.time.step_time_s < estimate.time.step_time_s else estimate
        for estimate, other in zip(estimates, better, strict=True)
    ]


def _faster(
    problem: Problem, plans: Sequence[PlanSpec], *, margin: float, thorough: bool = False
) -> list[PlanSpec | None]:
    """`faster_plans`, where the trainer takes any split; None where chunks are too small for the recomputation."""
    if problem.framework.splits is not None:
        return [None] * len(plans)
    faster = faster_plans(problem, plans, margin=margin, thorough=thorough)
    return [one if one and _legal(problem, one) else None for one in faster]


def _legal(problem: Problem, plan: PlanSpec) -> bool:
    return len(legal_plans(problem, table_of(plan))[0]) > 0


def with_fewer_layers(problem: Problem, estimate: PlanEstimate, *, margin: float) -> PlanEstimate:
    """The plan with the fewest recomputed layers that fit, where that is faster, on its own split or the even one.

    The split that is best with a number of layers need not be the best with fewer, which more equal chunks allow.
    """
    plan = estimate.plan
    if plan.recompute_method != "block" or not plan.recompute_num_layers or plan.recompute_num_layers == 1:
        return estimate
    fewer = plan.changed(recompute_num_layers=plan.recompute_num_layers - 1)
    even = balanced_split(problem.model.num_layers, len(plan.layers_per_chunk))
    splits = {plan.layers_per_chunk}
    if even and problem.framework.splits is None:
        splits.add(even)
    tried = [one for split in sorted(splits) if _legal(problem, one := with_split(fewer, split))]
    fitting = estimates_of([one for one in measured(problem, tried, margin=margin) if one.memory.fits])
    best = min([estimate, *fitting], key=lambda one: one.time.step_time_s)
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
