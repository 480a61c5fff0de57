"""Recomputation of some layers: where `none` does not fit and `full` does, the fewest layers that make a plan fit.

The peak is a maximum of lines that fall with the number of recomputed layers, so the chord from `none` to `full` meets
the limit at that number or a little above it; from there it is searched by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, verdicts
from ppadvisor.engine.problem import Problem
from ppadvisor.search.decided import Decided, evaluated
from ppadvisor.search.recomputations import largest_chunk
from ppadvisor.specs.plan import IntArray, PlanTable, row_keys
from ppadvisor.specs.recomputation import FULL, NONE, Recomputation

FloatArray = NDArray[np.float64]

WORTH_TRYING = 200
"""A plan whose time without recomputation is behind that of so many plans that fit cannot come to the top."""

SOME_LAYERS = "full:block"
"""What a report calls them all together."""


@dataclass(frozen=True)
class _Bracket:
    """For each plan a number of layers that does not fit, one that does, and how far both are from the limits."""

    plans: PlanTable
    """Whose recomputation is still open."""
    size: IntArray
    """Their sizes, among those of the whole search."""
    low: IntArray
    high: IntArray
    lack: FloatArray
    """(2, plans): bytes beyond the limits at `low`."""
    room: FloatArray
    """(2, plans): the same at `high`, below zero."""

    def take(self, rows: IntArray | NDArray[np.bool_]) -> _Bracket:
        size, low, high = (values[rows] for values in (self.size, self.low, self.high))
        return _Bracket(self.plans.take(rows), size, low, high, self.lack[:, rows], self.room[:, rows])

    def guess(self, turn: int) -> IntArray:
        """Along the chord, then one less than what fits, then half-way."""
        if turn == 0:
            share = np.maximum(self.lack, 0.0) / np.maximum(self.lack - self.room, 1.0)
            tried = self.low + np.ceil(share.max(axis=0) * (self.high - self.low)).astype(np.int64)
        else:
            tried = self.high - 1 if turn == 1 else (self.low + self.high) // 2
        return np.asarray(np.clip(tried, self.low + 1, self.high - 1))


def with_fewest_layers(every: Decided) -> Decided | None:
    """Plans between `none` and `full`; None where the framework or the question has no such thing."""
    problem, plans, margin = every.problem, every.plans, every.margin
    if "block" not in problem.framework.recompute_methods or not {NONE, FULL} <= set(plans.recomputations):
        return None
    distinct, size = every.sizes
    without, full = _pairs(every)
    limits = _limits(problem, margin)
    held = largest_chunk(problem.model, plans)[plans.split[without]]
    lack, room = (_beyond(every.estimates, rows, limits) for rows in (without, full))
    bracket = _Bracket(plans.take(without), size[without], np.zeros_like(held), held, lack, room)
    found: list[tuple[PlanTable, IntArray]] = []
    turn = 0
    while True:
        bracket = bracket.take(bracket.high - bracket.low > 1)
        if not len(bracket.low):
            if not found:
                return None
            fewest, sizes = _fewest(found)
            return evaluated(problem, fewest, margin=margin, sizes=(distinct, sizes))
        layers = bracket.guess(turn)
        tried = _with_layers(bracket.plans, layers)
        fits = verdicts(problem, tried, margin=margin, sizes=(distinct, bracket.size)) == VERDICTS.index("fits")
        if fits.any():
            found.append((tried.take(fits), bracket.size[fits]))
        bracket = replace(bracket, low=np.where(fits, bracket.low, layers), high=np.where(fits, layers, bracket.high))
        turn += 1


def _limits(problem: Problem, margin: float) -> tuple[float, float]:
    """What the middle and the conservative estimate may take, bytes."""
    capacity = float(problem.cluster.gpu.memory_bytes)
    return margin * capacity, capacity


def _beyond(estimates: EstimateTable, rows: IntArray, limits: tuple[float, float]) -> FloatArray:
    """Bytes beyond the limits, (2, rows); below zero where there is room."""
    return np.stack([estimates.peak_bytes[rows] - limits[0], estimates.conservative_bytes[rows] - limits[1]])


def _pairs(every: Decided) -> tuple[IntArray, IntArray]:
    """Rows (without, full) that differ in recomputation alone, of which the first does not fit and the second does."""
    plans, estimates = every.plans, every.estimates
    fits = estimates.verdict == VERDICTS.index("fits")
    times = np.sort(estimates.step_time_s[fits])
    slowest = times[min(WORTH_TRYING, len(times)) - 1] if len(times) else np.inf
    none, full = plans.recomputations.index(NONE), plans.recomputations.index(FULL)
    fully = np.flatnonzero((plans.recompute == full) & fits)
    without = np.flatnonzero((plans.recompute == none) & ~fits & (every.least_steps_s < slowest))
    if not len(fully):
        return without[:0], fully
    key = _key(plans)
    fully = fully[np.argsort(key[fully])]
    partner = fully[np.minimum(np.searchsorted(key[fully], key[without]), len(fully) - 1)]
    same = key[partner] == key[without]
    every.complete(without[same])
    same &= estimates.step_time_s[without] < slowest
    return without[same], partner[same]


def _key(plans: PlanTable) -> IntArray:
    """One number for all columns but the recomputation."""
    return row_keys([getattr(plans, name) for name in PlanTable.column_names() if name != "recompute"])


def _with_layers(plans: PlanTable, layers: IntArray) -> PlanTable:
    """These plans with so many layers of each chunk recomputed."""
    numbers, index = np.unique(layers, return_inverse=True)
    choices = tuple(Recomputation("full", method="block", num_layers=int(n)) for n in numbers)
    return replace(plans, recompute=index.astype(np.int64), recomputations=choices)


def _fewest(found: list[tuple[PlanTable, IntArray]]) -> tuple[PlanTable, IntArray]:
    """Of what was found for each plan the last, which recomputes the fewest layers, and its size."""
    tables, sizes = zip(*found, strict=True)
    every = joined_tables(tables)
    key = _key(every)
    _, last = np.unique(key[::-1], return_index=True)
    rows = np.sort(len(key) - 1 - last)
    return every.take(rows), np.concatenate(sizes)[rows]


def joined_tables(tables: Sequence[PlanTable]) -> PlanTable:
    """Several tables of the same schedules and splits as one, their recomputations told apart."""
    choices = tuple(dict.fromkeys(choice for table in tables for choice in table.recomputations))
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables]) for name in PlanTable.column_names()
    }
    index = [np.array([choices.index(c) for c in table.recomputations], dtype=np.int64) for table in tables]
    columns["recompute"] = np.concatenate([new[t.recompute] for new, t in zip(index, tables, strict=True)])
    return replace(tables[0], **columns, recomputations=choices)


def joined(one: Decided, other: Decided) -> Decided:
    """Two tables of the same question, and of the same sizes, as one."""
    pairs = {f.name: (getattr(one.estimates, f.name), getattr(other.estimates, f.name)) for f in fields(EstimateTable)}
    return replace(
        one,
        plans=joined_tables([one.plans, other.plans]),
        estimates=EstimateTable(**{name: np.concatenate(pair) for name, pair in pairs.items()}),
        sizes=(one.sizes[0], np.concatenate([one.sizes[1], other.sizes[1]])),
        bounded=np.concatenate([one.bounded, other.bounded]),
    )
