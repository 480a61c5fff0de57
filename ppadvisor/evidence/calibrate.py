"""What measured runs of one cluster and trainer say of it: what is fitted, what is refused, errors before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ppadvisor.engine.evaluate import quick_step_time_s
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Result
from ppadvisor.errors import InputError
from ppadvisor.evidence.calibrated_memory import OVERHEAD, MeasuredOverhead, PeakRead, measured_overhead, peaks_of
from ppadvisor.evidence.constants import Fitted, Refused, Run, fit_times, range_of, rounded, value_now, with_together
from ppadvisor.evidence.validate import Skipped
from ppadvisor.specs.assumptions import GIVEN, Assumptions
from ppadvisor.specs.calibrated import CalibratedAssumption
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

HALVES = ("bf16", "fp16")
"""Precisions of one rate."""


class RunRead(Result):
    """A run as it was read, and its step time before and after."""

    name: str
    lines: str
    left_out: tuple[str, ...]
    """Lines of warm-up, or of another batch."""
    day: str | None
    plan: PlanSpec
    step_time_s: float | None
    spread_fraction: float | None
    """Of single lines about the median."""
    uncertainty_fraction: float
    """Of the median."""
    predicted_before_s: float
    predicted_after_s: float
    error_before_fraction: float | None
    error_after_fraction: float | None


class Calibration(Result):
    """The answer of `calibrate`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    runs: tuple[RunRead, ...]
    peaks: tuple[PeakRead, ...]
    fitted: tuple[Fitted, ...]
    refused: tuple[Refused, ...]
    num_assumed: int
    """Assumptions that stay as they are."""
    mean_abs_error_before_fraction: float | None
    mean_abs_error_after_fraction: float | None
    skipped: tuple[Skipped, ...]
    """Records that are not modelled."""
    cluster: ClusterSpec
    """With what was calibrated: what `-o` writes."""


def calibrate(runs: Sequence[Run], *, day: str | None = None, skipped: Sequence[Skipped] = ()) -> Calibration:
    """Fit what the runs identify. InputError for runs that cannot be calibrated together, or that hold no step time."""
    timed = [run for run in runs if run.step_time_s is not None]
    _check_alike(runs)
    if not timed:
        raise InputError("no step time was measured: nothing to calibrate step times with")
    source = _source(runs, day or max((run.day for run in runs if run.day), default=None))
    fitted, refused = fit_times(timed, source)
    peaks = [row for run in runs for row in peaks_of(run.name, run.problem, run.plan, run.peaks)]
    of_memory = _fit_overhead(runs[0].problem, peaks, source)
    if isinstance(of_memory, Refused):
        refused.append(of_memory)
    else:
        fitted.append(of_memory)
    found = {name: one for fit in fitted for name, one in _measured(fit, runs[0].problem).items()}
    rows = tuple(_row(run, found) for run in runs)
    cluster = runs[0].problem.cluster
    return Calibration(
        runs=rows,
        peaks=tuple(peaks),
        fitted=tuple(fitted),
        refused=tuple(refused),
        num_assumed=len(vars(Assumptions())) - len({**cluster.calibrated, **found}),
        mean_abs_error_before_fraction=_mean_abs([row.error_before_fraction for row in rows]),
        mean_abs_error_after_fraction=_mean_abs([row.error_after_fraction for row in rows]),
        skipped=tuple(skipped),
        cluster=cluster.changed(calibrated={**cluster.calibrated, **found}),
    )


def _check_alike(runs: Sequence[Run]) -> None:
    """One GPU, its links, one trainer, one precision: what a set of constants is of."""
    problems = [run.problem for run in runs]
    clusters = [problem.cluster for problem in problems]
    kinds: dict[str, list[object]] = {
        "GPUs": [cluster.gpu.name for cluster in clusters],
        "bandwidths in a node": [cluster.intra_node_bandwidth_bytes_per_s for cluster in clusters],
        "bandwidths between nodes": [cluster.inter_node_bandwidth_bytes_per_s for cluster in clusters],
        "trainers": [problem.framework.id for problem in problems],
        "precisions": ["16 bit" if p in HALVES else p for p in (problem.training.precision for problem in problems)],
    }
    for what, values in kinds.items():
        if len(set(values)) > 1:
            got = ", ".join(map(str, dict.fromkeys(values)))
            raise InputError(f"the runs have different {what} ({got}); calibrate each by itself")


def _source(runs: Sequence[Run], day: str | None) -> str:
    """`calibrated on 2026-11-29 to run.log, 40 step lines (megatron, bf16)`."""
    shown = "; ".join(f"{run.name}, {run.lines}" for run in runs[:3])
    more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
    training = runs[0].problem.training
    return f"calibrated{f' on {day}' if day else ''} to {shown}{more} ({training.framework}, {training.precision})"


def _fit_overhead(problem: Problem, peaks: Sequence[PeakRead], source: str) -> Fitted | Refused:
    """The allocator's overhead from ranks that print what is allocated and what is reserved."""
    measured, of = measured_overhead(peaks), range_of(problem, OVERHEAD)
    reason = _no_overhead(problem, measured)
    if reason is not None or measured is None:
        return Refused(name=OVERHEAD, reason=reason or "")
    value = min(max(measured.value, of.low), of.high)
    return Fitted(
        name=OVERHEAD,
        unit=of.unit,
        value=rounded(value),
        low=rounded(max(value - measured.half_width, of.low)),
        high=rounded(min(value + measured.half_width, of.high)),
        standard_deviation=measured.half_width / 2,
        before=value_now(problem, OVERHEAD),
        at_end="low" if measured.value < of.low else "high" if measured.value > of.high else None,
        source=f"{source}; {measured.num_ranks} rank{'s' * (measured.num_ranks > 1)} with both peaks",
    )


def _no_overhead(problem: Problem, measured: MeasuredOverhead | None) -> str | None:
    if getattr(problem.assumptions, OVERHEAD).provenance == GIVEN:
        return "given by the user"
    if problem.framework.eager_temporaries:
        return f"has no part in the memory of {problem.framework.id}, whose layers are eager"
    return None if measured else "needs lines with both what is allocated and what is reserved"


def _measured(fit: Fitted, problem: Problem) -> dict[str, CalibratedAssumption]:
    """The entry of the cluster file, and of what moves with it."""
    entries = {}
    ends = [with_together({fit.name: number}, problem) for number in (fit.value, fit.low, fit.high)]
    for name in ends[0]:
        value, low, high = (end[name] for end in ends)
        entries[name] = CalibratedAssumption(value=value, low=low, high=high, source=fit.source)
    return entries


def _row(run: Run, found: Mapping[str, CalibratedAssumption]) -> RunRead:
    before = quick_step_time_s(run.problem, run.plan)
    calibrated = replace(run.problem, assumptions=run.problem.assumptions.calibrated(found))
    after = quick_step_time_s(calibrated, run.plan)
    measured = run.step_time_s
    return RunRead(
        name=run.name,
        lines=run.lines,
        left_out=run.left_out,
        day=run.day,
        plan=run.plan,
        step_time_s=measured,
        spread_fraction=run.spread_fraction,
        uncertainty_fraction=run.uncertainty_fraction,
        predicted_before_s=before,
        predicted_after_s=after,
        error_before_fraction=None if measured is None else before / measured - 1.0,
        error_after_fraction=None if measured is None else after / measured - 1.0,
    )


def _mean_abs(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return float(np.mean(known)) if known else None
