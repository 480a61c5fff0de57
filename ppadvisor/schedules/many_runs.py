"""Many replays at once: of each how long it takes, or when each action starts.

The rules are those of `replay`, and so are the numbers, bit for bit: every start is the same maximum of the same sums.
All ranks of all runs that can go on take one action together, as arrays; runs of one graph go on at the same turns, and
are the columns of these arrays. A run alone is faster in a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor.schedules.base import FloatArray, IntArray
from ppadvisor.schedules.replay import Run

FEW_RANKS = 40
"""Up to so many ranks at once a plain loop over the actions is as fast (measured: 0.4 us an action, 20 us a turn)."""
MOST_ACTIONS = 1_000_000
"""Actions at once: 50 MB."""
MOST_COLUMNS = 4
"""Runs of one graph side by side at most: two rows of them are a line of the cache."""


def makespans_s(runs: Sequence[Run]) -> list[float]:
    """`Run.makespan_s` of each."""
    return [float((start + run.durations).max()) for run, start in zip(runs, starts_s(runs), strict=True)]


def starts_s(runs: Sequence[Run]) -> list[FloatArray]:
    """`Run.starts_s` of each."""
    result = [np.zeros(0)] * len(runs)
    for batch in _batches(runs):
        ranks = sum(len(runs[index].graph.first) - 1 for index in batch)
        of_batch = [runs[index] for index in batch]
        starts = [run.starts_s() for run in of_batch] if ranks <= FEW_RANKS else _together(of_batch)
        for index, start in zip(batch, starts, strict=True):
            result[index] = start
    return result


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


def _together(runs: Sequence[Run]) -> list[FloatArray]:
    groups = _side_by_side(runs)
    rows = _rows_of([[runs[index] for index in group] for group in groups])
    turns = _turns(rows)
    if turns is None:
        return [run.starts_s() for run in runs]  # one by one, so that the deadlock is told
    result = [np.zeros(0)] * len(runs)
    for group, of_group in zip(groups, np.split(_starts(rows, turns), rows.starts[1:]), strict=True):
        for column, index in enumerate(group):
            result[index] = of_group[:, column]
    return result


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


def _starts(rows: _Rows, turns: Sequence[IntArray]) -> FloatArray:
    """The start of each row, (rows, columns). All is put in the order of the turns, so that each is a piece of it."""
    order = np.concatenate(turns)
    place = np.append(np.empty_like(order), len(order))
    place[order] = np.arange(len(order))
    needs, before, link_before = (place[of[order]] for of in (rows.needs, rows.rank_before, rows.link_before))
    work, wire = rows.work[order], rows.wire[order]
    start = np.empty((len(order), rows.of_work.shape[1]))
    # with one row more: what nothing waits for
    end, arrival = (np.zeros((len(order) + 1, start.shape[1])) for _ in range(2))
    at = 0
    for turn in turns:
        now = slice(at, at := at + len(turn))
        time = np.maximum(arrival.take(needs[now], axis=0), end.take(before[now], axis=0), out=start[now]).copy()
        time += rows.of_work.take(work[now], axis=0)
        end[now] = time
        np.maximum(arrival.take(link_before[now], axis=0), time, out=time)
        time += rows.of_wire.take(wire[now], axis=0)
        arrival[now] = time
    return start.take(place[:-1], axis=0)
