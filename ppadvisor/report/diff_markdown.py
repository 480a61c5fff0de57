"""`diff` as markdown: the comment of a pull request, found again by its first line, or a summary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ppadvisor.report.check_findings import broken, relative
from ppadvisor.report.check_markdown import in_comment, plain, table
from ppadvisor.report.diff_findings import option_text
from ppadvisor.report.diff_view import (
    EFFECTS,
    STAGES,
    change_columns,
    change_rows,
    comes_to,
    effect_rows,
    missing,
    other_options,
    others_text,
    side_line,
    stage_rows,
    verdicts,
)
from ppadvisor.report.rows import Column, Row
from ppadvisor.search.diff_results import DiffReport

CHECKS = (
    Column("mark", ""),
    Column("text", "head", justify="left"),
    Column("line", "line"),
)


def render(report: DiffReport) -> str:
    """Marker, verdicts, what it comes to, what changed, what it does, stages."""
    file = relative(report.head.subject)
    blocks = [
        f"<!-- ppadvisor diff: {in_comment(file)} -->\n",
        table(CHECKS, _checks(report), f"ppadvisor diff: {plain(file)}"),
        _listed(chain(_sides(report), comes_to(report))),
    ]
    tables = (
        (change_columns(report), change_rows(report)),
        (EFFECTS, effect_rows(report)),
        (STAGES, stage_rows(report)),
    )
    blocks += [table(columns, map(_plain_row, rows)) for columns, rows in tables if rows]
    return "\n".join(block for block in (*blocks, _listed(chain(_options(report), missing(report)))) if block)


def _checks(report: DiffReport) -> Iterator[Row]:
    for rule in report.head.rules:
        finding = broken(rule)
        yield {"mark": "✗", "text": plain(f"{finding.title}: {finding.message}"), "line": finding.line}
    for passed, text in verdicts(report):
        yield {"mark": "✓" if passed else "✗", "text": plain(text), "line": None}


def _sides(report: DiffReport) -> Iterator[str]:
    yield side_line("base", report.base)
    yield side_line("head", report.head)


def _options(report: DiffReport) -> Iterator[str]:
    unseen, others = other_options(report)
    for one in unseen:
        yield f"not modelled: {option_text(one)}: changes memory or time, the estimate is made without it"
    if others:
        yield f"other options: {others_text(others)}"


def _plain_row(row: Row) -> Row:
    """No text of a file is markup."""
    return {key: plain(value) if isinstance(value, str) and key != "name" else value for key, value in row.items()}


def _listed(lines: Iterator[str]) -> str:
    return "".join(f"- {plain(line)}\n" for line in lines)
