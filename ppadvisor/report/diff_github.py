"""`diff` as workflow commands, which GitHub shows beside the lines of HEAD."""

from __future__ import annotations

from ppadvisor.report.check_github import commands
from ppadvisor.report.diff_findings import findings
from ppadvisor.search.diff_results import DiffReport


def render(report: DiffReport) -> str:
    """A line for each finding, and one with what it all comes to, as a notice."""
    return commands(findings(report), report.head.file)
