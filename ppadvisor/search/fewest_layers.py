"""Recomputation of some layers: where `none` does not fit and `full` does, the fewest layers that make a plan fit.

The peak is a maximum of lines that fall with the number of recomputed layers, so the chord from `none` to `full` meets
the limit at that number or a little above it; from there down numbers are tried, of all plans at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.distinct import Distinct
from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, verdicts
from ppadvisor.engine.problem import Problem
from ppadvisor.search.decided import Decided, evaluated
from ppadvisor.search.recomputations import largest_chunk
from ppadvisor.specs.plan import IntArray, PlanTable
from ppadvisor.specs.recomputation import FULL, NONE, Recomputation

FloatArray = NDArray[np.float64]

WORTH_TRYING = 200
"""A plan whose time without recomputation is behind that of so many plans that fit cannot come to the top."""

SOME_LAYERS = "full:block"
"""What a report calls them all together."""

AT_ONCE = 4_000
"""Plans, each with some number of recomputed layers, that are looked at together: what a table costs at least is spent
once for them."""


def with_fewest_layers(every: Decided, questions: Sequence[IntArray] = ()) -> Decided | None:
    """Plans between `none` and `full`; None where the framework or the question has no such thing.

    `questions`: the rows of each, where several are asked together; without them all rows are of one.
    """
    problem, plans, margin = every.problem, every.plans, every.margin
    if "block" not in problem.framework.recompute_methods or not {NONE, FULL} <= set(plans.recomputations):
        return None
    without, full = _pairs(every, questions)
    limits = _limits(problem, margin)
    held = largest_chunk(problem.model, plans)[plans.split[without]]
    lack, room = (_beyond(every.estimates, rows, limits) for rows in (without, full))
    low, high = np.zeros_like(held), held.copy()
    top = _on_chord(lack, room, held)
    plans, distinct = plans.take(without), every.distinct.take(without)
    while len(open_ := np.flatnonzero(high - low > 1)):
        row, layers = _numbers_between(open_, low, top)
        tried = _with_layers(plans.take(row), layers)
        fits = verdicts(problem, tried, margin=margin, distinct=distinct.take(row)) == VERDICTS.index("fits")
        np.minimum.at(high, row[fits], layers[fits])
        np.maximum.at(low, row[~fits], layers[~fits])
        top = high - 1
    some = np.flatnonzero(high < held)
    if not len(some):
        return None
    return evaluated(problem, _with_layers(plans.take(some), high[some]), margin=margin, distinct=distinct.take(some))


def _on_chord(lack: FloatArray, room: FloatArray, held: IntArray) -> IntArray:
    """The number of layers, of those held, at which the chord of each plan meets the limits.

    `lack`: bytes beyond the limits without recomputation, (2, plans); `room`: the same with all of it, below zero.
    """
    share = np.maximum(lack, 0.0) / np.maximum(lack - room, 1.0)
    met = np.ceil(share.max(axis=0) * held).astype(np.int64)
    return np.asarray(np.clip(met, 1, np.maximum(held - 1, 1)))


def _numbers_between(plans: IntArray, low: IntArray, top: IntArray) -> tuple[IntArray, IntArray]:
    """(plan, layers): for each of some plans numbers above `low` up to `top`, evenly spread where they are many."""
    number = (top - low)[plans]
    count = np.minimum(number, max(1, AT_ONCE // len(plans)))
    index = np.repeat(np.arange(len(plans)), count)
    turn = np.arange(1, len(index) + 1) - np.repeat(np.cumsum(count) - count, count)
    row = plans[index]
    return row, low[row] - (-number[index] * turn // count[index])


def _limits(problem: Problem, margin: float) -> tuple[float, float]:
    """What the middle and the conservative estimate may take, bytes."""
    capacity = float(problem.cluster.gpu.memory_bytes)
    return margin * capacity, capacity


def _beyond(estimates: EstimateTable, rows: IntArray, limits: tuple[float, float]) -> FloatArray:
    """Bytes beyond the limits, (2, rows); below zero where there is room."""
    return np.stack([estimates.peak_bytes[rows] - limits[0], estimates.conservative_bytes[rows] - limits[1]])


def _slowest(every: Decided, questions: Sequence[IntArray]) -> FloatArray:
    """Seconds above which a plan is not worth trying, (plans,): none of a row that is of no question."""
    fits = every.estimates.verdict == VERDICTS.index("fits")

    def of_question(rows: IntArray) -> float:
        times = np.sort(every.estimates.step_time_s[rows])
        return float(times[min(WORTH_TRYING, len(times)) - 1]) if len(times) else np.inf

    if not questions:
        return np.broadcast_to(of_question(np.flatnonzero(fits)), fits.shape)
    slowest = np.full(len(fits), -np.inf)
    for rows in questions:
        slowest[rows] = of_question(rows[fits[rows]])
    return slowest


def _pairs(every: Decided, questions: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Rows (without, full) that differ in recomputation alone, of which the first does not fit and the second does."""
    plans, estimates, slowest = every.plans, every.estimates, _slowest(every, questions)
    fits = estimates.verdict == VERDICTS.index("fits")
    none, full = plans.recomputations.index(NONE), plans.recomputations.index(FULL)
    fully = np.flatnonzero((plans.recompute == full) & fits)
    without = np.flatnonzero((plans.recompute == none) & ~fits & (every.least_steps_s < slowest))
    if not len(fully):
        return without[:0], fully
    key = _key(every.distinct)
    fully = fully[np.argsort(key[fully])]
    partner = fully[np.minimum(np.searchsorted(key[fully], key[without]), len(fully) - 1)]
    same = key[partner] == key[without]
    every.complete(without[same])
    same &= estimates.step_time_s[without] < slowest[without]
    return without[same], partner[same]


def _key(distinct: Distinct) -> IntArray:
    """One number for all columns but the recomputation."""
    return distinct.size * len(distinct.layouts.plans) + distinct.layout


def _with_layers(plans: PlanTable, layers: IntArray) -> PlanTable:
    """These plans with so many layers of each chunk recomputed."""
    numbers, index = np.unique(layers, return_inverse=True)
    choices = tuple(Recomputation("full", method="block", num_layers=int(n)) for n in numbers)
    return replace(plans, recompute=index.astype(np.int64), recomputations=choices)


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
        distinct=one.distinct.followed_by(other.distinct),
        bounded=np.concatenate([one.bounded, other.bounded]),
    )
