"""The answer of `verify`: what was compared, a row a rank and term, what must be known to judge it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, render_rows
from ppadvisor.report.timeline_words import Unit, unit_of
from ppadvisor.report.validate_view import format_error
from ppadvisor.report.verify_layers_view import layers_lines, layers_tables, yes_or_no
from ppadvisor.units import GIB, format_fraction, format_seconds
from ppadvisor.verify.results import LayersReport, MemoryReport, OpsReport, RunReport, VerifyReport

Tables = Iterator[tuple[Sequence[Column], Sequence[Any], str]]


OPS = (
    Column("rank", "rank"),
    Column("num_operations", "operations"),
    Column("torch_num_operations", "torch's"),
    Column("num_differences", "places that differ"),
    Column("agrees", "agrees", yes_or_no),
)
DIFFERENCES = (
    Column("rank", "rank"),
    Column("position", "position"),
    Column("predicted", "ours", justify="left"),
    Column("torch", "torch's", justify="left"),
)


def _gib(size_bytes: int) -> str:
    """GiB to a hundredth: what is compared may be small."""
    return f"{size_bytes / GIB:.2f}"


MEMORY = (
    Column("rank", "rank"),
    Column("predicted_bytes", "predicted [GiB]", _gib),
    Column("measured_bytes", "measured [GiB]", _gib),
    Column("difference_fraction", "off", format_error),
    Column("predicted_saved_bytes", "saved, predicted", _gib),
    Column("measured_saved_bytes", "saved, measured", _gib),
    Column("saved_difference_fraction", "off", format_error),
    Column("largest_term", "largest difference", justify="left"),
    Column("largest_term_bytes", "of [GiB]", _gib),
    Column("measured_during", "peak during", justify="left"),
    Column("agrees", "agrees", yes_or_no),
)
MEMORY_TERMS = (
    Column("rank", "rank"),
    Column("term", "term", justify="left"),
    Column("predicted_bytes", "predicted [GiB]", _gib),
    Column("measured_bytes", "measured [GiB]", _gib),
    Column("difference_bytes", "more [GiB]", _gib),
)


def _rank_columns(unit: Unit) -> tuple[Column, ...]:
    def seconds(key: str, name: str) -> Column:
        return Column(key, f"{name} [{unit.name}]", lambda time_s: unit.number(time_s, digits=5))

    return (
        Column("rank", "rank"),
        Column("num_operations", "actions"),
        Column("num_differences", "out of order"),
        seconds("predicted_work_s", "work"),
        seconds("work_s", "worked"),
        seconds("predicted_end_s", "end"),
        seconds("end_s", "ended"),
        Column("end_difference_fraction", "late", format_error),
        Column("agrees", "agrees", yes_or_no),
    )


def _run_lines(report: RunReport) -> Iterator[str]:
    """Step and bubble beside the prediction, and what the engine itself takes."""
    time, bubble = report.terms
    cost, unit = report.engine_cost, unit_of(time.predicted)
    told = f"mean forward {format_seconds(report.unit_s)}"
    if report.time_scale is not None:
        told += f", the plan's times x {report.time_scale:.3g}"
    each = ", ".join(unit.text(step_s, digits=4) for step_s in report.steps_s)
    yield f"Work      {told}; steps of {each}, the median counts"
    yield (
        f"Step      {unit.text(time.measured, digits=4)} measured, {unit.text(time.predicted, digits=4)} replayed: "
        f"{format_error(time.difference_fraction)} (allowed 0 to +{format_fraction(report.tolerance_fraction)})"
    )
    yield f"Bubble    {format_fraction(bubble.measured)} measured, {format_fraction(bubble.predicted)} replayed"
    yield (
        f"Engine    of the difference {format_seconds(cost.between_s)} is between actions (engine, messages), "
        f"{format_seconds(cost.inside_s)} in them; without work a step takes {format_seconds(cost.empty_step_s)}, "
        f"{format_seconds(cost.empty_action_s)} an action"
    )


def render_verification(report: VerifyReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS; csv has the rows of the first table."""
    if format == "json":
        return dump_json(report)
    tables = [(columns, [row.as_dict() for row in rows], title) for columns, rows, title in _tables(report) if rows]
    if format == "csv":
        columns, rows, _ = tables[0]
        return render_rows(columns, rows, format)
    bullet = "- " if format == "markdown" else ""
    blocks = [
        [f"{bullet}{line}" for line in _header(report)],
        *(
            [render_rows(columns, rows, format, width=width, color=color, title=title).rstrip("\n")]
            for columns, rows, title in tables
        ),
        [f"{bullet}{note}" for note in report.notes],
    ]
    return join_blocks(blocks, format, width)


def _tables(report: VerifyReport) -> Tables:
    """The columns, rows and title of each table."""
    if isinstance(report, OpsReport):
        yield OPS, report.rows, ""
        yield DIFFERENCES, report.differences, "Side by side, the first of each rank"
    if isinstance(report, MemoryReport):
        yield MEMORY, report.rows, ""
        yield MEMORY_TERMS, report.terms, "Term by term at the peak"
    if isinstance(report, RunReport):
        yield _rank_columns(unit_of(report.terms[0].predicted)), report.rows, ""
    if isinstance(report, LayersReport):
        yield from layers_tables(report)


def verdict(report: VerifyReport) -> str:
    """Whether it agrees, and where it matters in what."""
    if not report.agrees:
        return "DOES NOT AGREE"
    return "agrees" if not isinstance(report, LayersReport) or report.judged else "the order agrees, no more was judged"


def _header(report: VerifyReport) -> Iterator[str]:
    p, v, m = report.pipeline_parallel, report.virtual_stages, report.num_microbatches
    yield f"Verify    {report.kind}: {report.schedule} p={p} v={v} m={m}"
    yield f"Against   torch {report.torch_version.partition('+')[0]}, {report.engine}"
    if isinstance(report, MemoryReport):
        yield f"Model     {report.model}, as {report.framework} is predicted"
    if isinstance(report, RunReport):
        yield from _run_lines(report)
    if isinstance(report, LayersReport):
        yield from layers_lines(report)
    yield f"Verdict   {verdict(report)}"
    for disagreement in report.disagreements:
        yield f"          {disagreement}"
