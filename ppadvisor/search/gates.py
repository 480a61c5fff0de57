"""Thresholds of a check: `peak_memory_fraction<=0.9`, read, measured and held against the answer."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from ppadvisor.engine.results import PlanEstimate
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.search.check_results import GateResult
from ppadvisor.units import parse_duration

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
GATE = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|<|>)\s*(\S+(?:\s+%)?)\s*")


@dataclass(frozen=True)
class Metric:
    """Something that a gate can look at."""

    name: str
    measure: Callable[[PlanEstimate, float | None], float | None]
    """(the estimate, the regret) -> the value, None where there is none."""
    read: Callable[[str, str], float]


SHARES = "allowed: a share such as 0.9 or 90% (one above 1 in percent)"


def _plain(text: str, what: str) -> float:
    """`0.9`, `90%`, `0` or `150%`."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,15})?|\.\d{1,15})(%?)", text)
    if not match:
        raise InputError(f"{what}: the limit is {text!r}; {SHARES}")
    share = float(match[1]) / (100 if match[2] else 1)
    if share > 1 and not match[2]:
        raise InputError(f"{what}: the limit {text!r} may be meant in percent; {SHARES}")
    return share


METRICS = (
    Metric("peak_memory_fraction", lambda one, _: one.memory.peak_bytes / one.memory.capacity_bytes, _plain),
    Metric(
        "conservative_memory_fraction",
        lambda one, _: one.memory.conservative_bytes / one.memory.capacity_bytes,
        _plain,
    ),
    Metric("bubble_fraction", lambda one, _: one.time.bubble_fraction, _plain),
    Metric("model_flops_utilization", lambda one, _: one.time.model_flops_utilization, _plain),
    Metric("step_time_s", lambda one, _: one.time.step_time_s, parse_duration),
    Metric("regret", lambda _, regret: regret, _plain),
)


@dataclass(frozen=True)
class Gate:
    """One threshold."""

    text: str
    metric: Metric
    comparison: str
    limit: float

    def result(self, estimate: PlanEstimate | None, regret: float | None) -> GateResult:
        """Held against an estimate; what cannot be measured does not pass."""
        measured = None if estimate is None else self.metric.measure(estimate, regret)
        return GateResult(
            gate=self.text,
            metric=self.metric.name,
            operator=self.comparison,
            limit=self.limit,
            measured=measured,
            passed=measured is not None and COMPARISONS[self.comparison](measured, self.limit),
        )


def parse_gate(text: str, where: str = "--gate") -> Gate:
    """Read a gate. InputError for another form, an unknown metric (with the nearest) or a limit that is none.

    >>> parse_gate("peak_memory_fraction <= 90%").limit
    0.9
    """
    match = GATE.fullmatch(text)
    if not match:
        raise InputError(f"{where}: got {text[:60]!r}; needs METRIC<=LIMIT, as in peak_memory_fraction<=0.9")
    names = {metric.name: metric for metric in METRICS}
    if match[1] not in names:
        raise unknown_name("metric", match[1], names, where=where)
    metric = names[match[1]]
    return Gate(
        " ".join(text.split()), metric, match[2], metric.read("".join(match[3].split()), f"{where} {metric.name}")
    )
