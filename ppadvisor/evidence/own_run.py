"""A run that `verify --layers` measured, as a record that `validate` and `calibrate` read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.records import (
    Measured,
    Record,
    RecordCluster,
    RecordMla,
    RecordModel,
    RecordMoe,
    RecordPlan,
    RecordTraining,
    Source,
    Told,
    Usable,
)
from ppadvisor.specs.base import Struct
from ppadvisor.specs.load import preset_data, preset_names
from ppadvisor.specs.plan import PlanSpec

GIB = 2.0**30
TITLE = "ppadvisor verify --layers"
UNTOLD_FREELY = ("name", "source", "declared_parameters", "provenance", "calibrated")
"""Fields that no prediction hangs on; what was calibrated is no part of what was run."""


@dataclass(frozen=True)
class Numbers:
    """What was measured."""

    step_time_s: float
    """The median step, optimizer included."""
    allocated_bytes: Sequence[int]
    """torch's peak of each rank; empty on a CPU."""
    reserved_bytes: Sequence[int]
    on_gpu: bool
    machine: str
    torch_version: str


def check_recorded(problem: Problem, plan: PlanSpec) -> None:
    """InputError for a run that a record cannot tell: a GPU that is no preset, divisions whose messages are not run."""
    if plan.tensor_parallel > 1 or plan.expert_parallel > 1:
        raise InputError(
            f"--record: of t = {plan.tensor_parallel}, e = {plan.expert_parallel} only sizes are run and no messages; "
            "a record would pass for a run with them"
        )
    _gpu_id(problem)


def _gpu_id(problem: Problem) -> str:
    name = problem.cluster.gpu.name
    for gpu in preset_names("gpus"):
        if preset_data("gpus", gpu)["name"] == name:
            return gpu
    raise InputError(f"--record: {name} is no preset, and a record names its GPU by one (`ppadvisor presets gpus`)")


def record_of_run(problem: Problem, plan: PlanSpec, numbers: Numbers) -> Record:
    """The record of a run of this very problem and plan. What its form cannot tell makes it partial, and is noted."""
    parts = _parts(problem, plan, numbers)
    key = _digest(part.model_dump_json(exclude_none=True) for name, part in parts.items() if name != "measured")
    own = _digest([key, parts["measured"].model_dump_json(), numbers.machine])
    where = f"torch {numbers.torch_version} on {numbers.machine}, torch.distributed.pipelining"

    def record(usable: tuple[Usable, ...], notes: str | None = None) -> Record:
        return Record(
            id=f"own_run-{own}",
            group=f"own_run-{key}",
            source=Source(key="own_run", title=TITLE, where=where),
            usable_for=usable,
            notes=notes,
            flags=("fused_norm_kernel",),
            **parts,
        )

    if not numbers.on_gpu:
        return record(("time",), "on a CPU: no GPU was measured")
    whole = record(("memory", "time"))
    untold = list(_untold(whole, problem, plan))
    return record(("memory_partial", "time_partial"), f"not told: {', '.join(untold)}") if untold else whole


def _parts(problem: Problem, plan: PlanSpec, numbers: Numbers) -> dict[str, Any]:
    """The parts of the record, in its words."""
    model, cluster, training = problem.model, problem.cluster, problem.training
    several = cluster.num_gpus > cluster.gpus_per_node
    between = cluster.inter_node_bandwidth_bytes_per_s / 1e9
    return {
        "model": RecordModel(
            **_fields(model, RecordModel, "moe", "mla"),
            moe=RecordMoe(**_fields(model.moe, RecordMoe)) if model.moe else None,
            mla=RecordMla(**_fields(model.mla, RecordMla)) if model.mla else None,
        ),
        "cluster": RecordCluster(
            gpu=_gpu_id(problem) if numbers.on_gpu else None,
            num_gpus=cluster.num_gpus,
            gpus_per_node=cluster.gpus_per_node,
            inter_node_gb_per_s_per_gpu=between if several else None,
            device="gpu" if numbers.on_gpu else "cpu",
        ),
        "training": RecordTraining(
            **_fields(training, RecordTraining, "optimizer_sharding", "fsdp_ranks", "cross_entropy_fusion"),
            optimizer_sharding="none",
        ),
        "plan": RecordPlan(**_fields(plan, RecordPlan, "sequence_parallel")),
        "measured": _measured(numbers),
    }


def _fields(spec: Struct, kind: type[Told], *left_out: str) -> dict[str, Any]:
    """The fields that both have."""
    return {name: getattr(spec, name) for name in kind.model_fields if name not in left_out}


def _measured(numbers: Numbers) -> Measured:
    allocated, reserved = (
        [size / GIB for size in sizes] for sizes in (numbers.allocated_bytes, numbers.reserved_bytes)
    )
    return Measured(
        step_time_s=numbers.step_time_s,
        step_time_is="printed",
        peak_allocated_gib=max(allocated, default=None),
        peak_reserved_gib=max(reserved, default=None),
        min_rank_allocated_gib=min(allocated, default=None),
        peak_by_stage_gib=tuple(allocated) or None,
        peak_scope="max" if allocated else None,
    )


def _digest(parts: Iterator[str] | Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _untold(record: Record, problem: Problem, plan: PlanSpec) -> Iterator[str]:
    """The fields of the run that are other ones when its record is read."""
    case = case_of(record)
    pairs: tuple[tuple[str, Struct, Struct], ...] = (
        ("model", problem.model, case.problem.model),
        ("cluster", problem.cluster, case.problem.cluster),
        ("training", problem.training, case.problem.training),
        ("plan", plan, case.plan),
    )
    several = problem.cluster.num_gpus > problem.cluster.gpus_per_node
    free = UNTOLD_FREELY if several else (*UNTOLD_FREELY, "inter_node_bandwidth_bytes_per_s")
    for name, ran, read in pairs:
        for field in type(ran).names():
            if field not in free and getattr(ran, field) != getattr(read, field):
                yield f"{name}.{field}"
