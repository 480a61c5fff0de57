"""What a replay looks like: actions, idle intervals with their causes, memory over time. All drawings start here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.memory_waiting import waiting_per_chunk
from ppadvisor.engine.pipeline import MOST_ACTIONS, pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import saved_per_chunk
from ppadvisor.errors import InputError
from ppadvisor.schedules.base import FloatArray, IntArray, Kind, RankOrder, Schedule
from ppadvisor.schedules.replay import IDLE_CAUSES, Replay, replay
from ppadvisor.specs.plan import PlanSpec

MAX_ACTIONS = 1_000_000
"""p = 64, v = 4, m = 1024 with a split backward has 786,432; a replay of more takes longer than anyone looks at it."""

MAX_RANKS = 1024

DUST = 1e-9
"""Of the makespan: what is shorter is the rounding of sums, not idle time."""


@dataclass(frozen=True)
class PassTimes:
    """Seconds of one chunk, the same on every rank, and of one hand-off."""

    forward_s: float = 1.0
    input_grad_s: float = 1.0
    weight_grad_s: float = 1.0
    handoff_s: float = 0.0

    @property
    def backward_s(self) -> float:
        return self.input_grad_s + self.weight_grad_s


@dataclass(frozen=True, eq=False)
class IdleIntervals:
    """When a rank was idle, first to last, and why. Arrays (intervals,)."""

    start_s: FloatArray
    end_s: FloatArray
    cause: IntArray
    """Index into IDLE_CAUSES."""


@dataclass(frozen=True, eq=False)
class Steps:
    """A quantity that jumps: 0 at first, `value[i]` from `time_s[i]` until the next. Arrays (steps,)."""

    time_s: FloatArray
    value: FloatArray

    @property
    def peak(self) -> float:
        return float(self.value.max(initial=0.0))

    def at(self, time_s: FloatArray) -> FloatArray:
        """The value at these times; where it jumps, the one after the jump."""
        index = np.searchsorted(self.time_s, time_s, side="right")
        return np.asarray(np.concatenate([[0.0], self.value])[index])


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """What one rank did, and when. Arrays (actions,), in the order of work."""

    rank: int
    order: RankOrder
    stage: IntArray
    start_s: FloatArray
    end_s: FloatArray
    idle: IdleIntervals
    busy_s: float
    idle_s: dict[str, float]
    """By cause; the intervals of `idle` add up to it."""
    in_flight_microbatches: float
    """The peak of `held_microbatches`."""
    held_microbatches: Steps
    """Micro-batches whose activations are alive, in whole ranks: taken up when F begins, let go when B or W ends."""
    held_bytes: Steps | None
    """Bytes of those activations, where a plan says how many there are."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """One schedule, replayed."""

    schedule: Schedule
    num_microbatches: int
    virtual_stages: int
    times: PassTimes | None
    """The numbers it was made from; None where a plan has a time for each stage."""
    plan: PlanSpec | None
    makespan_s: float
    bubble_fraction: float
    bubble_in_span_fraction: float
    ranks: tuple[RankTimeline, ...]

    @property
    def pipeline_parallel(self) -> int:
        return len(self.ranks)

    @property
    def chunks(self) -> int:
        """Chunks of a rank: v, or the copies of a stage that it holds."""
        return self.virtual_stages * self.schedule.parameter_copies

    @property
    def num_actions(self) -> int:
        return sum(len(rank.order) for rank in self.ranks)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of action that occur."""
        return tuple(Kind(kind) for kind in np.unique(np.concatenate([rank.order.kind for rank in self.ranks])))


def timeline_of_times(schedule_id: str, p: int, m: int, v: int | None, times: PassTimes) -> Timeline:
    """The schedule run with these times; without v its smallest. InputError for what it cannot run, or is too large."""
    schedule = schedules.get(schedule_id)
    chunks = schedule.virtual_stages.default if v is None else v
    check_size(schedule, p, m, chunks)
    orders: Sequence[RankOrder] = schedule.rank_orders(p, m, chunks)
    if schedule.order_for_times is not None:
        passes = (times.forward_s, times.input_grad_s, times.weight_grad_s)
        orders = schedule.order_for_times(p, m, chunks, *passes, times.handoff_s)
    placement = schedule.placement(p, chunks)
    result = replay(
        orders,
        placement,
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        input_grad_s=times.input_grad_s,
        weight_grad_s=times.weight_grad_s,
        handoff_s=times.handoff_s,
    )
    return _timeline(schedule, m, chunks, result, rank_timelines(orders, placement, result), times=times)


def timeline_of_plan(problem: Problem, plan: PlanSpec) -> Timeline:
    """The plan's pipeline with its stage times and hand-offs, and the bytes of its activations."""
    check_size(schedules.get(plan.schedule), plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    pipeline = pipeline_of(problem, plan)
    orders, result = pipeline.orders, pipeline.replayed(links=True)
    if orders is None or result is None:
        raise InputError(f"a timeline of so many actions is too large for a plan; allowed: {MOST_ACTIONS:,}")
    placement = pipeline.schedule.placement(plan.pipeline_parallel, plan.virtual_stages)
    saved = saved_per_chunk(pipeline.inputs)[0]
    waiting = waiting_per_chunk(pipeline.inputs)[0]
    ranks = rank_timelines(orders, placement, result, saved, waiting)
    return _timeline(pipeline.schedule, plan.num_microbatches, plan.virtual_stages, result, ranks, plan=plan)


def _timeline(
    schedule: Schedule,
    m: int,
    v: int,
    result: Replay,
    ranks: tuple[RankTimeline, ...],
    *,
    times: PassTimes | None = None,
    plan: PlanSpec | None = None,
) -> Timeline:
    return Timeline(
        schedule=schedule,
        num_microbatches=m,
        virtual_stages=v,
        times=times,
        plan=plan,
        makespan_s=result.makespan_s,
        bubble_fraction=_share(result.bubble_fraction),
        bubble_in_span_fraction=_share(result.bubble_in_span_fraction),
        ranks=ranks,
    )


def check_size(schedule: Schedule, p: int, m: int, v: int) -> None:
    """InputError for more ranks or actions than are allowed, before they are listed."""
    if p > MAX_RANKS:
        raise InputError(f"a timeline of {p:,} ranks is too large; allowed: {MAX_RANKS:,}")
    actions = p * most_actions(schedule, m, v)
    if actions > MAX_ACTIONS:
        raise InputError(
            f"a timeline of {actions:,} actions (p {p}, v {v}, m {m}) is too large; allowed: {MAX_ACTIONS:,}"
        )


def most_actions(schedule: Schedule, m: int, v: int) -> int:
    """Actions of a rank, at most: a schedule that splits the backward may do some of them whole."""
    return m * v * (3 if schedule.splits_backward else 2) + (2 * m if schedule.spreads_head else 0)


def rank_timelines(
    orders: Sequence[RankOrder],
    placement: IntArray,
    result: Replay,
    saved_bytes: FloatArray | None = None,
    waiting_bytes: FloatArray | None = None,
) -> tuple[RankTimeline, ...]:
    """What each rank of a replay did.

    `saved_bytes` (ranks, chunks): what one forward keeps; `waiting_bytes`: what is kept of it from I to W.
    """
    whole = np.full(placement.shape[1], len(orders) / (int(placement.max()) + 1))
    ranks = []
    for rank, (order, start, end) in enumerate(zip(orders, result.start_s, result.end_s, strict=True)):
        held = _held(order, start, end, whole, whole)
        of_bytes = None
        if saved_bytes is not None and waiting_bytes is not None:
            of_bytes = _held(order, start, end, saved_bytes[rank], waiting_bytes[rank])
        idle = {cause: float(seconds[rank]) for cause, seconds in result.idle_s.items()}
        timeline = RankTimeline(
            rank=rank,
            order=order,
            stage=placement[rank, order.chunk],
            start_s=start,
            end_s=end,
            idle=_intervals(order, start, end, result.waits_s[rank], result.makespan_s),
            busy_s=float(result.busy_s[rank]),
            idle_s={cause: s if s > DUST * result.makespan_s else 0.0 for cause, s in idle.items()},
            in_flight_microbatches=float(result.in_flight_microbatches[rank]),
            held_microbatches=held,
            held_bytes=of_bytes,
        )
        ranks.append(timeline)
    return tuple(ranks)


def _share(value: float) -> float:
    """Without the rounding of sums: 0 and not 1e-16."""
    return value if value > DUST else 0.0


def _intervals(
    order: RankOrder, start_s: FloatArray, end_s: FloatArray, waits_s: FloatArray, makespan_s: float
) -> IdleIntervals:
    """The gaps of a rank. One before an action may have three parts: the link, a wait for work elsewhere, the link."""
    forward = (order.kind == Kind.FORWARD) | (order.kind == Kind.VOCABULARY_FORWARD)
    cause = {name: index for index, name in enumerate(IDLE_CAUSES)}
    wait = np.where(forward, cause["upstream"], cause["downstream"])
    link = np.full(len(order), cause["link"])
    edges = np.stack([np.roll(end_s, 1), waits_s[:, 0], waits_s[:, 1], start_s], axis=1)[1:]
    causes = np.stack([link, wait, link], axis=1)[1:]
    begins = np.concatenate([[0.0], edges[:, :-1].ravel(), end_s[-1:]])
    ends = np.concatenate([start_s[:1], edges[:, 1:].ravel(), [makespan_s]])
    why = np.concatenate([[cause["fill"]], causes.ravel(), [cause["drain"]]])
    real = ends - begins > DUST * makespan_s
    return IdleIntervals(begins[real], ends[real], why[real])


def _held(order: RankOrder, start_s: FloatArray, end_s: FloatArray, saved: FloatArray, waiting: FloatArray) -> Steps:
    """What a rank holds: `saved` (chunks,) from F on, `waiting` in its place between I and W."""
    of_chunk, kind = order.chunk, order.kind
    change = np.zeros((len(Kind), len(saved)))
    change[Kind.FORWARD], change[Kind.BACKWARD] = saved, -saved
    change[Kind.INPUT_GRAD], change[Kind.WEIGHT_GRAD] = waiting - saved, -waiting
    jumps = change[kind, of_chunk]
    moved = np.flatnonzero(jumps)
    time_s = np.where(kind == Kind.FORWARD, start_s, end_s)[moved]
    value = jumps[moved].cumsum()
    # what was taken up is let go: what is left at the end is rounding
    return Steps(time_s, np.where(value > DUST * value.max(initial=0.0), value, 0.0))
