"""Tables of rows, the shape of most answers: said once, written in any format.

    COLUMNS = (
        Column("name", "GPU", justify="left"),
        Column("memory_bytes", "memory [GiB]", format_gib),
        Column("source", "source", justify="left", priority=1, min_width=40),
    )
    render_rows(COLUMNS, rows, "table", width=80)

Formats for people (table, markdown) show the formatted columns, formats for programs (csv, json) the raw values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, cast

from ppadvisor.report.formats import FORMATS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: where its value stands in a row and how people read it."""

    key: str
    """The row's key, and the column's name in csv; `time.step_time_s` looks into the mapping `time`."""
    header: str
    """For people; the unit in brackets."""
    fmt: Callable[[Any], str] = str
    """Value to text; never called for a value that is missing or None, which reads `-`."""
    justify: Literal["left", "right"] = "right"
    priority: int = 0
    """Where a table is too wide, columns of the highest number go first to a second table below it."""
    min_width: int | None = None
    """Text that may wrap, down to this many characters; None: a cell stays on one line."""
    names_row: bool = False
    """Stands in the second table too, beside the first column, which always does: without it rows read alike."""
    derive: Callable[[Row], object] | None = None
    """Makes the value from the whole row, for people only: such a column is not in csv."""
    style: Callable[[Row], str] | None = None
    """How a terminal with colours shows the cell, in the words of rich: a map of heat, a verdict."""

    def value(self, row: Row) -> Any:
        """The raw value, or None where the row has none."""
        value: Any = row
        for key in self.key.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def text(self, row: Row) -> str:
        """The cell as people read it."""
        value = self.derive(row) if self.derive else self.value(row)
        return "-" if value is None else self.fmt(value)


@dataclass(frozen=True)
class RowTable:
    """What there is to show."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What json says beside the rows."""


@dataclass(frozen=True)
class View:
    """Where it is shown: only the table for terminals looks at it."""

    width: int = 80
    color: bool = False


class RowFormat(Protocol):
    """What each module of FORMATS offers."""

    def render(self, table: RowTable, view: View) -> str:
        """The whole text, with its last line ended."""


def render_rows(
    columns: Sequence[Column],
    rows: Sequence[Row],
    format: str,
    *,
    width: int = 80,
    color: bool = False,
    title: str = "",
    extra: Mapping[str, Any] | None = None,
) -> str:
    """The rows as text in one of FORMATS, with its last line ended."""
    module = cast(RowFormat, import_module(FORMATS[format]))
    return module.render(RowTable(columns, rows, title, extra or {}), View(width, color))
