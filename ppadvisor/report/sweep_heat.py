"""A value of the best plan as a map over two axes: a colour and the value in each cell, hatched where nothing fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppadvisor.report.sweep_pivot import Pivot
from ppadvisor.report.sweep_plot import at_text, axis_name, cell_text, label_of, scaled, shown_ticks
from ppadvisor.report.sweep_values import WORD_VALUES, reason_word, short_axis_text
from ppadvisor.search.sweep import AxisValue, SweepReport, SweepRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORD_COLORS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#0072b2", "#999999")
MOST_TEXTS = 240
"""With more cells than this colours alone speak."""
ROOM = 60
"""Characters below a map."""
WIDE = 20
"""From this ratio of the largest to the smallest on colours are logarithmic."""


def draw_heat(axes: Axes, report: SweepReport, pivot: Pivot, value: str, at: Mapping[str, AxisValue]) -> None:
    """Draw one panel."""
    rows = [row for row in report.rows if all(getattr(row, name) == chosen for name, chosen in at.items())]
    down, across = report.axes[pivot.down], report.axes[pivot.across]
    cells = {(down.index(getattr(r, pivot.down)), across.index(getattr(r, pivot.across))): r for r in rows}
    colors = _word_colors(report, value) if value in WORD_VALUES else _heat_colors(axes, report, value)
    for (i, j), row in cells.items():
        _draw_cell(axes, i, j, colors.get(getattr(row, value)) if row.fits else None)
    if len(down) * len(across) <= MOST_TEXTS:
        for (i, j), row in cells.items():
            _write_cell(axes, i, j, row, value, colors, len(across))
    elif value in WORD_VALUES:
        _draw_legend(axes, colors)
    axes.set_xlim(-0.5, len(across) - 0.5)
    axes.set_ylim(len(down) - 0.5, -0.5)
    longest = max(len(short_axis_text(pivot.across, value)) for value in across)
    _set_ticks(axes.set_xticks, pivot.across, across, most=max(ROOM // (longest + 2), 2))
    _set_ticks(axes.set_yticks, pivot.down, down, most=16)
    axes.set_xlabel(axis_name(pivot.across))
    axes.set_ylabel(axis_name(pivot.down))
    title = at_text(dict(at))
    axes.set_title(f"{label_of(value)}{': ' if title else ''}{title}" if value in WORD_VALUES else title, fontsize=10)


def _set_ticks(setter: Any, name: str, values: Sequence[AxisValue], most: int) -> None:
    shown = shown_ticks(values, most)
    setter(shown, [short_axis_text(name, values[index]) for index in shown])


def _word_colors(report: SweepReport, value: str) -> dict[Any, Any]:
    """Each word with a colour, in the order in which they occur."""
    words = dict.fromkeys(getattr(row, value) for row in report.rows if row.fits)
    return {word: WORD_COLORS[index % len(WORD_COLORS)] for index, word in enumerate(words)}


def _draw_legend(axes: Axes, colors: Mapping[Any, Any]) -> None:
    """Which colour is which word, where the cells do not say it."""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=color, label=word) for word, color in colors.items()]
    axes.legend(handles=patches, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _heat_colors(axes: Axes, report: SweepReport, value: str) -> dict[Any, Any]:
    """Each number with a colour; the bar beside the map says which."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    found = {getattr(row, value): scaled(row, value) or 0.0 for row in report.rows if row.fits}
    if not found:
        return {}
    low, high = min(found.values()), max(found.values())
    wide = 0 < low * WIDE < high
    norm = LogNorm(low, high) if wide else Normalize(low, high if high > low else low + 1)
    mapped = ScalarMappable(norm, colormaps["viridis"])
    bar = axes.figure.colorbar(mapped, ax=axes, label=label_of(value))
    if wide:
        bar.ax.yaxis.set_major_formatter("{x:g}")
    return {number: mapped.cmap(norm(height)) for number, height in found.items()}


def _draw_cell(axes: Axes, i: int, j: int, color: Any) -> None:
    from matplotlib.patches import Rectangle

    place = (j - 0.5, i - 0.5)
    if color is None:
        axes.add_patch(Rectangle(place, 1, 1, linewidth=0, facecolor="#fbfcfd", edgecolor="#dfe4e9", hatch="////"))
    axes.add_patch(Rectangle(place, 1, 1, linewidth=1, edgecolor="#ffffff", facecolor=color or "none"))


def _write_cell(axes: Axes, i: int, j: int, row: SweepRow, value: str, colors: Mapping[Any, Any], columns: int) -> None:
    from matplotlib.colors import to_rgb

    text, ink = reason_word(row.reason_code or ""), "#57606a"
    if row.fits:
        text = cell_text(row, value)
        red, green, blue = to_rgb(colors[getattr(row, value)])
        ink = "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#ffffff"
    size = min(9.0, 400 / (columns * max(len(text), 5)))
    axes.text(j, i, text, ha="center", va="center", fontsize=size, color=ink)
