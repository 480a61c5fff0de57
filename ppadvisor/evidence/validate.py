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
from ppadvisor.evidence.known_gaps import gap_of
from ppadvisor.evidence.predict import LOWEST_RANK, PREDICTORS
from ppadvisor.evidence.records import Record, Usable, repeats_in
from ppadvisor.evidence.scores import (
    FitScore,
    PointScore,
    Row,
    SourceErrors,
    Unit,
    score_errors,
    score_fits,
    score_points,
)
from ppadvisor.evidence.trainers import ELSEWHERE, UNSPECIFIED
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

GIB = 2**30

REPEATED = "prints the numbers of another record again, which counts once"

Score = SourceErrors | PointScore | FitScore
SCORES: dict[str, Callable[[Sequence[Row]], Score]] = {"oom": score_fits, "bubble": score_points}
"""Kind -> its score, where that is not one of relative errors."""


class Skipped(Result):
    """A record that was not predicted, and why."""

    id: str
    reason: str


class FullestStage(Result):
    """Of the runs with a peak of every stage, those of which we name the fullest stage."""

    n: int
    right: int


class Validation(Result):
    """What `validate` prints."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    kind: KindName
    label: str
    partial: bool
    summary: Score
    sources: dict[str, Score]
    fullest_stage: FullestStage | None
    """Of kind memory, where a record tells the peak of every stage."""
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
    asked: str | None = None
    """What the predictor is asked, where it is not the quantity."""


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


def _parts(record: Record) -> list[Reading]:
    """What is known of memory beside its peak."""
    measured = record.measured
    by_stage = enumerate(measured.peak_by_stage_gib or ())
    return [
        *_of("static_allocated_gib", "static", measured.static_allocated_gib, GIB),
        *_of("min_rank_allocated_gib", LOWEST_RANK, measured.min_rank_allocated_gib, GIB),
        *(Reading("peak_by_stage_gib", "each stage", peak * GIB, str(stage)) for stage, peak in by_stage),
    ]


KINDS: dict[KindName, Kind] = {
    "memory": Kind("memory", "memory_partial", "bytes", _memory),
    "activation": Kind(
        "activation",
        "memory_partial",
        "bytes",
        lambda record: _of("activation_gib", "activation", record.measured.activation_gib, GIB),
    ),
    "parts": Kind("memory", "memory_partial", "bytes", _parts),
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
    records = tuple(records)
    repeats = repeats_in(records)
    rows: list[Row] = []
    skipped: list[Skipped] = []
    named: list[bool] = []
    defaults: Counter[str] = Counter()
    for record, readings in _chosen(records, kind, label, partial):
        if record.id in repeats:
            skipped.append(Skipped(id=record.id, reason=REPEATED))
            continue
        try:
            predicted = _rows(record, kind, readings)
        except InputError as error:
            skipped.append(Skipped(id=record.id, reason=str(error)))
            continue
        rows += predicted
        defaults.update(predicted[0].defaults)
        named += _names_fullest(record, kind, predicted)
    score = SCORES.get(kind, score_errors)
    by_source = {name: [row for row in rows if row.source == name] for name in dict.fromkeys(r.source for r in rows)}
    return Validation(
        kind=kind,
        label=label,
        partial=partial,
        summary=score(rows),
        sources={name: score(of_source) for name, of_source in by_source.items()},
        fullest_stage=FullestStage(n=len(named), right=sum(named)) if named else None,
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


def _names_fullest(record: Record, kind: KindName, rows: Sequence[Row]) -> list[bool]:
    """Whether the stage that we name is the fullest, of a record that tells the peak of every stage."""
    peaks = record.measured.peak_by_stage_gib
    if kind != "memory" or peaks is None or len(peaks) == 1:
        return []
    return [rows[0].stage == peaks.index(max(peaks))]


def _rows(record: Record, kind: KindName, readings: Sequence[Reading]) -> list[Row]:
    """A row for each number of the record. InputError where it has none, or is not modelled."""
    if not readings:
        raise InputError(f"nothing was measured that kind {kind} can be held against")
    case = case_of(record)
    rows = []
    for reading in readings:
        prediction = PREDICTORS[kind](case, reading.asked or reading.quantity)
        in_points = KINDS[kind].unit == "fraction"
        error = None if kind == "oom" or in_points else prediction.value / reading.value - 1.0
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
                error_fraction=error,
                error_points=100.0 * (prediction.value - reading.value) if in_points else None,
                known_gap=gap_of(kind, record.id, record.source.key, error),
                verdict=prediction.verdict,
                stage=prediction.stage,
                terms=dict(prediction.terms),
                defaults=case.defaults,
                megatron_formula=formula_row(case, kind, reading.value),
            )
        )
    return rows
