"""`check` as workflow commands, which GitHub shows beside the lines of the file.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions; escapes as in actions/toolkit,
packages/core/src/command.ts.
"""

from __future__ import annotations

from ppadvisor.report.check_findings import Finding, findings, relative
from ppadvisor.search.check_results import CheckReport


def render(report: CheckReport) -> str:
    """A line for each finding, notes left out; nothing where there is none."""
    file = None if report.file == "-" else relative(report.file)
    return "".join(_command(finding, file) + "\n" for finding in findings(report) if finding.level != "note")


def _command(finding: Finding, file: str | None) -> str:
    properties = {"file": file, "line": finding.line, "title": finding.title}
    text = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{finding.level} {text}::{_data(finding.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
