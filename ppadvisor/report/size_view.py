"""The answer of `size`: the candidates, what answers which question, every point with its plan, what binds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ppadvisor.report.json_ import dump_json
from ppadvisor.report.plan_view import COLUMNS as RANKED_COLUMNS
from ppadvisor.report.plan_view import listed, model_line, training_line
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.search.advise import short_plan
from ppadvisor.search.size_results import BreakEven, Cause, Question, SizePoint, SizeReport
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.units import (
    format_bandwidth,
    format_bytes_gib,
    format_count,
    format_days,
    format_fraction,
    format_seconds,
)

QUESTIONS: dict[Question, str] = {
    "fewest_that_fit": "Fewest GPUs that fit",
    "fewest_that_meet": "Fewest that meet the targets",
    "fewest_at_slow_end": "The same at the slow end of the estimate",
    "cheapest": "Cheapest that meets the targets",
    "fastest": "Fastest that meets the targets",
}
CAUSES: dict[Cause, str] = {
    "memory": "recompute",
    "bubble": "idle stages",
    "bubble_at_small_m": "idle, small m",
    "network": "network",
    "optimizer_and_overhead": "optimizer",
}
DIFFERENCES = {
    "gpu": "another GPU",
    "memory": "other memory",
    "network": "another network",
    "several": "another GPU and network",
}

MANY = 6
"""Of more numbers of GPUs that share a reason, only so many are listed."""


def _number(value: int) -> str:
    return f"{value:,}"


def _price(value: float) -> str:
    return f"{value:.2f}"


CANDIDATE_COLUMNS = (
    Column("number", "#"),
    Column("name", "candidate", justify="left", min_width=26),
    Column("price_per_gpu_hour", "price /h", _price),
    Column("fewest_that_fit", "fewest to fit", _number),
    Column("fewest_that_meet", "fewest to meet", _number),
    Column("least_gpu_hours", "GPU-hours", format_count),
    Column("cluster.gpu.memory_bytes", "memory", format_bytes_gib),
    Column("cluster.inter_node_bandwidth_bytes_per_s", "between nodes", format_bandwidth),
)


def _binds(row: Row) -> str:
    return f"{CAUSES[row['binds']]} {format_fraction(row['binds_fraction'])}"


def _marks(row: Row) -> str:
    return f"{'yes' if row['meets_targets'] else 'no'}{', Pareto' if row['pareto'] else ''}"


def _plan(row: Row) -> str:
    return short_plan(row["plan"])


_OF_PLANS = {column.key: column for column in RANKED_COLUMNS}
POINT_COLUMNS = (
    Column("number", "#"),
    Column("num_gpus", "GPUs", _number, names_row=True),
    Column("days", "days", format_days),
    Column("days_low", "low", format_days),
    Column("days_high", "high", format_days),
    Column("gpu_hours", "GPU-hours", format_count),
    Column("cost", "cost", format_count),
    Column("scaling_efficiency", "scaling", lambda share: format_fraction(share, digits=0)),
    Column("goodput_fraction", "goodput", format_fraction),
    _OF_PLANS["model_flops_utilization"],
    Column("binds", "lost most to", justify="left", derive=_binds),
    Column("marks", "meets", justify="left", derive=_marks, priority=1),
    Column("plan", "plan", justify="left", min_width=24, derive=_plan, priority=1),
    replace(_OF_PLANS["step_time_s"], priority=1),
)
ONLY_WHERE_USED = ("price_per_gpu_hour", "cost", "goodput_fraction")
"""Columns that say nothing where nobody gave prices or failures."""
PLAN_KEYS = tuple(key for key in _OF_PLANS if key in PlanSpec.names() and key != "layers_per_stage")
CSV = (
    *(Column(key, key) for key in ("candidate", "price_per_gpu_hour", "num_gpus", "days", "days_low", "days_high")),
    *(Column(key, key) for key in ("gpu_hours", "cost", "meets_targets", "pareto", "answers", "scaling_efficiency")),
    *(Column(key, key) for key in ("goodput_fraction", "checkpoint_interval_s", "step_time_s", "tokens_per_s")),
    *(Column(key, key) for key in ("model_flops_utilization", "bubble_fraction", "peak_bytes", "headroom_bytes")),
    *(Column(key, key) for key in ("verdict", "binds", "binds_fraction", *PLAN_KEYS)),
)
WORTH_HINTS: tuple[Question, ...] = ("fewest_that_meet", "cheapest", "fastest")
"""Answers whose plans are hinted about."""


def render_size(report: SizeReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS."""
    if format == "json":
        return dump_json(report)
    rows = [_row(point) for point in report.points]
    if format == "csv":
        return render_rows(CSV, [_csv_row(point, report) for point in report.points], format)

    def draw(columns: Sequence[Column], rows: Sequence[Row], title: str) -> list[str]:
        if not rows:
            return []
        return [render_rows(columns, rows, format, width=width, color=color, title=title).rstrip("\n")]

    def said(lines: list[str]) -> list[str]:
        return listed(lines) if format == "markdown" else lines

    candidates = _candidate_rows(report)
    blocks = [
        said(_header(report)),
        draw(_used(CANDIDATE_COLUMNS, candidates), candidates, "Candidates"),
        said(list(_answers(report))),
        draw(_used(POINT_COLUMNS, rows), rows, "Best plan at each number of GPUs"),
        said([*_break_even_lines(report), *_hints(report), *_notes(report)]),
    ]
    return join_blocks(blocks, format, width)


def _row(point: SizePoint) -> dict[str, Any]:
    """One row for people."""
    return {"number": point.candidate + 1, **vars(point)}


def _csv_row(point: SizePoint, report: SizeReport) -> dict[str, Any]:
    """One flat row for programs."""
    candidate, plan = report.candidates[point.candidate], point.plan
    sizes = {key: getattr(plan, key) for key in PLAN_KEYS} | {"recompute": plan.recomputation.text}
    named = {"candidate": candidate.name, "price_per_gpu_hour": candidate.price_per_gpu_hour}
    return {**vars(point), **sizes, **named}


def _candidate_rows(report: SizeReport) -> list[dict[str, Any]]:
    return [{"number": number, **candidate.as_dict()} for number, candidate in enumerate(report.candidates, 1)]


def _used(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns that say something."""
    plain = {key for key in ONLY_WHERE_USED if all(row.get(key) in (1.0, None) for row in rows)}
    return [column for column in columns if column.key not in plain]


def _header(report: SizeReport) -> list[str]:
    """What was asked, as it was understood."""
    targets, pins = report.targets, report.pins
    wanted = [f"{format_count(targets.tokens)} tokens"]
    wanted += [f"within {targets.days:g} days"] if targets.days is not None else []
    wanted += [f"for at most {format_count(targets.budget)}"] if targets.budget is not None else []
    fixed = [f"{name} {','.join(map(str, values))}" for name, values in pins.items()]
    fixed += [f"{name} = {value:g}" for name, value in report.assumptions.items()]
    fixed += [f"up to {format_fraction(report.margin_fraction, digits=0)} of memory"]
    return [
        f"Size      {' '.join(wanted)}",
        model_line(report),
        training_line(report.training),
        f"Fixed     {'; '.join(fixed)}",
        f"Failures  {_losses(report)}",
    ]


def _losses(report: SizeReport) -> str:
    losses = report.losses
    times = (
        f"{format_seconds(losses.checkpoint_time_s)} a checkpoint, {format_seconds(losses.restart_time_s)} a restart"
    )
    if not losses.failures_per_gpu_hour:
        return "none stated: every second trains"
    return f"{losses.failures_per_gpu_hour:.3g} for one GPU and hour; {times}"


def _answers(report: SizeReport) -> Iterator[str]:
    """Each point that answers anything, below the questions that it answers."""
    asked: dict[int | None, list[str]] = {}
    for question, index in report.answers.items():
        asked.setdefault(index, []).append(QUESTIONS[question])
    for index, questions in asked.items():
        yield f"{'; '.join([questions[0], *(_lower(text) for text in questions[1:])])}:"
        if index is None:
            yield "  none of those searched"
            continue
        point = report.points[index]
        yield f"  {_told(point, report)}"
        yield f"  {short_plan(point.plan)}, {format_seconds(point.step_time_s)} a step"
    if report.nearest:
        yield f"Nothing meets the targets; {report.nearest}"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def _told(point: SizePoint, report: SizeReport) -> str:
    cost = f", cost {format_count(point.cost)}" if point.cost is not None else ""
    return (
        f"{point.num_gpus:,} x {report.candidates[point.candidate].name}: {format_days(point.days)} days "
        f"({format_days(point.days_low)} to {format_days(point.days_high)}), {format_count(point.gpu_hours)} "
        f"GPU-hours{cost}"
    )


def _break_even_lines(report: SizeReport) -> list[str]:
    lines = [f"  {_break_even(one, report)}" for one in report.break_even]
    return ["Worth its price, counted in GPU-hours until the tokens are done:", *lines] if lines else []


def _break_even(one: BreakEven, report: SizeReport) -> str:
    ours, theirs = report.candidates[one.candidate].name, report.candidates[one.against].name
    given = ""
    if one.given_ratio is not None:
        worth = "worth it" if one.given_ratio < one.price_ratio else "not worth it"
        price = "as much" if one.given_ratio == 1 else f"{one.given_ratio:.3g} times as much"
        given = f"; it costs {price}: {worth}"
    return (
        f"{ours} up to {one.price_ratio:.3g} times the price of a GPU-hour of {theirs} "
        f"({DIFFERENCES[one.differs_in]}){given}"
    )


def _hints(report: SizeReport) -> Iterator[str]:
    """Hints on the plans that answer, each once."""
    told: dict[str, list[str]] = {}
    for point in report.points:
        if set(point.answers) & set(WORTH_HINTS):
            for hint in point.hints:
                told.setdefault(hint, []).append(f"#{point.candidate + 1} on {point.num_gpus:,}")
    for hint, where in told.items():
        yield f"Hint for {', '.join(where)}: {hint}"


def _notes(report: SizeReport) -> Iterator[str]:
    """What was searched, and why there is no plan where there is none."""
    searched: dict[str, list[str]] = {}
    for number, candidate in enumerate(report.candidates, 1):
        counts = ", ".join(f"{count:,}" for count in candidate.counts)
        searched.setdefault(f"{counts} GPUs{_ruled_out(candidate.ruled_out)}", []).append(f"#{number}")
    for text, where in searched.items():
        yield f"Searched for {', '.join(where)}: {text}."
    reasons: dict[str, list[str]] = {}
    for miss in report.no_plan:
        reasons.setdefault(miss.reason, []).append(f"#{miss.candidate + 1} on {miss.num_gpus:,}")
    for reason, where in reasons.items():
        more = f" and {len(where) - MANY:,} more" if len(where) > MANY else ""
        yield f"No plan for {', '.join(where[:MANY])}{more}: {reason}"


def _ruled_out(counts: Sequence[int]) -> str:
    if not counts:
        return ""
    if len(counts) <= MANY:
        return f"; bounds rule out {', '.join(f'{count:,}' for count in counts)}"
    return f"; bounds rule out {len(counts)} others from {counts[0]:,} to {counts[-1]:,}"
