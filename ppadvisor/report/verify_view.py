"""The answer of `verify`: what was compared, a row a rank and term, what must be known to judge it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, render_rows
from ppadvisor.verify.results import OpsReport, VerifyReport

Tables = Iterator[tuple[Sequence[Column], Sequence[Any], str]]


def _yes(agrees: bool) -> str:
    return "yes" if agrees else "NO"


OPS = (
    Column("rank", "rank"),
    Column("num_operations", "operations"),
    Column("torch_num_operations", "torch's"),
    Column("num_differences", "places that differ"),
    Column("agrees", "agrees", _yes),
)
DIFFERENCES = (
    Column("rank", "rank"),
    Column("position", "position"),
    Column("predicted", "ours", justify="left"),
    Column("torch", "torch's", justify="left"),
)


def render_verification(report: VerifyReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS; csv has the rows of the first table."""
    if format == "json":
        return dump_json(report.model_dump(mode="json"))
    tables = [(columns, [row.model_dump() for row in rows], title) for columns, rows, title in _tables(report) if rows]
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


def _header(report: VerifyReport) -> Iterator[str]:
    p, v, m = report.pipeline_parallel, report.virtual_stages, report.num_microbatches
    yield f"Verify    {report.kind}: {report.schedule} p={p} v={v} m={m}"
    yield f"Against   {report.engine}, torch {report.torch_version}"
    yield f"Verdict   {'agrees' if report.agrees else 'DOES NOT AGREE'}"
