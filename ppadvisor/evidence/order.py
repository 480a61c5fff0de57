"""How right an order is: pairs, first choice, regret. Arrays over the plans of one question; nothing else is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.results import Result

BoolArray = NDArray[np.bool_]

RESOLUTION = 0.01
"""Times that differ by less are not told apart: published ones have about three digits, and repeated runs differ so."""
CLEAR = 0.05
"""From this gap on a pair is clearly different."""
EQUAL = 1e-9
"""Relative difference below which two keys are equal, and the order does not decide: rounding."""


class Outcome(Result):
    """What one way of ordering does with one question. What it leaves undecided counts half, or is a mean."""

    pairs_right: float
    """Pairs of plans that ran and differ by at least RESOLUTION, in the right order."""
    clear_pairs_right: float
    """Of those that differ by at least CLEAR."""
    best: float
    """1 where the first choice is the fastest plan measured, within RESOLUTION; a share where several come first."""
    regret_fraction: float | None
    """Measured time of the first choice over that of the fastest plan − 1; None where the first choice did not run."""
    order_regret_fraction: float
    """The regret of the first choice among the plans that ran: of the order alone, whatever was offered."""
    ran_out: float
    """1 where the first choice ran out of memory; a share where several come first."""


def outcome_of(keys: FloatArray, measured: FloatArray, offered: BoolArray) -> Outcome:
    """Score the order by `keys`, lowest first, against the `measured` times (nan: ran out of memory).

    The first choice is made among the plans `offered`; pairs are all that ran.
    """
    fastest = np.nanmin(measured)
    regrets = measured[first_of(keys, offered)] / fastest - 1.0
    ran = np.isfinite(regrets)
    return Outcome(
        pairs_right=_right(keys, measured, RESOLUTION),
        clear_pairs_right=_right(keys, measured, CLEAR),
        best=float((regrets < RESOLUTION).mean()),
        regret_fraction=float(regrets[ran].mean()) if ran.any() else None,
        order_regret_fraction=float((measured[first_of(keys, np.isfinite(measured))] / fastest).mean() - 1.0),
        ran_out=float((~ran).mean()),
    )


def first_of(keys: FloatArray, offered: BoolArray) -> list[int]:
    """Places of the first choice among the plans offered; several where their keys are equal."""
    lowest = keys[offered].min()
    equal = np.abs(keys - lowest) <= EQUAL * np.maximum(np.abs(keys), abs(lowest))
    return [int(place) for place in np.flatnonzero(equal & offered)]


def pairs_of(measured: FloatArray, gap: float) -> BoolArray:
    """(n, n): True for i, j where plan j is slower than i by the gap, which is over the faster time."""
    # a comparison with nan, a plan that did not run, is False
    return np.asarray(measured[None, :] - measured[:, None] >= gap * measured[:, None])


def _right(keys: FloatArray, measured: FloatArray, gap: float) -> float:
    """How many pairs the keys put in the right order."""
    later = keys[None, :] - keys[:, None]
    equal = np.abs(later) <= EQUAL * np.maximum(np.abs(keys)[None, :], np.abs(keys)[:, None])
    right = np.where(equal, 0.5, later > 0)
    return float(right[pairs_of(measured, gap)].sum())


def offered_by(verdicts: Sequence[int]) -> BoolArray:
    """The plans of the most hopeful verdict (0 fits, 1 borderline, 2 does not fit) that any of them has."""
    seen = np.asarray(verdicts)
    return np.asarray(seen == seen.min())
