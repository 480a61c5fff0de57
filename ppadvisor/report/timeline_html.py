"""The timeline as one page that needs nothing else: it fits any screen, can be stretched, and tells on hover."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from html import escape

from ppadvisor.engine.timeline import Timeline
from ppadvisor.report.timeline_picture import (
    LABELS,
    LINES,
    WIDTHS,
    Entry,
    Scale,
    check_drawable,
    draw_labels,
    draw_plot,
    hatches,
    height_of,
    legend_of,
    style_of,
    typical_actions,
)
from ppadvisor.report.timeline_view import columns_of, rank_rows
from ppadvisor.report.timeline_words import facts_of, title_of

ZOOMS = (1, 2, 4, 8, 16)
PER_LINE = 5
"""Pixels of a typical action from which on there are lines between the bars."""

PAGE_STYLE = """
:root{color-scheme:light}
body{margin:16px;background:#fff;color:#24292f;font:14px/1.45 ui-sans-serif,system-ui,'DejaVu Sans',sans-serif}
h1{font-size:20px;margin:0 0 8px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;margin:0 0 12px}
dt{color:#57606a}
dd{margin:0}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;margin:0 0 10px;padding:0;font-size:12px}
.legend svg{vertical-align:-2px;margin-right:5px}
fieldset{border:0;margin:0 0 6px;padding:0;font-size:12px}
.chart{display:flex}
.chart svg{display:block;overflow:hidden}
.names{flex:none}
.scroll{flex:1;min-width:0;overflow-x:auto}
.zoomed{container:plot/inline-size;width:100%}
.wide{overflow-x:auto}
table{border-collapse:collapse;margin-top:14px;font-variant-numeric:tabular-nums}
th,td{padding:2px 10px;text-align:right;border-bottom:1px solid #d8dee4;white-space:nowrap}
rect[class]:hover{stroke:#000;stroke-width:2}
#told{position:fixed;display:none;pointer-events:none;white-space:pre-line;max-width:320px;padding:6px 9px;
background:#24292f;color:#fff;font-size:12px;border-radius:4px;z-index:1}
"""

SCRIPT = """
const told = document.getElementById('told');
for (const title of document.querySelectorAll('.chart title')) {
  title.parentNode.dataset.told = title.textContent;
  title.remove();
}
function tell(event) {
  const at = event.target.closest ? event.target.closest('[data-told]') : null;
  told.style.display = at ? 'block' : 'none';
  if (!at) return;
  told.textContent = at.dataset.told;
  const right = innerWidth - told.offsetWidth - 8, below = event.clientY + 16;
  told.style.left = Math.max(8, Math.min(event.clientX + 12, right)) + 'px';
  told.style.top = (below + told.offsetHeight > innerHeight ? event.clientY - told.offsetHeight - 12 : below) + 'px';
}
addEventListener('pointermove', tell);
addEventListener('pointerdown', tell);
"""


def render(timeline: Timeline, about: Sequence[str] = ()) -> str:
    """The page; `about` are the lines that say what it is a timeline of."""
    check_drawable(timeline, "--html")
    title, facts = escape(title_of(timeline)), facts_of(timeline, about)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{title}</title>\n<style>{PAGE_STYLE}{style_of(timeline)}\n{_zoom_rules()}\n{_width_rules(timeline)}\n</style>",
        f"</head>\n<body>\n<h1>{title}</h1>",
        f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in facts)}</dl>",
        _legend(legend_of(timeline)),
        _zoom_choice(),
        _chart(timeline),
        _table(timeline),
        f'<div id="told"></div>\n<script>{SCRIPT}</script>\n</body>\n</html>\n',
    ]
    return "\n".join(parts)


def _chart(timeline: Timeline) -> str:
    """The names stand still while the plot is scrolled."""
    height = {"height": f"{height_of(timeline)}"}
    names = ET.Element("svg", {"class": "names", "width": f"{LABELS}", **height})
    draw_labels(names, timeline)
    plot = ET.Element("svg", {"width": "100%", **height})
    plot.append(hatches())
    draw_plot(plot, timeline, Scale(timeline.makespan_s, None))
    drawn = '<div class="scroll" tabindex="0"><div class="zoomed">' + _markup(plot) + "</div></div>"
    return f'<div class="chart">{_markup(names)}{drawn}</div>'


def _markup(element: ET.Element) -> str:
    return ET.tostring(element, encoding="unicode")


def _legend(entries: list[Entry]) -> str:
    items = []
    for entry in entries:
        swatches = "".join(
            f'<rect class="{name}" x="{14 * index}" width="14" height="14"/>'
            for index, name in enumerate(entry.classes)
        )
        drawn = f'<svg width="{14 * len(entry.classes)}" height="14">{swatches}</svg>' if swatches else ""
        items.append(f"<li>{drawn}{escape(entry.text)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _zoom_choice() -> str:
    choices = [
        f'<label><input type="radio" name="zoom" id="zoom{zoom}"{" checked" if zoom == 1 else ""}>{zoom}×</label>'
        for zoom in ZOOMS
    ]
    return f"<fieldset>Stretch {' '.join(choices)}</fieldset>"


def _zoom_rules() -> str:
    return "\n".join(f"body:has(#zoom{zoom}:checked) .zoomed{{width:{100 * zoom}%}}" for zoom in ZOOMS)


def _width_rules(timeline: Timeline) -> str:
    """Labels, and lines between the bars, are shown where the plot is wide enough for them."""
    hidden = ",".join(f".w{width}" for width in WIDTHS)
    shown = [f"@container plot (min-width:{width}px){{.w{width}{{display:inline}}}}" for width in WIDTHS]
    lines = f"@container plot (min-width:{PER_LINE * typical_actions(timeline):.0f}px){{{LINES}}}"
    return "\n".join([f"{hidden}{{display:none}}", *shown, lines])


def _table(timeline: Timeline) -> str:
    columns, rows = columns_of(timeline.makespan_s, of_plan=timeline.plan is not None), rank_rows(timeline)
    head = "".join(f"<th>{escape(column.header)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c.text(row))}</td>' for c in columns)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
