"""`verify --memory`: each rank of a plan on torch's own engine, at true size without data, beside the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from ppadvisor.engine.pipeline import Pipeline, pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.units import format_bytes, format_seconds
from ppadvisor.verify.memory_checks import UNCOUNTED, check_buildable, check_driven
from ppadvisor.verify.memory_parts import PARTS, RankMeasured
from ppadvisor.verify.memory_predicted import RankPredicted, predict_ranks
from ppadvisor.verify.results import MemoryReport, MemoryRow, MemoryTerm
from ppadvisor.verify.run import RUNTIME, Progress, unsaid, unwatched
from ppadvisor.verify.torch_engine import installed_version, require_torch

TOLERANCE = 0.02
LAYERS_A_SECOND = 40.0
"""Layers of one micro-batch that a core runs forward and back in a second, about: to say how long it will take."""
LONG_S = 120.0
"""Of what takes longer it is said beforehand."""


def verify_memory(
    problem: Problem,
    plan: PlanSpec,
    *,
    progress: Progress = unwatched,
    say: Callable[[str], None] = unsaid,
) -> MemoryReport:
    """Run every rank of the plan and compare. UnverifiableError for what cannot be built or driven."""
    require_torch()
    check_buildable(problem, plan)
    pipeline = pipeline_of(problem, plan)
    check_driven(pipeline)
    seconds = problem.model.num_layers * plan.num_microbatches / LAYERS_A_SECOND
    if seconds > LONG_S:
        say(f"{plan.num_microbatches} micro-batches take about {format_seconds(seconds)}; --microbatches runs fewer")
    # only here, since it imports torch
    measure_rank = import_module("ppadvisor.verify.memory_rank").measure_rank
    ranks = progress(range(plan.pipeline_parallel), "ranks", plan.pipeline_parallel)
    return compared(pipeline, predict_ranks(pipeline), [measure_rank(pipeline, rank) for rank in ranks])


def compared(pipeline: Pipeline, predicted: Sequence[RankPredicted], measured: Sequence[RankMeasured]) -> MemoryReport:
    """The report on what was predicted beside what was measured of each rank."""
    plan = pipeline.plan
    terms = [term for pair in zip(predicted, measured, strict=True) for term in _terms(*pair)]
    rows = [
        _row(p, m, [term for term in terms if term.rank == p.rank]) for p, m in zip(predicted, measured, strict=True)
    ]
    name = TORCH_NAMES.get(plan.schedule)
    return MemoryReport(
        agrees=all(row.agrees for row in rows),
        tolerance_fraction=TOLERANCE,
        torch_version=installed_version() or "",
        engine=f"Schedule{name}" if name else RUNTIME,
        plan=plan,
        schedule=plan.schedule,
        pipeline_parallel=plan.pipeline_parallel,
        virtual_stages=plan.virtual_stages,
        num_microbatches=plan.num_microbatches,
        framework=pipeline.inputs.problem.framework.id,
        model=pipeline.inputs.problem.model.name,
        rows=tuple(rows),
        terms=tuple(terms),
        disagreements=tuple(_told(row) for row in rows if not row.agrees),
        notes=tuple(_notes(pipeline)),
    )


def _terms(predicted: RankPredicted, measured: RankMeasured) -> Iterator[MemoryTerm]:
    """The parts of one rank, each at the peak of the whole, that are there at all."""
    for part in PARTS:
        ours, theirs = round(predicted.parts.get(part, 0.0)), measured.peak.parts.get(part, 0)
        if ours or theirs:
            yield MemoryTerm(
                rank=predicted.rank,
                term=part,
                predicted_bytes=ours,
                measured_bytes=theirs,
                difference_bytes=theirs - ours,
            )


def _row(predicted: RankPredicted, measured: RankMeasured, terms: Sequence[MemoryTerm]) -> MemoryRow:
    ours, theirs = sum(term.predicted_bytes for term in terms), measured.peak.total
    saved = round(predicted.saved_peak_bytes)
    peak, stash = _more(theirs, ours), _more(measured.saved_peak_bytes, saved)
    most = max(terms, key=lambda term: abs(term.difference_bytes), default=None)
    return MemoryRow(
        rank=predicted.rank,
        predicted_bytes=ours,
        measured_bytes=theirs,
        difference_fraction=peak,
        predicted_saved_bytes=saved,
        measured_saved_bytes=measured.saved_peak_bytes,
        saved_difference_fraction=stash,
        predicted_moment=predicted.moment,
        measured_during=measured.peak.during,
        largest_term=most.term if most else None,
        largest_term_bytes=most.difference_bytes if most else 0,
        agrees=abs(peak) <= TOLERANCE and abs(stash) <= TOLERANCE,
    )


def _more(measured: int, predicted: int) -> float:
    """Measured over predicted, less 1."""
    return measured / predicted - 1.0 if predicted else float(measured > 0)


def _told(row: MemoryRow) -> str:
    """Which rank, how far off, and the term that explains most of it."""
    if abs(row.difference_fraction) <= TOLERANCE:
        sizes = (row.measured_saved_bytes, row.predicted_saved_bytes)
        return f"rank {row.rank}: saved activations, {_sizes(*sizes)}"
    more = format_bytes(abs(row.largest_term_bytes))
    direction = "more" if row.largest_term_bytes > 0 else "less"
    return f"rank {row.rank}: {_sizes(row.measured_bytes, row.predicted_bytes)}, {row.largest_term} {more} {direction}"


def _sizes(measured: int, predicted: int) -> str:
    return f"{format_bytes(measured)} measured, {format_bytes(predicted)} predicted"


def _notes(pipeline: Pipeline) -> Iterator[str]:
    """What the comparison is about, and what of torch is not in it."""
    problem, plan = pipeline.inputs.problem, pipeline.plan
    yield "activations, buffers and what a backward works with; weights, their gradients and optimizer states left out"
    yield "tensors without data on a process group that sends nothing: over gloo, sent tensors would stay to the end"
    if problem.framework.id == "generic":
        yield UNCOUNTED
    if plan.data_parallel > 1:
        yield "one data-parallel rank; what FSDP gathers is not run"
    if plan.expert_parallel > 1:
        yield "tokens balanced over the experts' ranks; buffers of their exchange are not run"
