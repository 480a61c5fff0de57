"""What to watch about a plan: sentences made from the numbers."""

from __future__ import annotations

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.evaluate import VERDICTS, estimate_plan, estimate_plans
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, PlanMemory
from ppadvisor.engine.tables import plan_of
from ppadvisor.errors import InputError
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import Ranked
from ppadvisor.search.results import Baseline
from ppadvisor.search.shared import Share, shares
from ppadvisor.search.space import unused_pin_values
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.units import format_bytes_gib, format_fraction, format_seconds

ENOUGH_MICROBATCHES = 4
"""m below this times p leaves a large bubble: at m = 4p it is still (p-1)/(5p-1), about a fifth."""

WORTH_SAYING = 0.01
"""A plan that memory keeps out is mentioned where it is faster by at least this share."""


def short_plan(plan: PlanSpec) -> str:
    """A plan in a few words: only the sizes that are not 1."""
    sizes = [
        ("p", plan.pipeline_parallel, True),
        ("t", plan.tensor_parallel, False),
        ("c", plan.context_parallel, False),
        ("e", plan.expert_parallel, False),
        ("d", plan.data_parallel, False),
        ("v", plan.virtual_stages, False),
        ("b", plan.micro_batch_size, True),
        ("m", plan.num_microbatches, True),
    ]
    words = [f"{name}={value}" for name, value, always in sizes if always or value > 1]
    if plan.microbatch_group_size is not None:
        words.append(f"N={plan.microbatch_group_size}")
    recompute = [] if plan.recompute == "none" else [f"recompute {plan.recomputation.text}"]
    return " ".join([*words, plan.schedule, *recompute])


def hints(ranked: Ranked, pins: Pins, first: PlanEstimate | None, *, sort: str) -> tuple[str, ...]:
    """What to watch about the first plan: what memory keeps out, few micro-batches, more stages at the same m."""
    found = _unused_pins(ranked, pins)
    if first is None:
        return tuple(found)
    faster = _faster_but_too_large(ranked, first) if sort == "step_time_s" else None
    found += [faster] if faster else []
    if first.plan.pipeline_parallel > 1:
        found += _pipeline_hints(ranked, first)
    return tuple(found)


def _unused_pins(ranked: Ranked, pins: Pins) -> list[str]:
    unused = [f"{name} = {value}" for name, value in unused_pin_values(pins, ranked.space.plans)]
    if not unused:
        return []
    return [f"no plan has {', '.join(unused)}: it does not go with the GPUs, the batch, the layers or the other pins"]


def _faster_but_too_large(ranked: Ranked, first: PlanEstimate) -> str | None:
    """The fastest plan that twice the memory would admit, where memory alone keeps it from the first place."""
    estimates, limit = ranked.estimates, first.memory.limit_bytes
    row = ranked.decided.fastest_below(np.flatnonzero(estimates.verdict != VERDICTS.index("fits")), 2 * limit)
    if row is None:
        return None
    faster = estimate_plan(ranked.problem, plan_of(ranked.plans, row), margin=limit / first.memory.capacity_bytes)
    gain = 1 - faster.time.step_time_s / first.time.step_time_s
    if gain < WORTH_SAYING:
        return None
    memory = faster.memory
    missing = max(-memory.headroom_bytes, memory.conservative_bytes - memory.capacity_bytes)
    return (
        f"with {format_bytes_gib(missing)} more memory {short_plan(faster.plan)} would be first: "
        f"{format_fraction(gain)} faster (stage {memory.binding_stage} binds)"
    )


def _pipeline_hints(ranked: Ranked, first: PlanEstimate) -> list[str]:
    plan, found = first.plan, []
    p, m = plan.pipeline_parallel, plan.num_microbatches
    if m < ENOUGH_MICROBATCHES * p:
        found.append(
            f"m = {m} is below 4 p = {ENOUGH_MICROBATCHES * p}: the bubble of equal stages is "
            f"{_bubble_worked_out(first)}; more micro-batches (smaller b or d, larger batch) shrink it"
        )
    deeper = _deeper_at_same_m(ranked, plan)
    if deeper is not None:
        row, stages = deeper
        deeper_plan = estimate_plan(ranked.problem, plan_of(ranked.plans, row), margin=1.0)
        slower = deeper_plan.time.step_time_s / first.time.step_time_s - 1
        if slower > 0:
            found.append(
                f"more stages at the same m = {m} are slower: p = {stages} takes {format_fraction(slower)} longer"
            )
    return found


def _bubble_worked_out(first: PlanEstimate) -> str:
    """(p-1)/(m+p-1) with its numbers where that is the schedule's bubble, else the schedule's formula and its value."""
    formula = schedules.get(first.plan.schedule).bubble_formula
    value = format_fraction(first.time.equal_stage_bubble_fraction)
    p, m = first.plan.pipeline_parallel, first.plan.num_microbatches
    numbers = f" = {p - 1}/{m + p - 1}" if formula == "(p-1)/(m+p-1)" else ""
    return f"{formula}{numbers} = {value}"


def _deeper_at_same_m(ranked: Ranked, plan: PlanSpec) -> tuple[int, int] | None:
    """(row, p) of the fastest evaluated plan with the next larger p and the same m, t, c, e, v and schedule."""
    plans = ranked.plans
    same = plans.num_microbatches == plan.num_microbatches
    for name in ("tensor_parallel", "context_parallel", "expert_parallel", "virtual_stages", "optimizer_sharding"):
        same &= getattr(plans, name) == getattr(plan, name)
    same &= plans.schedule == plans.schedule_names.index(plan.schedule)
    same &= plans.pipeline_parallel > plan.pipeline_parallel
    rows = np.flatnonzero(same)
    if not len(rows):
        return None
    stages = int(plans.pipeline_parallel[rows].min())
    rows = rows[plans.pipeline_parallel[rows] == stages]
    ranked.decided.complete(rows)
    return int(rows[np.argmin(ranked.estimates.step_time_s[rows])]), stages


def baselines(problem: Problem, pins: Pins, *, margin: float) -> dict[str, Baseline]:
    """The best naive plan and the best without pipelining, whether they fit or not. The other pins hold."""
    loose = pins.without(
        "pipeline_parallel", "num_microbatches", "micro_batch_size", "schedule", "virtual_stages", "data_parallel"
    )
    names = {"no_pipeline": "none"}
    if "naive" in problem.framework.schedules:
        names = {"naive": "naive"} | names
    asked = [(problem, loose.with_values(schedule=(schedule,))) for schedule in names.values()]
    best = [_best_of(share) for share in shares(asked, margin=margin)]
    estimates = iter(estimate_plans(problem, [plan for plan in best if isinstance(plan, PlanSpec)], margin=margin))
    return {
        name: _baseline(next(estimates)) if isinstance(plan, PlanSpec) else Baseline(estimate=None, note=plan)
        for name, plan in zip(names, best, strict=True)
    }


def _best_of(share: Share | InputError) -> PlanSpec | str:
    """The first plan, or the one that comes nearest where none fits; why there is none."""
    if isinstance(share, InputError):
        # the schedule was pinned here, not by the user, who would be told of a contradiction that is not theirs
        return "no such plan: the GPUs, the batch and the pins leave none"
    row = int(share.order[0]) if len(share.order) else share.ranked.decided.least_peak(share.rows)
    if row is not None:
        return plan_of(share.ranked.plans, row)
    examples = share.ranked.examples
    return f"no such plan: {examples[0].message if examples else 'no combination divides the batch'}"


def _baseline(estimate: PlanEstimate) -> Baseline:
    fits = f"{format_seconds(estimate.time.step_time_s)} a step"
    return Baseline(estimate=estimate, note=fits if estimate.memory.fits else miss_note(estimate.memory))


def miss_note(memory: PlanMemory) -> str:
    """By how much a plan misses the limit it misses."""
    if memory.headroom_bytes < 0:
        return f"does not fit by {format_bytes_gib(-memory.headroom_bytes)}"
    over = memory.conservative_bytes - memory.capacity_bytes
    return f"borderline: its conservative estimate is {format_bytes_gib(over)} above the capacity"
