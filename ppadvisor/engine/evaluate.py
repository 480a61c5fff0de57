"""The conductor: plans in, estimates out. A table for the search; every stage and a replay for plans that are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ppadvisor import schedules
from ppadvisor.engine.communication import handoffs, tensor_parallel_bytes
from ppadvisor.engine.flops import megatron_flops_per_token
from ppadvisor.engine.inputs import FloatArray, PlanInputs, Sizes, layouts_of, sizes_of
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.memory_axes import MOMENTS
from ppadvisor.engine.partition import look_sizes
from ppadvisor.engine.pipeline import Pipeline, TimedPlans, pipeline_of, quick_makespans_s
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.repeated import repeated_flops_per_token
from ppadvisor.engine.results import PlanEstimate, PlanMemory, PlanTime, StageMemory, StageTime, Verdict
from ppadvisor.engine.step_time import StepTimes, pipeline_s, stage_times, step_times, totals_of
from ppadvisor.engine.tables import table_of
from ppadvisor.specs.plan import PlanSpec, PlanTable

BLOCK_ROWS = 16_384
"""Plans evaluated at a time: the arrays stay in cache and memory stays bounded whatever the size of the search."""

FEW_NUMBERS = 200_000
"""Plans x groups x chunks up to which one table for all is the faster, whatever is padded."""

VERDICTS: tuple[Verdict, ...] = ("fits", "borderline", "does_not_fit")


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


def verdict_of(peak: FloatArray, conservative: FloatArray, capacity: float, margin: float) -> NDArray[np.int64]:
    """Index into VERDICTS of each plan.

    fits: the middle estimate within margin x capacity and the conservative one within the capacity; borderline: one
    of the two; does_not_fit: neither.
    """
    passed = (peak <= margin * capacity).astype(np.int64) + (conservative <= capacity)
    return 2 - passed


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


def estimate_plan(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate:
    """One plan with every stage, its pipeline replayed action by action."""
    pipeline = pipeline_of(problem, plan)
    return _estimate(pipeline, _plan_memory(pipeline.inputs, plan, margin))


def estimate_fitting(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate | None:
    """`estimate_plan` of a plan that fits into memory, else None: what does not fit is not replayed."""
    pipeline = pipeline_of(problem, plan)
    memory = _plan_memory(pipeline.inputs, plan, margin)
    return _estimate(pipeline, memory) if memory.fits else None


def _estimate(pipeline: Pipeline, memory: PlanMemory) -> PlanEstimate:
    inputs, times = pipeline.inputs, pipeline.times
    makespan, idle = pipeline.makespan_s(links=True)
    free, _ = pipeline.makespan_s(links=False)
    step = step_times(inputs, times, np.array([makespan]), np.array([free]))
    return PlanEstimate(plan=pipeline.plan, memory=memory, time=_plan_time(pipeline, step, idle))


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


def _plan_memory(inputs: PlanInputs, plan: PlanSpec, margin: float) -> PlanMemory:
    memory = memory_table(inputs, keep_terms=True)
    of_terms = {name: np.ceil(values[0]).astype(np.int64).tolist() for name, values in memory.terms.items()}
    dense, expert = inputs.parameters
    stages = tuple(
        StageMemory(
            stage=stage,
            num_layers=plan.layers_per_stage[stage],
            parameters=round(float(dense[0, stage] + expert[0, stage])),
            in_flight_microbatches=float(inputs.in_flight[0, stage]),
            moment=MOMENTS[memory.moment[0, stage]],
            allocated_bytes=_whole(memory.allocated[0, stage]),
            total_bytes=sum(terms.values()),
            conservative_bytes=_whole(memory.high[0, stage]),
            terms=terms,
        )
        for stage in range(plan.pipeline_parallel)
        for terms in [{name: values[stage] for name, values in of_terms.items()}]
    )
    binding = max(stages, key=lambda s: s.total_bytes)
    conservative = max(s.conservative_bytes for s in stages)
    capacity = inputs.problem.cluster.gpu.memory_bytes
    index = int(
        verdict_of(np.array([float(binding.total_bytes)]), np.array([float(conservative)]), capacity, margin)[0]
    )
    limit = int(capacity * margin)
    return PlanMemory(
        peak_bytes=binding.total_bytes,
        conservative_bytes=conservative,
        allocated_bytes=max(s.allocated_bytes for s in stages),
        capacity_bytes=capacity,
        limit_bytes=limit,
        headroom_bytes=limit - binding.total_bytes,
        fits=VERDICTS[index] == "fits",
        verdict=VERDICTS[index],
        binding_stage=binding.stage,
        stages=stages,
    )


def _whole(value: np.float64) -> int:
    """Bytes are whole; a part of one is held against the plan."""
    return int(np.ceil(value))


def _plan_time(pipeline: Pipeline, step: StepTimes, idle: FloatArray) -> PlanTime:
    inputs, times, plan = pipeline.inputs, pipeline.times, pipeline.plan
    problem, replayed = inputs.problem, pipeline.orders is not None and not pipeline.schedule.asynchronous
    training, num_gpus = problem.training, problem.cluster.num_gpus
    per_token = megatron_flops_per_token(problem.model, training.sequence_length, int(inputs.vocab_size[0]))
    flops = per_token * training.tokens_per_step
    step_s = float(step.step[0])
    terms = {name: float(values[0]) for name, values in step.terms.items()}
    mfu = flops / (num_gpus * problem.peak_flops_per_s * step_s)
    repeated = repeated_flops_per_token(inputs) / per_token
    p, m, v = plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages
    bubble = float(step.bubble_fraction[0])
    layers = problem.model.num_layers / p
    return PlanTime(
        step_time_s=step_s,
        pipeline_s=float(step.pipeline[0]),
        replayed=replayed,
        bubble_fraction=bubble,
        bubble_in_span_fraction=pipeline.bubble_in_span_fraction,
        utilization_fraction=1.0 - bubble,
        equal_stage_bubble_fraction=float(np.asarray(schedules.get(plan.schedule).bubble_fraction(p, m, v))),
        tokens_per_s=training.tokens_per_step / step_s,
        tokens_per_s_per_gpu=training.tokens_per_step / step_s / num_gpus,
        model_flops=flops,
        model_flops_utilization=mfu,
        hardware_flops_utilization=mfu * (1.0 + repeated),
        handoff_bytes=_whole(handoffs(inputs).bytes[0]),
        tensor_parallel_bytes=int(tensor_parallel_bytes(inputs, layers=layers, ranks=plan.tensor_parallel)[0]),
        terms={f"{name}_s": value for name, value in terms.items()},
        stages=tuple(
            StageTime(
                stage=i,
                forward_s=float(times.forward[0, i].sum()),
                backward_s=float(times.backward[0, i].sum()),
                idle_fraction=float(idle[i]),
            )
            for i in range(p)
        ),
    )
