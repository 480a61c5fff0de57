"""`verify --layers`: real layers of a plan, a process a rank, beside what is predicted of the same run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import zip_longest

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES, operations
from ppadvisor.schedules.base import RankOrder
from ppadvisor.specs.cluster import GpuSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.units import format_bytes
from ppadvisor.verify.launched import Launcher, Machine, Met, told_by
from ppadvisor.verify.memory_checks import UNCOUNTED, check_buildable, check_driven
from ppadvisor.verify.results import LayersReport, LayersRow, LayersTerm
from ppadvisor.verify.run import RUNTIME, Progress, check_losses, runs_itself
from ppadvisor.verify.run_measured import RankRan, per_microbatch_s, slowest
from ppadvisor.verify.run_predicted import Expected, expected_of
from ppadvisor.verify.scaled import Subject, subject_of
from ppadvisor.verify.torch_engine import UnverifiableError, installed_version
from ppadvisor.verify.work import Work, work_of_pipeline

STEPS, TOLERANCE, MEMORY_TOLERANCE = 5, 0.2, 0.05
"""Published step times are met within 9 % in the mean and 20 % mostly, allocated peaks within 2 %."""
SAME_MEMORY = 0.03
"""Drivers show a little more or less of one GPU."""


def layers_subject(problem: Problem, plan: PlanSpec, here: Launcher, scale: float | None) -> Subject:
    """What these processes are to run. UnverifiableError where they cannot, InputError for a wrong number of them."""
    if here.world_size != plan.pipeline_parallel:
        raise InputError(
            f"torchrun started {here.world_size} processes; needs one for each stage of the plan, p = "
            f"{plan.pipeline_parallel}"
        )
    check_buildable(problem, plan, alone=True)
    window = problem.model.sliding_window
    if window is not None and window < problem.training.sequence_length:
        raise UnverifiableError(f"attention to a window of {window} keys is not built; it would run as whole attention")
    return subject_of(problem, plan, scale=scale or 1.0, ranks_of_node=here.local_world_size)


def verify_layers(
    subject: Subject,
    here: Met,
    *,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    progress: Progress,
    for_record: bool = False,
) -> LayersReport:
    """Run it on all ranks; each makes the same report. For a record it must be the plan's GPU, or none at all."""
    expected = expected_of(subject)
    check_driven(expected.pipeline)
    work = work_of_pipeline(expected.pipeline)
    check_losses(work)
    own = work.schedule.id if runs_itself(work) else None
    if for_record:
        _check_recordable(subject, here.gathered(here.machine))
    module = import_module("ppadvisor.verify.layers_run")  # only here, since it imports torch
    count = module.WARM_UP + steps
    with told_by(here.launcher):
        ran = module.run_rank(expected.pipeline, own, here, progress(range(count), "steps", count))
    ranks = here.gathered(ran)
    return compared(subject, expected, work, ranks, tolerance=tolerance, engine=TORCH_NAMES[own] if own else RUNTIME)


def _check_recordable(subject: Subject, machines: Sequence[Machine]) -> None:
    """UnverifiableError for another GPU than the plan's, under whose name the record would be read."""
    gpu = subject.problem.cluster.gpu
    wrong = [machine.name for machine in machines if machine.is_gpu and not is_gpu(gpu, machine)]
    if wrong:
        raise UnverifiableError(f"--record: this is {wrong[0]}, the plan is for {gpu.name}; plan for the GPU at hand")


def compared(
    subject: Subject, expected: Expected, work: Work, ranks: Sequence[RankRan], *, tolerance: float, engine: str
) -> LayersReport:
    """The report on what all ranks measured."""
    gpu, plan = subject.problem.cluster.gpu, subject.plan
    others = [rank.machine for rank in ranks if not is_gpu(gpu, rank.machine)]
    terms = tuple(_terms(expected, ranks, None if others else tolerance))
    rows = tuple(_row(rank, work, expected, ran, judged=not others) for rank, ran in enumerate(ranks))
    shown = others[0] if others else ranks[0].machine
    return LayersReport(
        agrees=all(row.agrees for row in rows) and all(term.agrees is not False for term in terms),
        tolerance_fraction=tolerance,
        memory_tolerance_fraction=MEMORY_TOLERANCE,
        torch_version=installed_version() or "",
        engine=engine,
        plan=plan,
        schedule=plan.schedule,
        pipeline_parallel=plan.pipeline_parallel,
        virtual_stages=plan.virtual_stages,
        num_microbatches=plan.num_microbatches,
        framework=subject.problem.framework.id,
        model=subject.problem.model.name,
        gpu=gpu.name,
        device="cuda" if shown.is_gpu else "cpu",
        device_name=shown.name,
        judged=not others,
        scale=subject.scale,
        layers_per_stage=plan.layers_per_stage,
        rows=rows,
        terms=terms,
        steps_s=tuple(slowest(ranks, "step_s")),
        disagreements=tuple(_disagreements(rows, terms, tolerance)),
        notes=tuple(_notes(subject, shown, judged=not others)),
    )


def is_gpu(gpu: GpuSpec, ran: Machine) -> bool:
    """Whether a rank has this GPU: the driver's name has the same model in it, and as much memory.

    `NVIDIA H100 80GB HBM3` is `NVIDIA H100 SXM5 80 GB`. A GPU of the user's own, which has no model, is told by memory.
    """
    if ran.memory_bytes is None:
        return False
    models = re.findall(r"[A-Z]+[0-9]{2,4}[A-Z]*|[0-9]{4}", gpu.name)
    named = not models or re.search(rf"\b{models[0]}\b", ran.name) is not None
    return named and abs(ran.memory_bytes / gpu.memory_bytes - 1.0) <= SAME_MEMORY


def _terms(expected: Expected, ranks: Sequence[RankRan], tolerance: float | None) -> Iterator[LayersTerm]:
    """The step, which is judged, and its parts."""
    parts = {
        "step_time": (expected.step_s, statistics.median(slowest(ranks, "step_s"))),
        "pipeline": (expected.pipeline_s, statistics.median(slowest(ranks, "pipeline_s"))),
        "optimizer": (expected.optimizer_s, statistics.median(slowest(ranks, "optimizer_s"))),
        "overhead": (expected.overhead_s, 0.0),
    }
    for name, (predicted_s, measured_s) in parts.items():
        known = tolerance is not None and measured_s > 0 and predicted_s > 0
        off = measured_s / predicted_s - 1.0 if known else None
        judged = off is not None and tolerance is not None and name == "step_time"
        agrees = abs(off or 0.0) <= (tolerance or 0.0) if judged else None
        yield LayersTerm(
            name=name, predicted_s=predicted_s, measured_s=measured_s, difference_fraction=off, agrees=agrees
        )


def _row(rank: int, work: Work, expected: Expected, ran: RankRan, *, judged: bool) -> LayersRow:
    told = operations(RankOrder(work.orders[rank].actions), work.placement[rank])  # of a pair both, as they are done
    did = [word for word, _ in ran.steps[-1].actions]
    differences = sum(one != other for one, other in zip_longest(told, did))
    one = expected.ranks[rank]
    off = ran.allocated_bytes / one.allocated_bytes - 1.0 if judged and ran.allocated_bytes is not None else None
    return LayersRow(
        rank=rank,
        num_layers=expected.pipeline.plan.layers_per_stage[rank],
        num_operations=len(did),
        num_differences=differences,
        predicted_forward_s=one.forward_s,
        forward_s=per_microbatch_s(ran.steps, "F"),
        predicted_backward_s=one.backward_s,
        backward_s=per_microbatch_s(ran.steps, "BIW"),
        predicted_allocated_bytes=round(one.allocated_bytes),
        allocated_bytes=ran.allocated_bytes,
        allocated_difference_fraction=off,
        predicted_reserved_bytes=round(one.reserved_bytes),
        reserved_bytes=ran.reserved_bytes,
        agrees=not differences and abs(off or 0.0) <= MEMORY_TOLERANCE,
    )


def _disagreements(rows: Sequence[LayersRow], terms: Sequence[LayersTerm], tolerance: float) -> Iterator[str]:
    for term in terms:
        if term.agrees is False and term.difference_fraction is not None:
            yield f"step time: {term.difference_fraction * 100:+.1f} %, allowed {tolerance * 100:g} % either way"
    for row in rows:
        if row.num_differences:
            yield f"rank {row.rank}, order: {row.num_differences} places of {row.num_operations} differ"
        elif not row.agrees:
            sizes = (row.allocated_bytes or 0, row.predicted_allocated_bytes)
            measured, predicted = map(format_bytes, sizes)
            yield f"rank {row.rank}: {measured} allocated, {predicted} predicted (allowed {MEMORY_TOLERANCE * 100:g} %)"


def _notes(subject: Subject, ran: Machine, *, judged: bool) -> Iterator[str]:
    """What was run, and what of the plan was not."""
    gpu, asked, plan = subject.problem.cluster.gpu, subject.asked, subject.plan
    if not ran.is_gpu:
        yield f"no GPU was found: it ran on a CPU, and only the order was judged; what is predicted is of {gpu.name}"
    elif not judged:
        yield f"it ran on {ran.name}, what is predicted is of {gpu.name}: only the order was judged"
    precision = "fp32" if subject.problem.training.precision == "fp32" else "16-bit"
    yield f"one pipeline on plain torch: {precision} weights, gradients and AdamW moments, whole on each rank"
    if subject.scale < 1.0:
        ran_layers, layers = sum(plan.layers_per_stage), sum(asked.layers_per_stage)
        yield f"{ran_layers} of {layers} layers: each chunk keeps its first, {subject.scale:g} of them, rounded up"
    if asked.data_parallel > 1:
        yield f"one of d = {asked.data_parallel} data-parallel ranks"
    if subject.problem.framework.id == "generic":
        yield UNCOUNTED
    if subject.sharded:
        yield (
            f"tensors have the sizes of t = {plan.tensor_parallel}, e = {plan.expert_parallel}; what those ranks send "
            "each other is neither run nor predicted"
        )
