"""What the HTML pages share: one file that needs nothing else, light or dark as the reader's screen, for any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ppadvisor.report.rows import Column, Row

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#24292f;--faint:#57606a;--rule:#d8dee4;--tint:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--back:#16191d;--text:#dfe3e8;--faint:#a0a8b2;--rule:#3b4148;--tint:#1f242a}}
*{box-sizing:border-box}
body{margin:16px;background:var(--back);color:var(--text);
font:14px/1.45 ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;overflow-wrap:anywhere}
h1{font-size:20px;margin:0 0 8px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:0 0 12px}
dt{color:var(--faint)}
dd{margin:0}
.wide{overflow-x:auto;background:linear-gradient(to left,var(--back) 16px,transparent) right/32px 100% no-repeat local,
linear-gradient(to left,var(--rule),transparent) right/14px 100% no-repeat scroll}
table{border-collapse:collapse;margin-top:14px;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:2px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
"""
"""Tables scroll inside their own box, shaded where more is to the right: the page is never wider than the screen."""


def page(title: str, styles: Iterable[str], body: Iterable[str], script: str = "") -> str:
    """The whole file; `body` is markup, `title` text."""
    shown = escape(title)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{shown}</title>\n<style>{''.join([STYLE, *styles])}</style>",
        f"</head>\n<body>\n<h1>{shown}</h1>",
        *body,
        f"{f'<script>{script}</script>{chr(10)}' if script else ''}</body>\n</html>\n",
    ]
    return "\n".join(parts)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """(name, value) of what stands above all else."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs)}</dl>"


def table(columns: Sequence[Column], rows: Sequence[Row], *, chosen: int | None = None) -> str:
    """The rows as people read them, that of index `chosen` marked; text that may wrap in a terminal wraps here too."""
    head = "".join(f'<th scope="col"{_kind(column)}{_width(column)}>{escape(column.header)}</th>' for column in columns)
    marks = [' class="chosen"' if index == chosen else "" for index in range(len(rows))]
    body = "".join(
        f"<tr{mark}>{''.join(_cell(column, row) for column in columns)}</tr>"
        for mark, row in zip(marks, rows, strict=True)
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(column: Column, row: Row) -> str:
    return f"<td{_kind(column)}>{escape(column.text(row))}</td>"


def _kind(column: Column) -> str:
    names = [*(["left"] if column.justify == "left" else []), *(["wraps"] if column.min_width else [])]
    return f' class="{" ".join(names)}"' if names else ""


def _width(column: Column) -> str:
    """Text that wraps keeps the width that it needs in a terminal."""
    return f' style="min-width:{column.min_width}ch"' if column.min_width else ""
