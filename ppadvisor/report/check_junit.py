"""`check` as JUnit XML, in the form that Jenkins' junit-10.xsd describes and GitLab reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ppadvisor.report.check_findings import Finding, broken, measured_text, memory_text, missed, relative, too_much
from ppadvisor.search.check_results import CheckReport, Judgement

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
    """One suite: rules, memory, gates."""
    return suite_of("ppadvisor check", list(_cases(report)), relative(report.subject))


def suite_of(name: str, cases: Sequence[Case], file: str) -> str:
    """The cases as a document. No times, so that the same answer has the same bytes."""
    counts = {
        "tests": len(cases),
        "failures": sum(bool(case.failures) for case in cases),
        "errors": 0,
        "skipped": sum(bool(case.skipped) for case in cases),
    }
    suite = ElementTree.Element("testsuite", _attributes(name=name, **counts))
    for case in cases:
        _add(suite, case, file)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _cases(report: CheckReport) -> Iterator[Case]:
    yield from rule_cases(report)
    yield memory_case(report, too_much(report) if report.fits is False else None)
    for gate in report.gates:
        failed = () if gate.passed else (missed(gate, report.change),)
        yield Case(f"gate {gate.gate}", failed, measured=f"measured {measured_text(gate)}")


def rule_cases(judged: Judgement) -> Iterator[Case]:
    """One for each rule that was looked at."""
    failures: dict[str, tuple[Finding, ...]] = {}
    for rule in judged.rules:
        failures[rule.rule] = (*failures.get(rule.rule, ()), broken(rule))
    for name in dict.fromkeys((*failures, *judged.rules_judged)):
        yield Case(f"rule {name}", failures.get(name, ()))


def memory_case(judged: Judgement, failed: Finding | None) -> Case:
    """Whether it fits; skipped where nothing was estimated, with the reason."""
    missing = "; ".join(notice.message for notice in judged.notices if notice.kind == "missing")
    return Case(
        "memory",
        () if failed is None else (failed,),
        (missing or "nothing was estimated") if judged.fits is None else "",
        "" if judged.estimate is None else memory_text(judged.estimate.memory),
    )


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
