"""Many questions, one row each: the best plan of every point of a grid, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, Field

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, Rejection, Result, Verdict
from ppadvisor.engine.tables import plan_of
from ppadvisor.errors import InputError
from ppadvisor.search.advise import miss_note
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import MEMORY_REASONS, Ranked, nearest_row, rank
from ppadvisor.search.shortlist import best_estimates
from ppadvisor.specs.base import PositiveInt
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

AxisValue = bool | int | float | str

CONTRADICTION = "contradiction"
"""Reason code of a point whose own inputs contradict each other: the search was never asked."""


@dataclass(frozen=True)
class Point:
    """One question of a sweep."""

    values: Mapping[str, AxisValue]
    """Axis -> its value here."""
    ask: Callable[[], tuple[Problem, Pins]]
    """Makes the question; InputError where the values contradict each other."""


class SweepRow(Result):
    """One point: its axis values, and its best plan; where none fits the reason, and the plan nearest to fitting.

    An axis that is a quantity of the plan is the field of that name, any other one is a field besides.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, AxisValue] = Field(init=False)

    global_batch_size: PositiveInt | None = None
    pipeline_parallel: PositiveInt | None = None
    tensor_parallel: PositiveInt | None = None
    context_parallel: PositiveInt | None = None
    expert_parallel: PositiveInt | None = None
    expert_tensor_parallel: PositiveInt | None = None
    data_parallel: PositiveInt | None = None
    virtual_stages: PositiveInt | None = None
    micro_batch_size: PositiveInt | None = None
    num_microbatches: PositiveInt | None = None
    schedule: str | None = None
    recompute: str | None = None
    optimizer_sharding: int | None = None
    layers_per_stage: tuple[int, ...] | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    model_flops_utilization: float | None = None
    bubble_fraction: float | None = None
    peak_bytes: int | None = None
    headroom_bytes: int | None = None
    binding_stage: int | None = None
    verdict: Verdict | None = None
    """None where no plan is legal."""
    fits: bool
    reason_code: str | None = None
    """Why nothing fits: `contradiction`, a rule that every plan breaks, `memory` or `memory_borderline`."""
    reason: str | None = None


class SweepReport(Result):
    """The answer of `sweep`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    margin_fraction: float
    assumptions: dict[str, float]
    """Those that the user replaced."""
    fixed: dict[str, AxisValue]
    """What every point shares."""
    axes: dict[str, tuple[AxisValue, ...]]
    rows: tuple[SweepRow, ...]
    """The product of the axes, the last one running fastest."""


def sweep_rows(points: Iterable[Point], *, margin: float) -> Iterator[SweepRow]:
    """Answer one point after the other."""
    for point in points:
        yield _answer(point, margin)


def _answer(point: Point, margin: float) -> SweepRow:
    try:
        problem, pins = point.ask()
        ranked = rank(problem, pins, margin=margin)
    except InputError as error:
        return _without_plan(point.values, CONTRADICTION, str(error))
    estimate = _best_or_nearest(ranked, margin)
    if estimate is None:
        rejection = _main_rejection(ranked)
        return _without_plan(point.values, rejection.code, rejection.message)
    known: dict[str, Any] = dict(estimate.plan) | dict(estimate.memory) | dict(estimate.time)
    found = {name: known[name] for name in SweepRow.model_fields if name in known}
    found["recompute"] = estimate.plan.recomputation.text
    found["global_batch_size"] = problem.training.global_batch_size
    return SweepRow.model_validate({**point.values, **found, **_reason(estimate)})


def _best_or_nearest(ranked: Ranked, margin: float) -> PlanEstimate | None:
    """The best plan that fits, else the legal one that comes closest, else None."""
    best = best_estimates(ranked, 1, margin=margin)
    if best:
        return best[0]
    row = nearest_row(ranked)
    return None if row is None else estimate_plan(ranked.problem, plan_of(ranked.plans, row), margin=margin)


def _reason(estimate: PlanEstimate) -> dict[str, str]:
    memory = estimate.memory
    if memory.fits:
        return {}
    return {
        "reason_code": MEMORY_REASONS[memory.verdict],
        "reason": f"stage {memory.binding_stage} {miss_note(estimate)}",
    }


def _main_rejection(ranked: Ranked) -> Rejection:
    """An example of the rule that most plans break, where all break one."""
    return max(ranked.examples, key=lambda rejection: ranked.rejected[rejection.code])


def _without_plan(values: Mapping[str, AxisValue], code: str, reason: str) -> SweepRow:
    return SweepRow.model_validate({**values, "fits": False, "reason_code": code, "reason": " ".join(reason.split())})
