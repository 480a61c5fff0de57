"""Runs any order of work against given times: the start and end of every action, and why each rank was idle.

Rules. A forward waits for the forward of the stage before it, a backward (or input gradient) for that of the stage
after it, on the last stage for its own forward; a weight gradient for its own input gradient. A rank does one action
at a time, in its order. A tensor that goes to another rank is on the wire for the hand-off time of its boundary; a
link between two ranks carries one tensor at a time in each direction, first come, first served, beside the computing.
With `blocking` the sender also stands still until its tensor has arrived. Between chunks of one rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ppadvisor.errors import InputError, PpadvisorError
from ppadvisor.schedules.base import Action, FloatArray, IntArray, Kind, RankOrder, peak_in_flight_chunks

IDLE_CAUSES = ("fill", "drain", "upstream", "downstream", "link")
"""Before a rank's first action; after its last; waiting for a forward input, or for a gradient, that was not yet
computed; the part of such a wait in which the tensor was computed and on the wire (or, blocking, being sent)."""


class ScheduleError(PpadvisorError):
    """An order of work that cannot be right: an action missing, or done twice."""


class Wait(NamedTuple):
    """A rank that cannot go on: its next action needs one that the other rank has not reached."""

    rank: int
    action: Action
    needs_rank: int
    needs: Action

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.action} waits for {self.needs} of rank {self.needs_rank}"


class ScheduleDeadlock(ScheduleError):
    """Ranks that wait for each other in a circle, `cycle`; each `Wait` is on the rank of the next one."""

    def __init__(self, cycle: tuple[Wait, ...]) -> None:
        self.cycle = cycle
        super().__init__("deadlock in the order of work: " + ", ".join(map(str, cycle)) + ", and so on in a circle")


@dataclass(frozen=True)
class Replay:
    """What happened: times in seconds from the first start; arrays per rank, or per rank and action."""

    start_s: tuple[FloatArray, ...]
    end_s: tuple[FloatArray, ...]
    makespan_s: float
    busy_s: FloatArray
    idle_s: Mapping[str, FloatArray]
    """Cause -> idle seconds of each rank; the causes of a rank add up to makespan − busy."""
    in_flight_chunks: FloatArray
    """Chunk forwards whose activations each rank holds at its peak: taken up at F, let go at B (or at I and W)."""
    in_flight_microbatches: FloatArray
    """The same in whole ranks: a chunk of a model cut into s stages counts p/s."""

    @property
    def bubble_fraction(self) -> float:
        """1 − Σ busy/(p·makespan)."""
        return 1.0 - float(self.busy_s.sum()) / (len(self.busy_s) * self.makespan_s)

    @property
    def bubble_in_span_fraction(self) -> float:
        """1 − Σ busy/(p·longest span), a span going from a rank's first start to its last end.

        So counts Zero Bubble Pipeline Parallelism (Qi et al. 2024, arXiv 2401.10241, table 5).
        """
        span = max(float(end[-1] - start[0]) for start, end in zip(self.start_s, self.end_s, strict=True))
        return 1.0 - float(self.busy_s.sum()) / (len(self.busy_s) * span)


@dataclass(frozen=True)
class _Graph:
    """All actions in one row, rank after rank, and what each waits for (index in the row, −1 for nothing)."""

    kind: IntArray
    rank: IntArray
    chunk: IntArray
    stage: IntArray
    microbatch: IntArray
    needs: IntArray
    first: IntArray
    """Where each rank begins in the row, and after the last one its length."""

    def action(self, index: int) -> Action:
        return Action(Kind(self.kind[index]), int(self.chunk[index]), int(self.microbatch[index]))

    def wait(self, index: int, needs: int) -> Wait:
        return Wait(int(self.rank[index]), self.action(index), int(self.rank[needs]), self.action(needs))


def _positions(key: IntArray, rows: IntArray, shape: tuple[int, int], what: str) -> IntArray:
    """Where in the row each (stage, micro-batch) is done; each must be there once."""
    counts = np.bincount(key[rows], minlength=shape[0] * shape[1])
    wrong = np.flatnonzero(counts != 1)
    if len(wrong):
        stage, microbatch = divmod(int(wrong[0]), shape[1])
        times = int(counts[wrong[0]])
        raise ScheduleError(f"{what} of micro-batch {microbatch} on stage {stage}: done {times} times, not once")
    positions = np.empty(len(counts), dtype=np.int64)
    positions[key[rows]] = rows
    return positions


def _graph(order: Sequence[RankOrder], placement: IntArray) -> _Graph:
    lengths = [len(rank_order) for rank_order in order]
    kind, chunk, microbatch = np.concatenate([rank_order.actions for rank_order in order]).astype(np.int64).T
    rank = np.repeat(np.arange(len(order)), lengths)
    stage = placement[rank, chunk]
    shape = int(placement.max()) + 1, int(microbatch.max()) + 1
    key = stage * shape[1] + microbatch

    is_forward, is_weight = kind == Kind.FORWARD, kind == Kind.WEIGHT_GRAD
    is_backward = ~(is_forward | is_weight)  # whole, or of the input
    forward = _positions(key, np.flatnonzero(is_forward), shape, "forward")
    backward = _positions(key, np.flatnonzero(is_backward), shape, "backward")
    if not np.array_equal(np.sort(key[is_weight]), np.sort(key[kind == Kind.INPUT_GRAD])):
        raise ScheduleError("each input gradient needs one weight gradient of the same stage and micro-batch")
    if not np.array_equal(rank, rank[forward[key]]):
        raise ScheduleError("the backward of a stage and micro-batch must be done by the rank that did its forward")

    first_stage, last_stage = stage == 0, stage == shape[0] - 1
    needs = np.full(len(kind), -1, dtype=np.int64)
    for rows, positions, step in (
        (is_forward & ~first_stage, forward, -shape[1]),
        (is_backward & ~last_stage, backward, shape[1]),
        (is_backward & last_stage, forward, 0),
    ):
        needs[rows] = positions[key[rows] + step]
    graph = _Graph(kind, rank, chunk, stage, microbatch, needs, np.concatenate([[0], np.cumsum(lengths)]))
    early = np.flatnonzero(is_weight & (np.arange(len(kind)) < backward[key]))
    if len(early):
        raise ScheduleDeadlock((graph.wait(int(early[0]), int(backward[key[early[0]]])),))
    return graph


@dataclass(frozen=True)
class _Wires:
    """For what each action makes: seconds on the wire and the link, a number for each pair of ranks.

    What stays on its rank takes 0 seconds, on the "link" of the rank with itself.
    """

    seconds: FloatArray
    link: IntArray


def _wires(graph: _Graph, num_stages: int, forward_s: ArrayLike, backward_s: ArrayLike) -> _Wires:
    boundaries = (num_stages - 1,)
    table = [_seconds(forward_s, boundaries, "handoff_s"), _seconds(backward_s, boundaries, "handoff_backward_s")]
    receiver = np.flatnonzero(graph.needs >= 0)
    sender = graph.needs[receiver]
    away = graph.rank[receiver] != graph.rank[sender]
    receiver, sender = receiver[away], sender[away]
    is_forward = graph.kind[receiver] == Kind.FORWARD
    stage = graph.stage[receiver]
    ranks = len(graph.first) - 1
    seconds, link = np.zeros(len(graph.kind)), graph.rank * (ranks + 1)
    seconds[sender[is_forward]] = table[0][stage[is_forward] - 1]
    seconds[sender[~is_forward]] = table[1][stage[~is_forward]]
    link[sender] = graph.rank[sender] * ranks + graph.rank[receiver]
    return _Wires(seconds, link)


def _seconds(given: ArrayLike, shape: tuple[int, ...], name: str) -> FloatArray:
    """Times as an array of `shape`; one number for all, and a vector of p for (p, v), are spread out."""
    values = np.asarray(given, dtype=np.float64)
    if len(shape) == 2 and values.ndim == 1:
        values = values[:, np.newaxis]
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"{name}: times must be finite and not negative")
    try:
        return np.broadcast_to(values, shape)
    except ValueError as error:
        raise InputError(f"{name}: got shape {values.shape}, needed {shape} or one number") from error


def _durations(graph: _Graph, shape: tuple[int, ...], times: Mapping[Kind, ArrayLike | None]) -> FloatArray:
    table = np.zeros((len(Kind), *shape))
    for kind, seconds in times.items():
        if seconds is not None:
            table[kind] = _seconds(seconds, shape, kind.name.lower())
        elif (graph.kind == kind).any():
            raise InputError(f"the order has {kind.letter} actions, but no time was given for {kind.name.lower()}")
    durations = table[graph.kind, graph.rank, graph.chunk]
    if not durations.any():
        raise InputError("all times of the order's actions are 0")
    return durations


def _run(graph: _Graph, durations: FloatArray, wires: _Wires, blocking: bool) -> tuple[FloatArray, FloatArray]:
    """Start of every action, and when what it makes is where it is needed.

    Plain lists and one loop: each rank goes on until its next action needs one not yet done, and is woken by it.
    An action is needed by one other at most, so that one slot for who is to be woken is enough.
    """
    needs, seconds, wire, link = (a.tolist() for a in (graph.needs, durations, wires.seconds, wires.link))
    start, arrival = [0.0] * len(needs), [-1.0] * len(needs)
    arrival.append(0.0)  # of what an action that needs nothing, −1, waits for
    position, limit = graph.first[:-1].tolist(), graph.first[1:].tolist()
    clock, link_free = [0.0] * len(limit), [0.0] * len(limit) ** 2
    sleeper: dict[int, int] = {}
    ready = list(range(len(limit)))
    while ready:
        rank = ready.pop()
        now, index, end = clock[rank], position[rank], limit[rank]
        while index < end:
            there = arrival[needs[index]]
            if there < 0.0:
                sleeper[needs[index]] = rank
                break
            if there > now:
                now = there
            start[index] = now
            now += seconds[index]
            there = link_free[link[index]]
            there = (there if there > now else now) + wire[index]
            link_free[link[index]] = arrival[index] = there
            if blocking:
                now = there
            if index in sleeper:
                ready.append(sleeper.pop(index))
            index += 1
        clock[rank], position[rank] = now, index
    _raise_deadlock(graph, position)
    return np.array(start), np.array(arrival[:-1])


def _raise_deadlock(graph: _Graph, position: Sequence[int]) -> None:
    """Where a rank did not reach its end: follow who waits for whom until a rank comes up again."""
    stuck = [rank for rank, index in enumerate(position) if index < graph.first[rank + 1]]
    if not stuck:
        return
    rank, seen = stuck[0], list[int]()
    waits = list[Wait]()
    while rank not in seen:
        seen.append(rank)
        waits.append(graph.wait(position[rank], int(graph.needs[position[rank]])))
        rank = waits[-1].needs_rank
    raise ScheduleDeadlock(tuple(waits[seen.index(rank) :]))


def _per_rank(graph: _Graph, seconds: FloatArray) -> FloatArray:
    return np.bincount(graph.rank, seconds, len(graph.first) - 1).astype(np.float64)


def _idle(
    graph: _Graph, start: FloatArray, end: FloatArray, arrival: FloatArray, blocking: bool
) -> dict[str, FloatArray]:
    """Seconds of each cause and rank. A gap before an action has one cause, the tensor it waits for."""
    opening, closing = graph.first[:-1], graph.first[1:] - 1
    free = np.concatenate([[0.0], (arrival if blocking else end)[:-1]])  # when the rank could have gone on
    gap = start - np.concatenate([[0.0], end[:-1]])
    gap[opening] = 0.0
    computed = np.where(graph.needs >= 0, end[graph.needs], 0.0)
    waiting = np.clip(computed - free, 0.0, gap)
    forward = graph.kind == Kind.FORWARD
    return {
        "fill": start[opening],
        "drain": end[closing].max() - end[closing],
        "upstream": _per_rank(graph, waiting * forward),
        "downstream": _per_rank(graph, waiting * ~forward),
        "link": _per_rank(graph, gap - waiting),
    }


def replay(
    order: Sequence[RankOrder],
    placement: IntArray,
    forward_s: ArrayLike,
    backward_s: ArrayLike | None = None,
    *,
    input_grad_s: ArrayLike | None = None,
    weight_grad_s: ArrayLike | None = None,
    handoff_s: ArrayLike = 0.0,
    handoff_backward_s: ArrayLike | None = None,
    blocking: bool = False,
    freed_at_input_grad: float = 0.0,
) -> Replay:
    """Run `order` by the rules of this module.

    Times of F, B, I, W: per rank and chunk (p, v), per rank (p,), or one number; those of kinds that do not occur may
    be left out. Hand-offs: per boundary between stage s and s+1 (stages − 1,), or one number; backwards the same
    unless given. Boundaries within a rank cost nothing. Raises `ScheduleDeadlock`, `ScheduleError`, `InputError`.
    """
    graph = _graph(order, placement)
    num_stages = int(placement.max()) + 1
    times = (forward_s, backward_s, input_grad_s, weight_grad_s)
    durations = _durations(graph, placement.shape, dict(zip(Kind, times, strict=True)))
    back_s = handoff_s if handoff_backward_s is None else handoff_backward_s
    start, arrival = _run(graph, durations, _wires(graph, num_stages, handoff_s, back_s), blocking)
    end = start + durations
    chunks = peak_in_flight_chunks(order, freed_at_input_grad)
    cuts = graph.first[1:-1]
    return Replay(
        start_s=tuple(np.split(start, cuts)),
        end_s=tuple(np.split(end, cuts)),
        makespan_s=float(end.max()),
        busy_s=_per_rank(graph, durations),
        idle_s=_idle(graph, start, end, arrival, blocking),
        in_flight_chunks=chunks,
        in_flight_microbatches=chunks * len(order) / num_stages,
    )
