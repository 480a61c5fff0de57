"""The output formats: name -> module, so that a run imports only the one it prints."""

from __future__ import annotations

FORMATS: dict[str, str] = {
    "table": "ppadvisor.report.table",
    "json": "ppadvisor.report.json_",
    "csv": "ppadvisor.report.csv_",
    "markdown": "ppadvisor.report.markdown",
}

CHECK_FORMATS: dict[str, str] = {
    "text": "ppadvisor.report.check_view",
    "json": "ppadvisor.report.check_view",
    "markdown": "ppadvisor.report.check_markdown",
    "github": "ppadvisor.report.check_github",
    "junit": "ppadvisor.report.check_junit",
    "sarif": "ppadvisor.report.check_sarif",
}
"""Those of `check`, which is no table."""

DIFF_FORMATS: dict[str, str] = {
    "text": "ppadvisor.report.diff_view",
    "json": "ppadvisor.report.diff_view",
    "markdown": "ppadvisor.report.diff_markdown",
    "github": "ppadvisor.report.diff_github",
    "junit": "ppadvisor.report.diff_junit",
    "sarif": "ppadvisor.report.diff_sarif",
}
"""Those of `diff`, the same ones."""
