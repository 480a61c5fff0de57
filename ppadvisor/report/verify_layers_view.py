"""Real layers run under torchrun: the step and each rank beside what is predicted of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ppadvisor.report.rows import Column
from ppadvisor.report.timeline_words import Unit, unit_of
from ppadvisor.report.validate_view import format_error
from ppadvisor.units import GIB, format_fraction
from ppadvisor.verify.results import LayersReport


def yes_or_no(agrees: bool) -> str:
    """A cell; what does not agree is loud."""
    return "yes" if agrees else "NO"


def _seconds(key: str, name: str, unit: Unit) -> Column:
    return Column(key, f"{name} [{unit.name}]", lambda time_s: unit.number(time_s, digits=4))


def _gib(key: str, name: str) -> Column:
    return Column(key, f"{name} [GiB]", lambda size_bytes: f"{size_bytes / GIB:.2f}")


def layers_tables(report: LayersReport) -> Iterator[tuple[Sequence[Column], Sequence[Any], str]]:
    """A row a rank, its times and its peaks; a row for each part of the step."""
    unit = unit_of(max(row.forward_s for row in report.rows))
    times = (
        Column("rank", "rank"),
        Column("num_layers", "layers"),
        Column("num_operations", "actions"),
        Column("num_differences", "out of order"),
        _seconds("predicted_forward_s", "forward, predicted", unit),
        _seconds("forward_s", "measured", unit),
        _seconds("predicted_backward_s", "backward, predicted", unit),
        _seconds("backward_s", "measured", unit),
        Column("agrees", "agrees", yes_or_no),
    )
    yield times, report.rows, "A micro-batch on each rank"
    peaks = (
        Column("rank", "rank"),
        _gib("predicted_allocated_bytes", "allocated, predicted"),
        _gib("allocated_bytes", "measured"),
        Column("allocated_difference_fraction", "off", format_error),
        _gib("predicted_reserved_bytes", "reserved, predicted"),
        _gib("reserved_bytes", "measured"),
    )
    if report.device == "cuda":
        yield peaks, report.rows, "torch's peaks"
    unit = unit_of(report.terms[0].measured_s)
    terms = (
        Column("name", "part", justify="left"),
        _seconds("predicted_s", "predicted", unit),
        _seconds("measured_s", "measured", unit),
        Column("difference_fraction", "off", format_error),
    )
    yield terms, report.terms, "Of a step"


def layers_lines(report: LayersReport) -> Iterator[str]:
    """What ran where, and what is allowed."""
    layers = " ".join(map(str, report.layers_per_stage))
    yield f"Model     {report.model}, as {report.framework} is predicted; layers per stage {layers}"
    yield f"Device    {report.device_name}; predicted for {report.gpu}"
    each = ", ".join(unit_of(report.terms[0].measured_s).text(step_s, digits=4) for step_s in report.steps_s)
    yield f"Steps     {each}; the median counts"
    if report.judged:
        time, memory = (format_fraction(one) for one in (report.tolerance_fraction, report.memory_tolerance_fraction))
        yield f"Allowed   step time {time}, allocated peaks {memory}, either way"
