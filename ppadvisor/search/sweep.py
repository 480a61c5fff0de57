"""Many questions, one row each: the best plan of every point of a grid, or the reason why there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, Rejection, Verdict
from ppadvisor.engine.tables import plan_of
from ppadvisor.errors import InputError
from ppadvisor.search.advise import miss_note
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import MEMORY_REASONS, Ranked, nearest_row, rank
from ppadvisor.search.shortlist import best_estimates, fitting_estimates
from ppadvisor.search.workers import ordered_map
from ppadvisor.specs.kinds import PositiveInt
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

AxisValue = bool | int | float | str

CONTRADICTION = "contradiction"
"""Reason code of a point whose own inputs contradict each other: the search was never asked."""

ALONE_S = 1.0
"""So long one process answers alone: a short sweep needs no other, and of a long one it is then known."""
WORTH_S = 2.0
"""What is left must take this long for others to help: one needs half a second to start."""


QUICK_PLANS = 5
"""A quick answer is the fastest of so many plans that the array forms put first, which do not see every idle moment."""


@dataclass(frozen=True)
class Point:
    """One question of a sweep; it can be pickled where `ask` can."""

    values: Mapping[str, AxisValue]
    """Axis -> its value here."""
    ask: Callable[[], tuple[Problem, Pins]]
    """Makes the question; InputError where the values contradict each other."""


class SweepRow(BaseModel):
    """One point: its axis values, and its best plan; where none fits the reason, and the plan nearest to fitting.

    An axis that is a quantity of the plan is the field of that name, any other one is a field besides.
    """

    model_config = ConfigDict(frozen=True, extra="allow", json_schema_serialization_defaults_required=True)
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


class SweepQuestion(BaseModel):
    """What a sweep asks, and of which version of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_serialization_defaults_required=True)

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    question: str
    """A digest of all that the rows depend on: rows of one question can stand in one file."""
    margin_fraction: float
    quick: bool = False
    """Whether near ties and better splits were left alone: see `answer_point`."""
    assumptions: dict[str, float]
    """Those that the user replaced."""
    fixed: dict[str, AxisValue]
    """What every point shares."""
    axes: dict[str, tuple[AxisValue, ...]]


class SweepReport(SweepQuestion):
    """The answer of `sweep`."""

    rows: tuple[SweepRow, ...]
    """The product of the axes, the last one running fastest; the first of them, where the sweep was interrupted."""


def digest_of(*parts: object) -> str:
    """Twelve hexadecimal digits that change with any of the parts, which JSON can write, and with the model's version.

    >>> digest_of({"margin": 0.9}) != digest_of({"margin": 0.8})
    True
    """
    return sha256(json.dumps([MODEL_VERSION, *parts], sort_keys=True).encode()).hexdigest()[:12]


def sweep_rows(
    points: Iterable[Point], *, margin: float, quick: bool = False, jobs: int = 1
) -> Generator[SweepRow, None, None]:
    """Answer one point after the other; with more jobs, where it is worth it, several at a time, in the same order."""
    answer = partial(answer_point, margin=margin, quick=quick)
    start, spent_s, done, left = time.monotonic(), 0.0, 0, iter(points)
    for point in left:
        yield answer(point)
        spent_s, done = time.monotonic() - start, done + 1
        if jobs > 1 and spent_s > ALONE_S:
            break
    rest = tuple(left)
    helps = len(rest) * spent_s > WORTH_S * done
    with closing(ordered_map(answer, rest, jobs if helps else 1)) as rows:
        yield from rows


def answer_point(point: Point, *, margin: float, quick: bool = False) -> SweepRow:
    """The row of one point: the plan that `plan` ranks first.

    Quick: the fastest of the first QUICK_PLANS of the search, as they stand there: no variants beside them are looked
    at, no better splits. The numbers of the row are those of a full replay all the same.
    """
    try:
        problem, pins = point.ask()
        ranked = rank(problem, pins, margin=margin)
    except InputError as error:
        return _without_plan(point.values, CONTRADICTION, str(error))
    estimate = _best_or_nearest(ranked, margin, quick=quick)
    if estimate is None:
        rejection = _main_rejection(ranked)
        return _without_plan(point.values, rejection.code, rejection.message)
    known: dict[str, Any] = vars(estimate.plan) | vars(estimate.memory) | vars(estimate.time)
    found = {name: known[name] for name in SweepRow.model_fields if name in known}
    found["recompute"] = estimate.plan.recomputation.text
    found["global_batch_size"] = problem.training.global_batch_size
    # where an axis is a quantity of the plan, in the words of the axis: `selective:mlp+moe_act` has two spellings
    return SweepRow.model_validate({**found, **point.values, **_reason(estimate)})


def _best_or_nearest(ranked: Ranked, margin: float, *, quick: bool) -> PlanEstimate | None:
    """The best plan that fits, else the legal one that comes closest, else None."""
    if quick:
        best = fitting_estimates(ranked, ranked.order, QUICK_PLANS, margin=margin, balance=False)
        best.sort(key=lambda estimate: estimate.time.step_time_s)
    else:
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
