"""The answer of `validate`: a line of scores a source and quantity, or a line a measured number; what was assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ppadvisor.evidence.ranking_score import Ranking
from ppadvisor.evidence.validate import ErrorScore, FitScore, SourceErrors, Unit, Validation
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.units import format_fraction, format_gib

ALL = "all"


def format_error(share: float) -> str:
    """A signed share in percent."""
    return f"{share * 100:+.1f} %"


SCORES = (
    Column("source", "source", justify="left"),
    Column("quantity", "quantity", justify="left"),
    Column("n", "n"),
    Column("mean_abs_error_fraction", "mean |error|", format_fraction),
    Column("bias_fraction", "bias", format_error),
    Column("worst_low_fraction", "worst low", format_error),
    Column("worst_high_fraction", "worst high", format_error),
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
)

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
        return dump_json(report.model_dump(mode="json"))
    columns, rows = _measured(report) if with_rows else _scores(report)
    if format == "csv":
        keys = list(rows[0]) if with_rows and rows else [column.key for column in columns]
        return render_rows([Column(key, key) for key in keys], rows, format)
    table = render_rows(columns, rows, format, width=width, color=color)
    bullet = "- " if format == "markdown" else ""
    blocks = [
        [f"{bullet}{line}" for line in _header(report)],
        [table.rstrip("\n")],
        [f"{bullet}{line}" for line in notes_of(report)],
    ]
    return join_blocks(blocks, format, width)


def _scores(report: Validation) -> tuple[tuple[Column, ...], list[Row]]:
    sources = {**report.sources, ALL: report.summary}
    if isinstance(report.summary, FitScore):
        return FITS, [{"source": name, **score.model_dump()} for name, score in sources.items()]
    lines = [line for name, score in sources.items() if isinstance(score, SourceErrors) for line in _lines(name, score)]
    return SCORES, lines


def _lines(source: str, score: SourceErrors) -> Iterator[Row]:
    """A line for each quantity, and one for all of them where there are several."""
    parts: Mapping[str, ErrorScore] = score.quantities
    if len(parts) != 1:
        parts = {**parts, ALL: score}
    for quantity, part in parts.items():
        yield {"source": source, "quantity": quantity, **part.model_dump(exclude={"quantities"})}


def _measured(report: Validation) -> tuple[tuple[Column, ...], list[Row]]:
    unit = report.rows[0].unit if report.rows else "bytes"
    words, text = WRITTEN[unit]
    columns = [
        Column("id", "id", justify="left"),
        Column("quantity", "quantity", justify="left"),
        Column("predicted", f"predicted{words}", text),
        Column("measured", f"measured{words}", text),
        Column("error_fraction", "error", format_error),
        Column("stage", "stage", priority=1),
        Column("verdict", "verdict", lambda verdict: verdict.replace("_", " "), justify="left"),
        Column("terms", "largest terms", _terms(unit), justify="left", priority=2, min_width=40),
    ]
    rows: list[dict[str, Any]] = [row.model_dump(mode="json") for row in report.rows]
    shown = [column for column in columns if not rows or any(row[column.key] is not None for row in rows)]
    return tuple(shown), list(rows)


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
    else:
        yield "Error     predicted / measured - 1: below zero is optimistic"


def notes_of(report: Validation | Ranking) -> Iterator[str]:
    """What was skipped and why; what was taken where records say nothing."""
    for reason, number in Counter(skipped.reason for skipped in report.skipped).items():
        yield f"Skipped {number:,}: {reason}"
    if report.defaults:
        taken = "; ".join(f"{text} ({number:,})" for text, number in report.defaults.items())
        yield f"Taken where records say nothing (how many): {taken}"
