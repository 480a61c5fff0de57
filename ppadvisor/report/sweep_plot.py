"""Pictures of a sweep: lines over one axis, a map of heat over two. Needs matplotlib, an optional extra.

The same answer gives the same bytes (of one version of matplotlib), whatever the user's own settings of it are.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from ppadvisor.errors import InputError
from ppadvisor.report.sweep_values import VALUE_COLUMNS, WORD_VALUES, axis_label, axis_text, short_axis_text
from ppadvisor.report.sweep_view import Shape
from ppadvisor.search.sweep import AxisValue, SweepQuestion, SweepReport, SweepRow
from ppadvisor.units import GIB, format_fraction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("svg", "png", "html")
MOST_SERIES = 12
"""Lines that one can still tell apart, and maps that one can still read beside each other."""
PANEL = (6.0, 4.3)
"""Inches."""
SETTINGS = {"svg.hashsalt": "ppadvisor", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 10}
DPI = 150

SCALES: dict[str, tuple[float, str]] = {
    "step_time_s": (1.0, "step time [s]"),
    "tokens_per_s": (1e-3, "tokens/s [thousands]"),
    "model_flops_utilization": (100.0, "model FLOPs utilization [%]"),
    "bubble_fraction": (100.0, "bubble [%]"),
    "peak_bytes": (1 / GIB, "peak memory [GiB]"),
    "headroom_bytes": (1 / GIB, "headroom [GiB]"),
    "schedule": (1.0, "best schedule"),
    "recompute": (1.0, "recomputation"),
}
"""Value -> (factor, label) of its axis; the others are counts and keep their name."""


AXIS_LABELS = {
    "num_gpus": "GPUs",
    "sequence_length": "sequence length",
    "tokens_per_step": "tokens a step",
    "global_batch_size": "sequences a step",
    "pipeline_parallel": "pipeline stages p",
    "tensor_parallel": "tensor parallel t",
    "data_parallel": "data parallel d",
    "context_parallel": "context parallel c",
    "expert_parallel": "expert parallel e",
    "virtual_stages": "virtual stages v",
    "micro_batch_size": "micro-batch size b",
    "num_microbatches": "micro-batches m",
    "gpu_memory_bytes": "GPU memory",
}
"""A picture has room for more than a column has."""


def axis_name(axis: str) -> str:
    """What a picture calls an axis."""
    return AXIS_LABELS.get(axis, axis_label(axis))


def label_of(value: str) -> str:
    """What the axis or the bar of a value says."""
    return SCALES.get(value, (1.0, AXIS_LABELS.get(value, value.replace("_", " "))))[1]


def scaled(row: SweepRow, value: str) -> float | None:
    """The value as it is drawn; None where the row has none."""
    number = getattr(row, value)
    return None if number is None else float(number) * SCALES.get(value, (1.0, ""))[0]


def check_drawable(question: SweepQuestion, shape: Shape, kind: str, where: str) -> None:
    """InputError for a picture that there is not, or that nobody could read."""
    if kind not in KINDS:
        raise InputError(f"--plot: got {where!r}; needs a name that ends in .svg, .png or .html")
    if not question.axes:
        raise InputError("--plot has no effect on a sweep without axes: give lists or ranges")
    words = [value for value in shape.values if value in WORD_VALUES]
    if words and not shape.pivot:
        raise InputError(f"--plot: {words[0]} is no number; a map of it needs --pivot and two axes")
    drawn = shape.pivot or (x_axis(question),)
    number = prod(len(values) for name, values in question.axes.items() if name not in drawn)
    if number > MOST_SERIES:
        what = "maps" if shape.pivot else "lines"
        raise InputError(
            f"--plot: would have {number:,} {what}; at most {MOST_SERIES}: give fewer values of "
            f"{', '.join(name for name in question.axes if name not in drawn)}"
            f"{'' if shape.pivot else ', or --pivot for a map of two axes'}"
        )


def x_axis(question: SweepQuestion) -> str:
    """The axis that lines go along: of those that are numbers the one with the most values, else of all."""
    axes = question.axes
    numbers = [name for name, values in axes.items() if all(is_number(value) for value in values)]
    return max(numbers or axes, key=lambda name: len(axes[name]))


def is_number(value: AxisValue) -> bool:
    """Whether an axis value has a place on a line of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def draw(report: SweepReport, shape: Shape, kind: str) -> str | bytes:
    """The picture as the text or bytes of a file of this kind."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)  # type: ignore[arg-type]  # it wants the keys as literals
        figure = _figure(report, shape)
        if kind == "png":
            sink = io.BytesIO()
            figure.savefig(sink, format="png", dpi=DPI, metadata={"Software": None})
            return sink.getvalue()
        text = io.StringIO()
        nameless: dict[str, Any] = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(text, format="svg", metadata=nameless)
    if kind == "svg":
        return text.getvalue()
    from ppadvisor.report.sweep_page import page

    return page(report, text.getvalue())


def _figure(report: SweepReport, shape: Shape) -> Figure:
    """A panel of each value; of maps one for each combination of the other axes too."""
    from matplotlib.figure import Figure

    from ppadvisor.report.sweep_heat import draw_heat
    from ppadvisor.report.sweep_lines import draw_lines

    others = [name for name in report.axes if shape.pivot and name not in shape.pivot]
    places = [dict(zip(others, values, strict=True)) for values in product(*(report.axes[name] for name in others))]
    columns = len(shape.values) if len(places) == 1 else min(len(places), 3)
    panels = [(value, at) for value in shape.values for at in places]
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for (value, at), axes in zip(panels, grid.flat, strict=False):
        if shape.pivot:
            draw_heat(axes, report, shape.pivot, value, at)
        else:
            draw_lines(axes, report, x_axis(report), value)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(title_of(report), fontsize=12)
    figure.supxlabel(_footer(report, 28 * columns * 3), fontsize=7, color="#57606a", x=0.01, ha="left")
    return figure


def title_of(report: SweepQuestion) -> str:
    """What is swept, of what."""
    *others, last = (axis_name(name) for name in report.axes)
    over = f"{', '.join(others)} and {last}" if others else last
    return f"{subject_of(report)}: the best plan over {over}"


def subject_of(report: SweepQuestion) -> str:
    """The model and the machines, where every point has the same."""
    of = [str(report.fixed[name]) for name in ("model", "gpu", "cluster") if name in report.fixed]
    return ", ".join(of) or "models and machines"


def _footer(report: SweepQuestion, width: int) -> str:
    """What every point shares, so that a picture alone still says what it is of."""
    return "\n".join(textwrap.wrap(f"{fixed_text(report)}; ppadvisor {report.model_version}", width))


def fixed_text(report: SweepQuestion) -> str:
    """What every point shares, in a line."""
    fixed = [f"{name} {axis_text(name, value)}" for name, value in report.fixed.items()]
    fixed += [f"{name} = {value:g}" for name, value in report.assumptions.items()]
    return f"{'; '.join(fixed)}; up to {format_fraction(report.margin_fraction, digits=0)} of memory"


def at_text(at: dict[str, AxisValue]) -> str:
    """Axis values as the name of a line or a map."""
    return ", ".join(
        str(value) if isinstance(value, str) else f"{axis_label(name)} {short_axis_text(name, value)}"
        for name, value in at.items()
    )


def shown_ticks(values: Sequence[AxisValue], most: int = 12) -> list[int]:
    """The indices of values that get a label: all, or evenly as many as there is room for."""
    step = -(-len(values) // most)
    return list(range(0, len(values), step))


def cell_text(row: SweepRow, value: str) -> str:
    """A value as the tables write it."""
    return VALUE_COLUMNS[value].text({value: getattr(row, value)})
