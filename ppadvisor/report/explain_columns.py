"""The tables of `explain`: their columns, and how a formula with its numbers is written for people."""

from __future__ import annotations

import re
from functools import partial

from ppadvisor.report.rows import Column, Row
from ppadvisor.units import (
    GIB,
    format_bandwidth,
    format_bytes,
    format_bytes_gib,
    format_count,
    format_fraction,
    format_gib,
    format_seconds,
    format_tflops,
)

BAR_WIDTH = 24
"""Characters of a bar that is the whole step."""

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_LONG, _HUGE = 1e4, 1e13
"""Numbers between these are written with commas and without decimals."""


def words(name: str) -> str:
    """`optimizer_states` -> `optimizer states`."""
    return name.replace("_", " ")


def arithmetic(text: str) -> str:
    """A formula as people write it: ×, commas in long numbers, four digits of the others."""
    text = _NUMBER.sub(lambda found: _readable(float(found[0])), text)
    return re.sub(r"\s*\*\s*", " × ", text)


def _readable(value: float) -> str:
    return f"{value:,.0f}" if _LONG <= value < _HUGE else f"{value:.4g}"


def worked(formula: str, substituted: str) -> str:
    """`2 × P = 2 × 1,619,066,880`."""
    shown, numbers = arithmetic(formula), arithmetic(substituted)
    return shown if shown == numbers else f"{shown} = {numbers}"


def result(formula: str, substituted: str, value: str) -> str:
    """`min(m, p-r) = min(32, 8-0) = 8`; a value that the numbers already are is not said twice."""
    text = worked(formula, substituted)
    return text if arithmetic(substituted) == value else f"{text} = {value}"


def _worked(row: Row) -> str:
    return worked(row["formula"], row["substituted"])


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of `width` characters for a share of 1, to an eighth of one; what is there at all can be seen.

    >>> bar(0.25, 10), bar(0.0001, 10), bar(-0.1, 10)
    ('██▌', '▏', '')
    """
    eighths = max(round(8 * width * share), int(share > 0), 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _bar(row: Row) -> str:
    return bar(float(row["share"]))


def filled(share: float, width: int = BAR_WIDTH) -> str:
    """A bar against a mark at a share of 1; what goes beyond the mark is cut at half of the width.

    >>> filled(0.25, 8), filled(1.25, 8), filled(9.0, 8)
    ('██      │', '████████│██', '████████│████…')
    """
    beyond = max(share - 1, 0.0)
    cut = "…" if beyond > 1 / 2 else ""
    return f"{bar(min(share, 1.0), width):<{width}}│{bar(min(beyond, 1 / 2), width)}{cut}"


def _filled(row: Row) -> str:
    return filled(float(row["share"]))


def fine_gib(size_bytes: float) -> str:
    """GiB with three decimals: the parts of a stage go down to megabytes."""
    return f"{size_bytes / GIB:.3f}"


def _shape(row: Row) -> str:
    matrix = f"{row['rows']:,} × {row['columns']:,}" if row["rows"] else f"{row['columns']:,}"
    return f"{row['count']} of {matrix}" if row["count"] > 1 else matrix


def _tensor_note(row: Row) -> str:
    condition = "" if row["condition"] == "always" else f" (as {row['condition']})"
    return f"{row['name']}{condition}{'' if row['kept'] else ', recomputed'}"


def _held(row: Row) -> float:
    """Micro-batches in flight as they were counted, else by the closed form."""
    in_flight = row["in_flight_microbatches"]
    return float(in_flight["value"] if in_flight["counted"] is None else in_flight["counted"])


def _cluster_value(row: Row) -> str:
    name, value = row["name"], row["value"]
    if name.endswith("_bytes_per_s"):
        return format_bandwidth(value)
    if name.endswith("_bytes"):
        return format_bytes_gib(value)
    return format_tflops(value) if "flops_per_s" in name else f"{value:g}"


def _cluster_name(name: str) -> str:
    plain = words(name.removesuffix("_bytes_per_s").removesuffix("_bytes").replace("_flops_per_s.", " "))
    return plain.replace("gpu.", "GPU ").replace("gpus", "GPUs").replace("hbm", "HBM")


def _assumed(key: str, row: Row) -> str:
    value, unit = float(row[key]), row["unit"]
    if unit == "bytes":
        return format_bytes(value)
    return format_seconds(value) if unit == "s" else f"{value:g}"


def _range(row: Row) -> str:
    return f"{_assumed('low', row)} .. {_assumed('high', row)}"


def _source(min_width: int = 30) -> Column:
    return Column("source", "source", justify="left", min_width=min_width)


TERM = Column("name", "term", words, justify="left")
WORKED = Column("worked", "formula, with its numbers", justify="left", min_width=38, derive=_worked)
SHARE = Column("share", "share", format_fraction)

FILLED = Column("filled", "", justify="left", priority=1, derive=_filled)
"""What a stage needs of what the GPU has."""
PARTS = (
    Column("name", "part", words, justify="left"),
    Column("seconds", "time", format_seconds),
    SHARE,
    Column("bar", "", justify="left", derive=_bar),
)
TIMES = (Column("name", "part", words, justify="left"), WORKED, _source(40))
STAGES = (
    Column("stage", "stage"),
    Column("num_layers", "layers"),
    Column("parameters.value", "parameters", format_count),
    Column("in_flight", "in flight", "{:.4g}".format, derive=_held),
    Column("moment", "moment", words, justify="left"),
    Column("allocated_bytes", "tensors [GiB]", format_gib),
    Column("total_bytes", "peak [GiB]", format_gib),
    Column("conservative_bytes", "cautious [GiB]", format_gib),
)
TERMS = (TERM, Column("bytes", "GiB", fine_gib), SHARE, WORKED)
CHUNKS = (
    Column("chunk", "chunk"),
    Column("stage", "stage of the model"),
    Column("num_layers", "layers"),
    Column("in_flight", "in flight", "{:g}".format),
)
WAITING = Column("waiting", "wait for weight gradient", "{:g}".format)
SOURCES = (TERM, _source(50))
TENSORS = (
    Column("tensor", "tensor", justify="left", min_width=20, derive=_tensor_note),
    Column("bytes_per_token", "B/token", "{:,.6g}".format),
    Column("bytes", "on a rank", format_bytes),
    Column("worked", "formula, with its numbers", justify="left", min_width=24, derive=_worked),
)
WEIGHTS = (
    Column("name", "weight", words, justify="left"),
    Column("shape", "shape", derive=_shape),
    Column("parameters", "on a rank", "{:,}".format),
    Column("divided", "divided", justify="left", min_width=18),
)
KERNELS = (
    Column("name", "kernel", words, justify="left", min_width=20),
    Column("forward_s", "forward", format_seconds),
    Column("backward_s", "backward", format_seconds),
)
TRAFFIC = (
    Column("name", "traffic", words, justify="left", min_width=18),
    Column("bytes", "bytes", format_bytes),
    Column("worked", "formula, with its numbers", justify="left", min_width=38, derive=_worked),
    _source(40),
)
CLUSTER = (
    Column("name", "number", _cluster_name, justify="left"),
    Column("shown", "value", derive=_cluster_value),
    _source(),
)
ASSUMPTIONS = (
    Column("name", "assumption", words, justify="left", min_width=16),
    Column("shown", "value", derive=partial(_assumed, "value")),
    Column("range", "range", derive=_range),
    Column("provenance", "from", justify="left", min_width=10),
    _source(22),
)
SYMBOLS = (
    Column("symbol", "symbol", justify="left"),
    Column("value", "value", _readable),
    Column("meaning", "meaning", justify="left", min_width=40),
)
CSV = tuple(
    Column(key, key)
    for key in ("part", "stage", "moment", "name", "bytes", "seconds", "formula", "substituted", "source")
)
