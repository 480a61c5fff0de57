"""The answer of `calibrate`: the runs with their errors before and after, what was fitted, what was not and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppadvisor.evidence.calibrate import Calibration
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.plan_view import SYMBOLS
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.report.validate_view import format_error
from ppadvisor.units import format_fraction, format_gib

PLAN_SYMBOLS = {name: symbol for name, symbol in SYMBOLS.items() if name.endswith("_parallel")} | {
    "virtual_stages": "v",
    "micro_batch_size": "b",
    "num_microbatches": "m",
}


def _number(value: float) -> str:
    return f"{value:.4g}"


def _range(row: Row) -> str:
    return f"{row['low']:.4g} - {row['high']:.4g}"


def _note(row: Row) -> str:
    return "" if row["at_end"] is None else f"at the {row['at_end']} end of what is assumed"


RUNS = (
    Column("name", "run", justify="left"),
    Column("plan", "plan", justify="left", min_width=14),
    Column("step_time_s", "step [s]", _number),
    Column("spread_fraction", "spread", format_fraction),
    Column("predicted_before_s", "before [s]", _number),
    Column("error_before_fraction", "error", format_error),
    Column("predicted_after_s", "after [s]", _number),
    Column("error_after_fraction", "error", format_error),
)
FITTED = (
    Column("name", "assumption", justify="left"),
    Column("before", "before", _number),
    Column("value", "after", _number),
    Column("range", "range", derive=_range),
    Column("unit", "unit", justify="left", min_width=10),
    Column("note", "", justify="left", min_width=16, derive=_note),
)
REFUSED = (
    Column("name", "not fitted", justify="left"),
    Column("reason", "why", justify="left", min_width=40),
)
PEAKS = (
    Column("run", "run", justify="left"),
    Column("rank", "rank", names_row=True),
    Column("stage", "stage"),
    Column("allocated_bytes", "allocated [GiB]", format_gib),
    Column("predicted_allocated_bytes", "predicted", format_gib),
    Column("reserved_bytes", "reserved [GiB]", format_gib),
    Column("predicted_reserved_bytes", "predicted", format_gib),
    Column("overhead_fraction", "allocator takes", format_fraction),
)
CSV = ("name", "unit", "before", "value", "low", "high", "standard_deviation", "at_end", "source")


def render_calibration(report: Calibration, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS; csv has the fitted assumptions."""
    if format == "json":
        return dump_json(report)
    fitted = [one.as_dict() for one in report.fitted]
    if format == "csv":
        return render_rows([Column(key, key) for key in CSV], fitted, format)
    bullet = "- " if format == "markdown" else ""

    def table(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> list[str]:
        kept = [c for c in columns if c.derive is None or any(c.text(row) for row in rows)]
        kept = [c for c in kept if c.derive or any(c.value(row) is not None for row in rows)]
        return [render_rows(kept, rows, format, width=width, color=color).rstrip("\n")] if rows else []

    blocks = [
        [f"{bullet}{line}" for line in _header(report)],
        table(RUNS, [one.as_dict() | {"plan": _plan(one.plan.as_dict())} for one in report.runs]),
        table(FITTED, fitted),
        table(REFUSED, [one.as_dict() for one in report.refused]),
        table(PEAKS, _fullest(report)),
        [f"{bullet}{line}" for line in _notes(report)],
    ]
    return join_blocks(blocks, format, width)


def _plan(plan: dict[str, Any]) -> str:
    """The sizes that are not 1."""
    return " ".join(f"{symbol}{plan[name]}" for name, symbol in PLAN_SYMBOLS.items() if plan[name] != 1)


def _fullest(report: Calibration) -> list[dict[str, Any]]:
    """Of each stage the rank that holds most: the ranks of a stage are alike."""
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for peak in report.peaks:
        held = rows.setdefault((peak.run, peak.stage), peak.as_dict())
        if (peak.allocated_bytes or 0.0) > (held["allocated_bytes"] or 0.0):
            rows[peak.run, peak.stage] = peak.as_dict()
    return list(rows.values())


def _header(report: Calibration) -> Iterator[str]:
    gpu = report.cluster.gpu.name
    number = len(report.runs)
    yield f"Calibrate  {number} run{'s' * (number > 1)} on {gpu}"
    if report.mean_abs_error_before_fraction is not None and report.mean_abs_error_after_fraction is not None:
        before, after = report.mean_abs_error_before_fraction, report.mean_abs_error_after_fraction
        yield f"Step time  mean |error| {format_fraction(before)} before, {format_fraction(after)} after, on these runs"
    yield "Error      predicted / measured - 1: below zero is optimistic"


def _notes(report: Calibration) -> Iterator[str]:
    """What was read and left out; what was not touched."""
    for run in report.runs:
        left_out = f"; left out: {', '.join(run.left_out)}" if run.left_out else ""
        yield f"Read of {run.name}: {run.lines}{left_out}"
    for skipped in report.skipped:
        yield f"Skipped {skipped.id}: {skipped.reason}"
    yield f"The other {report.num_assumed} assumptions stay as they are."
