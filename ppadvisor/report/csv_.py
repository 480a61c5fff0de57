"""CSV: for spreadsheets; keys as the header, raw values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable

from ppadvisor.report.rows import RowTable, View


def render(table: RowTable, view: View) -> str:
    """A header and one line a row."""
    columns = [column for column in table.columns if column.derive is None]
    head = [column.key for column in columns]
    return csv_lines([head, *([column.value(row) for column in columns] for row in table.rows)])


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """The rows, each line ended; nothing stands for None, JSON for a list or a mapping."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    nested = isinstance(value, bool | list | tuple | dict)
    return json.dumps(value, ensure_ascii=False, allow_nan=False) if nested else value
