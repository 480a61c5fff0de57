"""Every record predicted and scored: how far off, on which side, and for fits or not the confusion table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ppadvisor.engine.results import Result
from ppadvisor.errors import InputError
from ppadvisor.evidence import KindName
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.formula_score import formula_row
from ppadvisor.evidence.predict import PREDICTORS
from ppadvisor.evidence.records import Record, Usable
from ppadvisor.evidence.scores import FitScore, Row, SourceErrors, Unit, score_errors, score_fits
from ppadvisor.evidence.trainers import ELSEWHERE, UNSPECIFIED
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

GIB = 2**30


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
    score = score_fits if kind == "oom" else score_errors
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
                predicted_low=prediction.low,
                predicted_high=prediction.high,
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
