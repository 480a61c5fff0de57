"""How sure the order of plans is: their step times drawn over what nobody knows before the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor.engine.draws import NUM_DRAWS, drawn_step_times, shuffled_shares
from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import table_of
from ppadvisor.search.ranking import moving_parts
from ppadvisor.specs.plan import PlanSpec

REPEAT_FRACTION = 0.01
"""A plan's own time is drawn this far to either side. One plan run twice in the records that come with the package:
within 0.3 % in vocabpp and vtrain_multi, 1.7 % apart in bloom_final, up to 9 % in bloom_prequel."""
DOUBT_FRACTION = 1 / 3
"""A simpler plan that is the faster one in this share of the draws is within the noise of the fastest."""
CONTENDERS = 5
"""Plans that may be preferred to the fastest: as many as are looked at wherever one is shown."""
LOW, HIGH = 0.05, 0.95
"""Quantiles of the draws: nine in ten lie between."""


@dataclass(frozen=True)
class Stability:
    """What draws say of ranked plans. Arrays (plans,)."""

    low_s: FloatArray
    high_s: FloatArray
    first_in_fraction: float
    """Share of the draws in which the first plan is the fastest of all."""
    rival: int | None
    """Index of the plan that is the fastest most often in the others; None where there are none."""
    rival_in_fraction: float


def drawn_steps(problem: Problem, estimates: Sequence[PlanEstimate]) -> FloatArray:
    """Step time of each plan in each draw, (draws, plans) seconds: shared assumptions, and a scatter of its own.

    Without the scatter all that two plans have in common would cancel, and one that is a thousandth ahead be called
    first in every draw; no two runs of one plan are that close.
    """
    scatter = [REPEAT_FRACTION * (2 * shuffled_shares(_name(e.plan), NUM_DRAWS) - 1) for e in estimates]
    return drawn_step_times(problem, estimates) * (1 + np.stack(scatter, axis=1))


def _name(plan: PlanSpec) -> str:
    return json.dumps(plan.as_dict(), separators=(",", ":"))


def quantile(draws: FloatArray, share: float) -> FloatArray:
    """The quantile of each column, between the two nearest draws in a straight line.

    `np.quantile` does the same and first imports numpy.ma, for a twentieth of the time that a small question takes.
    """
    place = share * (len(draws) - 1)
    below = int(place)
    ordered = np.sort(draws, axis=0)
    lower, upper = ordered[below], ordered[min(below + 1, len(draws) - 1)]
    rest = place - below
    # from the nearer end, so that equal draws give just that
    return np.asarray(lower + (upper - lower) * rest if rest < 0.5 else upper - (upper - lower) * (1 - rest))


def stability(problem: Problem, estimates: Sequence[PlanEstimate]) -> Stability:
    """The band of each plan, and whether the first stays first."""
    steps = drawn_steps(problem, estimates)
    low, high = quantile(steps, LOW), quantile(steps, HIGH)
    wins = np.bincount(steps.argmin(axis=1), minlength=len(estimates)) / len(steps)
    others = wins[1:]
    rival = 1 + int(others.argmax()) if others.any() else None
    return Stability(low, high, float(wins[0]), rival, float(wins[rival]) if rival else 0.0)


def faster_in(
    problem: Problem, one: PlanEstimate, other: PlanEstimate, problem_of_other: Problem | None = None
) -> float:
    """Share of the draws in which the first of the two is the faster one; an assumption is drawn alike for both."""
    steps, others = drawn_steps(problem, (one,)), drawn_steps(problem_of_other or problem, (other,))
    return float((steps < others).mean())


def simplest_first(problem: Problem, estimates: list[PlanEstimate]) -> list[PlanEstimate]:
    """Plans, fastest first, with one put in front of the fastest where that is simpler and within the noise.

    The rule: of the CONTENDERS first plans those with fewer moving parts (`search.ranking.moving_parts`) than the
    fastest that are faster than it in at least DOUBT_FRACTION of the draws; of them the one with the fewest moving
    parts, of equals the faster. Where nothing but their gap tells two plans apart, 0.37 % of a step is that share.
    """
    contenders = estimates[:CONTENDERS]
    parts = [moving_parts_of(estimate.plan) for estimate in contenders]
    if not contenders or min(parts) == parts[0]:
        return estimates
    steps = drawn_steps(problem, contenders)
    beats = (steps < steps[:, :1]).mean(axis=0)
    simpler = [i for i, number in enumerate(parts) if number < parts[0] and beats[i] >= DOUBT_FRACTION]
    if not simpler:
        return estimates
    chosen = min(simpler, key=lambda i: parts[i])
    return [estimates[chosen], *estimates[:chosen], *estimates[chosen + 1 :]]


def moving_parts_of(plan: PlanSpec) -> int:
    """Kinds of parallelism and tricks of one plan."""
    return int(moving_parts(table_of(plan))[0])
