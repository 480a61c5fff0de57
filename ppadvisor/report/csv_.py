"""CSV: for spreadsheets; keys as the header, raw values."""

from __future__ import annotations

import csv
import io
import json

from ppadvisor.report.rows import RowTable, View


def render(table: RowTable, view: View) -> str:
    """A header and one line a row; nothing stands for None, JSON for a list or a mapping."""
    columns = [column for column in table.columns if column.derive is None]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.key for column in columns)
    writer.writerows([_cell(column.value(row)) for column in columns] for row in table.rows)
    return text.getvalue()


def _cell(value: object) -> object:
    nested = isinstance(value, bool | list | tuple | dict)
    return json.dumps(value, ensure_ascii=False, allow_nan=False) if nested else value
