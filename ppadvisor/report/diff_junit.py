"""`diff` as JUnit XML: the cases of HEAD, and one for each number that must not become worse."""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.report.check_findings import relative
from ppadvisor.report.check_junit import Case, memory_case, rule_cases, suite_of
from ppadvisor.report.diff_findings import METRICS, too_much, worse
from ppadvisor.search.diff_results import DiffReport

TIME = ("step_time_s", "time_per_token_s")


def render(report: DiffReport) -> str:
    """One suite: rules and memory of HEAD, then time and memory against BASE."""
    return suite_of("ppadvisor diff", list(_cases(report)), relative(report.head.subject))


def _cases(report: DiffReport) -> Iterator[Case]:
    yield from rule_cases(report.head)
    yield memory_case(report.head, too_much(report))
    found = {one.metric: one for one in report.regressions}
    skipped = report.not_comparable or ""
    if report.tolerance_fraction is None:
        skipped = "no --fail-on-regression is given"
    elif report.head.estimate is None:
        skipped = "HEAD has no estimate"
    time = next((name for name in TIME if name in found), TIME[0])
    said = dict(zip((time, "peak_bytes"), report.summary, strict=False))
    for metric in (time, "peak_bytes"):
        failures = (worse(found[metric], report),) if metric in found else ()
        yield Case(f"regression {METRICS[metric]}", failures, skipped, said.get(metric, ""))
