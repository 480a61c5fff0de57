"""Megatron's own formula on the rows that we are scored on: its number, or why it has none, and its errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppadvisor.engine.results import Result, Verdict
from ppadvisor.evidence import KindName
from ppadvisor.evidence.cases import Case
from ppadvisor.evidence.megatron_formula import megatron_formula

CHUNKED = ("interleaved-1f1b",)
"""Schedules whose virtual stages the formula means."""

ELSEWHERE = ("last_stage", "middle_stage")
"""Ranks that it does not describe: its most loaded one is the first stage."""


class FormulaRow(Result):
    """What Megatron's formula says of a row."""

    predicted: float | None
    """Bytes: weights, gradients, optimizer and activations; what torch and the driver add is not in it."""
    error_fraction: float | None
    verdict: Verdict | None
    """Against what the driver shows, where fits or not is asked."""
    undefined: str | None
    """Why it has no number."""


class FormulaErrors(Result):
    """Of its total / measured − 1, on the rows where it is defined."""

    n: int
    mean_abs_error_fraction: float | None
    bias_fraction: float | None
    worst_low_fraction: float | None
    worst_high_fraction: float | None
    our_mean_abs_error_fraction: float | None
    """Ours on the same rows."""


class FormulaFits(Result):
    """Its verdicts, on the rows where it is defined; `our_` on the same rows."""

    n: int
    right_fraction: float | None
    missed_oom_fraction: float | None
    """Of the runs that ran out, those that it says fit."""
    our_right_fraction: float | None
    our_missed_oom_fraction: float | None


def formula_row(case: Case, kind: KindName, measured: float) -> FormulaRow | None:
    """The formula beside a measured number; None for the kinds that it says nothing about.

    Its inputs decide: it takes no schedule, so that every plan with one chunk a rank gets 1F1B's number.
    """
    if kind not in ("memory", "oom"):
        return None
    reason = undefined_for(case)
    if reason is not None:
        return FormulaRow(predicted=None, error_fraction=None, verdict=None, undefined=reason)
    total = megatron_formula(case.problem.model, case.problem.training, case.plan).total_bytes
    fits = total <= case.problem.cluster.gpu.memory_bytes
    return FormulaRow(
        predicted=total,
        error_fraction=total / measured - 1.0 if kind == "memory" else None,
        verdict=None if kind == "memory" else "fits" if fits else "does_not_fit",
        undefined=None,
    )


def undefined_for(case: Case) -> str | None:
    """What the formula cannot be asked, or None."""
    plan, scope = case.plan, case.record.measured.peak_scope
    if plan.optimizer_sharding > 1:
        return "gradients or weights are divided (ZeRO 2, 3)"
    if plan.virtual_stages > 1 and plan.schedule not in CHUNKED:
        return "its chunks are those of interleaved 1F1B alone"
    if scope in ELSEWHERE:
        return "another stage than the first was measured"
    return None


def formula_errors(rows: Sequence[tuple[FormulaRow | None, float | None]]) -> FormulaErrors | None:
    """The score over (the formula's row, our error); None where nothing was asked of it."""
    asked = [(formula, ours) for formula, ours in rows if formula is not None]
    known = [(one.error_fraction, ours) for one, ours in asked if one.error_fraction is not None and ours is not None]
    if not asked:
        return None
    if not known:
        return FormulaErrors(n=0, **dict.fromkeys(set(FormulaErrors.names()) - {"n"}))
    errors, ours = np.array(known).T
    return FormulaErrors(
        n=len(known),
        mean_abs_error_fraction=float(np.abs(errors).mean()),
        bias_fraction=float(errors.mean()),
        worst_low_fraction=float(errors.min()),
        worst_high_fraction=float(errors.max()),
        our_mean_abs_error_fraction=float(np.abs(ours).mean()),
    )


def formula_fits(rows: Sequence[tuple[FormulaRow | None, bool, Verdict | None]]) -> FormulaFits:
    """The score over (the formula's row, whether the run ran out, our verdict)."""
    known = [(ran_out, one.verdict, ours) for one, ran_out, ours in rows if one is not None and one.verdict is not None]
    n, out = len(known), sum(ran_out for ran_out, _, _ in known)
    its = [(ran_out, verdict == "fits") for ran_out, verdict, _ in known]
    our = [(ran_out, verdict == "fits") for ran_out, _, verdict in known]
    return FormulaFits(
        n=n,
        right_fraction=_share(sum(ran_out != fits for ran_out, fits in its), n),
        missed_oom_fraction=_share(sum(ran_out and fits for ran_out, fits in its), out),
        our_right_fraction=_share(sum(ran_out != fits for ran_out, fits in our), n),
        our_missed_oom_fraction=_share(sum(ran_out and fits for ran_out, fits in our), out),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
