"""Measured runs as questions: one model on one cluster with one batch, and the plans that somebody tried for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ppadvisor.evidence.records import Record

CONDITIONS = ("fused_norm_kernel", "deterministic_mode", "launch_blocking", "noisy_cluster", "sft")
"""Flags of a record that change how long the same plan takes: they belong to the question, not to the plan."""

KERNEL = re.compile(r"attention kernel: ([^;]+)")
"""How notes name a kernel where the field knows `flash` and `eager` only (parallel_layouts_2023 compares five)."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """What stays the same while plans are compared."""

    source: str
    model: str
    gpu: str
    num_gpus: int
    global_batch_size: int
    sequence_length: int
    attention: str
    key: Key
    """Everything that must be equal, those above included."""


@dataclass(frozen=True)
class Tried:
    """One plan of a question: its runs, more than one where a source measured it again."""

    records: tuple[Record, ...]

    @property
    def record(self) -> Record:
        return self.records[0]

    @property
    def step_time_s(self) -> float | None:
        """The mean of its measurements; None where it ran out of memory each time."""
        times = [record.measured.step_time_s for record in self.records]
        known = [time for time in times if time is not None]
        return sum(known) / len(known) if known else None


def question_of(record: Record) -> Question | str:
    """The question that a record answers, or why it cannot be told.

    Equal are: source; shape of the model; GPU, their number, node and network; global batch; sequence length;
    framework, precisions, optimizer, dropout, kernels. Everything else is the plan's: how the GPUs are divided,
    schedule, micro-batch, recomputation, sequence parallelism, optimizer sharding.
    """
    plan, training, cluster = record.plan, record.training, record.cluster
    sizes = (plan.pipeline_parallel, plan.tensor_parallel, plan.context_parallel, plan.data_parallel or 0)
    num_gpus = cluster.num_gpus or prod(sizes)
    batch = training.global_batch_size
    if batch is None or training.sequence_length is None or not num_gpus:
        return "which plans it can be compared with is not known: no GPU count, global batch or sequence length"
    of_plan = {"sequence_length", "global_batch_size", "optimizer_sharding", "fsdp_ranks"}
    kernels = _kernels(record)
    key = (
        record.source.key,
        record.model.model_dump_json(exclude={"name"}),
        cluster.model_dump_json(exclude={"num_gpus"}),
        training.model_dump_json(exclude=of_plan),
        f"{num_gpus} {batch} {training.sequence_length}",
        kernels,
    )
    return Question(
        source=record.source.key,
        model=record.model.name,
        gpu=cluster.gpu or "unknown",
        num_gpus=num_gpus,
        global_batch_size=batch,
        sequence_length=training.sequence_length,
        attention=kernels,
        key=key,
    )


def _kernels(record: Record) -> str:
    """The attention kernel, as exactly as the record names it, and the conditions of the run."""
    named = KERNEL.search(record.notes or "")
    attention = named[1].strip() if named else record.training.attention or "unknown"
    return ", ".join([attention, *(flag for flag in CONDITIONS if flag in record.flags)])


def plans_of(records: Iterable[Record]) -> list[Tried]:
    """The plans of one question, each with all its runs."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        of_plan = record.plan.model_dump_json(), record.training.optimizer_sharding, record.training.fsdp_ranks
        runs.setdefault(str(of_plan), []).append(record)
    return [Tried(tuple(of_one)) for of_one in runs.values()]
