"""What is predicted of a run of real layers: its step by parts, each rank's times and peaks of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ppadvisor.engine.memory import OUTSIDE_TORCH, memory_table
from ppadvisor.engine.pipeline import Pipeline, pipeline_of
from ppadvisor.engine.step_time import optimizer_s, stage_times
from ppadvisor.verify.scaled import Subject


@dataclass(frozen=True)
class RankExpected:
    """What is predicted of one rank."""

    forward_s: float
    """Of one micro-batch, its stages together."""
    backward_s: float
    allocated_bytes: float
    reserved_bytes: float


@dataclass(frozen=True)
class Expected:
    """What is predicted of the run."""

    pipeline: Pipeline
    pipeline_s: float
    optimizer_s: float
    overhead_s: float
    ranks: tuple[RankExpected, ...]

    @property
    def step_s(self) -> float:
        return self.pipeline_s + self.optimizer_s + self.overhead_s


def expected_of(subject: Subject) -> Expected:
    """As `explain` estimates a plan, but for messages between ranks that the run does not have."""
    pipeline = pipeline_of(subject.problem, subject.plan)
    inputs = pipeline.inputs
    if subject.sharded:
        pipeline = replace(pipeline, times=stage_times(inputs, messages=False))
    memory, times = memory_table(inputs, keep_terms=True), pipeline.times
    inside = (values[0] for name, values in memory.terms.items() if name not in OUTSIDE_TORCH)
    reserved = sum(inside, np.zeros(subject.plan.pipeline_parallel))
    makespan, _ = pipeline.makespan_s(links=True)
    return Expected(
        pipeline=pipeline,
        pipeline_s=makespan,
        optimizer_s=float(optimizer_s(inputs).max()),
        overhead_s=subject.problem.assumptions.step_overhead_s.value,
        ranks=tuple(
            RankExpected(
                forward_s=float(times.forward[0, rank].sum()),
                backward_s=float((times.backward + times.mean_repeats)[0, rank].sum()),
                allocated_bytes=float(memory.allocated[0, rank]),
                reserved_bytes=float(reserved[rank]),
            )
            for rank in range(subject.plan.pipeline_parallel)
        ),
    )
