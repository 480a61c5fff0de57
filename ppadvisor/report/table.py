"""Tables for a terminal: never truncated, never wider than asked where the cells allow it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ppadvisor.report.rows import Column, Row, RowTable, View

GAP = 2
"""Between two columns: one from the box, the rest padding."""

Cells = dict[Column, list[str]]


def render(table: RowTable, view: View) -> str:
    """The title and the table; columns that do not fit stand in tables below, behind what names a row again."""
    cells: Cells = {column: [column.text(row) for row in table.rows] for column in table.columns}
    blocks = _blocks(table.columns, cells, view.width)
    # A cell that may not wrap still shows whole where it alone is wider than the terminal.
    width = max(view.width, *(_total(block, cells) for block in blocks))
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=view.color, color_system="256" if view.color else None)
    if table.title:
        console.print(Text(table.title, style="bold"), soft_wrap=True)
    for index, block in enumerate(blocks):
        if index:
            console.print()
        console.print(_drawn(block, table.rows, cells, max(view.width, _total(block, cells))))
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _blocks(columns: Sequence[Column], cells: Cells, width: int) -> list[list[Column]]:
    """The columns in groups that fit the width each; all but the first begin with what names a row."""
    names = [column for index, column in enumerate(columns) if not index or column.names_row]
    rest = [column for column in columns if column not in names]
    blocks = []
    while True:
        kept = list(rest)
        while len(kept) > 1 and _total([*names, *kept], cells) > width:
            # The least important goes; of equals the one further right.
            kept.remove(max(reversed(kept), key=lambda column: column.priority))
        blocks.append([*names, *kept])
        rest = [column for column in rest if column not in kept]
        if not rest:
            return blocks


def _need(column: Column, cells: Cells) -> int:
    """The narrowest that shows the column: its cells whole (or wrapped, where it allows that), its header by words."""
    natural = _natural(column, cells)
    header = max(cell_len(word) for word in column.header.split() or [""])
    return max(header, min(natural, column.min_width or natural))


def _natural(column: Column, cells: Cells) -> int:
    return max((cell_len(cell) for cell in cells[column]), default=0)


def _total(columns: Sequence[Column], cells: Cells) -> int:
    return sum(_need(column, cells) for column in columns) + GAP * (len(columns) - 1)


def _widths(columns: Sequence[Column], cells: Cells, width: int) -> list[int]:
    """Start from what each needs; what is left goes to whole headers, then to text that would wrap."""
    widths = [_need(column, cells) for column in columns]
    left = width - _total(columns, cells)
    headers = [cell_len(column.header) for column in columns]
    texts = [_natural(column, cells) for column in columns]
    for wishes in (headers, texts):
        for index, wish in enumerate(wishes):
            more = max(0, min(left, wish - widths[index]))
            widths[index] += more
            left -= more
    return widths


def _drawn(columns: Sequence[Column], rows: Sequence[Row], cells: Cells, width: int) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column, column_width in zip(columns, _widths(columns, cells, width), strict=True):
        # Text, not str: rich would read `[s]` in a header as markup and drop it.
        drawn.add_column(Text(column.header), justify=column.justify, width=column_width, overflow="fold")
    for index, row in enumerate(rows):
        drawn.add_row(*(Text(cells[column][index], column.style(row) if column.style else "") for column in columns))
    return drawn
