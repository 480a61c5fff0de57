"""`check` as SARIF 2.1.0 (OASIS standard, 27 March 2020), which code scanning and editors read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import ppadvisor
from ppadvisor.report.check_findings import Finding, findings, relative
from ppadvisor.report.json_ import dump_json
from ppadvisor.search.check_results import CheckReport

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(report: CheckReport) -> str:
    """A log of what was found."""
    return log(list(findings(report)), report.file)


def log(found: Sequence[Finding], file: str) -> str:
    """One run: a result for each finding, a rule for each that has a result."""
    rules = list(dict.fromkeys(finding.rule for finding in found))
    uri = _uri(relative(file))
    driver = {"name": "ppadvisor", "version": ppadvisor.__version__, "rules": [_rule(name, found) for name in rules]}
    results = [_result(finding, rules.index(finding.rule), uri) for finding in found]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dump_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _uri(file: str) -> str:
    """Relative to the folder of the run; a `:` in its first part would make that a scheme (RFC 3986, 4.2)."""
    absolute = PurePath(file).is_absolute()
    return ("file://" if absolute else "") + quote(file, errors="replace")


def _rule(name: str, found: Iterable[Finding]) -> dict[str, Any]:
    first = next(finding for finding in found if finding.rule == name)
    rule: dict[str, Any] = {"id": name, "shortDescription": {"text": name.replace("_", " ")}}
    if first.source:
        rule["help"] = {"text": first.source}
    return {**rule, "defaultConfiguration": {"level": first.level}}


def _result(finding: Finding, index: int, uri: str) -> dict[str, Any]:
    """Code scanning asks for a line, so what has none stands on the first."""
    place = {"artifactLocation": {"uri": uri}, "region": {"startLine": finding.line or 1}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": f"{finding.title}: {finding.message}"},
        "locations": [{"physicalLocation": place}],
    }
