"""`diff` as SARIF: what is wrong with HEAD, at its lines."""

from __future__ import annotations

from ppadvisor.report.check_sarif import log
from ppadvisor.report.diff_findings import findings
from ppadvisor.search.diff_results import DiffReport


def render(report: DiffReport) -> str:
    """One run with a result for each finding."""
    return log(list(findings(report)), report.head.file)
