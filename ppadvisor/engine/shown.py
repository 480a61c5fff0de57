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
from ppadvisor.engine.pipeline import Pipelines
from ppadvisor.engine.repeated import repeated_flops_per_token
from ppadvisor.engine.results import PlanMemory, PlanTime, StageMemory, StageTime
from ppadvisor.engine.spans import Span, spans_of
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


def plan_times(plans: Sequence[tuple[Pipelines, int]]) -> list[PlanTime]:
    """The time of each plan, a row of some pipelines; all are replayed together, with links and without."""
    timed = {index: order for index, (of, row) in enumerate(plans) if (order := of.timed_order(row)) is not None}
    spans = spans_of([*timed.values(), *(order.without_links() for order in timed.values())])
    with_links = dict(zip(timed, spans, strict=False))
    without = dict(zip(timed, spans[len(timed) :], strict=True))
    of_tables: dict[int, list[int]] = {}
    for index, (pipelines, _) in enumerate(plans):
        of_tables.setdefault(id(pipelines), []).append(index)
    found: dict[int, PlanTime] = {}
    for indices in of_tables.values():
        pipelines = plans[indices[0]][0]
        spans_of_rows = {plans[index][1]: (with_links.get(index), without.get(index)) for index in indices}
        table = _TimeTable.of(pipelines, spans_of_rows)
        found |= {index: table.plan_time(plans[index][1]) for index in indices}
    return [found[index] for index in range(len(plans))]


@dataclass(frozen=True)
class _TimeTable:
    """The times of pipelines of one shape."""

    pipelines: Pipelines
    spans: Mapping[int, tuple[Span | None, Span | None]]
    """Of the rows that are wanted, with links and without; None where nothing is replayed."""
    step: StepTimes
    handoff_bytes: FloatArray
    flops_per_token: FloatArray

    @staticmethod
    def of(pipelines: Pipelines, spans: Mapping[int, tuple[Span | None, Span | None]]) -> _TimeTable:
        """Put together from stage times and replays."""
        inputs, times = pipelines.inputs, pipelines.times
        makespans = []
        for index, links in enumerate((True, False)):
            replayed = {row: span for row, of_row in spans.items() if (span := of_row[index]) is not None}
            closed = len(replayed) < len(spans)
            makespan = (
                pipeline_s(inputs, totals_of(inputs, times, links=links)) if closed else np.ones(len(inputs.plans))
            )
            makespan[list(replayed)] = [span.makespan_s for span in replayed.values()]
            makespans.append(makespan)
        training = inputs.problem.training
        vocabularies = inputs.vocab_size.tolist()
        per_token = [
            megatron_flops_per_token(inputs.problem.model, training.sequence_length, int(v)) for v in vocabularies
        ]
        return _TimeTable(
            pipelines, spans, step_times(inputs, times, *makespans), handoffs(inputs).bytes, np.array(per_token)
        )

    def idle_fraction(self, row: int) -> FloatArray:
        """Of each rank, of the makespan."""
        span, _ = self.spans[row]
        if span is not None:
            return span.idle_fraction
        inputs = self.pipelines.inputs
        work = sum((seconds[row] for seconds in self.pipelines.times.work.values()), np.zeros(1))
        busy = work * inputs.plans.num_microbatches[row] / inputs.copies[row]
        return np.asarray(1.0 - busy / self.step.pipeline[row])

    def plan_time(self, row: int) -> PlanTime:
        """The time of one plan."""
        inputs, times, plan = self.pipelines.inputs, self.pipelines.times, self.pipelines.plans[row]
        problem, training, num_gpus = inputs.problem, inputs.problem.training, inputs.problem.cluster.num_gpus
        per_token, step_s = float(self.flops_per_token[row]), float(self.step.step[row])
        flops = per_token * training.tokens_per_step
        mfu = flops / (num_gpus * problem.peak_flops_per_s * step_s)
        p, m, v = plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages
        bubble, (span, _) = float(self.step.bubble_fraction[row]), self.spans[row]
        sent = tensor_parallel_bytes(inputs, layers=problem.model.num_layers / p, ranks=plan.tensor_parallel)
        backward = times.backward + times.mean_repeats
        stages = zip(times.forward[row].sum(axis=1), backward[row].sum(axis=1), self.idle_fraction(row), strict=False)
        return PlanTime(
            step_time_s=step_s,
            pipeline_s=float(self.step.pipeline[row]),
            replayed=span is not None,
            bubble_fraction=bubble,
            bubble_in_span_fraction=None if span is None else span.bubble_in_span_fraction,
            utilization_fraction=1.0 - bubble,
            equal_stage_bubble_fraction=float(np.asarray(schedules.get(plan.schedule).bubble_fraction(p, m, v))),
            tokens_per_s=training.tokens_per_step / step_s,
            tokens_per_s_per_gpu=training.tokens_per_step / step_s / num_gpus,
            model_flops=flops,
            model_flops_utilization=mfu,
            hardware_flops_utilization=mfu * (1.0 + repeated_flops_per_token(inputs, row) / per_token),
            handoff_bytes=int(np.ceil(self.handoff_bytes[row])),
            tensor_parallel_bytes=int(sent[row]),
            terms={f"{name}_s": float(values[row]) for name, values in self.step.terms.items()},
            stages=tuple(
                StageTime(stage=i, forward_s=float(forward), backward_s=float(backward), idle_fraction=float(idle))
                for i, (forward, backward, idle) in enumerate(stages)
            ),
        )
