"""Rows of predicted and measured numbers, and the scores made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from ppadvisor.engine.results import Result, Verdict
from ppadvisor.evidence import Label
from ppadvisor.evidence.formula_score import FormulaErrors, FormulaFits, FormulaRow, formula_errors, formula_fits

Unit = Literal["bytes", "s", "fraction", "ran_out"]


class ErrorScore(Result):
    """Of predicted / measured − 1."""

    n: int
    mean_abs_error_fraction: float | None
    bias_fraction: float | None
    worst_low_fraction: float | None
    """The lowest error: the most optimistic prediction of memory and time."""
    worst_high_fraction: float | None
    inside_range_fraction: float | None
    """Of the predictions with a range, those whose range holds the measured value."""
    range_fraction: float | None
    """Mean half width of the ranges over the prediction."""
    megatron_formula: FormulaErrors | None
    """Megatron's own formula on the same rows; of memory only."""


class SourceErrors(ErrorScore):
    """All rows of a source together, and each quantity by itself."""

    quantities: dict[str, ErrorScore]


class PointScore(Result):
    """Of predicted − measured, shares of the pipeline's span, in percentage points.

    A relative error of a share near zero says nothing.
    """

    n: int
    mean_abs_error_points: float | None
    bias_points: float | None
    worst_low_points: float | None
    """The lowest error: the most optimistic prediction."""
    worst_high_points: float | None


class FitScore(Result):
    """Fits or ran out. `borderline` is right for a run that ran out and wrong for one that fitted."""

    n: int
    right_fraction: float | None
    missed_oom_fraction: float | None
    """Of the runs that ran out, those called `fits`."""
    borderline_fraction: float | None
    ran_out: dict[Verdict, int]
    """What was predicted of the runs that ran out."""
    fitted: dict[Verdict, int]
    megatron_formula: FormulaFits


class Row(Result):
    """One measured number beside its prediction."""

    id: str
    source: str
    label: Label
    quantity: str
    measured_as: str
    """The field of the record."""
    unit: Unit
    """Of `predicted`, `measured` and, of memory and time, `terms`."""
    predicted: float
    predicted_low: float | None
    """Ends of the range that the assumptions leave open; None where none has a part in it."""
    predicted_high: float | None
    measured: float
    error_fraction: float | None
    """Predicted / measured − 1."""
    error_points: float | None
    """Predicted − measured in percentage points; of bubbles, in place of the relative error."""
    known_gap: str | None
    """Of a peak of a shipped run that is more than 5 % off: what explains it, as far as known."""
    verdict: Verdict | None
    stage: int | None
    terms: dict[str, float]
    """The largest terms of the prediction, largest first: bytes of memory, seconds of time."""
    defaults: tuple[str, ...]
    megatron_formula: FormulaRow | None
    """Megatron's own formula; of memory and fits only."""


def score_errors(rows: Sequence[Row]) -> SourceErrors:
    """Errors of all rows and of each quantity."""
    quantities = {row.quantity: [r for r in rows if r.quantity == row.quantity] for row in rows}
    whole = _error_score(rows)
    each = {name: _error_score(of_one) for name, of_one in quantities.items()}
    return SourceErrors(**vars(whole), quantities=each)


def _error_score(rows: Sequence[Row]) -> ErrorScore:
    errors = np.array([row.error_fraction for row in rows if row.error_fraction is not None])
    if not len(errors):
        return ErrorScore(n=0, **dict.fromkeys(set(ErrorScore.names()) - {"n"}))
    return ErrorScore(
        n=len(errors),
        mean_abs_error_fraction=float(np.abs(errors).mean()),
        bias_fraction=float(errors.mean()),
        worst_low_fraction=float(errors.min()),
        worst_high_fraction=float(errors.max()),
        **_ranges(rows),
        megatron_formula=formula_errors([(row.megatron_formula, row.error_fraction) for row in rows]),
    )


def _ranges(rows: Sequence[Row]) -> dict[str, float | None]:
    """How often the range holds the measured value, and how wide it is."""
    ends = [
        (row.predicted_low, row.predicted_high, row)
        for row in rows
        if row.predicted_low is not None and row.predicted_high is not None
    ]
    if not ends:
        return {"inside_range_fraction": None, "range_fraction": None}
    inside = [low <= row.measured <= high for low, high, row in ends]
    width = [(high - low) / 2 / row.predicted for low, high, row in ends]
    return {"inside_range_fraction": float(np.mean(inside)), "range_fraction": float(np.mean(width))}


def score_points(rows: Sequence[Row]) -> PointScore:
    """Errors in percentage points."""
    errors = np.array([row.error_points for row in rows if row.error_points is not None])
    if not len(errors):
        return PointScore(n=0, **dict.fromkeys(set(PointScore.names()) - {"n"}))
    return PointScore(
        n=len(errors),
        mean_abs_error_points=float(np.abs(errors).mean()),
        bias_points=float(errors.mean()),
        worst_low_points=float(errors.min()),
        worst_high_points=float(errors.max()),
    )


def score_fits(rows: Sequence[Row]) -> FitScore:
    """The confusion table."""
    ran_out = _verdicts(row for row in rows if row.measured)
    fitted = _verdicts(row for row in rows if not row.measured)
    out, n = sum(ran_out.values()), len(rows)
    right = out - ran_out["fits"] + fitted["fits"]
    return FitScore(
        n=n,
        right_fraction=right / n if n else None,
        missed_oom_fraction=ran_out["fits"] / out if out else None,
        borderline_fraction=(ran_out["borderline"] + fitted["borderline"]) / n if n else None,
        ran_out=ran_out,
        fitted=fitted,
        megatron_formula=formula_fits([(row.megatron_formula, bool(row.measured), row.verdict) for row in rows]),
    )


def _verdicts(rows: Iterable[Row]) -> dict[Verdict, int]:
    counted: Counter[Verdict] = Counter(row.verdict for row in rows if row.verdict is not None)
    return {"fits": counted["fits"], "borderline": counted["borderline"], "does_not_fit": counted["does_not_fit"]}
