"""The answer of `check` as a person reads it: what is broken and where, what fits, what is better."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import import_module

from ppadvisor.report.check_findings import OUTCOMES, memory_text
from ppadvisor.report.formats import CHECK_FORMATS
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks, layers_text
from ppadvisor.report.rows import Column, render_rows
from ppadvisor.search.advise import short_plan
from ppadvisor.search.check_results import BrokenRule, CheckReport, GateResult, Notice
from ppadvisor.units import format_bytes_gib, format_fraction, format_gib, format_seconds

STAGES = (
    Column("stage", "stage"),
    Column("num_layers", "layers"),
    Column("total_bytes", "peak [GiB]", format_gib),
    Column("of_capacity", "of the GPU", format_fraction),
    Column("moment", "at its", justify="left"),
)
MOST_STAGES = 16
"""More stages than this are shown by the first, the binding and the last."""


def render_check(report: CheckReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of CHECK_FORMATS."""
    if format == "json":
        return dump_json(report)
    if CHECK_FORMATS[format] != __name__:
        return str(import_module(CHECK_FORMATS[format]).render(report))
    blocks = [
        list(_verdict(report)),
        [line for rule in report.rules for line in rule_lines(rule)],
        list(_estimate(report)),
        _stages(report, width, color=color),
        list(_better(report)),
        [_gate(gate) for gate in report.gates],
        [_notice(notice) for notice in report.notices],
    ]
    return join_blocks(blocks, "text", width)


def mark(passed: bool) -> str:
    """✓ or ✗."""
    return "✓" if passed else "✗"


def _verdict(report: CheckReport) -> Iterator[str]:
    yield f"{report.subject}: {report.framework} on {report.num_gpus} GPUs"
    accepted = "accepts" if report.accepted_by_framework else "refuses"
    yield f"{mark(report.accepted_by_framework)} {report.framework} {accepted} it at start-up"
    if report.accepted_by_framework:
        runs = "runs and trains what was asked for" if report.legal else "does not run, or not as asked for"
        yield f"{mark(report.legal)} it {runs}"
    if report.estimate is not None:
        memory = report.estimate.memory
        yield (
            f"{mark(memory.fits)} {memory.verdict.replace('_', ' ')}: {memory_text(memory)} "
            f"(conservative {format_bytes_gib(memory.conservative_bytes)})"
        )


def _place(one: BrokenRule | Notice) -> str:
    return f"{one.file}:{one.line}: " if one.line is not None else ""


def rule_lines(rule: BrokenRule) -> Iterator[str]:
    """A broken rule with its place, and what to change."""
    yield f"✗ {_place(rule)}{rule.message} [{rule.rule}, {OUTCOMES[rule.outcome]}]"
    if rule.flags:
        yield f"    change: {', '.join(rule.flags)}"


def _notice(notice: Notice) -> str:
    return f"{notice.kind.replace('_', ' ')}: {_place(notice)}{notice.message}"


def _estimate(report: CheckReport) -> Iterator[str]:
    if report.plan is not None:
        yield f"Plan      {short_plan(report.plan)}; layers per stage {layers_text(report.plan.layers_per_stage)}"
    if report.estimate is not None:
        time = report.estimate.time
        yield (
            f"Step      {format_seconds(time.step_time_s)}; MFU {format_fraction(time.model_flops_utilization)}, "
            f"bubble {format_fraction(time.bubble_fraction)}"
        )


def _stages(report: CheckReport, width: int, *, color: bool) -> list[str]:
    """Memory of each stage, where there are several."""
    if report.estimate is None or len(report.estimate.memory.stages) == 1:
        return []
    memory = report.estimate.memory
    rows = [{**stage.as_dict(), "of_capacity": stage.total_bytes / memory.capacity_bytes} for stage in memory.stages]
    if len(rows) > MOST_STAGES:
        rows = [rows[index] for index in sorted({0, memory.binding_stage, len(rows) - 1})]
    return [render_rows(STAGES, rows, "table", width=width, color=color).rstrip("\n")]


def _better(report: CheckReport) -> Iterator[str]:
    if report.best is None:
        if report.estimate is not None:
            yield "Best      no plan fits these GPUs with this batch"
    elif report.best == report.estimate:
        yield "Best      no better plan is known for the same GPUs and batch"
    else:
        regret = (
            "" if report.regret_fraction is None else f"; yours takes {format_fraction(report.regret_fraction)} more"
        )
        needs = f" with {', '.join(report.best_needs)}" if report.best_needs else ""
        yield f"Best      {short_plan(report.best.plan)}{needs}: {format_seconds(report.best.time.step_time_s)}{regret}"
    change = report.change
    if change is not None:
        gain = "it fits" if change.gain_fraction is None else f"{format_fraction(change.gain_fraction)} faster"
        settings = " ".join(f"{flag} {shlex.quote(value)}".strip() for flag, value in change.settings.items())
        yield (
            f"Change    {change.change}: {gain}, {format_seconds(change.step_time_s)}, "
            f"{format_bytes_gib(change.peak_bytes)} ({', '.join(change.flags)})"
        )
        if len(change.settings) > 1:
            yield f"          stages: {settings}"


def _gate(gate: GateResult) -> str:
    measured = "nothing to measure" if gate.measured is None else f"{gate.measured:.4g}"
    return f"{mark(gate.passed)} {gate.gate}: {measured}"
