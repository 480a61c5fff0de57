"""Two axes of a sweep as the sides of a table, a value of the best plan in each cell; with colours a map of heat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.report.sweep_values import (
    MEMORY_VALUES,
    VALUE_COLUMNS,
    WORD_VALUES,
    axis_label,
    reason_word,
    short_axis_text,
)
from ppadvisor.search.sweep import AxisValue, SweepReport, SweepRow

HEAT = ("17", "19", "25", "31", "37", "72", "108", "150", "186", "228")
"""Colours of a terminal from the lowest value to the highest, dark blue to light yellow."""
DARK = 5
"""So many of them carry white text, the others black."""
NOTHING = "dim"
"""Style of a cell where nothing fits."""


class Cell(NamedTuple):
    """What one pair of axis values shows."""

    text: str
    style: str


class Pivot(NamedTuple):
    """What stands where: axis down, axis across."""

    down: str
    across: str


def pivot_tables(
    report: SweepReport, pivot: Pivot, values: Sequence[str], format: str, *, width: int, color: bool
) -> Iterator[str]:
    """A table of each value and each combination of the other axes."""
    others = [name for name in report.axes if name not in pivot]
    combinations = list(product(*(report.axes[name] for name in others)))
    found = {tuple(getattr(row, name) for name in report.axes): row for row in report.rows}
    columns = _columns(report, pivot)
    for value in values:
        styles = _styles(report.rows, value)
        for combination in combinations:
            at: dict[str, AxisValue] = dict(zip(others, combination, strict=True))
            table: list[dict[str, Any]] = []
            for down in report.axes[pivot.down]:
                places = [at | {pivot.down: down, pivot.across: across} for across in report.axes[pivot.across]]
                # none, where the sweep was ended before it
                rows = [found.get(tuple(place[name] for name in report.axes)) for place in places]
                cells = {f"cell{index}": _cell(row, value, styles) for index, row in enumerate(rows)}
                table.append({"label": short_axis_text(pivot.down, down), **cells})
            title = _title(value, at, pivot)
            yield render_rows(columns, table, format, width=width, color=color, title=title).rstrip("\n")


def _title(value: str, at: Mapping[str, AxisValue], pivot: Pivot) -> str:
    where = "".join(f", {axis_label(name)} {short_axis_text(name, chosen)}" for name, chosen in at.items())
    return f"{VALUE_COLUMNS[value].header}{where}: {axis_label(pivot.down)} down, {axis_label(pivot.across)} across"


def _columns(report: SweepReport, pivot: Pivot) -> list[Column]:
    cells = [
        Column(
            f"cell{index}", short_axis_text(pivot.across, across), _text_of, style=partial(_style_of, f"cell{index}")
        )
        for index, across in enumerate(report.axes[pivot.across])
    ]
    words = any(isinstance(value, str) for value in report.axes[pivot.down])
    return [Column("label", axis_label(pivot.down), justify="left" if words else "right"), *cells]


def _text_of(cell: Cell) -> str:
    return cell.text


def _style_of(key: str, row: Row) -> str:
    cell: Cell = row[key]
    return cell.style


def _cell(row: SweepRow | None, value: str, styles: Mapping[object, str]) -> Cell:
    if row is None:
        return Cell("", NOTHING)
    number = getattr(row, value)
    shown = VALUE_COLUMNS[value].text({value: number})
    if row.fits:
        return Cell(shown, styles.get(number, ""))
    word = reason_word(row.reason_code or "")
    return Cell(f"{shown} {word}" if value in MEMORY_VALUES and number is not None else word, NOTHING)


def _styles(rows: Sequence[SweepRow], value: str) -> dict[object, str]:
    """The colours of the values of the plans that fit: by size, words by the order in which they occur."""
    found = list(dict.fromkeys(getattr(row, value) for row in rows if row.fits))
    if value in WORD_VALUES:
        places = {word: index % len(HEAT) for index, word in zip(range(2, 999, 3), found, strict=False)}
    else:
        low, span = min(found, default=0), max(found, default=0) - min(found, default=0)
        places = {number: round((number - low) / span * (len(HEAT) - 1)) if span else 0 for number in found}
    return {
        number: f"{'color(231)' if place < DARK else 'color(16)'} on color({HEAT[place]})"
        for number, place in places.items()
    }


def pivot_notes(rows: Sequence[SweepRow]) -> Iterator[str]:
    """What the words in the cells mean: how many points, and what one of them says."""
    counts = Counter(row.reason_code for row in rows if row.reason_code)
    for code, number in counts.items():
        example = next(row.reason for row in rows if row.reason_code == code)
        points = f"{number:,} points; the first" if number > 1 else "1 point"
        yield f"{reason_word(code)} ({points}): {example}"
