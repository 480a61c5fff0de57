"""The timeline as SVG elements: bars, idle time, memory, axis. The picture alone and the page are made of them.

Plain SVG by the standard library's ElementTree, which keeps it well-formed: what is drawn are rectangles on a straight
axis, and libraries that draw charts either bring a whole browser framework or know no text that shows on hover.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ppadvisor.engine.timeline import RankTimeline, Steps, Timeline
from ppadvisor.errors import InputError
from ppadvisor.report.timeline_words import CAUSE_NAMES, KIND_NAMES, counted, stages_text, ticks, unit_of
from ppadvisor.schedules.base import FloatArray, Kind
from ppadvisor.schedules.replay import IDLE_CAUSES
from ppadvisor.units import format_bytes_gib

MAX_ACTIONS = 100_000
"""Each is a rectangle, a text and what is told on hover: a browser still draws 300,000 elements, and not many more."""

AXIS, BAR, CURVE, GAP = 24, 24, 22, 12
"""Pixels: the axis above, and of each rank the row of work, its memory below, the space to the next."""
LANE = BAR + CURVE + GAP
LABELS = 76
"""Pixels left of the plot: the names of the ranks."""
CHARACTER = 7.0
"""Pixels of a character, at most, in the size that bars are labelled in."""
WIDTHS = (280, 380, 500, 700, 1000, 1400, 2000, 2800, 4000, 5600, 8000, 11_000, 16_000)
"""Of a plot that may be of any width: those from which on a label can be shown."""
PER_TICK = 90
TICKS = ((8, ""), (40, "w2800"), (200, "w16000"))
"""Of a plot that may be of any width: how many at most, and from which width on. Each is among the next, five times as
many: steps of 1, 2 and 5 then divide each other."""
LINES = "rect[class]{stroke:#fff;stroke-width:.6}"
"""The style rule for lines between bars; bars of a pixel or two would be all line."""
CURVE_WIDTH, CURVE_HEIGHT = 10_000, 100

KIND_COLORS = {
    Kind.FORWARD: (100, 160, 232),
    Kind.BACKWARD: (98, 184, 114),
    Kind.INPUT_GRAD: (64, 188, 194),
    Kind.WEIGHT_GRAD: (172, 142, 222),
    Kind.VOCABULARY_FORWARD: (201, 120, 170),
    Kind.VOCABULARY_BACKWARD: (201, 120, 170),
    Kind.VOCABULARY_WEIGHT_GRAD: (201, 120, 170),
}
CAUSE_COLORS = {
    "fill": "#c9c4b8",
    "drain": "#a39c8c",
    "upstream": "#f0a92e",
    "downstream": "#e0563f",
    "link": "#d6409f",
}
"""Idle time is hatched, work is not: the two can be told apart without colours too."""
LIGHTEST = 0.6
"""How much white is in the colour of a rank's last chunk."""


class Entry(NamedTuple):
    """A line of the legend: the classes of its swatches and what they mean."""

    classes: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Scale:
    """Where a time stands: pixels of a plot of this width, or percent of one of any width."""

    makespan_s: float
    width: float | None

    def at(self, time_s: float) -> str:
        share = time_s / self.makespan_s
        return f"{100 * share:.6g}%" if self.width is None else f"{self.width * share:.6g}"

    def shown_from(self, text: str, span_s: float) -> str | None:
        """The class of a label that needs this span; "" where it always fits, None where it never does."""
        needed = (len(text) * CHARACTER + 2) * self.makespan_s / span_s if span_s > 0 else np.inf
        if self.width is not None:
            return "" if needed <= self.width else None
        return next((f"w{width}" for width in WIDTHS if needed <= width), None)


def check_drawable(timeline: Timeline, option: str) -> None:
    """InputError where there are more actions than a browser draws."""
    if timeline.num_actions > MAX_ACTIONS:
        raise InputError(
            f"{option}: {timeline.num_actions:,} actions are too many to draw, allowed: {MAX_ACTIONS:,}; "
            "--trace takes more"
        )


def height_of(timeline: Timeline) -> int:
    """Pixels of the plot with its axis."""
    return AXIS + LANE * timeline.pipeline_parallel


def typical_actions(timeline: Timeline) -> float:
    """Actions that would fit one after the other into the makespan, as long as they are on average."""
    durations = np.concatenate([rank.end_s - rank.start_s for rank in timeline.ranks])
    return float(timeline.makespan_s / durations[durations > 0].mean())


def legend_of(timeline: Timeline) -> list[Entry]:
    """The kinds of work and the causes of idle time that occur."""
    chunks = range(timeline.chunks)
    entries = [
        Entry(tuple(f"{kind.letter}{chunk}" for chunk in chunks), f"{kind.letter} {KIND_NAMES[kind]}")
        for kind in timeline.kinds
    ]
    if timeline.chunks > 1:
        entries.append(Entry((), f"dark to light: chunk 0 to {timeline.chunks - 1}"))
    occur = [cause for cause in IDLE_CAUSES if any(rank.idle_s[cause] for rank in timeline.ranks)]
    entries += [Entry((cause,), f"idle, {CAUSE_NAMES[cause]}") for cause in occur]
    return [*entries, Entry(("held",), "memory: activations alive, all ranks to one scale")]


def style_of(timeline: Timeline) -> str:
    """The style sheet of the elements."""
    rules = [
        "text{font:11px ui-sans-serif,system-ui,'DejaVu Sans',sans-serif;fill:#24292f}",
        ".n{text-anchor:middle;pointer-events:none}",
        ".grid{stroke:#d8dee4}",
        ".small{font-size:10px;fill:#57606a}",
        ".held{fill:#9fb3c8}",
        ".base{stroke:#9fb3c8}",
    ]
    rules += [f".{cause}{{fill:url(#hatch-{cause})}}" for cause in IDLE_CAUSES]
    for kind in timeline.kinds:
        for chunk in range(timeline.chunks):
            white = LIGHTEST * chunk / max(timeline.chunks - 1, 1)
            color = ",".join(str(round(part + (255 - part) * white)) for part in KIND_COLORS[kind])
            rules.append(f".{kind.letter}{chunk}{{fill:rgb({color})}}")
    return "\n".join(rules)


def hatches() -> ET.Element:
    """The patterns of idle time."""
    defs = ET.Element("defs")
    for cause, color in CAUSE_COLORS.items():
        size = {"width": "6", "height": "6"}
        turned = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
        pattern = ET.SubElement(defs, "pattern", {"id": f"hatch-{cause}", **size, **turned})
        ET.SubElement(pattern, "rect", {**size, "fill": color, "fill-opacity": ".45"})
        ET.SubElement(pattern, "line", {"y2": "6", "stroke": color, "stroke-width": "5"})
    return defs


def draw_labels(parent: ET.Element, timeline: Timeline) -> None:
    """The names of the ranks and their peaks, for the space left of the plot."""
    for rank in timeline.ranks:
        top = AXIS + LANE * rank.rank
        name = _text(parent, "0", top + BAR / 2 + 4, f"rank {rank.rank}")
        _told(name, f"rank {rank.rank}, {stages_text(rank)}")
        _text(parent, "0", top + BAR + CURVE / 2 + 4, _peak(rank), "small")


def draw_plot(parent: ET.Element, timeline: Timeline, scale: Scale) -> None:
    """Axis, bars, idle time and memory of every rank."""
    _draw_axis(parent, timeline, scale)
    top_held = max(_held(rank).peak for rank in timeline.ranks)
    for rank in timeline.ranks:
        top = AXIS + LANE * rank.rank
        _draw_idle(parent, timeline, rank, scale, top)
        _draw_work(parent, timeline, rank, scale, top)
        _draw_held(parent, rank, scale, top + BAR, top_held)


def _draw_axis(parent: ET.Element, timeline: Timeline, scale: Scale) -> None:
    levels = TICKS if scale.width is None else ((max(int(scale.width // PER_TICK), 1), ""),)
    bottom, drawn = f"{height_of(timeline)}", set[str]()
    for most, shown in levels:
        for time_s, label in ticks(timeline.makespan_s, most):
            x = scale.at(time_s)
            if x not in drawn:
                place = {"x1": x, "x2": x, "y1": f"{AXIS - 6}", "y2": bottom}
                ET.SubElement(parent, "line", {"class": f"grid {shown}".strip(), **place})
                _text(parent, x, AXIS - 10, label, f"small {shown}".strip())
            drawn.add(x)


def _draw_work(parent: ET.Element, timeline: Timeline, rank: RankTimeline, scale: Scale, top: float) -> None:
    unit = unit_of(timeline.makespan_s)
    held = rank.held_microbatches.at(rank.start_s).tolist()
    columns = (rank.order, rank.stage.tolist(), rank.start_s.tolist(), rank.end_s.tolist(), held)
    for action, stage, start, end, alive in zip(*columns, strict=True):
        if end <= start:
            continue  # takes no time: nothing to draw
        what = f"rank {rank.rank}: {KIND_NAMES[action.kind]} ({action.kind.letter}) of micro-batch {action.microbatch}"
        chunk = f", chunk {action.chunk}" if timeline.chunks > 1 else ""
        box = _box(parent, f"{action.kind.letter}{action.chunk}", scale, start, end, top)
        _told(box, f"{what}{chunk}, stage {stage}\n{unit.span(start, end)}\nmicro-batches in flight: {alive:g}")
        shown = scale.shown_from(str(action.microbatch), end - start)
        if shown is not None:
            _text(parent, scale.at((start + end) / 2), top + BAR / 2 + 4, str(action.microbatch), f"n {shown}".strip())


def _draw_idle(parent: ET.Element, timeline: Timeline, rank: RankTimeline, scale: Scale, top: float) -> None:
    unit = unit_of(timeline.makespan_s)
    columns = (rank.idle.cause.tolist(), rank.idle.start_s.tolist(), rank.idle.end_s.tolist())
    for index, start, end in zip(*columns, strict=True):
        cause = IDLE_CAUSES[index]
        told = f"rank {rank.rank} idle\n{CAUSE_NAMES[cause]}\n{unit.span(start, end)}"
        _told(_box(parent, cause, scale, start, end, top), told)


def _draw_held(parent: ET.Element, rank: RankTimeline, scale: Scale, top: float, top_held: float) -> None:
    """The curve in a picture of its own, stretched to the width of the plot."""
    held = _held(rank)
    width = "100%" if scale.width is None else f"{scale.width:g}"
    size = {"y": f"{top + 2:g}", "width": width, "height": f"{CURVE - 2}"}
    box = {"viewBox": f"0 0 {CURVE_WIDTH} {CURVE_HEIGHT}", "preserveAspectRatio": "none"}
    curve = ET.SubElement(parent, "svg", {**size, **box})
    x = np.round(held.time_s / scale.makespan_s * CURVE_WIDTH, 1)
    y = np.round(CURVE_HEIGHT * (1 - held.value / top_held), 1)
    path = "".join(f"H{time:g}V{value:g}" for time, value in _corners(x, y))
    area = ET.SubElement(
        curve, "path", {"class": "held", "d": f"M0,{CURVE_HEIGHT}{path}H{CURVE_WIDTH}V{CURVE_HEIGHT}Z"}
    )
    _told(area, f"rank {rank.rank} holds at most {_peak(rank, long=True)}")
    ET.SubElement(
        parent, "line", {"class": "base", "x1": "0", "x2": width, "y1": f"{top + CURVE:g}", "y2": f"{top + CURVE:g}"}
    )


def _corners(x: FloatArray, y: FloatArray) -> Iterator[tuple[float, float]]:
    """The steps without those that another at the same place hides."""
    last = np.append(np.diff(x) > 0, True)
    return zip(x[last].tolist(), y[last].tolist(), strict=True)


def _held(rank: RankTimeline) -> Steps:
    return rank.held_microbatches if rank.held_bytes is None else rank.held_bytes


def _peak(rank: RankTimeline, *, long: bool = False) -> str:
    held = rank.held_bytes
    if long:
        size = f", {format_bytes_gib(held.peak)}" if held else ""
        return f"{counted(rank.in_flight_microbatches)}{size}"
    return f"peak {format_bytes_gib(held.peak)}" if held else f"peak {rank.in_flight_microbatches:g}"


def _box(parent: ET.Element, name: str, scale: Scale, start: float, end: float, top: float) -> ET.Element:
    place = {"x": scale.at(start), "width": scale.at(end - start), "y": f"{top:g}", "height": f"{BAR}"}
    return ET.SubElement(parent, "rect", {"class": name, **place})


def _text(parent: ET.Element, x: str, y: float, text: str, name: str = "") -> ET.Element:
    place = {"x": x, "y": f"{y:g}", **({"class": name} if name else {})}
    element = ET.SubElement(parent, "text", place)
    element.text = text
    return element


def _told(element: ET.Element, text: str) -> None:
    """What is told on hover."""
    ET.SubElement(element, "title").text = text
