"""The answer of `sweep`: one row a point; for people, what all points share is said once, above the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ppadvisor.report.json_ import dump_json
from ppadvisor.report.plan_view import ONLY_WHERE_USED
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, View, render_rows
from ppadvisor.report.sparkline import sparkline
from ppadvisor.report.sweep_pivot import Pivot, pivot_notes, pivot_tables
from ppadvisor.report.sweep_rows import LINE_FORMS, file_columns, file_values, row_values
from ppadvisor.report.sweep_values import (
    ANSWER_COLUMNS,
    DEFAULT_VALUE,
    MEMORY_VALUES,
    PLAN_COLUMNS,
    VALUE_COLUMNS,
    axis_label,
    axis_text,
    input_column,
    short_axis_text,
)
from ppadvisor.search.sweep import AxisValue, SweepReport, SweepRow
from ppadvisor.units import format_fraction

MOST_NAMED = 12
"""Of an axis with more values the header tells the ends and the number."""
MANY = 6
"""Of more points that share a note, only so many are listed."""

SPARKS = ("step_time_s", "model_flops_utilization", "bubble_fraction", "peak_bytes")
"""What is drawn in a line of text over a single axis of numbers."""
FEWEST_SPARKS = 3
"""With fewer points the numbers say it all."""


@dataclass(frozen=True)
class Shape:
    """How people want the answer: as rows, or as tables of two axes."""

    pivot: Pivot | None = None
    values: Sequence[str] = (DEFAULT_VALUE,)


def render_sweep(report: SweepReport, format: str, view: View, shape: Shape) -> str | bytes:
    """The report in one of SWEEP_FORMATS."""
    if format == "json":
        rows = [row_values(row, report.axes) for row in report.rows]
        return dump_json(report.model_dump(mode="json", exclude={"rows"}) | {"rows": rows})
    if format == "parquet":
        from ppadvisor.report.parquet import render_parquet

        return render_parquet(report)
    if format in LINE_FORMS:
        form = LINE_FORMS[format]
        lines = (form.line(file_values(row, report)) for row in report.rows)
        return form.head(file_columns(report)) + "".join(lines)
    return _for_people(report, format, view, shape)


def _for_people(report: SweepReport, format: str, view: View, shape: Shape) -> str:
    rows = [row_values(row, report.axes) for row in report.rows]
    told = {column.key for column in PLAN_COLUMNS if _is_told_above(column, report, rows)}
    if shape.pivot:
        tables = pivot_tables(report, shape.pivot, shape.values, format, width=view.width, color=view.color)
        sparks, notes = [], [_count(report), *pivot_notes(report.rows)]
    else:
        numbered = [{"point": number, **row} for number, row in enumerate(rows, 1)]
        table = render_rows(_columns(report, told), numbered, format, width=view.width, color=view.color)
        tables = iter([table.rstrip("\n")])
        sparks, notes = [] if format == "markdown" else list(_sparks(report)), list(_notes(report))
    bullet = "- " if format == "markdown" else ""
    head = [f"{bullet}{line}" for line in _header(report, rows, told)]
    blocks = [head, *([table] for table in tables), sparks, [f"{bullet}{line}" for line in notes]]
    return join_blocks(blocks, format, view.width)


def _is_told_above(column: Column, report: SweepReport, rows: Sequence[Row]) -> bool:
    """Whether a quantity of the plan has one value wherever there is a plan, and needs no column."""
    values = [row[column.key] for row in rows if row["verdict"]]
    return column.key not in report.axes and all(value == values[0] for value in values)


def _columns(report: SweepReport, told: set[str]) -> list[Column]:
    of_plan = {column.key: replace(column, priority=0) for column in PLAN_COLUMNS}
    axes = [of_plan.get(name) or input_column(name, values) for name, values in report.axes.items()]
    rest = [column for column in PLAN_COLUMNS if column.key not in told and column.key not in report.axes]
    return [Column("point", "#"), *axes, *rest, *ANSWER_COLUMNS]


def _header(report: SweepReport, rows: Sequence[Row], told: set[str]) -> Iterator[str]:
    """What was asked, as it was understood."""
    axes = [f"{name} {_axis_values(name, values)}" for name, values in report.axes.items()]
    asked = prod(map(len, report.axes.values()))
    done = f"{len(report.rows):,} of " if len(report.rows) < asked else ""
    count = f"{done}{asked:,} point{'s' if asked > 1 else ''}"
    yield f"Sweep     {count}{': ' if axes else ''}{'; '.join(axes)}"
    fixed = [f"{name} {axis_text(name, value)}" for name, value in report.fixed.items()]
    fixed += [f"{name} = {value:g}" for name, value in report.assumptions.items()]
    yield f"Fixed     {'; '.join(fixed)}; up to {format_fraction(report.margin_fraction, digits=0)} of memory"
    shared = _shared(report.fixed, rows, told)
    if shared:
        yield f"All plans {', '.join(shared)}"


def _axis_values(name: str, values: Sequence[AxisValue]) -> str:
    """All values of an axis, or the ends and the number of many."""
    texts = [axis_text(name, value) for value in values]
    return ",".join(texts) if len(texts) <= MOST_NAMED else f"{texts[0]}..{texts[-1]} ({len(texts):,})"


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


def _sparks(report: SweepReport) -> Iterator[str]:
    """The course of a few values over the only axis, where that is one of numbers."""
    if len(report.axes) != 1 or len(report.rows) < FEWEST_SPARKS:
        return
    ((name, values),) = report.axes.items()
    if not all(isinstance(value, int | float) for value in values):
        return
    width = max(len(VALUE_COLUMNS[key].header) for key in SPARKS)
    first, last = (short_axis_text(name, values[index]) for index in (0, len(report.rows) - 1))
    crosses = "" if all(row.fits for row in report.rows) else "; × where nothing fits"
    yield f"{'over':{width}}  {axis_label(name)} {first} .. {last}{crosses}"
    for key in SPARKS:
        column, shown = VALUE_COLUMNS[key], [_worth_seeing(row, key) for row in report.rows]
        known = [value for value in shown if value is not None]
        if known:
            low, high = (column.text({key: pick(known)}) for pick in (min, max))
            yield f"{column.header:{width}}  {sparkline(shown)}  {low} .. {high}"


def _worth_seeing(row: SweepRow, key: str) -> float | None:
    value: float | None = getattr(row, key)
    return value if row.fits or key in MEMORY_VALUES else None


def _count(report: SweepReport) -> str:
    fitting = sum(row.fits for row in report.rows)
    return f"{fitting:,} of {len(report.rows):,} points have a plan that fits."


def _notes(report: SweepReport) -> Iterator[str]:
    """How many points have a plan, and why the others have none."""
    yield _count(report)
    if any(row.verdict for row in report.rows if not row.fits):
        yield "Where none fits, the row shows the legal plan that needs the least memory."
    points: dict[str, list[str]] = {}
    for number, row in enumerate(report.rows, 1):
        # what does not fit says so in its row
        if row.reason and row.verdict != "does_not_fit":
            points.setdefault(row.reason, []).append(f"#{number}")
    for reason, numbers in points.items():
        more = f" and {len(numbers) - MANY:,} more" if len(numbers) > MANY else ""
        yield f"{', '.join(numbers[:MANY])}{more}: {reason}"
