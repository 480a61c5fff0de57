"""Markdown: for issues, pull requests and notes."""

from __future__ import annotations

from collections.abc import Iterable

from ppadvisor.report.rows import RowTable, View


def render(table: RowTable, view: View) -> str:
    """A pipe table of all columns, the title in bold above it."""
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append(_line(column.header for column in table.columns))
    lines.append(_line("---" if column.justify == "left" else "---:" for column in table.columns))
    lines.extend(_line(column.text(row) for column in table.columns) for row in table.rows)
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
