"""The conductor: plans in, estimates out. A table for the search; every stage and a replay for plans that are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ppadvisor.engine.distinct import Distinct, distinct_of
from ppadvisor.engine.inputs import FloatArray, PlanInputs, layouts_of
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.pipeline import Pipelines, TimedPlans, pipelines_of, quick_makespans_s
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, PlanMemory
from ppadvisor.engine.search_times import search_times, times_of_contents
from ppadvisor.engine.shown import PlanStep as PlanStep
from ppadvisor.engine.shown import plan_memories, plan_steps, plan_times
from ppadvisor.engine.step_time import StepTimes, pipeline_s, stage_times, step_times, totals_of
from ppadvisor.engine.tables import table_of
from ppadvisor.engine.verdicts import VERDICTS as VERDICTS
from ppadvisor.engine.verdicts import verdict_of as verdict_of
from ppadvisor.specs.plan import IntArray, PlanSpec, PlanTable

BLOCK_ROWS = 8_192
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
    verdict: IntArray
    """Index into VERDICTS."""

    def put(self, rows: IntArray, found: EstimateTable) -> None:
        """Set some rows to those of another table."""
        for name, values in vars(found).items():
            getattr(self, name)[rows] = values


def evaluate(
    problem: Problem,
    plans: PlanTable,
    *,
    margin: float,
    distinct: Distinct | None = None,
    rows: IntArray | None = None,
) -> EstimateTable:
    """Estimate every plan of a table, or some rows, from the stages that can bind, block by block.

    `distinct`: what the plans share, where it is known; what was worked out for it is not worked out again.
    """
    number = len(plans) if rows is None else len(rows)
    whole = ("verdict",)
    columns = {f.name: np.zeros(number, dtype=np.int64 if f.name in whole else float) for f in fields(EstimateTable)}
    result = EstimateTable(**columns)
    # what a block takes is let go for the one after the next: the system, if it had it back, would clear it again
    taken = deque[PlanInputs](maxlen=2)
    for places, block in _blocks(problem, plans, distinct, rows):
        taken.append(_inputs(*block))
        result.put(places, _evaluate_block(taken[-1], margin))
    return result


def verdicts(problem: Problem, plans: PlanTable, *, margin: float, distinct: Distinct | None = None) -> IntArray:
    """The verdicts of `evaluate` alone: memory, no time."""
    result = np.zeros(len(plans), dtype=np.int64)
    for rows, block in _blocks(problem, plans, distinct):
        memory = memory_table(_inputs(*block), keep_terms=False)
        capacity = problem.cluster.gpu.memory_bytes
        result[rows] = verdict_of(memory.total.max(axis=1), memory.high.max(axis=1), capacity, margin)
    return result


def _blocks(
    problem: Problem, plans: PlanTable, distinct: Distinct | None, rows: IntArray | None = None
) -> Iterator[tuple[IntArray, tuple[Distinct, PlanTable]]]:
    """The rows of a table, or places in some, BLOCK_ROWS at most at a time; these plans and what they share."""
    distinct = distinct or distinct_of(problem, plans)
    rows = np.arange(len(plans)) if rows is None else rows
    for alike in _alike(distinct, plans, rows):
        for start in range(0, len(alike), BLOCK_ROWS):
            places = alike[start : start + BLOCK_ROWS]
            yield places, (distinct.take(rows[places]), plans.take(rows[places]))


def _alike(distinct: Distinct, plans: PlanTable, rows: IntArray) -> list[IntArray]:
    """Places in the rows that have about as many groups of ranks and chunks to look at: arrays have an axis for each.

    Those of one recomputation lie next to each other, as a choice by rows costs less the longer its runs are.
    """
    groups, chunks = distinct.layouts.stages.sizes
    if len(rows) * groups.max(initial=0) * chunks.max(initial=0) <= FEW_NUMBERS:
        return [np.arange(len(rows))]
    sizes = zip(groups.tolist(), chunks.tolist(), strict=True)
    alike = [(one.bit_length(), other.bit_length()) for one, other in sizes]
    kind = np.array([sorted(set(alike)).index(one) for one in alike], dtype=np.int64)
    choices = len(plans.recomputations)
    number = kind[distinct.layout[rows]] * choices + plans.recompute[rows]
    # numbers this short are sorted without a comparison
    order = np.argsort(number.astype(np.int16), kind="stable")
    ends = np.cumsum(np.bincount(number // choices))
    return np.split(order, ends[:-1])


def _by_chunk(distinct: Distinct, plans: PlanTable) -> bool:
    """Whether something hangs on each chunk of a rank, beside what the lightest and the heaviest of all take."""
    framework = distinct.sizes.problem.framework
    told_apart = framework.keeps_all_receive_buffers or framework.repeats or not framework.frees_sent_outputs
    some_layers = any(choice.method == "block" or choice.num_layers > 1 for choice in plans.recomputations)
    return bool(told_apart or some_layers or (distinct.layouts.copies > 1).any())


def _inputs(distinct: Distinct, plans: PlanTable) -> PlanInputs:
    """The plans of a block, the chunks of a rank together where that is enough."""
    stages = distinct.layouts.stages
    return distinct.inputs(plans, stages if _by_chunk(distinct, plans) else stages.whole_ranks)


def _evaluate_block(inputs: PlanInputs, margin: float) -> EstimateTable:
    memory, times, chunks = memory_table(inputs, keep_terms=False), search_times(inputs), None
    distinct = inputs.distinct
    if distinct is not None and not _by_chunk(distinct, inputs.plans):
        chunks = times_of_contents(inputs, distinct.layouts.stages.contents.take(distinct.layout))
    step = step_times(inputs, times, pipeline_s(inputs, totals_of(inputs, times, links=True, chunks=chunks)))
    peak, conservative = memory.total.max(axis=1), memory.high.max(axis=1)
    return EstimateTable(
        step.step,
        step.bubble_fraction,
        peak,
        conservative,
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


def steps_of(plans: Sequence[Measured]) -> list[PlanStep]:
    """The same without the parts of a step, which is half the work: of several plans the numbers to choose by."""
    return plan_steps([(one.pipelines, one.row) for one in plans])


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
