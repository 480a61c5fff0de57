"""The timeline as one page that needs nothing else: it fits any screen, can be stretched, and tells on hover."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from html import escape

from ppadvisor.engine.timeline import Timeline
from ppadvisor.report.page import facts, page, table
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

CHART_STYLE = """
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;margin:0 0 10px;padding:0;font-size:12px}
.legend svg{vertical-align:-2px;margin-right:5px}
fieldset{border:0;margin:0 0 6px;padding:0;font-size:12px}
legend{float:left;margin:3px 8px 0 0;padding:0}
.chart{display:flex}
.chart svg{display:block;overflow:hidden}
.names{flex:none}
.scroll{flex:1;min-width:0;overflow-x:auto}
.zoomed{container:plot/inline-size;width:100%}
rect[class]:hover{stroke:var(--text);stroke-width:2}
#told{position:fixed;display:none;pointer-events:none;white-space:pre-line;max-width:320px;padding:6px 9px;
background:#24292f;color:#fff;font-size:12px;border-radius:4px;z-index:1}
"""
DARK_STYLE = """
@media (prefers-color-scheme:dark){
text{fill:var(--text)}
text.n{fill:#16191d}
.small{fill:var(--faint)}
.grid{stroke:var(--rule)}
#told{background:#dfe3e8;color:#16191d}
}
"""
"""Behind the style of the elements, whose colours are those of a light page; bars and their labels keep theirs."""

TOLD = '<div id="told"></div>'
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
    columns = columns_of(timeline.makespan_s, of_plan=timeline.plan is not None)
    body = [facts(facts_of(timeline, about)), *chart(timeline), table(columns, rank_rows(timeline))]
    return page(title_of(timeline), [chart_style(timeline)], [*body, TOLD], SCRIPT)


def chart(timeline: Timeline) -> list[str]:
    """Legend, the choice of the width, and the rows of all ranks; for the style `chart_style`, TOLD and SCRIPT."""
    return [_legend(legend_of(timeline)), _zoom_choice(), _chart(timeline)]


def chart_style(timeline: Timeline) -> str:
    """The style sheet of `chart`."""
    return f"{CHART_STYLE}{style_of(timeline)}\n{_zoom_rules()}\n{_width_rules(timeline)}\n{DARK_STYLE}"


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
    return f"<fieldset><legend>Stretch</legend>{' '.join(choices)}</fieldset>"


def _zoom_rules() -> str:
    return "\n".join(f"body:has(#zoom{zoom}:checked) .zoomed{{width:{100 * zoom}%}}" for zoom in ZOOMS)


def _width_rules(timeline: Timeline) -> str:
    """Labels, and lines between the bars, are shown where the plot is wide enough for them."""
    hidden = ",".join(f".w{width}" for width in WIDTHS)
    shown = [f"@container plot (min-width:{width}px){{.w{width}{{display:inline}}}}" for width in WIDTHS]
    lines = f"@container plot (min-width:{PER_LINE * typical_actions(timeline):.0f}px){{{LINES}}}"
    return "\n".join([f"{hidden}{{display:none}}", *shown, lines])
