"""The constants of step times, which of them some runs identify, and their fitted values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ppadvisor.engine.evaluate import quick_step_time_s
from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Result
from ppadvisor.evidence.fit import RUNS_PER_CONSTANT, Fit, identify
from ppadvisor.evidence.logs import Peaks
from ppadvisor.specs.assumptions import CALIBRATED, GIVEN, Assumption
from ppadvisor.specs.load import assumptions_of
from ppadvisor.specs.plan import PlanSpec


@dataclass(frozen=True)
class Run:
    """A measured run: its problem and plan, its step time, its peaks of memory."""

    name: str
    problem: Problem
    plan: PlanSpec
    lines: str
    """What was read: kind and number of lines, or that it is a record."""
    step_time_s: float | None
    """None where only memory was measured."""
    uncertainty_fraction: float = 0.0
    spread_fraction: float | None = None
    left_out: tuple[str, ...] = ()
    peaks: tuple[Peaks, ...] = ()
    day: str | None = None


class Fitted(Result):
    """A constant with its new value; two standard deviations to either side, within the assumed range."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    standard_deviation: float
    before: float
    """What it was before."""
    at_end: Literal["low", "high"] | None
    """The end of the assumed range at which it stands: what the runs ask for lies beyond."""
    source: str


class Refused(Result):
    """A constant that is not fitted, and why."""

    name: str
    reason: str


Condition = Callable[[Sequence[Run]], str | None]
"""Runs to what keeps them from identifying a constant; None where they may."""


@dataclass(frozen=True)
class Constant:
    """A constant of step times that runs may identify."""

    name: str
    condition: Condition
    together: str | None = None
    """A constant that moves in proportion: step times hold both only as a sum."""


def _any(_: Sequence[Run]) -> None:
    return None


def _several_lengths(runs: Sequence[Run]) -> str | None:
    lengths = {run.problem.training.sequence_length for run in runs}
    return None if len(lengths) > 1 else f"needs runs of several sequence lengths; all have {lengths.pop():,} tokens"


def _several_spreads(runs: Sequence[Run]) -> str | None:
    spreads = {(run.plan.data_parallel, _nodes(run), run.plan.pipeline_parallel) for run in runs}
    if len(spreads) > 1:
        return None
    d, nodes, _ = spreads.pop()
    return f"needs runs that differ in d, p or number of nodes; all have d = {d} on {nodes} node{'s' * (nodes > 1)}"


def _nodes(run: Run) -> int:
    return -(-run.problem.cluster.num_gpus // run.problem.cluster.gpus_per_node)


CONSTANTS = (
    Constant("gemm_efficiency", _any),
    Constant("attention_efficiency", _several_lengths, together="attention_backward_efficiency"),
    Constant("inter_node_efficiency", _several_spreads),
    Constant("data_parallel_overlap", _several_spreads),
    Constant("layer_launch_s", _any),
)
"""Constants of step times. Not here: those that fits drive out of what is physical (intra_node_efficiency trades with
the overlap of tensor parallelism) or that no published run told apart."""


def fit_times(runs: Sequence[Run], source: str) -> tuple[list[Fitted], list[Refused]]:
    """What the step times of some runs identify, the best identified first, and why the rest is not fitted."""
    reasons = {constant.name: _refusal(constant, runs) for constant in CONSTANTS}
    candidates = [constant for constant in CONSTANTS if reasons[constant.name] is None]
    if not candidates:
        return [], _refused(reasons)
    ranges = [range_of(runs[0].problem, constant.name) for constant in candidates]
    now = [value_now(runs[0].problem, constant.name) for constant in candidates]
    start = [(min(max(v, r.low), r.high) - r.low) / (r.high - r.low) for v, r in zip(now, ranges, strict=True)]

    def predict(position: FloatArray) -> FloatArray:
        values = {constant.name: _value(at, of) for constant, at, of in zip(candidates, position, ranges, strict=True)}
        return np.log([_predicted(run, values) for run in runs])

    measured = np.log([run.step_time_s or 0.0 for run in runs])
    noise = np.array([run.uncertainty_fraction for run in runs])
    distinct = len({(run.plan, run.problem.training, run.problem.model) for run in runs})
    fit = identify(predict, measured, noise, np.array(start), distinct)
    fitted = [_fitted(candidates[i].name, ranges[i], now[i], fit, i, source) for i in fit.chosen]
    names = [candidates[i].name for i in fit.chosen]
    reasons |= {candidates[i].name: _reason(why, names, distinct) for i, why in fit.refused.items()}
    return fitted, _refused(reasons)


def _refusal(constant: Constant, runs: Sequence[Run]) -> str | None:
    """Why these runs cannot tell the constant, whatever their times are."""
    if any(getattr(run.problem.assumptions, constant.name).provenance == GIVEN for run in runs):
        return "given by the user"
    return constant.condition(runs)


def _refused(reasons: Mapping[str, str | None]) -> list[Refused]:
    return [Refused(name=name, reason=reason) for name, reason in reasons.items() if reason is not None]


def _reason(why: str, fitted: Sequence[str], distinct: int) -> str:
    many = f"{distinct} run{'s' * (distinct > 1)} of different plans identif{'y' if distinct > 1 else 'ies'}"
    needed = RUNS_PER_CONSTANT * len(fitted) + 1
    return {
        "no_effect": "moves no step time of these runs by 1 % over its whole range",
        "few_runs": f"{many} {len(fitted)} constant{'s' * (len(fitted) > 1)}; one more needs {needed} runs",
        "alike": f"these runs do not tell it from {', '.join(fitted)}",
        "wide": "these runs leave it as wide as its assumed range",
    }[why]


def range_of(problem: Problem, name: str) -> Assumption:
    """The assumption with the range that is searched: of one that was calibrated before, the range from before."""
    used: Assumption = getattr(problem.assumptions, name)
    if used.provenance != CALIBRATED:
        return used
    cluster = problem.cluster.changed(calibrated={})
    before: Assumption = getattr(assumptions_of(cluster, problem.training, problem.framework.stack), name)
    return before


def rounded(value: float) -> float:
    """Six digits: more would only show on which machine the fit was made."""
    return float(f"{value:.6g}")


def value_now(problem: Problem, name: str) -> float:
    """The assumption's value as the problem has it."""
    return float(getattr(problem.assumptions, name).value)


def _value(position: float, of: Assumption) -> float:
    return float(of.low + position * (of.high - of.low))


def with_together(values: Mapping[str, float], problem: Problem) -> dict[str, float]:
    """The values, and those that move with them, each within its range."""
    moved = dict(values)
    for constant in CONSTANTS:
        if constant.together and constant.name in values:
            lead, other = range_of(problem, constant.name), range_of(problem, constant.together)
            share = values[constant.name] / lead.value
            moved[constant.together] = min(max(other.value * share, other.low), other.high)
    return moved


def _predicted(run: Run, values: Mapping[str, float]) -> float:
    """Step time with these values in place of the assumed ones."""
    assumed = run.problem.assumptions
    changed = {n: replace(getattr(assumed, n), value=v) for n, v in with_together(values, run.problem).items()}
    return quick_step_time_s(replace(run.problem, assumptions=replace(assumed, **changed)), run.plan)


def _fitted(name: str, of: Assumption, before: float, fit: Fit, index: int, source: str) -> Fitted:
    position, width = float(fit.position[index]), of.high - of.low
    value, deviation = _value(position, of), float(fit.deviation[index]) * width
    return Fitted(
        name=name,
        unit=of.unit,
        value=rounded(value),
        low=rounded(max(value - 2 * deviation, of.low)),
        high=rounded(min(value + 2 * deviation, of.high)),
        standard_deviation=deviation,
        before=before,
        at_end="low" if position <= 0 else "high" if position >= 1 else None,
        source=source,
    )
