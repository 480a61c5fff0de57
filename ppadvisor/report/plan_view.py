"""The answer of `plan` as a person reads it: header, ranked table, why, baselines, what was rejected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks, layers_text
from ppadvisor.report.rows import Column, render_rows
from ppadvisor.report.split_view import split_lines
from ppadvisor.search.results import PlanReport, ProblemEcho, RankedPlan
from ppadvisor.specs.assumptions import CALIBRATED
from ppadvisor.units import (
    format_bandwidth,
    format_bytes_gib,
    format_count,
    format_fraction,
    format_gib,
    format_seconds,
    format_tokens_per_s,
)

if TYPE_CHECKING:
    from ppadvisor.search.compare import Comparison
    from ppadvisor.search.explain import PlanExplanation
    from ppadvisor.search.size_results import SizeReport
    from ppadvisor.specs.training import TrainingSpec

ONLY_WHERE_USED = (
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "virtual_stages",
    "microbatch_group_size",
    "optimizer_sharding",
)
"""Columns left out of the table where every plan has the same plain value."""


def seconds(time_s: float) -> str:
    """Seconds to four digits: one unit for the whole column."""
    return f"{time_s:#.4g}".rstrip(".")


COLUMNS = (
    Column("rank", "#"),
    Column("pipeline_parallel", "p"),
    Column("tensor_parallel", "t"),
    Column("context_parallel", "c"),
    Column("expert_parallel", "e"),
    Column("expert_tensor_parallel", "etp"),
    Column("data_parallel", "d"),
    Column("virtual_stages", "v"),
    Column("micro_batch_size", "b"),
    Column("num_microbatches", "m"),
    Column("microbatch_group_size", "N"),
    Column("schedule", "schedule", justify="left"),
    Column("recompute", "recompute", justify="left"),
    Column("optimizer_sharding", "ZeRO", priority=2),
    Column("step_time_s", "step [s]", seconds),
    Column("step_time_low_s", "low [s]", seconds, priority=1),
    Column("step_time_high_s", "high [s]", seconds, priority=1),
    Column("tokens_per_s", "tokens/s", format_tokens_per_s, priority=1),
    Column("model_flops_utilization", "MFU", format_fraction),
    Column("bubble_fraction", "bubble", format_fraction),
    Column("utilization_fraction", "util", format_fraction, priority=1),
    Column("peak_bytes", "peak [GiB]", format_gib),
    Column("binding_stage", "at stage", priority=1),
    Column("headroom_bytes", "headroom [GiB]", format_gib, priority=1),
    Column("layers_per_stage", "layers per stage", priority=2, justify="left", fmt=layers_text),
)


def plan_rows(estimates: tuple[RankedPlan, ...]) -> list[dict[str, Any]]:
    """One row a plan, ranked from 1."""
    keys = [column.key for column in COLUMNS if column.key != "rank"]
    rows = []
    for rank, estimate in enumerate(estimates, 1):
        values = {**vars(estimate.plan), **vars(estimate.memory), **vars(estimate.time)}
        values["recompute"] = estimate.plan.recomputation.text
        rows.append({"rank": rank, **{key: values[key] for key in keys}})
    return rows


def columns_for(rows: list[dict[str, Any]]) -> tuple[Column, ...]:
    """The columns that tell the plans apart or say something."""

    def plain(column: Column) -> bool:
        return column.key in ONLY_WHERE_USED and all(column.value(row) in (1, None) for row in rows)

    return tuple(column for column in COLUMNS if not plain(column))


def render_plan(report: PlanReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS."""
    if format == "json":
        return dump_json(report)
    rows = plan_rows(report.plans)
    if format == "csv":
        return render_rows(COLUMNS, rows, format)
    columns = columns_for(rows)
    table = render_rows(columns, rows, format, width=width, color=color) if rows else ""
    head, prose = header(report.problem, report), _prose(report)
    if format == "markdown":
        head, prose = listed(head), listed(prose)
    by_schedule = schedule_table(report, format, width=width, color=color)
    tables = [[text.rstrip("\n")] for text in (table, by_schedule) if text]
    return join_blocks([head, *tables, prose], format, width)


SCHEDULE_COLUMNS = (
    Column("schedule", "schedule", justify="left"),
    Column("step_time_s", "step [s]", seconds),
    Column("of_best", "x best", "{:.3f}".format),
    Column("bubble_fraction", "bubble", format_fraction),
    Column("bubble_in_span_fraction", "in span", format_fraction),
    Column("peak_bytes", "peak [GiB]", format_gib),
    Column("binding_stage", "at stage"),
    Column("note", "", justify="left", min_width=14, priority=1),
    Column("plan", "its best plan", justify="left", min_width=24, priority=2),
    Column("run_by", "who runs it", justify="left", min_width=12, priority=3),
)

SCHEDULES_WORTH_A_TABLE = 5
"""With fewer schedules the ranked table says it all."""


def schedule_table(report: PlanReport, format: str, *, width: int, color: bool) -> str:
    """Each schedule with its best plan, where a framework runs many and one has any; else the refusals say it all."""
    some = any(entry.estimate is not None for entry in report.schedules)
    if not some or len(report.schedules) < SCHEDULES_WORTH_A_TABLE:
        return ""
    title = "The best plan of each schedule (replayed)"
    columns = schedule_columns(report)
    return render_rows(columns, schedule_rows(report), format, width=width, color=color, title=title)


def schedule_columns(report: PlanReport) -> tuple[Column, ...]:
    """Who runs a schedule is said where the framework runs every one."""
    return SCHEDULE_COLUMNS if report.problem.framework == "generic" else SCHEDULE_COLUMNS[:-1]


def schedule_rows(report: PlanReport) -> list[dict[str, Any]]:
    """One row a schedule."""
    from ppadvisor.search.advise import short_plan

    best = report.plans[0].time.step_time_s if report.plans else None
    rows = []
    for entry in report.schedules:
        row: dict[str, Any] = {"schedule": entry.schedule, "note": entry.note, "run_by": ", ".join(entry.run_by) or "-"}
        if entry.estimate is not None:
            time, memory = entry.estimate.time, entry.estimate.memory
            row |= {"step_time_s": time.step_time_s, "bubble_fraction": time.bubble_fraction}
            row["bubble_in_span_fraction"] = time.bubble_in_span_fraction
            row |= {"peak_bytes": memory.peak_bytes, "binding_stage": memory.binding_stage}
            row |= {"of_best": time.step_time_s / best if best else None, "plan": short_plan(entry.estimate.plan)}
        rows.append(row)
    return rows


def listed(lines: list[str]) -> list[str]:
    """Lines as a Markdown list, what is indented one level down."""
    return [f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in lines]


def header(problem: ProblemEcho, report: PlanReport) -> list[str]:
    """What was asked, as it was understood, and what was searched."""
    sizes = [
        f"{_short(name)} {_values(values)}"
        for name, values in problem.searched.items()
        if name != "num_microbatches" and not _trivial(name, values)
    ]
    searched = f"{problem.num_combinations:,} combinations, {report.num_fitting:,} fit: {'; '.join(sizes)}"
    return [*about(problem), f"Searched  {searched}"]


def about(asked: ProblemEcho | PlanExplanation | Comparison) -> list[str]:
    """Model, cluster and training run, a line each."""
    cluster = asked.cluster
    links = (
        f"{format_bandwidth(cluster.intra_node_bandwidth_bytes_per_s)} in a node of {cluster.gpus_per_node}, "
        f"{format_bandwidth(cluster.inter_node_bandwidth_bytes_per_s)} between nodes (per GPU and direction)"
    )
    return [
        model_line(asked),
        f"Cluster   {cluster.num_gpus} x {cluster.gpu.name} ({format_bytes_gib(cluster.gpu.memory_bytes)}); {links}",
        training_line(asked.training),
        *_calibrated(asked),
    ]


def model_line(asked: ProblemEcho | PlanExplanation | Comparison | SizeReport) -> str:
    """The model and its size."""
    model = asked.model
    of_which = f" ({format_count(asked.active_parameters)} active)" if model.moe else ""
    return (
        f"Model     {model.name}: {format_count(asked.total_parameters)} parameters{of_which}, "
        f"{model.num_layers} layers, hidden {model.hidden_size}"
    )


def training_line(training: TrainingSpec) -> str:
    """How it is trained, and by what."""
    return (
        f"Training  batch {training.global_batch_size} x {training.sequence_length} tokens = "
        f"{training.tokens_per_step:,} a step; {training.precision}, {training.optimizer}, {training.attention} "
        f"attention{''.join(f', {choice}' for choice in _choices(training))}; {training.framework}"
        f"{f' (stack {training.stack})' if training.stack else ''}"
    )


def _choices(training: TrainingSpec) -> Iterator[str]:
    """What the user chose besides and what changes numbers."""
    if training.fp8_weights:
        yield "weights in fp8 alone"
    if training.dropout:
        yield "dropout"
    if not training.fused_norm:
        yield "norms not fused"
    if training.gradient_precision:
        yield f"{training.gradient_precision} gradients"
    if training.loss:
        yield f"{training.loss} loss"
    if not training.sequence_parallel:
        yield "no sequence parallelism"


def _calibrated(asked: ProblemEcho | PlanExplanation | Comparison) -> list[str]:
    """What was measured on this cluster, where anything was."""
    measured = [used for used in asked.assumptions if used.provenance == CALIBRATED]
    values = ", ".join(f"{used.name} {used.value:.4g}" for used in measured)
    return [f"Calibrated {values}; the other assumptions are defaults or given"] if measured else []


SYMBOLS = {
    "pipeline_parallel": "p",
    "tensor_parallel": "t",
    "data_parallel": "d",
    "context_parallel": "c",
    "expert_parallel": "e",
    "expert_tensor_parallel": "etp",
    "virtual_stages": "v",
    "micro_batch_size": "b",
    "optimizer_sharding": "ZeRO",
}


def _short(name: str) -> str:
    return SYMBOLS.get(name, name)


def _trivial(name: str, values: list[int] | list[str]) -> bool:
    return name in ("expert_parallel", "expert_tensor_parallel", "virtual_stages") and values == [1]


def _values(values: list[int] | list[str]) -> str:
    if len(values) > 6:
        return f"{values[0]}..{values[-1]} ({len(values)})"
    return ",".join(map(str, values))


def _prose(report: PlanReport) -> list[str]:
    lines = []
    if report.why:
        lines += ["Why the first is first:", *(f"  {line}" for line in report.why)]
    lines += split_lines(report)
    lines += [f"Hint: {line}" for line in report.hints]
    lines += ["Baselines:", *(f"  {baseline_text(name, report)}" for name in report.baselines)]
    lines += nothing_fits_lines(report)
    lines += rejected_lines(report)
    return lines


def baseline_text(name: str, report: PlanReport) -> str:
    """One baseline, which of the plans it is, and how it does."""
    from ppadvisor.search.advise import short_plan

    baseline = report.baselines[name]
    title = {"naive": "naive (whole local batch at once)", "no_pipeline": "without pipelining"}[name]
    which = f" ({short_plan(baseline.estimate.plan)})" if baseline.estimate else ""
    return f"{title}: {baseline.note}{which}"


def nothing_fits_lines(report: PlanReport) -> list[str]:
    """Where no plan fits: the nearest miss, and what would make one fit."""
    if report.plans:
        return []
    miss = report.nearest_miss
    if miss is None:
        return ["No plan is legal.", *(f"  {r.code}: {r.message}" for r in report.rejection_examples)]
    lines = ["No plan fits.", f"  {miss.message}"]
    if miss.changes:
        lines.append("Single changes that would make one fit:")
        lines += [
            f"  {c.change}: {c.plan}, {format_seconds(c.step_time_s)} a step, {format_bytes_gib(c.peak_bytes)}"
            for c in miss.changes
        ]
    return lines


REASONS = {
    "memory": "do not fit into memory",
    "memory_borderline": "borderline in memory",
    "global_batch_not_divisible": "divisions of the GPUs whose d does not divide the batch",
}


def rejected_lines(report: PlanReport) -> list[str]:
    """How many combinations were rejected for which reason."""
    if not report.rejected:
        return []
    parts = [f"{count:,} {REASONS.get(code, code.replace('_', ' '))}" for code, count in report.rejected.items()]
    return [f"Rejected: {'; '.join(parts)}."]
