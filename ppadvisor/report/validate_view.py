"""The answer of `validate`: a line of scores a source and quantity, or a line a measured number; what was assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ppadvisor.evidence.formula_score import FormulaErrors, FormulaFits, FormulaRow
from ppadvisor.evidence.ranking_score import Ranking
from ppadvisor.evidence.recipes import Recipes
from ppadvisor.evidence.scores import ErrorScore, FitScore, PointScore, SourceErrors, Unit
from ppadvisor.evidence.validate import Validation
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.units import format_fraction, format_gib

ALL = "all"


def format_error(share: float) -> str:
    """A signed share in percent."""
    return f"{share * 100:+.1f} %"


def format_points(points: float) -> str:
    """A signed difference of shares."""
    return f"{points:+.1f}"


SCORES = (
    Column("source", "source", justify="left"),
    Column("quantity", "quantity", justify="left", names_row=True),
    Column("n", "n"),
    Column("mean_abs_error_fraction", "mean |error|", format_fraction),
    Column("bias_fraction", "bias", format_error),
    Column("worst_low_fraction", "worst low", format_error),
    Column("worst_high_fraction", "worst high", format_error),
    Column("inside_range_fraction", "in range", format_fraction, priority=1),
    Column("range_fraction", "range ±", format_fraction, priority=1),
    Column("megatron_formula.mean_abs_error_fraction", "Megatron's formula", format_fraction),
)
POINTS = (
    Column("source", "source", justify="left"),
    Column("n", "n"),
    Column("mean_abs_error_points", "mean |error| [points]", lambda points: f"{points:.1f}"),
    Column("bias_points", "bias [points]", format_points),
    Column("worst_low_points", "worst low [points]", format_points),
    Column("worst_high_points", "worst high [points]", format_points),
)
FITS = (
    Column("source", "source", justify="left"),
    Column("n", "n"),
    Column("right_fraction", "right", format_fraction),
    Column("missed_oom_fraction", "OOM missed", format_fraction),
    Column("borderline_fraction", "border-line", format_fraction),
    Column("ran_out.fits", "OOM: fits"),
    Column("ran_out.borderline", "OOM: border"),
    Column("ran_out.does_not_fit", "OOM: OOM"),
    Column("fitted.fits", "fitted: fits"),
    Column("fitted.borderline", "fitted: border"),
    Column("fitted.does_not_fit", "fitted: OOM"),
    Column("megatron_formula.right_fraction", "Megatron's formula: right", format_fraction),
    Column("megatron_formula.missed_oom_fraction", "its OOM missed", format_fraction),
)
FORMULA = "megatron_formula"
ERRORS_IN_CSV = ("n", "bias_fraction", "worst_low_fraction", "worst_high_fraction", "our_mean_abs_error_fraction")
FITS_IN_CSV = ("n", "our_right_fraction", "our_missed_oom_fraction")
"""What csv says of Megatron's formula beyond the columns for people."""

WITH_WORST = ("memory", "activation", "parts", "bubble")
"""Kinds whose scores are followed by the largest errors."""
ONE_QUANTITY = ("bubble", "time")
"""Kinds whose rows need not name it."""
NOTHING = "Nothing to compare: every record was skipped"
FEW = 3
"""So many skipped records are named."""
WORST = 5
"""How many."""
OF_WORST = ("id", "quantity", "predicted", "measured", "error_fraction", "error_points", "terms", "known_gap")
"""What is shown of them."""

WRITTEN: dict[Unit, tuple[str, Callable[[float], str]]] = {
    "bytes": (" [GiB]", format_gib),
    "s": (" [s]", lambda time_s: f"{time_s:.4g}"),
    "fraction": ("", lambda share: format_fraction(share, digits=2)),
    "ran_out": ("", lambda ran_out: "OOM" if ran_out else "fits"),
}
"""Unit of a row -> (what headers add, how people read it)."""


def render_validation(report: Validation, format: str, *, with_rows: bool, width: int, color: bool) -> str:
    """The report in one of FORMATS; json holds scores and rows whether or not rows are asked for."""
    if format == "json":
        return dump_json(report)
    columns, rows = _measured(report) if with_rows else _scores(report)
    if format == "csv":
        return render_rows([Column(key, key) for key in _csv_keys(report, columns, rows, with_rows)], rows, format)
    bullet = "- " if format == "markdown" else ""
    table = render_rows(columns, rows, format, width=width, color=color).rstrip("\n") if report.rows else NOTHING
    blocks = [[f"{bullet}{line}" for line in _header(report)], [table]]
    if report.kind in WITH_WORST and report.rows and not with_rows:
        shown, measured = _measured(report)
        worst = sorted(measured, key=_distance)[:WORST]
        kept = [column for column in shown if column.key in OF_WORST]
        table = render_rows(kept, worst, format, width=width, color=color)
        blocks += [["The largest errors"], [table.rstrip("\n")]]
    blocks.append([f"{bullet}{line}" for line in (*_named(report), *formula_notes(report), *notes_of(report))])
    return join_blocks(blocks, format, width)


def _distance(row: Row) -> float:
    """The largest errors first."""
    error: float = row["error_fraction"] if row["error_points"] is None else row["error_points"]
    return -abs(error)


def _csv_keys(report: Validation, columns: Sequence[Column], rows: Sequence[Row], with_rows: bool) -> list[str]:
    """Keys of the JSON; what is said of Megatron's formula one by one."""
    if not with_rows or not rows:
        if isinstance(report.summary, PointScore):
            return [column.key for column in columns]
        more = FITS_IN_CSV if isinstance(report.summary, FitScore) else ERRORS_IN_CSV
        return [*(column.key for column in columns), *(f"{FORMULA}.{key}" for key in more)]
    parts = [f"{FORMULA}.{key}" for key in FormulaRow.names()]
    return [*(key for key in rows[0] if key != FORMULA), *parts]


def _scores(report: Validation) -> tuple[tuple[Column, ...], list[Row]]:
    sources = {**report.sources, ALL: report.summary}
    if isinstance(report.summary, FitScore):
        return FITS, [{"source": name, **score.as_dict()} for name, score in sources.items()]
    if isinstance(report.summary, PointScore):
        return POINTS, [{"source": name, **score.as_dict()} for name, score in sources.items()]
    lines = [line for name, score in sources.items() if isinstance(score, SourceErrors) for line in _lines(name, score)]
    return _filled(SCORES, lines), lines


def _lines(source: str, score: SourceErrors) -> Iterator[Row]:
    """A line for each quantity, and one for all of them where there are several."""
    parts: Mapping[str, ErrorScore] = score.quantities
    if len(parts) != 1:
        parts = {**parts, ALL: score}
    for quantity, part in parts.items():
        yield {"source": source, "quantity": quantity, **part.as_dict(("quantities",))}


def _measured(report: Validation) -> tuple[tuple[Column, ...], list[Row]]:
    unit = report.rows[0].unit if report.rows else "bytes"
    words, text = WRITTEN[unit]
    columns = [
        Column("id", "id", justify="left"),
        Column("quantity", "quantity", justify="left", names_row=report.kind != "oom"),
        Column("predicted", f"predicted{words}", text),
        Column("predicted_low", f"from{words}", text, priority=1),
        Column("predicted_high", f"to{words}", text, priority=1),
        Column("measured", f"measured{words}", text),
        Column("error_fraction", "error", format_error),
        Column("error_points", "error [points]", format_points),
        Column("stage", "stage", priority=1),
        Column("verdict", "verdict", _verdict, justify="left"),
        Column("terms", "largest terms", _terms(unit), justify="left", priority=2, min_width=40),
        Column("known_gap", "what explains it", justify="left", priority=3, min_width=40),
        Column("megatron_formula.predicted", "Megatron's formula [GiB]", format_gib, priority=1),
        Column("megatron_formula.error_fraction", "its error", format_error, priority=1),
        Column("megatron_formula.verdict", "its verdict", _verdict, justify="left", priority=1),
        Column("megatron_formula.undefined", "not defined", justify="left", priority=1, min_width=20),
    ]
    rows = _dumped(report)
    if report.kind in ONE_QUANTITY:
        columns = [column for column in columns if column.key != "quantity"]
    return _filled(columns, rows), rows


def _dumped(report: Validation) -> list[Row]:
    return [row.as_dict() for row in report.rows]


def _filled(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns that have something to show in one of the rows."""
    return tuple(column for column in columns if not rows or any(column.value(row) is not None for row in rows))


def _verdict(verdict: str) -> str:
    return verdict.replace("_", " ")


def _terms(unit: Unit) -> Callable[[Mapping[str, float]], str]:
    """The largest terms of a row: memory in GiB, where fits is asked too; times in seconds."""
    words, text = WRITTEN["bytes" if unit in ("bytes", "ran_out") else "s"]
    ending = words.strip(" []")
    return lambda terms: ", ".join(f"{name} {text(value)} {ending}" for name, value in terms.items())


def _header(report: Validation) -> Iterator[str]:
    partial = ", an input unknown or with a caveat (partial)" if report.partial else ""
    label = "" if report.label == ALL else f" labelled {report.label}"
    records = len({row.id for row in report.rows})
    yield f"Validate  {report.kind}: {len(report.rows):,} numbers of {records:,} records{label}{partial}"
    if report.kind == "oom":
        yield "Predicted against what the driver shows, without a margin; borderline is right for a run that ran out."
    elif report.kind == "bubble":
        yield "Error     predicted - measured in percentage points of the pipeline's span: below zero is optimistic"
    else:
        yield "Error     predicted / measured - 1: below zero is optimistic"


def _named(report: Validation) -> Iterator[str]:
    """Whether the stage that we call the fullest is."""
    named = report.fullest_stage
    if named is not None:
        yield f"Fullest stage named right: {named.right} of {named.n} runs with a peak of every stage"


def formula_notes(report: Validation) -> Iterator[str]:
    """What Megatron's formula is, how much better or worse it does, and where it has no number."""
    asked = [row.megatron_formula for row in report.rows if row.megatron_formula is not None]
    if not asked or isinstance(report.summary, PointScore):
        return
    formula = report.summary.megatron_formula
    yield (
        "Megatron's formula: the total that Megatron-LM reports of the plan (theoretical_memory_usage.py); it takes no "
        "context parallelism, full recomputation, schedule, precision or attention kernel"
    )
    if isinstance(formula, FormulaErrors) and formula.n:
        errors = _beside(formula.mean_abs_error_fraction, formula.our_mean_abs_error_fraction)
        yield f"Of the {formula.n:,} numbers where it is defined: mean |error| {errors}"
    if isinstance(formula, FormulaFits) and formula.n:
        right = _beside(formula.right_fraction, formula.our_right_fraction)
        missed = _beside(formula.missed_oom_fraction, formula.our_missed_oom_fraction)
        yield f"Of the {formula.n:,} runs where it is defined: right {right}; OOM missed {missed}"
    for reason, number in Counter(one.undefined for one in asked if one.undefined).items():
        yield f"Megatron's formula is not defined for {number:,}: {reason}"


def _beside(its: float | None, ours: float | None) -> str:
    return ", ours ".join("-" if share is None else format_fraction(share) for share in (its, ours))


def notes_of(report: Validation | Ranking | Recipes) -> Iterator[str]:
    """What was skipped and why, few by their ids; what was taken where records say nothing."""
    for reason in dict.fromkeys(skipped.reason for skipped in report.skipped):
        ids = [skipped.id for skipped in report.skipped if skipped.reason == reason]
        few = f" ({', '.join(ids)})" if len(ids) <= FEW else ""
        yield f"Skipped {len(ids):,}{few}: {reason}"
    if report.defaults:
        taken = "; ".join(f"{text} ({number:,})" for text, number in report.defaults.items())
        yield f"Taken where records say nothing (how many): {taken}"
