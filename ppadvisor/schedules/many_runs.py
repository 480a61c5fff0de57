"""Many replays at once: of each how long it takes, or when each action starts.

The rules are those of `replay`, and so are the numbers, bit for bit: every start is the same maximum of the same sums.
All ranks of all runs that can go on take one action together, as arrays; runs of one graph go on at the same turns, and
are the columns of these arrays. A run alone is faster in a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ppadvisor.schedules.base import FloatArray, IntArray
from ppadvisor.schedules.replay import Run

T = TypeVar("T")

FEW_RANKS = 25
"""Up to so many ranks at once a plain loop over the actions is as fast (measured: 0.45 us an action, 12 us a turn)."""
MOST_ACTIONS = 1_000_000
"""Actions at once: 50 MB."""
MOST_COLUMNS = 4
"""Runs of one graph side by side at most: two rows of them are a line of the cache."""


def makespans_s(runs: Sequence[Run]) -> list[float]:
    """`Run.makespan_s` of each."""
    return _of_each(runs, lambda run: run.makespan_s, _Together.makespans_s)


def starts_s(runs: Sequence[Run]) -> list[FloatArray]:
    """`Run.starts_s` of each."""
    return _of_each(runs, Run.starts_s, _Together.starts_s)


def _of_each(
    runs: Sequence[Run], alone: Callable[[Run], T], of: Callable[[_Together], Sequence[Sequence[T]]]
) -> list[T]:
    """What is asked of runs one by one, or of groups of them together."""
    result: dict[int, T] = {}
    for batch in _batches(runs):
        of_batch = [runs[index] for index in batch]
        ranks = sum(len(run.graph.first) - 1 for run in of_batch)
        together = _together(of_batch) if ranks > FEW_RANKS else None
        if together is None:
            # where ranks wait for each other, too: so the deadlock is told
            result |= {index: alone(runs[index]) for index in batch}
            continue
        for group, found in zip(together.groups, of(together), strict=True):
            result |= {batch[index]: one for index, one in zip(group, found, strict=True)}
    return [result[index] for index in range(len(runs))]


def _batches(runs: Sequence[Run]) -> Iterator[list[int]]:
    """Runs that take about as many turns, and not too many actions, together."""
    turns = [int(np.diff(run.graph.first).max()) for run in runs]
    batch: list[int] = []
    actions = 0
    for index in sorted(range(len(runs)), key=lambda index: (turns[index], id(runs[index].graph))):
        actions += len(runs[index].graph.kind)
        if batch and (actions > MOST_ACTIONS or turns[index] > 2 * turns[batch[0]]):
            yield batch
            batch, actions = [], len(runs[index].graph.kind)
        batch.append(index)
    if batch:
        yield batch


def _side_by_side(runs: Sequence[Run]) -> list[list[int]]:
    """Runs of one graph, in groups of as many as there are columns; the last of a short group stands there again."""
    of_graph: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        of_graph.setdefault(id(run.graph), []).append(index)
    columns = min(MOST_COLUMNS, -(-len(runs) // len(of_graph)))
    groups = [same[at : at + columns] for same in of_graph.values() for at in range(0, len(same), columns)]
    return [group + group[-1:] * (columns - len(group)) for group in groups]


@dataclass(frozen=True)
class _Rows:
    """The rows of several graphs behind each other; an index of their number is nothing, which is there from the start.

    A column for each run, with the same graphs in all.
    """

    needs: IntArray
    rank_before: IntArray
    link_before: IntArray
    first: IntArray
    """Where each rank of each graph begins."""
    limit: IntArray
    starts: IntArray
    """Where each graph begins."""
    work: IntArray
    """Index into `of_work`."""
    wire: IntArray
    of_work: FloatArray
    """(kinds of work on chunks, columns): seconds."""
    of_wire: FloatArray


def _rows_of(groups: Sequence[Sequence[Run]]) -> _Rows:
    graphs = [columns[0].graph for columns in groups]
    starts = _begins([len(graph.kind) for graph in graphs])
    first = np.concatenate([graph.first[:-1] + at for graph, at in zip(graphs, starts, strict=True)])
    limit = np.concatenate([graph.first[1:] + at for graph, at in zip(graphs, starts, strict=True)])
    of_work = [np.stack([run.of_work for run in columns], axis=1) for columns in groups]
    of_wire = [np.stack([run.of_wire for run in columns], axis=1) for columns in groups]
    work = [columns[0].graph.work(columns[0].shape) for columns in groups]
    before = np.arange(-1, sum(len(graph.kind) for graph in graphs) - 1)
    before[first[first < limit]] = len(before)
    return _Rows(
        _behind_each_other([graph.needs for graph in graphs], starts, len(before)),
        before,
        _behind_each_other([graph.link_before for graph in graphs], starts, len(before)),
        first,
        limit,
        starts,
        _behind_each_other(work, _begins([len(table) for table in of_work])),
        _behind_each_other([graph.wire for graph in graphs], _begins([len(table) for table in of_wire])),
        np.concatenate(of_work),
        np.concatenate(of_wire),
    )


def _begins(sizes: Sequence[int]) -> IntArray:
    """Where each of several pieces of these sizes begins, one behind the other."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]])


def _behind_each_other(indices: Sequence[IntArray], begins: IntArray, nothing: int = 0) -> IntArray:
    """Indices into pieces that now stand one behind the other; -1 becomes `nothing`."""
    moved = np.concatenate([piece + at for piece, at in zip(indices, begins, strict=True)])
    if nothing:
        moved[np.concatenate(indices) < 0] = nothing
    return moved


@dataclass(frozen=True)
class _Together:
    """Runs that are made together."""

    groups: list[list[int]]
    """Which of the runs are the columns of each graph."""
    rows: _Rows
    turns: list[IntArray]

    def starts_s(self) -> list[list[FloatArray]]:
        """Of each graph and column the start of each row."""
        start, _ = _run(self.rows, self.turns, keep=True)
        return [list(of_graph.T) for of_graph in np.split(start, self.rows.starts[1:])]

    def makespans_s(self) -> list[list[float]]:
        """Of each graph and column the last end."""
        _, last = _run(self.rows, self.turns, keep=False)
        of_graphs = np.split(last, np.searchsorted(self.rows.first, self.rows.starts[1:]))
        return [of_graph.max(axis=0).tolist() for of_graph in of_graphs]


def _together(runs: Sequence[Run]) -> _Together | None:
    """None where ranks wait for each other."""
    groups = _side_by_side(runs)
    rows = _rows_of([[runs[index] for index in group] for group in groups])
    turns = _turns(rows)
    return None if turns is None else _Together(groups, rows, turns)


def _turns(rows: _Rows) -> list[IntArray] | None:
    """The rows that are done at each turn, one of each rank that can go on; None where ranks wait for each other."""
    done = np.zeros(len(rows.needs) + 1, dtype=np.bool_)
    done[-1] = True
    position, turns = rows.first.copy(), list[IntArray]()
    working = np.flatnonzero(position < rows.limit)
    while len(working):
        # none of them is at its end before so many turns
        for _ in range(int((rows.limit - position)[working].min())):
            rank, action = working, position[working]
            ready = done[rows.needs[action]]
            if not ready.all():
                rank, action = working[ready], action[ready]
                if not len(rank):
                    return None
            done[action] = True
            position[rank] += 1
            turns.append(action)
        working = working[position[working] < rows.limit[working]]
    return turns


def _run(rows: _Rows, turns: Sequence[IntArray], *, keep: bool) -> tuple[FloatArray, FloatArray]:
    """The start of each row, (rows, columns), where it is to be kept, and the end of each rank's work.

    All is put in the order of the turns, so that each turn is a piece of it.
    """
    order = np.concatenate(turns)
    place = np.append(np.empty_like(order), len(order))
    place[order] = np.arange(len(order))
    needs, before, link_before = (place[of[order]] for of in (rows.needs, rows.rank_before, rows.link_before))
    work, wire = rows.work[order], rows.wire[order]
    # with one row more: what nothing waits for
    end, arrival = np.zeros((2, len(order) + 1, rows.of_work.shape[1]))
    start = np.empty((len(order) if keep else 0, end.shape[1]))
    at = 0
    for turn in turns:
        now = slice(at, at := at + len(turn))
        time = np.maximum(arrival.take(needs[now], axis=0), end.take(before[now], axis=0))
        if keep:
            start[now] = time
        time += rows.of_work.take(work[now], axis=0)
        end[now] = time
        np.maximum(arrival.take(link_before[now], axis=0), time, out=time)
        time += rows.of_wire.take(wire[now], axis=0)
        arrival[now] = time
    last = np.where(rows.first < rows.limit, rows.limit - 1, len(order))
    return start.take(place[:-1], axis=0) if keep else start, end.take(place[last], axis=0)
