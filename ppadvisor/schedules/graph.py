"""What waits for what in an order of work: every action once, in one row, with the one that it needs.

Two things are rows of their own, without work: a late send, where an order runs a forward as one with the backward
after it and both results leave together; and the meetings of all ranks, where the head is spread over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppadvisor.errors import PpadvisorError
from ppadvisor.schedules.base import Action, IntArray, Kind, RankOrder

A_MEETING, FIRST_BOUNDARY = 1, 2
"""In the table of what carries results: see `Graph.wire`."""


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


class Sent(NamedTuple):
    """What goes from rank to rank in one direction: the rows that make it, and the boundary that each crosses."""

    sender: IntArray
    boundary: IntArray


@dataclass(frozen=True)
class Graph:
    """All rows, rank after rank, and what each waits for (index in the row, −1 for nothing)."""

    kind: IntArray
    rank: IntArray
    chunk: IntArray
    stage: IntArray
    microbatch: IntArray
    needs: IntArray
    first: IntArray
    """Where each rank begins in the row, and after the last one its length; behind the ranks, the meetings."""
    real: NDArray[np.bool_]
    """False for the rows without work."""
    ranks: int
    held: IntArray
    """The rows at which a meeting has been held: what waits for it needs this one."""

    @cached_property
    def _away(self) -> IntArray:
        """The rows that need what another rank makes, meetings apart."""
        receiver = np.flatnonzero(self.needs >= 0)
        sender = self.needs[receiver]
        away = (self.rank[receiver] != self.rank[sender]) & (np.maximum(receiver, sender) < self.first[self.ranks])
        return np.asarray(receiver[away])

    @cached_property
    def sent(self) -> tuple[Sent, Sent]:
        """Outputs and gradients that are sent."""
        receiver = self._away
        forward = self.kind[receiver] == Kind.FORWARD
        outputs, gradients = receiver[forward], receiver[~forward]
        return (
            Sent(self.needs[outputs], self.stage[outputs] - 1),
            Sent(self.needs[gradients], self.stage[gradients]),
        )

    @cached_property
    def link(self) -> IntArray:
        """Of each row the link that carries what it makes, a number for each pair of ranks."""
        ranks = len(self.first) - 1
        link = self.rank * (ranks + 1)
        sender = self.needs[self._away]
        link[sender] = self.rank[sender] * ranks + self.rank[self._away]
        return link

    @cached_property
    def link_before(self) -> IntArray:
        """Of each row the one whose tensor the link carried before, −1 for nothing: in the order of the sender."""
        link = self.link
        # a sort of short numbers counts them
        rows = np.argsort(link.astype(np.uint16) if link.max() < 2**16 else link, kind="stable")
        before = np.empty_like(link)
        before[rows] = np.where(np.diff(link[rows], prepend=-1) != 0, -1, np.concatenate([rows[:1], rows[:-1]]))
        return before

    @cached_property
    def wire(self) -> IntArray:
        """Of each row what carries what it makes: 0 nothing, 1 a meeting, then outputs and gradients by boundary."""
        wire = np.zeros(len(self.kind), dtype=np.int64)
        forward, backward = self.sent
        wire[forward.sender] = FIRST_BOUNDARY + forward.boundary
        wire[backward.sender] = FIRST_BOUNDARY + self.stage.max() + backward.boundary
        wire[self.held] = A_MEETING
        return wire

    def work(self, shape: tuple[int, ...]) -> IntArray:
        """Of each row a number for its kind of work on its chunk, in a table (kinds, *shape); behind it, for none."""
        if shape not in self._work:
            rank = np.where(self.real, self.rank, 0)
            work = np.ravel_multi_index((self.kind, rank, self.chunk), (len(Kind), *shape))
            self._work[shape] = np.where(self.real, work, len(Kind) * math.prod(shape))
        return self._work[shape]

    @cached_property
    def _work(self) -> dict[tuple[int, ...], IntArray]:
        return {}

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of work that there are."""
        return frozenset(map(Kind, np.flatnonzero(np.bincount(self.kind)).tolist()))

    @cached_property
    def ends_of_ranks(self) -> tuple[IntArray, IntArray]:
        """The rows of the first and of the last action of each rank."""
        real = np.flatnonzero(self.real)
        first = np.flatnonzero(np.diff(self.rank[real], prepend=-1))
        return real[first], real[np.append(first[1:], len(real)) - 1]

    def action(self, index: int) -> Action:
        return Action(Kind(self.kind[index]), int(self.chunk[index]), int(self.microbatch[index]))

    def wait(self, index: int, needs: int) -> Wait:
        return Wait(int(self.rank[index]), self.action(index), int(self.rank[needs]), self.action(needs))


def build_graph(order: Sequence[RankOrder], placement: IntArray) -> Graph:
    """The graph of these orders; `ScheduleError` where work is missing, doubled or done by the wrong rank."""
    return _with_meetings(_with_late_sends(_of_order(order, placement), order))


def _positions(key: IntArray, rows: IntArray, shape: tuple[int, int], what: str, where: str = "stage") -> IntArray:
    """Where in the row each (stage, micro-batch) is done; each must be there once."""
    counts = np.bincount(key[rows], minlength=shape[0] * shape[1])
    wrong = np.flatnonzero(counts != 1)
    if len(wrong):
        place, microbatch = divmod(int(wrong[0]), shape[1])
        times = int(counts[wrong[0]])
        raise ScheduleError(f"{what} of micro-batch {microbatch} on {where} {place}: done {times} times, not once")
    positions = np.empty(len(counts), dtype=np.int64)
    positions[key[rows]] = rows
    return positions


def _of_order(order: Sequence[RankOrder], placement: IntArray) -> Graph:
    lengths = [len(rank_order) for rank_order in order]
    kind, chunk, microbatch = np.concatenate([rank_order.actions for rank_order in order]).astype(np.int64).T
    rank = np.repeat(np.arange(len(order)), lengths)
    stage = placement[rank, chunk]
    shape = int(placement.max()) + 1, int(microbatch.max()) + 1
    key = stage * shape[1] + microbatch

    is_forward, is_weight = kind == Kind.FORWARD, kind == Kind.WEIGHT_GRAD
    is_backward = (kind == Kind.BACKWARD) | (kind == Kind.INPUT_GRAD)
    of_stage = is_forward | is_backward | is_weight
    forward = _positions(key, np.flatnonzero(is_forward), shape, "forward")
    backward = _positions(key, np.flatnonzero(is_backward), shape, "backward")
    if not np.array_equal(np.sort(key[is_weight]), np.sort(key[kind == Kind.INPUT_GRAD])):
        raise ScheduleError("each input gradient needs one weight gradient of the same stage and micro-batch")
    if not np.array_equal(rank[of_stage], rank[forward[key[of_stage]]]):
        raise ScheduleError("the backward of a stage and micro-batch must be done by the rank that did its forward")

    first_stage, last_stage = stage == 0, stage == shape[0] - 1
    needs = np.full(len(kind), -1, dtype=np.int64)
    for rows, positions, step in (
        (is_forward & ~first_stage, forward, -shape[1]),
        (is_backward & ~last_stage, backward, shape[1]),
        (is_backward & last_stage, forward, 0),
    ):
        needs[rows] = positions[key[rows] + step]
    first, real = np.concatenate([[0], np.cumsum(lengths)]), np.ones(len(kind), dtype=np.bool_)
    nothing = np.zeros(0, dtype=np.int64)
    graph = Graph(kind, rank, chunk, stage, microbatch, needs, first, real, len(order), nothing)
    early = np.flatnonzero(is_weight & (np.arange(len(kind)) < backward[key]))
    if len(early):
        raise ScheduleDeadlock((graph.wait(int(early[0]), int(backward[key[early[0]]])),))
    return graph


def _with_late_sends(graph: Graph, order: Sequence[RankOrder]) -> Graph:
    """A row after each pair: what the forward made leaves there."""
    marks = [np.zeros(len(o), dtype=np.bool_) if o.paired is None else o.paired for o in order]
    forward = np.flatnonzero(np.concatenate(marks))
    if not len(forward):
        return graph
    second = np.minimum(forward + 1, len(graph.kind) - 1)
    wrong = (graph.kind[forward] != Kind.FORWARD) | (graph.rank[second] != graph.rank[forward])
    wrong |= (graph.kind[second] != Kind.BACKWARD) & (graph.kind[second] != Kind.INPUT_GRAD)
    if wrong.any():
        action = graph.action(int(forward[wrong][0]))
        raise ScheduleError(f"{action} is paired, but no backward comes straight after it")

    behind = forward + 2
    late = behind + np.arange(len(behind))
    moved = np.arange(len(graph.kind)) + np.searchsorted(behind, np.arange(len(graph.kind)), side="right")
    sends = moved.copy()  # where what a forward made leaves
    sends[forward] = late
    table = np.where((graph.kind == Kind.FORWARD) & (graph.needs >= 0), sends[graph.needs], moved[graph.needs])
    needs = np.where(graph.needs >= 0, table, -1)
    columns = (graph.kind, graph.rank, graph.chunk, graph.stage, graph.microbatch)
    kind, rank, chunk, stage, microbatch = (np.insert(values, behind, values[forward]) for values in columns)
    return replace(
        graph,
        kind=kind,
        rank=rank,
        chunk=chunk,
        stage=stage,
        microbatch=microbatch,
        needs=np.insert(needs, behind, -1),
        first=graph.first + np.searchsorted(behind, graph.first, side="right"),
        real=np.insert(graph.real, behind, False),
    )


def _attended(graph: Graph) -> list[IntArray]:
    """The meetings of each kind, as rows of (micro-batch, those who attend); see `_with_meetings`."""
    shape = graph.ranks, int(graph.microbatch.max()) + 1
    key = graph.rank * shape[1] + graph.microbatch
    forward = np.flatnonzero(graph.real & (graph.stage == graph.stage.max()) & (graph.kind == Kind.FORWARD))
    meetings = [forward[np.argsort(graph.microbatch[forward])][:, np.newaxis]]
    second = Kind.VOCABULARY_BACKWARD
    if not (graph.kind == second).any():
        second = Kind.VOCABULARY_WEIGHT_GRAD
    for kind in (Kind.VOCABULARY_FORWARD, second):
        positions = _positions(key, np.flatnonzero(graph.kind == kind), shape, kind.letter, "rank")
        meetings.append(positions.reshape(shape).T)
    return meetings if second == Kind.VOCABULARY_BACKWARD else meetings[:2]


def _with_meetings(graph: Graph) -> Graph:
    """The head spread over all ranks: S waits for the last stage's forward, T or U for the S of all ranks.

    The last stage's backward waits for all T, where there is U for all S. A meeting of p actions is p rows on a rank
    of its own that does them one after the other, and is held at the last.
    """
    if not (graph.kind == Kind.VOCABULARY_FORWARD).any():
        return graph
    meetings = _attended(graph)
    members = np.concatenate([meeting.ravel() for meeting in meetings])
    lengths = [meeting.size for meeting in meetings]
    ends = len(graph.kind) + np.cumsum([0, *lengths])
    held = [
        start + np.arange(1, len(meeting) + 1) * meeting.shape[1] - 1
        for start, meeting in zip(ends[:-1], meetings, strict=True)
    ]
    needs = graph.needs.copy()
    backward = (graph.kind == Kind.BACKWARD) | (graph.kind == Kind.INPUT_GRAD)
    for waiting, done in (
        (graph.kind == Kind.VOCABULARY_FORWARD, held[0]),
        (graph.kind > Kind.VOCABULARY_FORWARD, held[1]),
        (backward & (graph.stage == graph.stage.max()), held[-1]),
    ):
        needs[waiting] = done[graph.microbatch[waiting]]
    columns = (graph.kind, graph.chunk, graph.stage, graph.microbatch)
    kind, chunk, stage, microbatch = (np.concatenate([values, values[members]]) for values in columns)
    return replace(
        graph,
        kind=kind,
        chunk=chunk,
        stage=stage,
        microbatch=microbatch,
        rank=np.concatenate([graph.rank, graph.ranks + np.repeat(np.arange(len(meetings)), lengths)]),
        needs=np.concatenate([needs, members]),
        first=np.concatenate([graph.first, ends[1:]]),
        real=np.concatenate([graph.real, np.zeros(len(members), dtype=np.bool_)]),
        held=np.concatenate(held),
    )
