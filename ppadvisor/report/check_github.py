"""`check` as workflow commands, which GitHub shows beside the lines of the file.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions; escapes as in actions/toolkit,
packages/core/src/command.ts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ppadvisor.report.check_findings import Finding, findings, relative
from ppadvisor.search.check_results import CheckReport

STDIN = "-"


def render(report: CheckReport) -> str:
    """A line for each finding, notes left out; nothing where there is none."""
    return commands((finding for finding in findings(report) if finding.level != "note"), report.file)


def commands(found: Iterable[Finding], file: str) -> str:
    """A workflow command for each finding; one of stdin belongs to the run, for no file has it."""
    place = None if file == STDIN else relative(file)
    return "".join(_command(finding, place) + "\n" for finding in found)


def _command(finding: Finding, file: str | None) -> str:
    properties = {"file": file, "line": finding.line, "title": finding.title}
    text = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    level = "notice" if finding.level == "note" else finding.level
    return f"::{level} {text}::{_data(finding.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
