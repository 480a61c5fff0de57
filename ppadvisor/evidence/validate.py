"""Every record predicted and scored: how far off, on which side, and for fits or not the confusion table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ppadvisor.engine.results import Result, Verdict
from ppadvisor.errors import InputError
from ppadvisor.evidence import KindName, Label
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.formula_score import (
    FormulaErrors,
    FormulaFits,
    FormulaRow,
    formula_errors,
    formula_fits,
    formula_row,
)
from ppadvisor.evidence.predict import PREDICTORS
from ppadvisor.evidence.records import Record, Usable
from ppadvisor.evidence.trainers import ELSEWHERE, UNSPECIFIED
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

GIB = 2**30

Unit = Literal["bytes", "s", "fraction", "ran_out"]


class ErrorScore(Result):
    """Of predicted / measured − 1."""

    n: int
    mean_abs_error_fraction: float | None
    bias_fraction: float | None
    worst_low_fraction: float | None
    """The lowest error: the most optimistic prediction of memory and time."""
    worst_high_fraction: float | None
    megatron_formula: FormulaErrors | None
    """Megatron's own formula on the same rows; of memory only."""


class SourceErrors(ErrorScore):
    """All rows of a source together, and each quantity by itself."""

    quantities: dict[str, ErrorScore]


class FitScore(Result):
    """Fits or ran out. `borderline` is right for a run that ran out and wrong for one that fitted."""

    n: int
    right_fraction: float | None
    missed_oom_fraction: float | None
    """Of the runs that ran out, those called `fits`."""
    borderline_fraction: float | None
    ran_out: dict[Verdict, int]
    """What was predicted of the runs that ran out."""
    fitted: dict[Verdict, int]
    megatron_formula: FormulaFits


class Row(Result):
    """One measured number beside its prediction."""

    id: str
    source: str
    label: Label
    quantity: str
    measured_as: str
    """The field of the record."""
    unit: Unit
    """Of `predicted`, `measured` and, of memory and time, `terms`."""
    predicted: float
    measured: float
    error_fraction: float | None
    verdict: Verdict | None
    stage: int | None
    terms: dict[str, float]
    """The largest terms of the prediction, largest first: bytes of memory, seconds of time."""
    defaults: tuple[str, ...]
    megatron_formula: FormulaRow | None
    """Megatron's own formula; of memory and fits only."""


class Skipped(Result):
    """A record that was not predicted, and why."""

    id: str
    reason: str


class Validation(Result):
    """What `validate` prints."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    kind: KindName
    label: str
    partial: bool
    summary: SourceErrors | FitScore
    sources: dict[str, SourceErrors | FitScore]
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    defaults: dict[str, int]
    """What records leave out and what was taken instead -> number of records."""


@dataclass(frozen=True)
class Reading:
    """A number of a record: its field, the quantity that it is, its value in the unit of the prediction."""

    field: str
    quantity: str
    value: float


@dataclass(frozen=True)
class Kind:
    """What is validated: which records have it, and where their numbers stand."""

    usable: Usable
    partial: Usable | None
    unit: Unit
    readings: Callable[[Record], list[Reading]]


def _of(field: str, quantity: str, value: float | None, scale: float = 1.0) -> list[Reading]:
    return [] if value is None else [Reading(field, quantity, value * scale)]


def _memory(record: Record) -> list[Reading]:
    measured = record.measured
    likely = UNSPECIFIED.get(record.source.key, ELSEWHERE)
    return [
        *_of("peak_allocated_gib", "allocated", measured.peak_allocated_gib, GIB),
        *_of("peak_reserved_gib", "reserved", measured.peak_reserved_gib, GIB),
        *_of("peak_process_gib", "process", measured.peak_process_gib, GIB),
        *_of("peak_unspecified_gib", likely, measured.peak_unspecified_gib, GIB),
    ]


KINDS: dict[KindName, Kind] = {
    "memory": Kind("memory", "memory_partial", "bytes", _memory),
    "activation": Kind(
        "activation",
        "memory_partial",
        "bytes",
        lambda record: _of("activation_gib", "activation", record.measured.activation_gib, GIB),
    ),
    "oom": Kind(
        "oom", None, "ran_out", lambda record: _of("out_of_memory", "out_of_memory", record.measured.out_of_memory)
    ),
    "bubble": Kind(
        "bubble",
        None,
        "fraction",
        lambda record: _of("bubble_fraction", "bubble", record.measured.bubble_fraction),
    ),
    "time": Kind(
        "time", "time_partial", "s", lambda record: _of("step_time_s", "step_time", record.measured.step_time_s)
    ),
}


def validate_records(
    records: Iterable[Record], kind: KindName, *, label: str = "all", partial: bool = False
) -> Validation:
    """Predict and score the records that have the kind and the label. InputError where there is no partial kind."""
    rows: list[Row] = []
    skipped: list[Skipped] = []
    defaults: Counter[str] = Counter()
    for record, readings in _chosen(records, kind, label, partial):
        try:
            predicted = _rows(record, kind, readings)
        except InputError as error:
            skipped.append(Skipped(id=record.id, reason=str(error)))
            continue
        rows += predicted
        defaults.update(predicted[0].defaults)
    score = _fits if kind == "oom" else _errors
    by_source = {name: [row for row in rows if row.source == name] for name in dict.fromkeys(r.source for r in rows)}
    return Validation(
        kind=kind,
        label=label,
        partial=partial,
        summary=score(rows),
        sources={name: score(of_source) for name, of_source in by_source.items()},
        rows=tuple(rows),
        skipped=tuple(skipped),
        defaults=dict(sorted(defaults.items())),
    )


def _chosen(
    records: Iterable[Record], kind: KindName, label: str, partial: bool
) -> Iterator[tuple[Record, list[Reading]]]:
    """The records that are asked for, each with its numbers."""
    tag = KINDS[kind].partial if partial else KINDS[kind].usable
    if tag is None:
        raise InputError(f"--partial: no record is partial for kind {kind}")
    for record in records:
        readings = KINDS[kind].readings(record)
        # under the tag of another kind a record need not have a number of this one
        if tag in record.usable_for and label in ("all", record.label) and (readings or tag.startswith(kind)):
            yield record, readings


def _rows(record: Record, kind: KindName, readings: Sequence[Reading]) -> list[Row]:
    """A row for each number of the record. InputError where it has none, or is not modelled."""
    if not readings:
        raise InputError(f"nothing was measured that kind {kind} can be held against")
    case = case_of(record)
    rows = []
    for reading in readings:
        prediction = PREDICTORS[kind](case, reading.quantity)
        rows.append(
            Row(
                id=record.id,
                source=record.source.key,
                label=record.label,
                quantity=reading.quantity,
                measured_as=reading.field,
                unit=KINDS[kind].unit,
                predicted=prediction.value,
                measured=reading.value,
                error_fraction=None if kind == "oom" else prediction.value / reading.value - 1.0,
                verdict=prediction.verdict,
                stage=prediction.stage,
                terms=dict(prediction.terms),
                defaults=case.defaults,
                megatron_formula=formula_row(case, kind, reading.value),
            )
        )
    return rows


def _errors(rows: Sequence[Row]) -> SourceErrors:
    quantities = {row.quantity: [r for r in rows if r.quantity == row.quantity] for row in rows}
    whole = _error_score(rows)
    each = {name: _error_score(of_one) for name, of_one in quantities.items()}
    return SourceErrors(**dict(whole), quantities=each)


def _error_score(rows: Sequence[Row]) -> ErrorScore:
    errors = np.array([row.error_fraction for row in rows if row.error_fraction is not None])
    if not len(errors):
        names = ("mean_abs_error_fraction", "bias_fraction", "worst_low_fraction", "worst_high_fraction")
        return ErrorScore(n=0, **dict.fromkeys(names), megatron_formula=None)
    return ErrorScore(
        n=len(errors),
        mean_abs_error_fraction=float(np.abs(errors).mean()),
        bias_fraction=float(errors.mean()),
        worst_low_fraction=float(errors.min()),
        worst_high_fraction=float(errors.max()),
        megatron_formula=formula_errors([(row.megatron_formula, row.error_fraction) for row in rows]),
    )


def _fits(rows: Sequence[Row]) -> FitScore:
    ran_out = _verdicts(row for row in rows if row.measured)
    fitted = _verdicts(row for row in rows if not row.measured)
    out, n = sum(ran_out.values()), len(rows)
    right = out - ran_out["fits"] + fitted["fits"]
    return FitScore(
        n=n,
        right_fraction=right / n if n else None,
        missed_oom_fraction=ran_out["fits"] / out if out else None,
        borderline_fraction=(ran_out["borderline"] + fitted["borderline"]) / n if n else None,
        ran_out=ran_out,
        fitted=fitted,
        megatron_formula=formula_fits([(row.megatron_formula, bool(row.measured), row.verdict) for row in rows]),
    )


def _verdicts(rows: Iterable[Row]) -> dict[Verdict, int]:
    counted: Counter[Verdict] = Counter(row.verdict for row in rows if row.verdict is not None)
    return {"fits": counted["fits"], "borderline": counted["borderline"], "does_not_fit": counted["does_not_fit"]}
