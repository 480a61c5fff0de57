"""`check` as markdown: the comment of a CI, found again by its first line, or its summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from ppadvisor.report.check_findings import broken, measured_text, memory_text, relative
from ppadvisor.report.check_view import STAGES
from ppadvisor.report.markdown import render as render_table
from ppadvisor.report.rows import Column, Row, RowTable, View
from ppadvisor.search.advise import short_plan
from ppadvisor.search.check_results import CheckReport
from ppadvisor.units import format_fraction, format_seconds

CHECKS = (
    Column("mark", ""),
    Column("check", "check", justify="left"),
    Column("value", "value", justify="left"),
    Column("limit", "limit", justify="left"),
    Column("line", "line"),
)
MARKUP = re.compile(r"[&<\\`*\[~@#]")


def render(report: CheckReport) -> str:
    """Marker, checks, memory of the stages, plans, notices."""
    file = relative(report.subject)
    title = f"ppadvisor check: {plain(file)}"
    blocks = [f"<!-- ppadvisor check: {in_comment(file)} -->\n", table(CHECKS, _checks(report), title)]
    if report.estimate is not None:
        memory = report.estimate.memory
        rows = (
            {**stage.as_dict(), "of_capacity": stage.total_bytes / memory.capacity_bytes} for stage in memory.stages
        )
        blocks.append(table(STAGES, rows))
    lines = "".join(f"- {plain(line)}\n" for line in chain(_plans(report), _notices(report)))
    return "\n".join(block for block in (*blocks, lines) if block)


def in_comment(text: str) -> str:
    """Nothing in the name of a file ends the comment: it holds neither `--` nor a new line."""
    return " ".join(text.split()).replace("--", "-\u200b-").replace(">", "&gt;")


def plain(text: str) -> str:
    """Nothing of a message is markup: no tag, link, mention or new line."""
    return MARKUP.sub(lambda sign: f"&#{ord(sign[0])};", " ".join(text.split()))


def table(columns: tuple[Column, ...], rows: Iterable[Row], title: str = "") -> str:
    """A table with its title in bold."""
    return render_table(RowTable(columns, list(rows), title), View())


def _checks(report: CheckReport) -> Iterator[Row]:
    accepted = "accepted" if report.accepted_by_framework else "refused"
    yield _row(report.accepted_by_framework, "start-up", f"{accepted} by {report.framework}")
    if report.accepted_by_framework:
        runs = "as asked for" if report.legal else "fails, or trains something else"
        yield _row(report.legal, "training", runs)
    for rule in report.rules:
        finding = broken(rule)
        yield {**_row(False, finding.title, finding.message), "line": finding.line}
    if report.estimate is not None:
        yield _row(bool(report.fits), "memory", memory_text(report.estimate.memory))
    for gate in report.gates:
        yield _row(gate.passed, gate.metric, measured_text(gate), f"{gate.operator} {gate.limit:.4g}")


def _row(passed: bool, check: str, value: str, limit: str = "") -> Row:
    return {"mark": "✓" if passed else "✗", "check": plain(check), "value": plain(value), "limit": plain(limit)}


def _plans(report: CheckReport) -> Iterator[str]:
    if report.plan is not None:
        step = f": {format_seconds(report.estimate.time.step_time_s)}" if report.estimate is not None else ""
        yield f"plan {short_plan(report.plan)}{step}"
    if report.best is not None and report.best != report.estimate:
        regret = report.regret_fraction
        yours = "" if regret is None else f"; yours takes {format_fraction(regret)} more"
        needs = f" with {', '.join(report.best_needs)}" if report.best_needs else ""
        yield f"best {short_plan(report.best.plan)}{needs}: {format_seconds(report.best.time.step_time_s)}{yours}"
    elif report.estimate is not None:
        yield "best: no better plan is known" if report.best is not None else "best: no plan fits"
    if report.change is not None:
        seconds = format_seconds(report.change.step_time_s)
        yield f"change {report.change.change}: {seconds} ({', '.join(report.change.flags)})"


def _notices(report: CheckReport) -> Iterator[str]:
    for notice in report.notices:
        place = f"line {notice.line}: " if notice.line is not None else ""
        yield f"{notice.kind.replace('_', ' ')}: {place}{notice.message}"
