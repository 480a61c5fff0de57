"""The conductor: plans in, estimates out. A table for the search; every stage and a replay for plans that are shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor import schedules
from ppadvisor.engine.communication import boundaries_between_nodes, handoffs, tensor_parallel_bytes
from ppadvisor.engine.flops import megatron_flops_per_token, recomputed_flops_per_token
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory import MOMENTS, MemoryTable, memory_table
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, PlanMemory, PlanTime, StageMemory, StageTime, Verdict
from ppadvisor.engine.step_time import StageTimes, StepTimes, pipeline_s, stage_times, step_times, totals_of
from ppadvisor.schedules.replay import replay
from ppadvisor.specs.plan import PlanSpec, PlanTable

BLOCK_ROWS = 16_384
"""Plans evaluated at a time: the arrays stay in cache and memory stays bounded whatever the size of the search."""

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


def verdict_of(peak: FloatArray, conservative: FloatArray, capacity: float, margin: float) -> NDArray[np.int64]:
    """Index into VERDICTS of each plan.

    fits: the middle estimate within margin x capacity and the conservative one within the capacity; borderline: one
    of the two; does_not_fit: neither.
    """
    passed = (peak <= margin * capacity).astype(np.int64) + (conservative <= capacity)
    return 2 - passed


def evaluate(problem: Problem, plans: PlanTable, *, margin: float) -> EstimateTable:
    """Estimate every plan of a table from the stages that can bind, block by block."""
    blocks = [
        _evaluate_block(problem, plans.take(slice(start, start + BLOCK_ROWS)), margin)
        for start in range(0, len(plans), BLOCK_ROWS)
    ]
    if not blocks:
        empty, none = np.zeros(0), np.zeros(0, dtype=np.int64)
        return EstimateTable(empty, empty, empty, empty, none, none)
    columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in vars(blocks[0])}
    return EstimateTable(**columns)


def _evaluate_block(problem: Problem, plans: PlanTable, margin: float) -> EstimateTable:
    inputs = PlanInputs.of(problem, plans, every_stage=False)
    memory = memory_table(inputs, keep_terms=False)
    times = stage_times(inputs)
    with_links, free = (pipeline_s(inputs, totals_of(inputs, times, links=links)) for links in (True, False))
    step = step_times(inputs, times, with_links, free)
    binding = np.argmax(memory.total, axis=1)
    peak, conservative = memory.total.max(axis=1), memory.high.max(axis=1)
    return EstimateTable(
        step.step,
        step.bubble_fraction,
        peak,
        conservative,
        np.take_along_axis(inputs.stages.first_stage, binding[:, None], axis=1)[:, 0],
        verdict_of(peak, conservative, problem.cluster.gpu.memory_bytes, margin),
    )


def estimate_plan(problem: Problem, plan: PlanSpec, *, margin: float) -> PlanEstimate:
    """One plan with every stage, its pipeline replayed action by action."""
    inputs = PlanInputs.of(problem, PlanTable.of(plan), every_stage=True)
    memory = memory_table(inputs, keep_terms=True)
    times = stage_times(inputs)
    makespan, idle = _replayed(inputs, times, plan, links=True)
    free, _ = _replayed(inputs, times, plan, links=False)
    step = step_times(inputs, times, np.array([makespan]), np.array([free]))
    return PlanEstimate(
        plan=plan,
        memory=_plan_memory(inputs, memory, plan, margin),
        time=_plan_time(inputs, times, step, plan, idle),
    )


def _boundary_times(inputs: PlanInputs, p: int) -> FloatArray:
    """One-way hand-off over each boundary, first to second stage first, (p-1,) seconds."""
    handoff = handoffs(inputs)
    crossing = int(boundaries_between_nodes(inputs)[0])
    plans, node = inputs.plans, inputs.problem.cluster.gpus_per_node
    width = int((plans.tensor_parallel * plans.context_parallel * plans.data_parallel)[0])
    first_ranks = np.arange(1, p) * width
    crosses = (
        np.ones(p - 1, dtype=np.bool_) if crossing == p - 1 else first_ranks // node != (first_ranks - width) // node
    )
    return np.asarray(np.where(crosses, handoff.inter_s[0], handoff.intra_s[0]))


def _replayed(inputs: PlanInputs, times: StageTimes, plan: PlanSpec, *, links: bool) -> tuple[float, FloatArray]:
    """(makespan, idle fraction of each rank) of the replayed order of work."""
    schedule = schedules.get(plan.schedule)
    p, v = plan.pipeline_parallel, plan.virtual_stages
    boundary = _boundary_times(inputs, p) if links else np.zeros(max(p - 1, 0))
    result = replay(
        schedule.rank_orders(p, plan.num_microbatches, v),
        schedule.placement(p, v),
        forward_s=times.forward[0],
        backward_s=times.backward[0],
        handoff_s=boundary,
    )
    busy = (times.forward[0] + times.backward[0]) * plan.num_microbatches
    return float(result.makespan_s), 1.0 - busy / float(result.makespan_s)


def _plan_memory(inputs: PlanInputs, memory: MemoryTable, plan: PlanSpec, margin: float) -> PlanMemory:
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
        for terms in [{name: _whole(values[0, stage]) for name, values in memory.terms.items()}]
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


def _plan_time(inputs: PlanInputs, times: StageTimes, step: StepTimes, plan: PlanSpec, idle: FloatArray) -> PlanTime:
    problem = inputs.problem
    training, num_gpus = problem.training, problem.cluster.num_gpus
    per_token = megatron_flops_per_token(problem.model, training.sequence_length, int(inputs.vocab_size[0]))
    flops = per_token * training.tokens_per_step
    step_s = float(step.step[0])
    terms = {name: float(values[0]) for name, values in step.terms.items()}
    mfu = flops / (num_gpus * problem.peak_flops_per_s * step_s)
    repeated = recomputed_flops_per_token(problem.model, training.sequence_length, plan.recompute) / per_token
    p, m, v = plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages
    bubble = float(step.bubble_fraction[0])
    layers = problem.model.num_layers / p
    return PlanTime(
        step_time_s=step_s,
        pipeline_s=float(step.pipeline[0]),
        bubble_fraction=bubble,
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
                forward_s=float(times.forward[0, i]),
                backward_s=float(times.backward[0, i]),
                idle_fraction=float(idle[i]),
            )
            for i in range(p)
        ),
    )
