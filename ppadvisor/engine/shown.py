"""The numbers of plans that are shown: memory of every stage with its terms, time with its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.communication import handoffs, tensor_parallel_bytes
from ppadvisor.engine.flops import megatron_flops_per_token
from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.memory_axes import MOMENTS
from ppadvisor.engine.pipeline import Pipelines, working_s
from ppadvisor.engine.repeated import repeated_flops_per_token
from ppadvisor.engine.results import PlanMemory, PlanTime, StageMemory, StageTime
from ppadvisor.engine.spans import Span, TimedOrder, spans_of
from ppadvisor.engine.step_time import StepTimes, pipeline_s, step_times, totals_of
from ppadvisor.engine.verdicts import VERDICTS, verdict_of


def plan_memories(pipelines: Pipelines, margin: float) -> list[PlanMemory]:
    """The memory of each plan."""
    inputs = pipelines.inputs
    memory = memory_table(inputs, keep_terms=True)
    dense, expert = inputs.parameters
    capacity = inputs.problem.cluster.gpu.memory_bytes
    terms = {name: _whole(values).tolist() for name, values in memory.terms.items()}
    allocated, high = _whole(memory.allocated).tolist(), _whole(memory.high).tolist()
    found = []
    for row, plan in enumerate(pipelines.plans):
        stages = tuple(
            StageMemory(
                stage=stage,
                num_layers=plan.layers_per_stage[stage],
                parameters=round(float(dense[row, stage] + expert[row, stage])),
                in_flight_microbatches=float(inputs.in_flight[row, stage]),
                moment=MOMENTS[memory.moment[row, stage]],
                allocated_bytes=allocated[row][stage],
                total_bytes=sum(values[row][stage] for values in terms.values()),
                conservative_bytes=high[row][stage],
                terms={name: values[row][stage] for name, values in terms.items()},
            )
            for stage in range(plan.pipeline_parallel)
        )
        found.append(_plan_memory(stages, capacity, margin))
    return found


def _plan_memory(stages: tuple[StageMemory, ...], capacity: int, margin: float) -> PlanMemory:
    binding = max(stages, key=lambda s: s.total_bytes)
    conservative = max(s.conservative_bytes for s in stages)
    middle, high = (np.array([float(of_stage)]) for of_stage in (binding.total_bytes, conservative))
    verdict = VERDICTS[int(verdict_of(middle, high, capacity, margin)[0])]
    limit = int(capacity * margin)
    return PlanMemory(
        peak_bytes=binding.total_bytes,
        conservative_bytes=conservative,
        allocated_bytes=max(s.allocated_bytes for s in stages),
        capacity_bytes=capacity,
        limit_bytes=limit,
        headroom_bytes=limit - binding.total_bytes,
        fits=verdict == "fits",
        verdict=verdict,
        binding_stage=binding.stage,
        stages=stages,
    )


def _whole(values: FloatArray) -> FloatArray:
    """Bytes are whole; a part of one is held against the plan."""
    return np.asarray(np.ceil(values).astype(np.int64))


@dataclass(frozen=True)
class PlanStep:
    """What the step of a plan takes, without its parts."""

    step_time_s: float
    bubble_fraction: float
    tokens_per_s: float
    model_flops_utilization: float


def plan_steps(plans: Sequence[tuple[Pipelines, int]]) -> list[PlanStep]:
    """The step of each plan, a row of some pipelines; all are replayed together, with their links alone."""
    timed = _timed_orders(plans)
    spans = dict(zip(timed, spans_of(list(timed.values())), strict=True))
    found: dict[int, PlanStep] = {}
    for pipelines, indices in _by_table(plans):
        makespan = _makespans_s(pipelines, {plans[index][1]: spans.get(index) for index in indices}, links=True)
        table = _StepTable.of(pipelines, makespan)
        found |= {index: table.plan_step(plans[index][1]) for index in indices}
    return [found[index] for index in range(len(plans))]


def plan_times(plans: Sequence[tuple[Pipelines, int]]) -> list[PlanTime]:
    """The time of each plan, a row of some pipelines; all are replayed together, with links and without."""
    timed = _timed_orders(plans)
    spans = spans_of([*timed.values(), *(order.without_links() for order in timed.values())])
    with_links = dict(zip(timed, spans, strict=False))
    without = dict(zip(timed, spans[len(timed) :], strict=True))
    found: dict[int, PlanTime] = {}
    for pipelines, indices in _by_table(plans):
        spans_of_rows = {plans[index][1]: (with_links.get(index), without.get(index)) for index in indices}
        table = _TimeTable.of(pipelines, spans_of_rows)
        found |= {index: table.plan_time(plans[index][1]) for index in indices}
    return [found[index] for index in range(len(plans))]


def _timed_orders(plans: Sequence[tuple[Pipelines, int]]) -> dict[int, TimedOrder]:
    """Which of the plans are replayed, and what."""
    orders = ((index, pipelines.timed_order(row)) for index, (pipelines, row) in enumerate(plans))
    return {index: order for index, order in orders if order is not None}


def _by_table(plans: Sequence[tuple[Pipelines, int]]) -> list[tuple[Pipelines, list[int]]]:
    """(pipelines, which of the plans are rows of them)."""
    tables: dict[int, list[int]] = {}
    for index, (pipelines, _) in enumerate(plans):
        tables.setdefault(id(pipelines), []).append(index)
    return [(plans[indices[0]][0], indices) for indices in tables.values()]


def _makespans_s(pipelines: Pipelines, spans: Mapping[int, Span | None], *, links: bool) -> FloatArray:
    """Of the rows of a table: as replayed, and the closed form where nothing was; (plans,)."""
    inputs = pipelines.inputs
    replayed = {row: span.makespan_s for row, span in spans.items() if span is not None}
    closed = len(replayed) < len(spans)
    totals = totals_of(inputs, pipelines.times, links=links) if closed else None
    makespan = np.ones(len(inputs.plans)) if totals is None else pipeline_s(inputs, totals)
    makespan[list(replayed)] = list(replayed.values())
    return makespan


@dataclass(frozen=True)
class _StepTable:
    """The steps of pipelines of one shape."""

    pipelines: Pipelines
    times: StepTimes
    flops_per_token: FloatArray

    @staticmethod
    def of(pipelines: Pipelines, makespan_s: FloatArray, free_makespan_s: FloatArray | None = None) -> _StepTable:
        """From the makespans, with links and where they are wanted without; (plans,)."""
        inputs = pipelines.inputs
        problem, vocabulary = inputs.problem, inputs.vocab_size
        of_vocabulary = {
            size: megatron_flops_per_token(problem.model, problem.training.sequence_length, int(size))
            for size in set(vocabulary.tolist())
        }
        times = step_times(inputs, pipelines.times, makespan_s, free_makespan_s)
        return _StepTable(pipelines, times, np.array([of_vocabulary[size] for size in vocabulary.tolist()]))

    def model_flops(self, row: int) -> float:
        """FLOPs of one step of a plan without what recomputation repeats, by Megatron's count."""
        return float(self.flops_per_token[row]) * self.pipelines.inputs.problem.training.tokens_per_step

    def plan_step(self, row: int) -> PlanStep:
        """The step of one plan."""
        problem, step_s = self.pipelines.inputs.problem, float(self.times.step[row])
        return PlanStep(
            step_time_s=step_s,
            bubble_fraction=float(self.times.bubble_fraction[row]),
            tokens_per_s=problem.training.tokens_per_step / step_s,
            model_flops_utilization=self.model_flops(row)
            / (problem.cluster.num_gpus * problem.peak_flops_per_s * step_s),
        )


@dataclass(frozen=True)
class _TimeTable:
    """The times of pipelines of one shape."""

    pipelines: Pipelines
    spans: Mapping[int, tuple[Span | None, Span | None]]
    """Of the rows that are wanted, with links and without; None where nothing is replayed."""
    steps: _StepTable
    handoff_bytes: FloatArray

    @staticmethod
    def of(pipelines: Pipelines, spans: Mapping[int, tuple[Span | None, Span | None]]) -> _TimeTable:
        """Put together from stage times and replays."""
        with_links, without = (
            _makespans_s(pipelines, {row: of_row[index] for row, of_row in spans.items()}, links=links)
            for index, links in enumerate((True, False))
        )
        steps = _StepTable.of(pipelines, with_links, without)
        return _TimeTable(pipelines, spans, steps, handoffs(pipelines.inputs).bytes)

    def idle_fraction(self, row: int) -> FloatArray:
        """Of each rank, of the makespan."""
        span, _ = self.spans[row]
        if span is not None:
            return span.idle_fraction
        working = working_s(self.pipelines.inputs, self.pipelines.times, row)
        return np.asarray(1.0 - working / self.steps.times.pipeline[row])

    def plan_time(self, row: int) -> PlanTime:
        """The time of one plan."""
        inputs, times, plan = self.pipelines.inputs, self.pipelines.times, self.pipelines.plans[row]
        problem, (span, _) = inputs.problem, self.spans[row]
        of_table, step = self.steps.times, self.steps.plan_step(row)
        repeated = repeated_flops_per_token(inputs, row) / float(self.steps.flops_per_token[row])
        p, m, v = plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages
        sent = tensor_parallel_bytes(inputs, layers=problem.model.num_layers / p, ranks=plan.tensor_parallel)
        backward = times.backward + times.mean_repeats
        stages = zip(times.forward[row].sum(axis=1), backward[row].sum(axis=1), self.idle_fraction(row), strict=False)
        return PlanTime(
            step_time_s=step.step_time_s,
            pipeline_s=float(of_table.pipeline[row]),
            replayed=span is not None,
            bubble_fraction=step.bubble_fraction,
            bubble_in_span_fraction=None if span is None else span.bubble_in_span_fraction,
            utilization_fraction=1.0 - step.bubble_fraction,
            equal_stage_bubble_fraction=float(np.asarray(schedules.get(plan.schedule).bubble_fraction(p, m, v))),
            tokens_per_s=step.tokens_per_s,
            tokens_per_s_per_gpu=step.tokens_per_s / problem.cluster.num_gpus,
            model_flops=self.steps.model_flops(row),
            model_flops_utilization=step.model_flops_utilization,
            hardware_flops_utilization=step.model_flops_utilization * (1.0 + repeated),
            handoff_bytes=int(np.ceil(self.handoff_bytes[row])),
            tensor_parallel_bytes=int(sent[row]),
            terms={f"{name}_s": float(values[row]) for name, values in of_table.terms.items()},
            stages=tuple(
                StageTime(stage=i, forward_s=float(forward), backward_s=float(backward), idle_fraction=float(idle))
                for i, (forward, backward, idle) in enumerate(stages)
            ),
        )
