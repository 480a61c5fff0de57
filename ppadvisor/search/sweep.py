"""Many questions, one row each: the best plan of every point of a grid, or the reason why there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ppadvisor.engine.results import PlanMemory, Rejection, Verdict
from ppadvisor.errors import InputError
from ppadvisor.search.advise import miss_note
from ppadvisor.search.chosen import Chosen, chosen_plans
from ppadvisor.search.ranking import MEMORY_REASONS, Ranked
from ppadvisor.search.shared import Question, Share, shares
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


BATCH_S = 0.5
"""Points are answered together for about so long: what an interrupt costs, and what a progress bar waits for."""
MOST_AT_ONCE = 128
"""More points at a time are hardly answered sooner."""
LATE_S = 1.0
"""Points that are not begun by then wait for the rows of the others to be out."""
MOST_WORK = 250_000
"""Of `Share.work`, what is looked at together: less than a second's, and 100 MB."""


@dataclass(frozen=True)
class Point:
    """One question of a sweep; it can be pickled where `ask` can."""

    values: Mapping[str, AxisValue]
    """Axis -> its value here."""
    ask: Callable[[], Question]
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
    """Whether near ties and better splits were left alone: see `chosen_plans`."""
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
    """The row of each point, in their order; with more jobs, where it is worth it, other processes help."""
    answer = partial(_answer_in_time, margin=margin, quick=quick)
    batches, start, done = _Batches(iter(points)), time.monotonic(), 0
    for batch in batches:
        for answered in _with_the_rest(answer(batch), answer):
            yield from batches.timed(answered)
        spent_s, done = time.monotonic() - start, done + len(batch)
        if jobs > 1 and spent_s > ALONE_S:
            left = tuple(batches.points)
            batches.points = iter(left)
            jobs = min(jobs, len(left)) if len(left) * spent_s > WORTH_S * done else 1
            break
    with closing(ordered_map(answer, batches, jobs)) as found:
        for first in found:
            for answered in _with_the_rest(first, answer):
                yield from batches.timed(answered)


@dataclass(frozen=True)
class _Answered:
    """The rows of some points."""

    rows: list[SweepRow]
    rest: Sequence[Point]
    """Points that were left, for they took too long."""
    seconds: float


@dataclass
class _Batches:
    """Points, as many at a time as are answered in about BATCH_S: the last ones tell."""

    points: Iterator[Point]
    size: int = 1

    def __iter__(self) -> Iterator[tuple[Point, ...]]:
        while batch := tuple(islice(self.points, self.size)):
            yield batch

    def timed(self, answered: _Answered) -> list[SweepRow]:
        """The rows, from whose seconds follows how many points come next."""
        number = len(answered.rows)
        in_time = int(number * BATCH_S / max(answered.seconds, 1e-9))
        self.size = max(1, min(in_time, 2 * number, MOST_AT_ONCE))
        return answered.rows


def _with_the_rest(answered: _Answered, answer: Callable[[Sequence[Point]], _Answered]) -> Iterator[_Answered]:
    """What was answered, and then what was left."""
    yield answered
    while answered.rest:
        answered = answer(answered.rest)
        yield answered


def _answer_in_time(points: Sequence[Point], *, margin: float, quick: bool) -> _Answered:
    """The rows of the points, or of the first of them: no more are begun after LATE_S."""
    start, rows = time.monotonic(), list[SweepRow]()
    for part in answers(points, margin=margin, quick=quick):
        rows += part
        if time.monotonic() - start > LATE_S:
            break
    return _Answered(rows, points[len(rows) :], time.monotonic() - start)


def answers(points: Sequence[Point], *, margin: float, quick: bool = False) -> Iterator[list[SweepRow]]:
    """The row of each point, from the plan that `plan` ranks first; quick as `chosen_plans`. As many at a time as are.

    No row hangs on which other points are answered with it, so that a sweep that is gone on with has the same rows.
    """
    begun, work = list[Share | InputError](), 0
    waiting = iter(points)
    for share in shares([_asked(point) for point in points], margin=margin):
        begun.append(share)
        work += share.work if isinstance(share, Share) else 0
        if work > MOST_WORK:
            yield _rows(waiting, begun, margin, quick)
            begun, work = [], 0
    if begun:
        yield _rows(waiting, begun, margin, quick)


def _asked(point: Point) -> Question | InputError:
    try:
        return point.ask()
    except InputError as error:
        return error


def _rows(points: Iterator[Point], found: Sequence[Share | InputError], margin: float, quick: bool) -> list[SweepRow]:
    """The rows of the next points, of which this was found."""
    searched = {place: share for place, share in enumerate(found) if isinstance(share, Share)}
    chosen = chosen_plans(searched, margin=margin, quick=quick)
    return [
        _row(point.values, chosen[place]) if place in chosen else _without_plan(point.values, share)
        for place, (share, point) in enumerate(zip(found, points, strict=False))
    ]


def _row(values: Mapping[str, AxisValue], chosen: Chosen) -> SweepRow:
    plan = chosen.plan
    known: dict[str, Any] = vars(plan) | vars(chosen.memory) | vars(chosen.step)
    found = {name: known[name] for name in SweepRow.model_fields if name in known}
    found["recompute"] = plan.recomputation.text
    found["global_batch_size"] = plan.data_parallel * plan.micro_batch_size * plan.num_microbatches
    # where an axis is a quantity of the plan, in the words of the axis: `selective:mlp+moe_act` has two spellings
    return SweepRow.model_validate({**found, **values, **_reason(chosen.memory)})


def _reason(memory: PlanMemory) -> dict[str, str]:
    if memory.fits:
        return {}
    return {
        "reason_code": MEMORY_REASONS[memory.verdict],
        "reason": f"stage {memory.binding_stage} {miss_note(memory)}",
    }


def _main_rejection(ranked: Ranked) -> Rejection:
    """An example of the rule that most plans break, where all break one."""
    return max(ranked.examples, key=lambda rejection: ranked.rejected[rejection.code])


def _without_plan(values: Mapping[str, AxisValue], share: Share | InputError) -> SweepRow:
    if isinstance(share, InputError):
        code, reason = CONTRADICTION, str(share)
    else:
        rejection = _main_rejection(share.ranked)
        code, reason = rejection.code, rejection.message
    return SweepRow.model_validate({**values, "fits": False, "reason_code": code, "reason": " ".join(reason.split())})
