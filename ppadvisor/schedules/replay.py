"""Runs any order of work against given times: the start and end of every action, and why each rank was idle.

Rules. A forward waits for the forward of the stage before it, a backward (or input gradient) for that of the stage
after it, on the last stage for its own forward; a weight gradient for its own input gradient. A rank does one action
at a time, in its order. A tensor that goes to another rank is on the wire for the hand-off time of its boundary; a
link between two ranks carries one tensor at a time in each direction, first come, first served, beside the computing.
With `blocking` the sender also stands still until its tensor has arrived. Between chunks of one rank nothing is sent.
What a pair of a forward and a backward makes leaves when both are done. Where the head is spread over all ranks, its
first part (S) waits for the last stage's forward, its second (T, or U) for the first of all ranks, and the last stage's
backward for all T (where there is U, for all S); each such meeting takes `meeting_s`, one after the other, on the wire.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ppadvisor.errors import InputError
from ppadvisor.schedules.base import FloatArray, IntArray, Kind, RankOrder, peak_in_flight_chunks
from ppadvisor.schedules.graph import Graph, ScheduleDeadlock, ScheduleError, Wait, build_graph

__all__ = [
    "IDLE_CAUSES",
    "Graph",
    "Replay",
    "Run",
    "ScheduleDeadlock",
    "ScheduleError",
    "Wait",
    "build_graph",
    "replay",
    "timed_run",
    "wire_table",
    "work_tables",
]

IDLE_CAUSES = ("fill", "drain", "upstream", "downstream", "link")
"""Before a rank's first action; after its last; waiting for a forward input, or for a gradient, that was not yet
computed; the part of such a wait in which the tensor was computed and on the wire (or, blocking, being sent)."""


@dataclass(frozen=True)
class Replay:
    """What happened: times in seconds from the first start; arrays per rank, or per rank and action."""

    start_s: tuple[FloatArray, ...]
    end_s: tuple[FloatArray, ...]
    makespan_s: float
    busy_s: FloatArray
    idle_s: Mapping[str, FloatArray]
    """Cause -> idle seconds of each rank; the causes of a rank add up to makespan − busy."""
    waits_s: tuple[FloatArray, ...]
    """(actions, 2): from when until when the rank of an action waited for what it needs to be computed; the rest of the
    gap before it is the link's."""
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


def _of_work(graph: Graph, shape: tuple[int, ...], times: Mapping[Kind, ArrayLike | None]) -> FloatArray:
    given = {kind: _seconds(of, shape, kind.name.lower()) for kind, of in times.items() if of is not None}
    for kind in times:
        if kind in graph.kinds and kind not in given:
            raise InputError(f"the order has {kind.letter} actions, but no time was given for {kind.name.lower()}")
    of_work: FloatArray = work_tables({kind: seconds[np.newaxis] for kind, seconds in given.items()})[0]
    if not of_work[graph.work(shape)].any():
        raise InputError("all times of the order's actions are 0")
    return of_work


def work_tables(times: Mapping[Kind, FloatArray]) -> FloatArray:
    """Of each of several runs the table of `Graph.work`: seconds of each kind of work on each chunk, and 0 for none.

    `times`: (runs, ranks, chunks) each; what is left out takes 0.
    """
    runs, *shape = next(iter(times.values())).shape
    table = np.zeros((runs, len(Kind) * math.prod(shape) + 1))
    of_kinds = table[:, :-1].reshape(runs, len(Kind), *shape)
    for kind, seconds in times.items():
        of_kinds[:, kind] = seconds
    table[:, :-1] = of_kinds.reshape(runs, -1)
    return table


def wire_table(
    num_stages: int, handoff_s: ArrayLike, handoff_backward_s: ArrayLike, meeting_s: ArrayLike = 0.0
) -> FloatArray:
    """The table of `Graph.wire`: seconds on each wire. `InputError` for times that cannot be."""
    boundaries = (num_stages - 1,)
    forward = _seconds(handoff_s, boundaries, "handoff_s")
    backward = forward
    if handoff_backward_s is not handoff_s:
        backward = _seconds(handoff_backward_s, boundaries, "handoff_backward_s")
    return np.concatenate([[0.0, _seconds(meeting_s, (), "meeting_s")], forward, backward])


@dataclass(frozen=True)
class Run:
    """An order of work with its times."""

    graph: Graph
    shape: tuple[int, ...]
    """Ranks and chunks."""
    of_work: FloatArray
    """Seconds of each number of `Graph.work`."""
    of_wire: FloatArray
    """Seconds of each number of `Graph.wire`."""

    @cached_property
    def durations(self) -> FloatArray:
        """Seconds of work of each row."""
        return np.asarray(self.of_work[self.graph.work(self.shape)])

    @property
    def wire_s(self) -> FloatArray:
        """Seconds that what each row makes is on the wire; what stays on its rank takes none."""
        return np.asarray(self.of_wire[self.graph.wire])

    @property
    def makespan_s(self) -> float:
        """Seconds from the first start to the last end, hand-offs beside the computing."""
        return float((self.starts_s() + self.durations).max())

    def starts_s(self) -> FloatArray:
        """The start of each row."""
        return _run(self, blocking=False)[0]

    def spans_s(self, start: FloatArray) -> tuple[float, float]:
        """(the longest time from a rank's first start to its last end, the makespan), from the start of each row."""
        end, (first, last) = start + self.durations, self.graph.ends_of_ranks
        return float((end[last] - start[first]).max()), float(end.max())

    def busy_s(self) -> FloatArray:
        """Seconds of work of each rank."""
        return _per_rank(self.graph, self.durations)[: self.graph.ranks]

    def of_ranks(self, seconds: FloatArray) -> tuple[FloatArray, ...]:
        """Of each rank what a quantity of each row is for its own actions."""
        return _per_action(self.graph, seconds)


def timed_run(
    graph: Graph,
    placement: IntArray,
    times: Mapping[Kind, ArrayLike | None],
    handoff_s: ArrayLike,
    handoff_backward_s: ArrayLike,
    meeting_s: ArrayLike = 0.0,
) -> Run:
    """The times of `replay` beside the graph. `InputError` for times that cannot be."""
    of_wire = wire_table(int(placement.max()) + 1, handoff_s, handoff_backward_s, meeting_s)
    return Run(graph, placement.shape, _of_work(graph, placement.shape, times), of_wire)


def _run(run: Run, blocking: bool) -> tuple[FloatArray, FloatArray]:
    """Start of every action, and when what it makes is where it is needed.

    Plain lists and one loop: each rank goes on until its next action needs one not yet done, and is woken by it.
    """
    graph = run.graph
    needs, seconds, wire, link = (a.tolist() for a in (graph.needs, run.durations, run.wire_s, graph.link))
    start, arrival = [0.0] * len(needs), [-1.0] * len(needs)
    arrival.append(0.0)  # of what an action that needs nothing, −1, waits for
    position, limit = graph.first[:-1].tolist(), graph.first[1:].tolist()
    clock, link_free = [0.0] * len(limit), [0.0] * len(limit) ** 2
    sleepers: dict[int, list[int]] = {}
    ready = list(range(len(limit)))
    while ready:
        rank = ready.pop()
        now, index, end = clock[rank], position[rank], limit[rank]
        while index < end:
            there = arrival[needs[index]]
            if there < 0.0:
                sleepers.setdefault(needs[index], []).append(rank)
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
            if index in sleepers:
                ready.extend(sleepers.pop(index))
            index += 1
        clock[rank], position[rank] = now, index
    _raise_deadlock(graph, position)
    return np.array(start), np.array(arrival[:-1])


def _raise_deadlock(graph: Graph, position: Sequence[int]) -> None:
    """Where a rank did not reach its end: follow who waits for whom until a rank comes up again."""
    stuck = [rank for rank, index in enumerate(position) if index < graph.first[rank + 1]]
    if not stuck:
        return
    rank, seen = stuck[0], list[int]()
    waits = list[Wait]()
    while rank not in seen:
        seen.append(rank)
        needs = int(graph.needs[position[rank]])
        while graph.rank[needs] >= graph.ranks:  # a meeting: who has not come yet
            needs = int(graph.needs[position[graph.rank[needs]]])
        waits.append(graph.wait(position[rank], needs))
        rank = waits[-1].needs_rank
    raise ScheduleDeadlock(tuple(waits[seen.index(rank) :]))


def _per_rank(graph: Graph, seconds: FloatArray) -> FloatArray:
    return np.bincount(graph.rank, seconds, len(graph.first) - 1).astype(np.float64)


def _per_action(graph: Graph, values: FloatArray) -> tuple[FloatArray, ...]:
    """Of each rank the values of its own actions, rows without work left out."""
    counts = np.bincount(graph.rank[graph.real], minlength=graph.ranks)
    return tuple(np.split(values[graph.real], np.cumsum(counts)[:-1]))


def _waits(graph: Graph, start: FloatArray, end: FloatArray, arrival: FloatArray, blocking: bool) -> FloatArray:
    """From when until when the rank of each action waited for what it needs to be computed, (rows, 2)."""
    free = np.concatenate([[0.0], (arrival if blocking else end)[:-1]])  # when the rank could have gone on
    free[graph.first[:-1]] = start[graph.first[:-1]]
    computed = np.where(graph.needs >= 0, end[graph.needs], 0.0)
    return np.stack([free, np.clip(computed, free, start)], axis=1)


def _idle(graph: Graph, start: FloatArray, end: FloatArray, waits: FloatArray) -> dict[str, FloatArray]:
    """Seconds of each cause and rank. A gap before an action has one cause, the tensor it waits for."""
    opening, closing = graph.first[:-1], graph.first[1:] - 1
    gap = start - np.concatenate([[0.0], end[:-1]])
    gap[opening] = 0.0
    waiting = waits[:, 1] - waits[:, 0]
    forward = (graph.kind == Kind.FORWARD) | (graph.kind == Kind.VOCABULARY_FORWARD)
    causes = {
        "fill": start[opening],
        "drain": end[closing].max() - end[closing],
        "upstream": _per_rank(graph, waiting * forward),
        "downstream": _per_rank(graph, waiting * ~forward),
        "link": _per_rank(graph, gap - waiting),
    }
    return {cause: seconds[: graph.ranks] for cause, seconds in causes.items()}


def replay(
    order: Sequence[RankOrder],
    placement: IntArray,
    forward_s: ArrayLike,
    backward_s: ArrayLike | None = None,
    *,
    input_grad_s: ArrayLike | None = None,
    weight_grad_s: ArrayLike | None = None,
    vocabulary_forward_s: ArrayLike = 0.0,
    vocabulary_backward_s: ArrayLike = 0.0,
    meeting_s: ArrayLike = 0.0,
    handoff_s: ArrayLike = 0.0,
    handoff_backward_s: ArrayLike | None = None,
    blocking: bool = False,
    freed_at_input_grad: float = 0.0,
) -> Replay:
    """Run `order` by the rules of this module. Raises `ScheduleDeadlock`, `ScheduleError`, `InputError`.

    Times of F, B, I, W: per rank and chunk (p, v), per rank (p,), or one number; those of kinds that do not occur may
    be left out; S, and T or U (`vocabulary_backward_s`), take 0 unless given. Hand-offs: per boundary between stage s
    and s+1 (stages − 1,), or one number; backwards the same unless given; within a rank they cost nothing.
    """
    times = forward_s, backward_s, input_grad_s, weight_grad_s, vocabulary_forward_s, *(vocabulary_backward_s,) * 2
    back_s = handoff_s if handoff_backward_s is None else handoff_backward_s
    graph, num_stages = build_graph(order, placement), int(placement.max()) + 1
    run = timed_run(graph, placement, dict(zip(Kind, times, strict=True)), handoff_s, back_s, meeting_s)
    durations = run.durations
    start, arrival = _run(run, blocking)
    end = start + durations
    waits = _waits(graph, start, end, arrival, blocking)
    chunks = peak_in_flight_chunks(order, freed_at_input_grad)
    return Replay(
        start_s=_per_action(graph, start),
        end_s=_per_action(graph, end),
        makespan_s=float(end.max()),
        busy_s=_per_rank(graph, durations)[: len(order)],
        idle_s=_idle(graph, start, end, waits),
        waits_s=_per_action(graph, waits),
        in_flight_chunks=chunks,
        in_flight_microbatches=chunks * len(order) / num_stages,
    )
