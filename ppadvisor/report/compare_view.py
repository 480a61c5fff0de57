"""Two plans side by side as a person reads them: what it comes to, then where the time goes and what is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ppadvisor.report.explain_columns import bar, fine_gib, words
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.plan_view import about, listed, seconds
from ppadvisor.report.prose import join_blocks, layers_text
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.search.advise import short_plan
from ppadvisor.search.compare import Comparison, PlanCompared
from ppadvisor.search.explain import NothingToExplain
from ppadvisor.units import format_bytes_gib, format_fraction, format_gib, format_seconds, format_tokens_per_s

BAR_WIDTH = 16
"""Characters of a bar that is the whole step of the slower plan."""

Rows = list[dict[str, Any]]


def signed(show: Callable[[float], str], value: float) -> str:
    """`+1.20 s`, `-554 ms`; what reads as nothing is `0`."""
    text = show(abs(value))
    return f"{'+' if value > 0 else '-'}{text}" if any(digit in text for digit in "123456789") else "0"


def _bar(key: str, row: Row) -> str:
    return bar(max(float(row[key]), 0.0) / float(row["longest_s"]), BAR_WIDTH)


def _layers(key: str, row: Row) -> str:
    """The layers of the stage and its micro-batches in flight, where the plan has it."""
    held = row[key]
    return "-" if held is None else f"{held['num_layers']} / {held['in_flight_microbatches']:.4g}"


def _marked_gib(key: str, row: Row) -> str:
    """GiB, with a star where the stage binds."""
    held = row[key]
    return "-" if held is None else f"{format_gib(held['total_bytes'])}{'*' if row[f'{key}_binds'] else ' '}"


PLANS = (
    Column("name", ""),
    Column("step_time_s", "step [s]", seconds),
    Column("tokens_per_s", "tokens/s", format_tokens_per_s),
    Column("model_flops_utilization", "MFU", format_fraction),
    Column("bubble_fraction", "bubble", format_fraction),
    Column("memory.peak_bytes", "peak", format_bytes_gib),
    Column("memory.headroom_bytes", "headroom", format_bytes_gib),
    Column("memory.verdict", "verdict", words, justify="left"),
)
PARTS = (
    Column("name", "part", words, justify="left"),
    Column("a_s", "A", format_seconds),
    Column("b_s", "B", format_seconds),
    Column("difference_s", "B - A", partial(signed, format_seconds)),
    Column("bar_a", "A", justify="left", derive=partial(_bar, "a_s")),
    Column("bar_b", "B", justify="left", derive=partial(_bar, "b_s")),
)
STAGES = (
    Column("stage", "stage"),
    Column("gib_a", "A [GiB]", derive=partial(_marked_gib, "a")),
    Column("gib_b", "B [GiB]", derive=partial(_marked_gib, "b")),
    Column("layers_a", "A layers / in flight", derive=partial(_layers, "a")),
    Column("layers_b", "B layers / in flight", derive=partial(_layers, "b")),
)
TERMS = (
    Column("name", "term", words, justify="left"),
    Column("a_bytes", "A [GiB]", fine_gib),
    Column("b_bytes", "B [GiB]", fine_gib),
    Column("difference_bytes", "B - A", partial(signed, fine_gib)),
)
CSV = tuple(
    Column(key, key)
    for key in ("part", "stage", "name", "a_s", "b_s", "difference_s", "a_bytes", "b_bytes", "difference_bytes")
)


def render_comparison(answer: Comparison | NothingToExplain, format: str, *, width: int, color: bool) -> str:
    """The comparison in one of FORMATS."""
    if format == "json":
        return dump_json(answer)
    if isinstance(answer, NothingToExplain):
        return render_rows(CSV, [], format) if format == "csv" else f"Nothing to compare: {answer.note}\n"
    if format == "csv":
        return render_rows(CSV, list(_csv_rows(answer)), format)

    def draw(title: str, columns: Sequence[Column], rows: Rows) -> list[str]:
        return [render_rows(columns, rows, format, width=width, color=color, title=title).rstrip("\n")]

    def said(lines: list[str]) -> list[str]:
        return listed(lines) if format == "markdown" else lines

    longest_s = max(answer.a.step_time_s, answer.b.step_time_s)
    of_a, of_b = answer.a.memory.binding_stage, answer.b.memory.binding_stage
    blocks = [
        said([*about(answer), _plan_line("A", answer.a), _plan_line("B", answer.b)]),
        said(list(answer.summary)),
        draw("", PLANS, [{"name": "A", **answer.a.as_dict()}, {"name": "B", **answer.b.as_dict()}]),
        draw(
            _parts_title(answer),
            PARTS,
            [{**part.as_dict(), "longest_s": longest_s} for part in answer.parts if part.a_s or part.b_s],
        ),
        draw("Stages, each at its highest moment; * binds", STAGES, _stage_rows(answer)),
        draw(
            f"The stages that bind, {of_a} of A and {of_b} of B: what they hold",
            TERMS,
            [term.as_dict() for term in answer.binding_terms if term.a_bytes or term.b_bytes],
        ),
    ]
    return join_blocks(blocks, format, width)


def _plan_line(name: str, one: PlanCompared) -> str:
    plan = one.plan
    return (
        f"{name}         {short_plan(plan)}; layers per stage {layers_text(plan.layers_per_stage)}; "
        f"ZeRO {plan.optimizer_sharding}"
    )


def _parts_title(answer: Comparison) -> str:
    order = f": what saves {answer.faster.upper()} most comes first" if answer.faster else ""
    return f"Where a step goes, mean over the ranks{order}"


def _stage_rows(answer: Comparison) -> Rows:
    return [
        {
            **stage.as_dict(),
            "a_binds": stage.stage == answer.a.memory.binding_stage,
            "b_binds": stage.stage == answer.b.memory.binding_stage,
        }
        for stage in answer.stages
    ]


def _csv_rows(answer: Comparison) -> Iterator[dict[str, Any]]:
    """One row a part of the step, then one a stage, then one a term of the stages that bind."""
    for part in answer.parts:
        yield {"part": "time", **part.as_dict()}
    for stage in answer.stages:
        held = [None if one is None else one.total_bytes for one in (stage.a, stage.b)]
        difference = None if held[0] is None or held[1] is None else held[1] - held[0]
        sizes = {"a_bytes": held[0], "b_bytes": held[1], "difference_bytes": difference}
        yield {"part": "stage", "stage": stage.stage, "name": "total", **sizes}
    for term in answer.binding_terms:
        yield {"part": "binding_stages", **term.as_dict()}
