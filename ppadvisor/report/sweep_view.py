"""The answer of `sweep`: one row a point; for people, what all points share is said once, above the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ppadvisor.report.json_ import dump_json
from ppadvisor.report.plan_view import COLUMNS as RANKED_COLUMNS
from ppadvisor.report.plan_view import ONLY_WHERE_USED
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.search.sweep import AxisValue, SweepReport, SweepRow
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.units import format_bandwidth, format_bytes_gib, format_fraction, format_tflops

AXIS_HEADERS = {"num_gpus": "GPUs", "sequence_length": "seq len", "global_batch_size": "batch"}

WRITTEN_AS = {"_bytes_per_s": format_bandwidth, "_flops_per_s": format_tflops, "_bytes": format_bytes_gib}
"""How people read an input, by the last words of its name."""

PRIORITIES = {"tokens_per_s": 2, "global_batch_size": 2, "binding_stage": 0}
"""Where they differ from those of the ranked table."""

MANY = 6
"""Of more points that share a note, only so many are listed."""


def _text(name: str, value: AxisValue) -> str:
    for ending, text in WRITTEN_AS.items():
        if name.endswith(ending) and isinstance(value, int | float):
            return text(value)
    return str(value)


def _input_column(name: str, values: Sequence[AxisValue]) -> Column:
    """The column of an input that is no quantity of a plan."""
    ending = next((ending for ending in WRITTEN_AS if name.endswith(ending)), "")
    header = AXIS_HEADERS.get(name, name.removesuffix(ending).replace("_", " "))
    is_text = any(isinstance(value, str) for value in values)
    return Column(name, header, partial(_text, name), justify="left" if is_text else "right")


def _verdict(row: Row) -> str:
    return (row["verdict"] or "no plan").replace("_", " ")


SHARED_COLUMNS = tuple(
    replace(column, priority=PRIORITIES.get(column.key, column.priority))
    for column in (_input_column("global_batch_size", ()), *RANKED_COLUMNS)
    if column.key in SweepRow.model_fields
)
PLAN_COLUMNS = tuple(c for c in SHARED_COLUMNS if c.key in PlanSpec.model_fields or c.key == "global_batch_size")
ANSWER_COLUMNS = (
    *(column for column in SHARED_COLUMNS if column not in PLAN_COLUMNS),
    Column("verdict", "verdict", justify="left", derive=_verdict),
)


def render_sweep(report: SweepReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS."""
    rows = [_row(row, report) for row in report.rows]
    if format == "json":
        return dump_json(report.model_dump(mode="json", exclude={"rows"}) | {"rows": rows})
    if format == "csv":
        return render_rows([Column(key, key) for key in rows[0]], rows, format)
    numbered = [{"point": number, **row} for number, row in enumerate(rows, 1)]
    told = {column.key for column in PLAN_COLUMNS if _is_told_above(column, report, rows)}
    table = render_rows(_columns(report, told), numbered, format, width=width, color=color)
    bullet = "- " if format == "markdown" else ""
    blocks = [
        [f"{bullet}{line}" for line in _header(report, rows, told)],
        [table.rstrip("\n")],
        [f"{bullet}{line}" for line in _notes(report)],
    ]
    return join_blocks(blocks, format, width)


def _row(row: SweepRow, report: SweepReport) -> dict[str, Any]:
    """The row as one flat mapping, its axes first."""
    values = row.model_dump(mode="json")
    return {name: values[name] for name in report.axes} | values


def _is_told_above(column: Column, report: SweepReport, rows: Sequence[Row]) -> bool:
    """Whether a quantity of the plan has one value wherever there is a plan, and needs no column."""
    values = [row[column.key] for row in rows if row["verdict"]]
    return column.key not in report.axes and all(value == values[0] for value in values)


def _columns(report: SweepReport, told: set[str]) -> list[Column]:
    of_plan = {column.key: replace(column, priority=0) for column in PLAN_COLUMNS}
    axes = [of_plan.get(name) or _input_column(name, values) for name, values in report.axes.items()]
    rest = [column for column in PLAN_COLUMNS if column.key not in told and column.key not in report.axes]
    return [Column("point", "#"), *axes, *rest, *ANSWER_COLUMNS]


def _header(report: SweepReport, rows: Sequence[Row], told: set[str]) -> Iterator[str]:
    """What was asked, as it was understood."""
    axes = [f"{name} {','.join(_text(name, value) for value in values)}" for name, values in report.axes.items()]
    count = f"{len(report.rows):,} point{'s' if len(report.rows) > 1 else ''}"
    yield f"Sweep     {count}{': ' if axes else ''}{'; '.join(axes)}"
    fixed = [f"{name} {_text(name, value)}" for name, value in report.fixed.items()]
    fixed += [f"{name} = {value:g}" for name, value in report.assumptions.items()]
    yield f"Fixed     {'; '.join(fixed)}; up to {format_fraction(report.margin_fraction, digits=0)} of memory"
    shared = _shared(report.fixed, rows, told)
    if shared:
        yield f"All plans {', '.join(shared)}"


def _shared(fixed: Mapping[str, AxisValue], rows: Sequence[Row], told: set[str]) -> list[str]:
    """What every plan has in common without having been asked for."""
    row = next((row for row in rows if row["verdict"]), None)
    if row is None:
        return []
    columns = [column for column in PLAN_COLUMNS if column.key in told and column.key not in fixed]
    return [
        f"{column.header} {column.text(row)}"
        for column in columns
        if not (column.key in ONLY_WHERE_USED and column.value(row) == 1)
    ]


def _notes(report: SweepReport) -> Iterator[str]:
    """How many points have a plan, and why the others have none."""
    misses = [row for row in report.rows if not row.fits]
    yield f"{len(report.rows) - len(misses):,} of {len(report.rows):,} points have a plan that fits."
    if any(row.verdict for row in misses):
        yield "Where none fits, the row shows the legal plan that needs the least memory."
    points: dict[str, list[str]] = {}
    for number, row in enumerate(report.rows, 1):
        # what does not fit says so in its row
        if row.reason and row.verdict != "does_not_fit":
            points.setdefault(row.reason, []).append(f"#{number}")
    for reason, numbers in points.items():
        more = f" and {len(numbers) - MANY:,} more" if len(numbers) > MANY else ""
        yield f"{', '.join(numbers[:MANY])}{more}: {reason}"
