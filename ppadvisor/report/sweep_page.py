"""The picture of a sweep as one page that needs nothing else, with the numbers below it."""

from __future__ import annotations

from html import escape

from ppadvisor.report.rows import Column
from ppadvisor.report.sweep_plot import fixed_text, subject_of, title_of
from ppadvisor.report.sweep_rows import row_values
from ppadvisor.report.sweep_values import ANSWER_COLUMNS, PLAN_COLUMNS, input_column
from ppadvisor.search.sweep import SweepReport

STYLE = """
:root{color-scheme:light}
body{margin:16px;background:#fff;color:#24292f;font:14px/1.45 ui-sans-serif,system-ui,'DejaVu Sans',sans-serif}
h1{font-size:20px;margin:0 0 8px}
p{margin:0 0 12px;color:#57606a;overflow-wrap:anywhere}
figure{margin:0}
figure svg{display:block;width:100%;height:auto;min-width:680px;max-width:1400px}
figure,.wide{overflow-x:auto}
table{border-collapse:collapse;margin-top:14px;font-variant-numeric:tabular-nums}
th,td{padding:2px 10px;text-align:right;border-bottom:1px solid #d8dee4;white-space:nowrap}
"""


def page(report: SweepReport, svg: str) -> str:
    """The page; of the picture what a page takes, which is the element alone."""
    title = escape(title_of(report))
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>Sweep of {escape(subject_of(report))}</title>\n<style>{STYLE}</style>\n</head>",
        f"<body>\n<h1>{title}</h1>",
        f"<p>{escape(fixed_text(report))}; ppadvisor {escape(report.model_version)}</p>",
        f'<figure tabindex="0">\n{_element(svg)}</figure>',
        _table(report),
        "</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _element(svg: str) -> str:
    return svg[svg.index("<svg") :].rstrip("\n") + "\n"


def _table(report: SweepReport) -> str:
    known = {column.key: column for column in PLAN_COLUMNS}
    axes = [known.get(name) or input_column(name, values) for name, values in report.axes.items()]
    rest = [column for column in PLAN_COLUMNS if column.key not in report.axes]
    columns = [*axes, *rest, *ANSWER_COLUMNS, Column("reason", "why", justify="left")]
    rows = [row_values(row, report.axes) for row in report.rows]
    head = "".join(f"<th>{escape(column.header)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c.text(row))}</td>' for c in columns)}</tr>" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
