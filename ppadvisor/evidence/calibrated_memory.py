"""Memory lines: torch's peaks of each rank beside the predicted ones, and from both the allocator's overhead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ppadvisor.engine.memory import OUTSIDE_TORCH
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Result
from ppadvisor.errors import InputError
from ppadvisor.evidence.logs import Peaks
from ppadvisor.evidence.predict import memory_of
from ppadvisor.specs.plan import PlanSpec

OVERHEAD = "allocator_overhead"
INSIDE_TORCH = ("workspace", "step_blocks")
"""What the process reserves through torch beside the tensors and the allocator's loss."""
LEAST_WIDTH = 0.01
"""Half width of the range where all ranks agree: a share of the allocated."""


class PeakRead(Result):
    """torch's peaks of one rank beside what is predicted of its stage. Bytes."""

    run: str
    rank: int | None
    stage: int | None
    """None where the line does not tell the rank: the prediction is then that of the fullest stage."""
    allocated_bytes: float | None
    reserved_bytes: float | None
    predicted_allocated_bytes: float
    predicted_reserved_bytes: float
    overhead_fraction: float | None
    """(reserved - allocated - workspaces) / allocated, where both were printed."""


@dataclass(frozen=True)
class MeasuredOverhead:
    """Median over the ranks, half width of the range."""

    value: float
    half_width: float
    num_ranks: int


def peaks_of(run: str, problem: Problem, plan: PlanSpec, peaks: Iterable[Peaks]) -> list[PeakRead]:
    """Each measured peak beside its prediction. InputError for a rank that the plan does not have."""
    peaks = list(peaks)
    if not peaks:
        return []
    table = memory_of(problem, plan)
    terms = {name: values[0] for name, values in table.terms.items()}
    reserved = sum((v for name, v in terms.items() if name not in OUTSIDE_TORCH), np.zeros(plan.pipeline_parallel))
    rows = []
    for peak in peaks:
        stage = _stage(run, plan, peak.rank)
        at = int(np.argmax(table.allocated[0])) if stage is None else stage
        rows.append(
            PeakRead(
                run=run,
                rank=peak.rank,
                stage=stage,
                allocated_bytes=peak.allocated_bytes,
                reserved_bytes=peak.reserved_bytes,
                predicted_allocated_bytes=float(table.allocated[0, at]),
                predicted_reserved_bytes=float(reserved[at]),
                overhead_fraction=_overhead(peak, {name: float(terms[name][at]) for name in INSIDE_TORCH}),
            )
        )
    return sorted(rows, key=lambda row: (row.rank is None, row.rank or 0))


def _overhead(peak: Peaks, inside: Mapping[str, float]) -> float | None:
    if not peak.allocated_bytes or not peak.reserved_bytes:
        return None
    return max((peak.reserved_bytes - peak.allocated_bytes - sum(inside.values())) / peak.allocated_bytes, 0.0)


def _stage(run: str, plan: PlanSpec, rank: int | None) -> int | None:
    """The stage of a global rank: Megatron-LM, torch's meshes and DeepSpeed place pipeline parallelism outermost."""
    if rank is None:
        return 0 if plan.pipeline_parallel == 1 else None
    width = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    if rank >= width * plan.pipeline_parallel:
        raise InputError(f"{run}: tells of rank {rank}, the plan has {width * plan.pipeline_parallel} GPUs")
    return rank // width


def measured_overhead(rows: Iterable[PeakRead]) -> MeasuredOverhead | None:
    """The allocator's overhead of all ranks that printed both peaks; None where none did."""
    shares = np.array([row.overhead_fraction for row in rows if row.overhead_fraction is not None])
    if not len(shares):
        return None
    middle = float(np.median(shares))
    deviation = 1.4826 * float(np.median(np.abs(shares - middle)))
    return MeasuredOverhead(middle, max(2 * deviation, LEAST_WIDTH), len(shares))
