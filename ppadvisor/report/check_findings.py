"""What `check` found wrong, said once for every format that a CI reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath
from typing import Literal

from ppadvisor.engine.results import PlanMemory
from ppadvisor.search.check_results import BrokenRule, CheckReport, GateResult, Notice, PlanChange
from ppadvisor.units import format_bytes_gib

Level = Literal["error", "warning", "note"]
OUTCOMES = {"rejected": "refused at start-up", "fails": "fails at the first step", "wrong": "trains something else"}
NOTES = ("slow", "assumed")
"""Kinds of notice that leave the answer as good as it was."""
MEMORY = "memory"


@dataclass(frozen=True)
class Finding:
    """One thing to show beside a line of the file."""

    rule: str
    """Rule, kind of notice, metric of the gate, or MEMORY."""
    level: Level
    title: str
    message: str
    line: int | None
    """Where the value stands, or that which the proposed change would change; None where the file has none."""
    source: str = ""
    """The place in the trainer's own code."""


def findings(report: CheckReport) -> Iterator[Finding]:
    """Broken rules, memory, gates, then what is not known or not done."""
    for rule in report.rules:
        yield broken(rule)
    if report.fits is False:
        yield too_much(report)
    for gate in report.gates:
        if not gate.passed:
            yield missed(gate, report.change)
    for notice in report.notices:
        yield noticed(notice)


def broken(rule: BrokenRule) -> Finding:
    """What runs and trains something else is a warning: only a person knows what was meant."""
    change = f" (change: {', '.join(rule.flags)})" if rule.flags else ""
    level: Level = "warning" if rule.outcome == "wrong" else "error"
    return Finding(
        rule.rule, level, f"{rule.rule}: {OUTCOMES[rule.outcome]}", rule.message + change, rule.line, rule.source
    )


def too_much(report: CheckReport) -> Finding:
    """At the line that the smallest change to what fits would change."""
    assert report.estimate is not None
    line = report.change.line if report.change is not None else None
    return no_room(report.estimate.memory, line, _instead(report.change))


def no_room(memory: PlanMemory, line: int | None, more: str = "") -> Finding:
    """A peak that is beyond the limit, or may be beyond the card."""
    title = f"memory: {memory.verdict.replace('_', ' ')}"
    return Finding(MEMORY, "error", title, memory_text(memory) + more, line)


def memory_text(memory: PlanMemory) -> str:
    """The peak beside the limit."""
    return (
        f"{format_bytes_gib(memory.peak_bytes)} at stage {memory.binding_stage}, limit "
        f"{format_bytes_gib(memory.limit_bytes)} of {format_bytes_gib(memory.capacity_bytes)}"
    )


def missed(gate: GateResult, change: PlanChange | None) -> Finding:
    """A broken gate, at the line that the best change would change."""
    line = change.line if change is not None else None
    return Finding(gate.metric, "error", f"gate {gate.gate}", f"measured {measured_text(gate)}{_instead(change)}", line)


def measured_text(gate: GateResult) -> str:
    """The value that a gate looked at."""
    return "nothing" if gate.measured is None else f"{gate.measured:.4g}"


def noticed(notice: Notice) -> Finding:
    """A notice; one that makes the answer less than it could be is a warning."""
    level: Level = "note" if notice.kind in NOTES else "warning"
    return Finding(notice.kind, level, notice.kind.replace("_", " "), notice.message, notice.line)


def _instead(change: PlanChange | None) -> str:
    return f"; better: {change.change} ({', '.join(change.flags)})" if change is not None else ""


def relative(file: str) -> str:
    """The file as a CI names it: from the folder that the command runs in, where it lies in it."""
    path = PurePath(normpath(file))
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix()
