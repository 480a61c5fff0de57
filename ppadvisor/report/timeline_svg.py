"""The timeline as one SVG file of fixed size: for documents, and for any viewer."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from ppadvisor.engine.timeline import Timeline
from ppadvisor.report.timeline_picture import (
    LABELS,
    LINES,
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
from ppadvisor.report.timeline_words import facts_of, title_of

NARROWEST, WIDEST = 880, 16_000
PER_ACTION = 15
"""Pixels of a typical action, where the picture does not get too wide: its micro-batch can be read."""
MARGIN, LINE, SWATCH = 16, 18, 14
TEXT_CHARACTER = 5.8
"""Pixels of a character of the legend, with some to spare."""


def render(timeline: Timeline, about: Sequence[str] = ()) -> str:
    """The picture with its title, totals and legend; `about` are the lines that say what it is a timeline of."""
    check_drawable(timeline, "--svg")
    plot = _plot_width(timeline)
    width = plot + LABELS + 2 * MARGIN
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"})
    ET.SubElement(root, "style").text = f"{style_of(timeline)}\n{LINES}"
    root.append(hatches())
    ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#fff"})
    top = MARGIN + _draw_head(root, timeline, about, width)
    body = ET.SubElement(root, "g", {"transform": f"translate({MARGIN},{top})"})
    draw_labels(body, timeline)
    draw_plot(
        ET.SubElement(body, "g", {"transform": f"translate({LABELS},0)"}), timeline, Scale(timeline.makespan_s, plot)
    )
    height = top + height_of(timeline) + MARGIN
    root.attrib |= {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
    return ET.tostring(root, encoding="unicode") + "\n"


def _plot_width(timeline: Timeline) -> int:
    return round(min(max(PER_ACTION * typical_actions(timeline), NARROWEST), WIDEST))


def _draw_head(root: ET.Element, timeline: Timeline, about: Sequence[str], width: float) -> float:
    """Title, totals and legend; the pixels that they take."""
    lines = [title_of(timeline), *(f"{name}: {value}" for name, value in facts_of(timeline, about))]
    for index, line in enumerate(lines):
        style = {"style": "font-size:15px;font-weight:600"} if index == 0 else {}
        place = {"x": f"{MARGIN}", "y": f"{MARGIN + LINE * (index + 0.7):g}"}
        ET.SubElement(root, "text", {**place, **style}).text = line
    return LINE * len(lines) + _draw_legend(root, legend_of(timeline), MARGIN + LINE * (len(lines) + 0.5), width)


def _draw_legend(root: ET.Element, entries: list[Entry], top: float, width: float) -> float:
    """The entries one after the other, in as many lines as the width asks for; the pixels that they take."""
    x, y = float(MARGIN), top
    for entry in entries:
        takes = SWATCH * len(entry.classes) + 6 + TEXT_CHARACTER * len(entry.text) + 14
        if x > MARGIN and x + takes > width - MARGIN:
            x, y = float(MARGIN), y + LINE
        for index, name in enumerate(entry.classes):
            size = {"width": f"{SWATCH}", "height": f"{SWATCH}"}
            ET.SubElement(root, "rect", {"class": name, "x": f"{x + SWATCH * index:g}", "y": f"{y:g}", **size})
        place = {"x": f"{x + SWATCH * len(entry.classes) + 6:g}", "y": f"{y + 11:g}"}
        ET.SubElement(root, "text", place).text = entry.text
        x += takes
    return y + 2 * LINE - top
