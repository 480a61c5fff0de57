"""`check` as JUnit XML, in the form that Jenkins' junit-10.xsd describes and GitLab reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from ppadvisor.report.check_findings import Finding, broken, measured_text, memory_text, missed, relative, too_much
from ppadvisor.search.check_results import CheckReport

NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, escaped or not (its production 2, Char)."""


@dataclass(frozen=True)
class Case:
    """Something that was judged."""

    name: str
    failures: tuple[Finding, ...] = ()
    skipped: str = ""
    measured: str = ""


def render(report: CheckReport) -> str:
    """One suite: rules, memory, gates. No times, so that the same answer has the same bytes."""
    cases = list(_cases(report))
    file = relative(report.subject)
    counts = {
        "tests": len(cases),
        "failures": sum(bool(case.failures) for case in cases),
        "errors": 0,
        "skipped": sum(bool(case.skipped) for case in cases),
    }
    suite = ElementTree.Element("testsuite", _attributes(name="ppadvisor check", **counts))
    for case in cases:
        _add(suite, case, file)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _cases(report: CheckReport) -> Iterator[Case]:
    failures: dict[str, tuple[Finding, ...]] = {}
    for rule in report.rules:
        failures[rule.rule] = (*failures.get(rule.rule, ()), broken(rule))
    for name in dict.fromkeys((*failures, *report.rules_judged)):
        yield Case(f"rule {name}", failures.get(name, ()))
    missing = "; ".join(notice.message for notice in report.notices if notice.kind == "missing")
    yield Case(
        "memory",
        (too_much(report),) if report.fits is False else (),
        (missing or "nothing was estimated") if report.fits is None else "",
        "" if report.estimate is None else memory_text(report.estimate.memory),
    )
    for gate in report.gates:
        failed = () if gate.passed else (missed(gate, report.change),)
        yield Case(f"gate {gate.gate}", failed, measured=f"measured {measured_text(gate)}")


def _add(suite: ElementTree.Element, case: Case, file: str) -> None:
    element = ElementTree.SubElement(suite, "testcase", _attributes(classname=file, name=case.name))
    if case.skipped:
        ElementTree.SubElement(element, "skipped", _attributes(message=case.skipped))
    for finding in case.failures:
        place = file if finding.line is None else f"{file}:{finding.line}"
        failure = ElementTree.SubElement(element, "failure", _attributes(message=finding.message, type=finding.title))
        failure.text = _shown(f"{place}: {finding.message}")
    if case.measured:
        ElementTree.SubElement(element, "system-out").text = _shown(case.measured)


def _attributes(**values: object) -> dict[str, str]:
    return {name: _shown(str(value)) for name, value in values.items()}


def _shown(text: str) -> str:
    return NO_XML.sub("\ufffd", text)
