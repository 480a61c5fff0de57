"""From an order by array forms to the plans that are shown: the near-ties are replayed, variants that say nothing go.

The array forms tell unequal stages and chunks apart by bounds; a replay of a few rounds of micro-batches, continued
at its steady rate, tells them apart within about a part in a thousand. Only what is shown is replayed in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ppadvisor.engine.evaluate import Measured, estimates_of, quick_steps_s
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import plan_of
from ppadvisor.search.balance import first_that_fit, splits_to_try, with_fastest_splits, with_fewer_layers
from ppadvisor.search.fewest_layers import SOME_LAYERS
from ppadvisor.search.noise import simplest_first
from ppadvisor.search.ranking import IntArray, Ranked, as_printed
from ppadvisor.specs.plan import PlanTable

RESERVE = 4
"""Plans looked at closely beyond those that are shown."""
NEAR = 0.06
"""Share by which a plan may be behind the first and still have all its variants replayed: the error of the array forms
for model-like stages, 95 % of cases."""
MOST_VARIANTS = 8
"""Splits and virtual stages of one plan that are replayed at most."""
FEW_VARIANTS = 4
"""The same of a plan that is further behind: its splits."""
TRIES = 12
"""Plans estimated at most for each that is wanted: the exact count of memory can exceed that of the array forms."""
CLEARLY_LESS = 0.95
"""A variant of a better plan is shown where its peak is below this share of the better one's."""

VARIANT_COLUMNS = ("split", "virtual_stages", "recompute")
"""What makes a variant of a plan, not another plan."""

Sizes = tuple[int, ...]


def best_estimates(ranked: Ranked, top: int, *, margin: float, sort: str = "step_time_s") -> list[PlanEstimate]:
    """The `top` best plans, every rank and replayed; the replayed numbers decide their order.

    By step time a simpler plan within the noise of the fastest comes first.
    """
    return best_of_each(ranked, [ranked.order], top, margin=margin, sort=sort)[0]


def best_of_each(
    ranked: Ranked, orders: Sequence[IntArray], top: int, *, margin: float, sort: str = "step_time_s"
) -> list[list[PlanEstimate]]:
    """`best_estimates` of several orders: what is looked at, is looked at together."""
    wanted, by_time = top + RESERVE, sort == "step_time_s"
    tried = _refined(ranked, orders, wanted) if by_time else orders
    fitting = fitting_of_each(ranked, tried, wanted, margin=margin, balance=sort != "peak_bytes")
    found = [_in_order(of_order, sort) for of_order in fitting]
    if by_time:
        found = [simplest_first(ranked.problem, of_order) for of_order in found]
        firsts = with_fastest_splits(ranked.problem, [first for first, *_ in filter(None, found)], margin=margin)
        for of_order, first in zip(filter(None, found), firsts, strict=True):
            of_order[0] = _fewest_layers(ranked, first, margin)
    return [of_order[:top] for of_order in found]


def _in_order(estimates: list[PlanEstimate], sort: str) -> list[PlanEstimate]:
    printed = as_printed(np.array([_sort_value(estimate, sort) for estimate in estimates], dtype=np.float64))
    # a stable sort: ties keep the order by memory and moving parts
    return [estimates[i] for i in np.argsort(printed, kind="stable")]


def fitting_of_each(
    ranked: Ranked, orders: Sequence[IntArray], wanted: int, *, margin: float, balance: bool = True
) -> list[list[PlanEstimate]]:
    """The first `wanted` plans of each order that tell a reader something new and fit by the exact count.

    With `balance` each has the fastest split that is known for it, and recomputes no more layers than it must. What is
    looked at, is looked at together.
    """
    fitting = measured_of_each(ranked, orders, wanted, margin=margin, balance=balance)
    estimates = iter(estimates_of([one for of_order in fitting for one in of_order]))
    return [
        [_fewest_layers(ranked, one, margin) if balance else one for one in islice(estimates, len(of_order))]
        for of_order in fitting
    ]


def measured_of_each(
    ranked: Ranked, orders: Sequence[IntArray], wanted: int, *, margin: float, balance: bool
) -> list[list[Measured]]:
    """The plans of `fitting_of_each` before their pipelines are replayed."""
    rows = [islice(_distinct(ranked, order), wanted * TRIES) for order in orders]
    fitting = [list[Measured]() for _ in orders]
    while True:
        tried = [
            (index, row) for index in range(len(orders)) for row in islice(rows[index], wanted - len(fitting[index]))
        ]
        if not tried:
            break
        plans = [plan_of(ranked.plans, row) for _, row in tried]
        splits = splits_to_try(ranked.problem, plans, margin=margin) if balance else [[one] for one in plans]
        for (index, _), found in zip(tried, first_that_fit(ranked.problem, splits, margin=margin), strict=True):
            fitting[index] += [found] if found else []
    return fitting


def _fewest_layers(ranked: Ranked, estimate: PlanEstimate, margin: float) -> PlanEstimate:
    """`with_fewer_layers` where the search chose their number, not a pin."""
    chosen = SOME_LAYERS in ranked.space.searched["recompute"]
    return with_fewer_layers(ranked.problem, estimate, margin=margin) if chosen else estimate


def _refined(ranked: Ranked, orders: Sequence[IntArray], wanted: int) -> list[IntArray]:
    """Each order with the variants of its first plans as a quick replay puts them, in front of all others."""
    variants = [_variants(ranked, order, wanted) for order in orders]
    together = np.array([row for rows in variants for row in rows], dtype=np.int64)
    seconds = iter(quick_steps_s(ranked.problem, ranked.plans.take(together)).tolist())
    refined = []
    for order, rows in zip(orders, variants, strict=True):
        printed = as_printed(np.array([next(seconds) for _ in rows], dtype=np.float64))
        first = np.array(rows, dtype=np.int64)[np.lexsort((ranked.estimates.peak_bytes[rows], printed))]
        refined.append(np.concatenate([first, order[~np.isin(order, first)]]))
    return refined


def _variants(ranked: Ranked, order: IntArray, wanted: int) -> list[int]:
    """The rows of the first plans of an order that are told apart by a quick replay."""
    guess = ranked.estimates.step_time_s
    of_plan: dict[Sizes, dict[int, list[int]]] = {}
    for row in order:
        sizes = _sizes(ranked.plans, row)
        if sizes not in of_plan and len(of_plan) == wanted:
            break
        near = guess[row] <= guess[order[0]] * (1 + NEAR)
        variants = of_plan.setdefault(sizes, {}).setdefault(int(ranked.plans.recompute[row]), [])
        if len(variants) < (MOST_VARIANTS if near else FEW_VARIANTS):
            variants.append(int(row))
    return [row for plan in of_plan.values() for variants in plan.values() for row in variants]


def _distinct(ranked: Ranked, order: IntArray) -> Iterator[int]:
    """Rows of `order` that tell a reader something new, in that order.

    A plan that differs from a better one only in its split, or in its recomputation or virtual stages without needing
    clearly less memory, is passed over: otherwise variants of the best would fill the table.
    """
    least: dict[Sizes, float] = {}
    seen: set[Sizes] = set()
    for row in order:
        sizes = _sizes(ranked.plans, row)
        variant = (*sizes, int(ranked.plans.recompute[row]), int(ranked.plans.virtual_stages[row]))
        peak = float(ranked.estimates.peak_bytes[row])
        if variant not in seen and peak < least.get(sizes, np.inf) * CLEARLY_LESS:
            least[sizes] = peak
            yield int(row)
        seen.add(variant)


def _sizes(plans: PlanTable, row: int) -> Sizes:
    names = (name for name in PlanTable.column_names() if name not in VARIANT_COLUMNS)
    return tuple(int(getattr(plans, name)[row]) for name in names)


def _sort_value(estimate: PlanEstimate, sort: str) -> float:
    return float(estimate.memory.peak_bytes if sort == "peak_bytes" else getattr(estimate.time, sort))
