"""The conductor: plans in, estimates out. A table for the search; every stage and a replay for plans that are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs, Sizes, layouts_of, sizes_of
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.partition import look_sizes
from ppadvisor.engine.pipeline import Pipelines, TimedPlans, pipelines_of, quick_makespans_s
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, PlanMemory
from ppadvisor.engine.shown import plan_memories, plan_times
from ppadvisor.engine.step_time import StepTimes, pipeline_s, stage_times, step_times, totals_of
from ppadvisor.engine.tables import table_of
from ppadvisor.engine.verdicts import VERDICTS as VERDICTS
from ppadvisor.engine.verdicts import verdict_of as verdict_of
from ppadvisor.specs.plan import PlanSpec, PlanTable

BLOCK_ROWS = 16_384
"""Plans evaluated at a time: the arrays stay in cache and memory stays bounded whatever the size of the search."""

FEW_NUMBERS = 200_000
"""Plans x groups x chunks up to which one table for all is the faster, whatever is padded."""


@dataclass(frozen=True)
class EstimateTable:
    """Of each plan, what a search decides on. Arrays (plans,)."""

    step_time_s: FloatArray
    bubble_fraction: FloatArray
    peak_bytes: FloatArray
    conservative_bytes: FloatArray
    binding_stage: NDArray[np.int64]
    verdict: NDArray[np.int64]
    """Index into VERDICTS."""

    def put(self, rows: NDArray[np.int64], found: EstimateTable) -> None:
        """Set some rows to those of another table."""
        for name, values in vars(found).items():
            getattr(self, name)[rows] = values


def evaluate(problem: Problem, plans: PlanTable, *, margin: float, sizes: Sizes | None = None) -> EstimateTable:
    """Estimate every plan of a table from the stages that can bind, block by block.

    `sizes`: those of the plans, where they are known; what was worked out for them is not worked out again.
    """
    whole = ("binding_stage", "verdict")
    columns = {
        f.name: np.zeros(len(plans), dtype=np.int64 if f.name in whole else float) for f in fields(EstimateTable)
    }
    result = EstimateTable(**columns)
    for rows, inputs in _blocks(problem, plans, sizes):
        result.put(rows, _evaluate_block(inputs, margin))
    return result


def verdicts(problem: Problem, plans: PlanTable, *, margin: float, sizes: Sizes | None = None) -> NDArray[np.int64]:
    """The verdicts of `evaluate` alone: memory, no time."""
    result = np.zeros(len(plans), dtype=np.int64)
    for rows, inputs in _blocks(problem, plans, sizes):
        memory = memory_table(inputs, keep_terms=False)
        capacity = problem.cluster.gpu.memory_bytes
        result[rows] = verdict_of(memory.total.max(axis=1), memory.high.max(axis=1), capacity, margin)
    return result


def _blocks(problem: Problem, plans: PlanTable, sizes: Sizes | None) -> Iterator[tuple[NDArray[np.int64], PlanInputs]]:
    """The rows of a table, BLOCK_ROWS at most at a time, and their inputs."""
    distinct, size = sizes or sizes_of(problem, plans)
    for alike in _alike_in_size(problem, plans):
        for start in range(0, len(alike), BLOCK_ROWS):
            rows = alike[start : start + BLOCK_ROWS]
            inputs = PlanInputs.of(problem, plans.take(rows), every_stage=False)
            yield rows, inputs.with_sizes((distinct, size[rows]))


def _alike_in_size(problem: Problem, plans: PlanTable) -> list[NDArray[np.int64]]:
    """Rows that have about as many groups of ranks and chunks to look at: arrays have an axis for each of the two."""
    layouts, row = layouts_of(plans)
    sizes = look_sizes(problem.model, layouts)
    groups, chunks = (max(size) for size in zip(*sizes, strict=True)) if sizes else (0, 0)
    if len(plans) * groups * chunks <= FEW_NUMBERS:
        return [np.arange(len(plans))]
    alike = [(groups.bit_length(), chunks.bit_length()) for groups, chunks in sizes]
    number = np.array([sorted(set(alike)).index(size) for size in alike], dtype=np.int64)[row]
    return [np.flatnonzero(number == index) for index in range(len(set(alike)))]


def _evaluate_block(inputs: PlanInputs, margin: float) -> EstimateTable:
    memory = memory_table(inputs, keep_terms=False)
    times = stage_times(inputs, by_part=False)
    step = step_times(inputs, times, pipeline_s(inputs, totals_of(inputs, times, links=True)))
    binding = np.argmax(memory.total, axis=1)
    peak, conservative = memory.total.max(axis=1), memory.high.max(axis=1)
    return EstimateTable(
        step.step,
        step.bubble_fraction,
        peak,
        conservative,
        np.take_along_axis(inputs.stages.first_stage, binding[:, None], axis=1)[:, 0],
        verdict_of(peak, conservative, inputs.problem.cluster.gpu.memory_bytes, margin),
    )


@dataclass(frozen=True)
class Measured:
    """A plan with its memory, its pipeline not yet replayed."""

    pipelines: Pipelines
    row: int
    memory: PlanMemory

    @property
    def plan(self) -> PlanSpec:
        return self.pipelines.plans[self.row]


def measured(problem: Problem, plans: Sequence[PlanSpec], *, margin: float) -> list[Measured]:
    """The memory of plans, every stage."""
    found: dict[int, Measured] = {}
    for rows, pipelines in pipelines_of(problem, plans):
        memories = plan_memories(pipelines, margin)
        found |= {row: Measured(pipelines, index, memories[index]) for index, row in enumerate(rows)}
    return [found[row] for row in range(len(plans))]


def estimates_of(plans: Sequence[Measured]) -> list[PlanEstimate]:
    """Plans whose memory is known with their times: the pipelines are replayed together, action by action."""
    times = plan_times([(one.pipelines, one.row) for one in plans])
    return [PlanEstimate(plan=m.plan, memory=m.memory, time=time) for m, time in zip(plans, times, strict=True)]


def estimate_plans(problem: Problem, plans: Sequence[PlanSpec], *, margin: float) -> list[PlanEstimate]:
    """Plans with every stage, their pipelines replayed action by action."""
    return estimates_of(measured(problem, plans, margin=margin))


def estimate_plan(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate:
    """One plan with every stage, its pipeline replayed action by action."""
    return estimate_plans(problem, (plan,), margin=margin)[0]


def estimate_fitting(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate | None:
    """`estimate_plan` of a plan that fits into memory, else None: what does not fit is not replayed."""
    (found,) = measured(problem, (plan,), margin=margin)
    return estimates_of((found,))[0] if found.memory.fits else None


def quick_step_times(problem: Problem, plan: PlanSpec) -> StepTimes:
    """The step of `estimate_plan` from a replay of a few rounds of micro-batches; hand-offs count as imbalance."""
    inputs = PlanInputs.of(problem, table_of(plan), every_stage=True)
    timed = TimedPlans(inputs, stage_times(inputs))
    (makespan,) = quick_makespans_s([timed])
    return step_times(inputs, timed.times, makespan, makespan)


def quick_steps_s(problem: Problem, plans: PlanTable) -> FloatArray:
    """Step times of `estimate_plan` from replays of a few rounds of micro-batches: to tell near-ties apart. (plans,)"""
    layouts, layout = layouts_of(plans)
    shapes = [(len(one.placement), len(one.placement[0])) for one in layouts]
    shape = np.array([sorted(set(shapes)).index(one) for one in shapes], dtype=np.int64)[layout]
    groups = [np.flatnonzero(shape == index) for index in range(len(set(shapes)))]
    inputs = [PlanInputs.of(problem, plans.take(rows), every_stage=True) for rows in groups]
    tables = [TimedPlans(of_group, stage_times(of_group)) for of_group in inputs]
    result = np.zeros(len(plans))
    for rows, table, makespans in zip(groups, tables, quick_makespans_s(tables), strict=True):
        result[rows] = step_times(table.inputs, table.times, makespans).step
    return result


def quick_step_time_s(problem: Problem, plan: PlanSpec) -> float:
    """`quick_steps_s` of one plan."""
    return float(quick_steps_s(problem, table_of(plan))[0])
