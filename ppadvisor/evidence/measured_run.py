"""A log with its plan, or a record, as a measured run."""

from __future__ import annotations

from collections.abc import Iterable

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.constants import Run
from ppadvisor.evidence.logs import Peaks, RunLog, check_sizes, steady_step_time
from ppadvisor.evidence.records import Record, repeats_in
from ppadvisor.evidence.validate import REPEATED, Skipped
from ppadvisor.specs.plan import PlanSpec

GIB = 2.0**30
SIZES = ("pipeline_parallel", "tensor_parallel", "context_parallel", "data_parallel")

RECORDED_UNCERTAINTY = 0.01
"""Of a step time whose single steps nobody printed: configurations that were run twice differ by 0.1 to 8 %."""


def run_of_log(log: RunLog, problem: Problem, plan: PlanSpec) -> Run:
    """The log as a run of this plan. InputError where it is of another batch or division of the GPUs."""
    training, num_gpus = problem.training, problem.cluster.num_gpus
    check_sizes(log, {"num_gpus": num_gpus, **{name: getattr(plan, name) for name in SIZES}})
    if log.line is None:
        return Run(log.name, problem, plan, "memory lines", None, peaks=log.peaks)
    steady = steady_step_time(
        log,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        num_gpus=num_gpus,
    )
    of = f"{steady.num_lines:,} {log.line.title}{'s' if steady.num_lines > 1 else ''}"
    return Run(
        name=log.name,
        problem=problem,
        plan=plan,
        lines=f"{of}, iterations {steady.first_iteration}-{steady.last_iteration}",
        step_time_s=steady.step_time_s,
        uncertainty_fraction=steady.uncertainty_fraction,
        spread_fraction=steady.spread_fraction,
        left_out=steady.left_out,
        peaks=log.peaks,
        day=log.day,
    )


def runs_of_records(records: Iterable[Record]) -> tuple[list[Run], list[Skipped]]:
    """The records that are modelled and hold a step time or peaks as runs; why the others are not."""
    records = tuple(records)
    repeats, runs, skipped = repeats_in(records), [], []
    for record in records:
        if record.id in repeats:
            skipped.append(Skipped(id=record.id, reason=REPEATED))
            continue
        try:
            run = _run_of_record(record)
        except InputError as error:
            skipped.append(Skipped(id=record.id, reason=str(error)))
            continue
        if run.step_time_s is None and not run.peaks:
            skipped.append(Skipped(id=record.id, reason="neither a step time nor torch's peaks were measured"))
        else:
            runs.append(run)
    return runs, skipped


def _run_of_record(record: Record) -> Run:
    case, measured = case_of(record), record.measured
    sizes = [None if peak is None else peak * GIB for peak in (measured.peak_allocated_gib, measured.peak_reserved_gib)]
    # a part of the ranks has no stage of its own to be held against
    whole = measured.peak_scope in (None, "max")
    return Run(
        name=record.id,
        problem=case.problem,
        plan=case.plan,
        lines="a record",
        step_time_s=measured.step_time_s,
        uncertainty_fraction=RECORDED_UNCERTAINTY,
        peaks=(Peaks(None, *sizes),) if whole and any(sizes) else (),
    )
