"""Many replays at once: of each how long it takes, or when each action starts.

The rules are those of `replay`, and so are the numbers, bit for bit: every start is the same maximum of the same sums.
All ranks of all runs that can go on take one action together, as arrays; a run alone is faster in a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor.schedules.base import FloatArray, IntArray
from ppadvisor.schedules.replay import Run

FEW_RANKS = 40
"""Up to so many ranks at once a plain loop over the actions is as fast (measured: 0.4 us an action, 20 us a turn)."""
MOST_ACTIONS = 400_000
"""Actions at once: 16 MB."""


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
    for index in sorted(range(len(runs)), key=turns.__getitem__):
        actions += len(runs[index].durations)
        if batch and (actions > MOST_ACTIONS or turns[index] > 2 * turns[batch[0]]):
            yield batch
            batch, actions = [], len(runs[index].durations)
        batch.append(index)
    if batch:
        yield batch


@dataclass(frozen=True)
class _Rows:
    """The rows of several graphs behind each other, and one more that is there from the start."""

    needs: IntArray
    durations: FloatArray
    wire: FloatArray
    link: IntArray
    num_links: int
    first: IntArray
    """Where each rank of each run begins."""
    limit: IntArray
    starts: IntArray
    """Where each run begins."""


def _rows_of(runs: Sequence[Run]) -> _Rows:
    sizes = np.array([len(run.durations) for run in runs])
    ranks = np.array([len(run.graph.first) - 1 for run in runs])
    starts, links = (np.concatenate([[0], np.cumsum(each)[:-1]]) for each in (sizes, ranks**2))
    total = int(sizes.sum())
    needs = [np.where(r.graph.needs >= 0, r.graph.needs + at, total) for r, at in zip(runs, starts, strict=True)]
    return _Rows(
        np.concatenate(needs),
        np.concatenate([run.durations for run in runs]),
        np.concatenate([run.wires.seconds for run in runs]),
        np.concatenate([run.wires.link + at for run, at in zip(runs, links, strict=True)]),
        int((ranks**2).sum()),
        np.concatenate([run.graph.first[:-1] + at for run, at in zip(runs, starts, strict=True)]),
        np.concatenate([run.graph.first[1:] + at for run, at in zip(runs, starts, strict=True)]),
        starts,
    )


def _together(runs: Sequence[Run]) -> list[FloatArray]:
    rows = _rows_of(runs)
    start = np.zeros(len(rows.durations))
    arrival = np.full(len(rows.durations) + 1, -1.0)
    arrival[-1] = 0.0
    position, clock, link_free = rows.first.copy(), np.zeros(len(rows.first)), np.zeros(rows.num_links)
    working = np.flatnonzero(position < rows.limit)
    while len(working):
        action = position[working]
        there = arrival[rows.needs[action]]
        ready = there >= 0.0
        if ready.all():
            rank = working
        else:
            rank, action, there = working[ready], action[ready], there[ready]
        if not len(rank):
            return [run.starts_s() for run in runs]  # one by one, so that the deadlock is told
        begun = np.maximum(clock[rank], there)
        start[action] = begun
        now = begun + rows.durations[action]
        link = rows.link[action]
        gone = np.maximum(link_free[link], now) + rows.wire[action]
        arrival[action], link_free[link], clock[rank] = gone, gone, now
        position[rank] = action + 1
        if (position[rank] == rows.limit[rank]).any():
            working = working[position[working] < rows.limit[working]]
    return np.split(start, rows.starts[1:])
