"""The JSON of `timeline`, typed, so that its schema can be printed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ppadvisor.engine.results import Result
from ppadvisor.engine.timeline import RankTimeline, Timeline
from ppadvisor.schedules.base import KIND_LETTERS
from ppadvisor.schedules.replay import IDLE_CAUSES
from ppadvisor.search.explain import NothingToExplain
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

KindLetter = Annotated[str, Field(json_schema_extra={"enum": list(KIND_LETTERS)})]
Cause = Annotated[str, Field(json_schema_extra={"enum": list(IDLE_CAUSES)})]


class ActionShown(Result):
    """One piece of work."""

    kind: KindLetter
    chunk: int
    microbatch: int
    stage: int
    start_s: float
    end_s: float


class IdleShown(Result):
    """One interval in which a rank did nothing."""

    cause: Cause
    start_s: float
    end_s: float


class RankShown(Result):
    """What one rank did."""

    rank: int
    busy_s: float
    idle_s: dict[str, float]
    """By cause; with `busy_s` it adds up to the makespan."""
    in_flight_microbatches: float
    activations_peak_bytes: float | None
    """Null where bare numbers were given, not a plan."""
    actions: tuple[ActionShown, ...]
    idle_intervals: tuple[IdleShown, ...]


class TimesShown(Result):
    """The numbers that were given: seconds of one chunk, and of one hand-off."""

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    handoff_s: float


class TimelineShown(Result):
    """The answer of `timeline`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    schedule: str
    pipeline_parallel: int
    virtual_stages: int
    num_microbatches: int
    times: TimesShown | None
    plan: PlanSpec | None
    makespan_s: float
    bubble_fraction: float
    """Idle rank-time over all rank-time of the makespan."""
    bubble_in_span_fraction: float
    """The same inside a rank's own span, from its first action to its last."""
    ranks: tuple[RankShown, ...]


TimelineAnswer = TimelineShown | NothingToExplain


def document_of(timeline: Timeline) -> TimelineShown:
    """The answer with every action of every rank."""
    return TimelineShown(
        schedule=timeline.schedule.id,
        pipeline_parallel=timeline.pipeline_parallel,
        virtual_stages=timeline.virtual_stages,
        num_microbatches=timeline.num_microbatches,
        times=None if timeline.times is None else TimesShown(**vars(timeline.times)),
        plan=timeline.plan,
        makespan_s=timeline.makespan_s,
        bubble_fraction=timeline.bubble_fraction,
        bubble_in_span_fraction=timeline.bubble_in_span_fraction,
        ranks=tuple(map(_rank, timeline.ranks)),
    )


def _rank(rank: RankTimeline) -> RankShown:
    actions = (rank.order.actions.tolist(), rank.stage.tolist(), rank.start_s.tolist(), rank.end_s.tolist())
    intervals = (rank.idle.cause.tolist(), rank.idle.start_s.tolist(), rank.idle.end_s.tolist())
    return RankShown(
        rank=rank.rank,
        busy_s=rank.busy_s,
        idle_s=rank.idle_s,
        in_flight_microbatches=rank.in_flight_microbatches,
        activations_peak_bytes=rank.held_bytes.peak if rank.held_bytes else None,
        actions=tuple(
            ActionShown(
                kind=KIND_LETTERS[kind], chunk=chunk, microbatch=microbatch, stage=stage, start_s=start, end_s=end
            )
            for (kind, chunk, microbatch), stage, start, end in zip(*actions, strict=True)
        ),
        idle_intervals=tuple(
            IdleShown(cause=IDLE_CAUSES[cause], start_s=start, end_s=end)
            for cause, start, end in zip(*intervals, strict=True)
        ),
    )
