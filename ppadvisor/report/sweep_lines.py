"""A value of the best plan as lines over one axis, one line for each combination of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ppadvisor.report.sweep_plot import SCALES, at_text, axis_name, is_number, label_of, scaled, shown_ticks
from ppadvisor.report.sweep_values import MEMORY_VALUES, short_axis_text
from ppadvisor.search.sweep import SweepReport, SweepRow
from ppadvisor.units import GIB, format_fraction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#24292f", "#a8791f")
"""Told apart also by most people who see some colours alike (Okabe and Ito 2008), the yellow left out."""
MARKERS = "osD^vP*X"
STYLES = ("-", "--")

WIDE_X, WIDE_Y = 8, 10
"""From this ratio of the largest to the smallest on an axis is logarithmic."""
CROSS: dict[str, Any] = {"linestyle": "none", "marker": "x", "markersize": 9, "markeredgewidth": 2, "zorder": 3}
BOTTOM, ABOVE = 0.03, 0.025
"""Height at which the first line marks points that have no value of their own, and what the next ones add, as shares of
the panel: lines that have none at the same point would else hide each other."""
INSIDE = 4
"""Entries of a legend that still find room between the lines."""


@dataclass(frozen=True)
class _Line:
    """The points of one line, and how it looks."""

    places: Sequence[float]
    rows: Sequence[SweepRow]
    index: int
    joined: bool
    """Whether something lies between two places: not where the axis is one of words."""

    @property
    def color(self) -> str:
        return COLORS[self.index % len(COLORS)]

    def draw(self, axes: Axes, value: str, label: str) -> None:
        """The line, with a gap where there is nothing to show."""
        heights = [_height(row, value) for row in self.rows]
        axes.plot(
            self.places,
            [float("nan") if height is None else height for height in heights],
            color=self.color,
            linestyle=STYLES[self.index // len(COLORS) % len(STYLES)] if self.joined else "none",
            marker=MARKERS[self.index % len(MARKERS)],
            markersize=5 if self.joined else 8,
            label=label or None,
        )

    def mark_misses(self, axes: Axes, value: str) -> bool:
        """A cross at each point where nothing fits: at its memory, or at the bottom where it has none to show."""
        misses = [(p, _height(row, value)) for p, row in zip(self.places, self.rows, strict=True) if not row.fits]
        with_height = [(place, height) for place, height in misses if height is not None]
        without = [place for place, height in misses if height is None]
        if with_height:
            axes.plot(*zip(*with_height, strict=True), color=self.color, **CROSS)
        if without:
            bottom = [BOTTOM + ABOVE * self.index] * len(without)
            axes.plot(without, bottom, color=self.color, transform=axes.get_xaxis_transform(), **CROSS)
        return bool(misses)


def draw_lines(axes: Axes, report: SweepReport, x: str, value: str) -> None:
    """Draw one panel."""
    others = [name for name in report.axes if name != x]
    places, missing = _places(report, x), False
    joined = all(map(is_number, report.axes[x]))
    for index, chosen in enumerate(product(*(report.axes[name] for name in others))):
        at = dict(zip(others, chosen, strict=True))
        rows = [row for row in report.rows if tuple(_axis_value(row, name) for name in others) == chosen]
        line = _Line([places[_axis_value(row, x)] for row in rows], rows, index, joined)
        line.draw(axes, value, at_text(at))
        missing |= line.mark_misses(axes, value)
    _draw_limit(axes, report, x, value, places)
    _set_axes(axes, report, x, value, places)
    if missing:
        axes.plot([], [], "x", color="#57606a", label="nothing fits")
    entries = len(axes.get_legend_handles_labels()[0])
    if entries > INSIDE:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    elif entries:
        axes.legend(fontsize=8, framealpha=0.85)


def _axis_value(row: SweepRow, name: str) -> object:
    return getattr(row, name)


def _places(report: SweepReport, x: str) -> dict[object, float]:
    """Axis value -> where it stands: a number at itself, a word at its index."""
    values = report.axes[x]
    if all(map(is_number, values)):
        factor = _factor(x)
        return {value: float(value) * factor for value in values}
    return {value: float(index) for index, value in enumerate(values)}


def _factor(x: str) -> float:
    return 1 / GIB if x.endswith("_bytes") else 1e-9 if x.endswith("_bytes_per_s") else 1.0


def _height(row: SweepRow, value: str) -> float | None:
    """What is drawn of a row: of a plan that does not fit the memory alone."""
    return scaled(row, value) if row.fits or value in MEMORY_VALUES else None


def _draw_limit(axes: Axes, report: SweepReport, x: str, value: str, places: dict[object, float]) -> None:
    """Where a peak may go: the share of memory that a plan may use, along x where that changes it."""
    if value != "peak_bytes":
        return
    limits: dict[float, set[float]] = {}
    for row in report.rows:
        if row.peak_bytes is not None and row.headroom_bytes is not None:
            limit = (row.peak_bytes + row.headroom_bytes) / GIB
            limits.setdefault(places[_axis_value(row, x)], set()).add(limit)
    text = f"{format_fraction(report.margin_fraction, digits=0)} of GPU memory"
    for limit in sorted(set().union(*limits.values()) if limits else ()):
        along = [place for place, found in limits.items() if limit in found]
        label = f"{text}: {limit:.1f} GiB"
        if len(along) == len(limits):
            axes.axhline(limit, color="#24292f", linestyle=":", linewidth=1.3, label=label)
    if limits and all(len(found) == 1 for found in limits.values()) and len(set().union(*limits.values())) > 1:
        ends = sorted((place, *found) for place, found in limits.items())
        drawn: Any = "default" if all(map(is_number, report.axes[x])) else "steps-mid"
        axes.plot(*zip(*ends, strict=True), drawstyle=drawn, color="#24292f", linestyle=":", linewidth=1.3, label=text)


def _set_axes(axes: Axes, report: SweepReport, x: str, value: str, places: dict[object, float]) -> None:
    """Scales, ticks at the points asked, labels with units."""
    from matplotlib.ticker import LogLocator

    values = report.axes[x]
    ticks = [values[index] for index in shown_ticks(values)]
    at = list(places.values())
    if all(map(is_number, values)) and len(at) > 2 and max(at) / min(at) >= WIDE_X:
        axes.set_xscale("log", base=2)
    heights = [height for row in report.rows if (height := _height(row, value)) is not None]
    if heights and not SCALES.get(value, (1.0, ""))[1].endswith("[%]") and 0 < min(heights) * WIDE_Y < max(heights):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    elif heights and min(heights) >= 0:
        axes.set_ylim(bottom=0)
    axes.set_xticks([places[tick] for tick in ticks], [short_axis_text(x, tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    if max(len(short_axis_text(x, tick)) for tick in ticks) * len(ticks) > 60:
        axes.tick_params(axis="x", labelrotation=30)
    axes.set_xlabel(axis_name(x))
    axes.set_ylabel(label_of(value))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
