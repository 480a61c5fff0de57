"""What `diff` found wrong or worth a look, said once for every format that a CI reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ppadvisor.report.check_findings import Finding, broken, no_room
from ppadvisor.report.prose import layers_text
from ppadvisor.search.diff_results import DiffReport, FieldChanged, OptionChanged, Regression
from ppadvisor.units import format_bandwidth, format_bytes_gib, format_fraction, format_seconds

MOST_NAMED = 6
"""Changes that a finding names; a report has all."""
METRICS = {"step_time_s": "step time", "time_per_token_s": "time per token", "peak_bytes": "peak memory"}
MOST_CHARACTERS = 40
UNITS: dict[str, Callable[[float], str]] = {"_bytes_per_s": format_bandwidth, "_bytes": format_bytes_gib}
"""Ends of the names of fields: how their values are written."""


def findings(report: DiffReport) -> Iterator[Finding]:
    """What HEAD breaks, its memory, regressions, changes that no estimate sees, and what it all comes to."""
    for rule in report.head.rules:
        yield broken(rule)
    memory = too_much(report)
    if memory is not None:
        yield memory
    for one in report.regressions:
        yield worse(one, report)
    for option in report.options:
        if option.effect == "not_modelled":
            yield unseen(option)
    if report.summary and report.changes:
        yield Finding("summary", "note", "memory and time", "; ".join(report.summary), first_line(report))


def too_much(report: DiffReport) -> Finding | None:
    """HEAD beyond its memory, at the line of the first change."""
    if report.head.estimate is None or report.head.fits is not False:
        return None
    changes = changes_text(report)
    return no_room(report.head.estimate.memory, first_line(report), f"; changed: {changes}" if changes else "")


def worse(one: Regression, report: DiffReport) -> Finding:
    """A regression, at the line of the changed option that the likeliest cause is."""
    changes = changes_text(report)
    return Finding(
        one.metric,
        "error",
        f"regression: {METRICS[one.metric]}",
        f"{measured(one)}{f'; changed: {changes}' if changes else ''}",
        one.line,
    )


def measured(one: Regression) -> str:
    """`12.3 s -> 14.1 s, +14.6 %, allowed 2.0 %`."""
    show = format_bytes_gib if one.metric == "peak_bytes" else format_seconds
    return (
        f"{show(one.base)} -> {show(one.head)}, +{format_fraction(one.worse_fraction)}, "
        f"allowed {percent(one.tolerance_fraction)}"
    )


def percent(share: float) -> str:
    """What the user allowed, as it was written: `2 %`."""
    return f"{100 * share:.4g} %"


def unseen(option: OptionChanged) -> Finding:
    """An option that no formula knows."""
    text = f"{option_text(option)}: changes memory or time; the estimate is made without it"
    return Finding("not_modelled", "warning", "not modelled", text, option.head_line)


def option_text(option: OptionChanged) -> str:
    """`--lr 0.1 -> 0.2`; of a switch whether it was added or dropped."""
    switch = "given" in (option.base, option.head)
    if option.base is None:
        return f"{option.option} added" if switch else f"{option.option} {short(option.head)} added"
    if option.head is None:
        return f"{option.option} dropped" if switch else f"{option.option} {short(option.base)} dropped"
    return f"{option.option} {short(option.base)} -> {short(option.head)}"


def changes_text(report: DiffReport) -> str:
    """The first changes: as options say them where any does, for the others then follow from these."""
    by_name = {one.option: one for one in report.options}
    said = [option_text(by_name[one.option]) for one in report.changes if one.option is not None]
    named = list(dict.fromkeys(said or [field_text(one) for one in report.changes]))
    more = [f"{len(named) - MOST_NAMED} more"] if len(named) > MOST_NAMED else []
    return ", ".join([*named[:MOST_NAMED], *more])


def field_text(one: FieldChanged) -> str:
    """`pipeline parallel 4 -> 8`."""
    return f"{field_name(one)} {value_text(one.base, one.field)} -> {value_text(one.head, one.field)}"


def field_name(one: FieldChanged) -> str:
    """`num_microbatches` as words; a unit stands at the values."""
    name = next((one.field.removesuffix(unit) for unit in UNITS if one.field.endswith(unit)), one.field)
    return name.replace("_", " ").replace(".", " ")


def value_text(value: Any, field: str = "") -> str:
    """A value for people: with its unit, layers in runs, lists of layers by their number, numbers in four digits."""
    if value is None:
        return "-"
    show = next((show for unit, show in UNITS.items() if field.endswith(unit)), None)
    if show is not None:
        return show(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return layers_text(value) if field.startswith("layers_per") else f"{len(value)} layers"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else short(str(value))


def short(text: str | None) -> str:
    """Nothing that a file says makes a line endless."""
    words = " ".join((text or "").split())
    return words if len(words) <= MOST_CHARACTERS else f"{words[: MOST_CHARACTERS - 3]}..."


def first_line(report: DiffReport) -> int | None:
    """Of HEAD, the line of the first change of a field."""
    return next((one.line for one in report.changes if one.line is not None), None)
