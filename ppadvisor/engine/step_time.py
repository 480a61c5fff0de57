"""Time of one optimizer step: stage times, the pipeline that they make, and what stands outside of it.

step = pipeline + exposed data-parallel traffic + optimizer + overhead. The parts of a step are means over the ranks, so
that they add up to the step: work (compute, recompute, tensor, context and expert parallel), idle (bubble of equal
stages, imbalance, hand-offs), and what follows the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.communication import (
    context_parallel_pass,
    data_parallel_s,
    expert_parallel_pass,
    handoffs,
    tensor_parallel_pass,
    tied_embedding_s,
)
from ppadvisor.engine.compute import Pass, embedding_compute, head_compute, layer_compute
from ppadvisor.engine.inputs import FloatArray, PlanInputs, beside_stages, by_kind, once_per_size
from ppadvisor.engine.memory_states import (
    gradient_bytes_per_parameter,
    main_gradient_bytes_per_parameter,
    optimizer_bytes_per_parameter,
)
from ppadvisor.engine.recomputation import under_own_choice
from ppadvisor.engine.repeated import group_repeats_s, repeated_s, repeating_share, split_share
from ppadvisor.schedules.base import ChunkTotals
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.recomputation import Recomputation

IntArray = NDArray[np.int64]

WORK_PARTS: tuple[str, ...] = ("compute", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
IDLE_PARTS: tuple[str, ...] = ("bubble", "imbalance", "handoff")
STEP_PARTS: tuple[str, ...] = ("data_parallel", "optimizer", "overhead")


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one micro-batch on each chunk of each rank, (plans, stages, chunks)."""

    forward: FloatArray
    backward: FloatArray
    """Both gradients and what recomputation repeats, done as one."""
    weight_grad: FloatArray
    """The part of the backward that makes the gradients of the weights."""
    work: dict[str, FloatArray]
    """Forward + backward of a rank by WORK_PARTS, its chunks together, (plans, stages); they add up to both and to
    `mean_repeats`."""
    repeats: FloatArray
    """What weight gradients repeat when they are an action of their own, beyond what a whole backward does."""
    split_share: FloatArray
    """Of the backwards, those whose weight gradients are."""

    @property
    def input_grad(self) -> FloatArray:
        """The first action of a split backward."""
        return self.backward - self.weight_grad

    @property
    def weight_step(self) -> FloatArray:
        """The second."""
        return self.weight_grad + self.repeats

    @property
    def mean_repeats(self) -> FloatArray:
        """`repeats` of a micro-batch, a mean over those that are split and those that are not."""
        return np.asarray(self.repeats * self.split_share)

    def row(self, index: int) -> StageTimes:
        """Those of one plan."""
        one = slice(index, index + 1)
        work = {name: seconds[one] for name, seconds in self.work.items()}
        arrays = self.forward, self.backward, self.weight_grad, self.repeats, self.split_share
        forward, backward, weight_grad, repeats, split = (values[one] for values in arrays)
        return StageTimes(forward, backward, weight_grad, work, repeats, split)


def layer_passes(inputs: PlanInputs, kind: LayerKind, messages: bool = True) -> dict[str, Pass]:
    """The work of one layer of this kind by part, (plans,); without messages what ranks of a stage send is free."""
    return plain_passes(inputs, kind, messages) | {"recompute": _repeated(inputs, kind, messages)}


@once_per_size
def plain_passes(inputs: PlanInputs, kind: LayerKind, messages: bool = True) -> dict[str, Pass]:
    """The work of one layer of this kind by part, nothing recomputed, (plans,)."""
    parts = {
        "compute": layer_compute(inputs, kind),
        "tensor_parallel": tensor_parallel_pass(inputs, kind),
        "context_parallel": context_parallel_pass(inputs),
        "expert_parallel": expert_parallel_pass(inputs, kind),
    }
    nothing = Pass(np.zeros(len(inputs.plans)), np.zeros(len(inputs.plans)))
    return {name: one if messages or name == "compute" else nothing for name, one in parts.items()}


@once_per_size
def plain_pass(inputs: PlanInputs, kind: LayerKind, messages: bool = True) -> Pass:
    """The same with its parts together."""
    parts = plain_passes(inputs, kind, messages)
    forward, backward = ([getattr(part, name) for part in parts.values()] for name in ("forward", "backward"))
    return Pass(sum(forward[1:], forward[0]), sum(backward[1:], backward[0]), parts["compute"].weight_grad)


def _repeated(inputs: PlanInputs, kind: LayerKind, messages: bool = True) -> Pass:
    """What each plan's recomputation repeats, all in the backward."""

    def under(sized: PlanInputs, choice: Recomputation) -> FloatArray:
        return repeated_s(sized, kind, choice, plain_passes(sized, kind, messages))

    return Pass(np.zeros(len(inputs.plans)), under_own_choice(inputs, under))


def stage_times(inputs: PlanInputs, *, messages: bool = True, by_part: bool = True) -> StageTimes:
    """Forward and backward of every stage from its layers, the embedding and the head; messages as `layer_passes`.

    Without `by_part` all work but what is recomputed goes by the name of `compute`: a search asks for no more.
    """
    if by_part:
        per_kind = [layer_passes(inputs, kind, messages) for kind in inputs.kinds]
    else:
        both = [(plain_pass(inputs, kind, messages), _repeated(inputs, kind, messages)) for kind in inputs.kinds]
        per_kind = [{"compute": plain, "recompute": repeated} for plain, repeated in both]
    head, embedding = head_compute(inputs), embedding_compute(inputs)
    ends = (embedding, inputs.stages.chunk_embedding), (head, inputs.stages.chunk_head)
    forward = np.zeros_like(inputs.stages.chunk_head)
    backward, work = np.zeros_like(forward), {}
    repeats = group_repeats_s(inputs, by_kind([np.asarray(of_kind["recompute"].backward) for of_kind in per_kind]))
    split = split_share(inputs) if repeats.any() else np.ones_like(repeats)
    for part in (name for name in WORK_PARTS if name in per_kind[0]):
        passes = [of_kind[part] for of_kind in per_kind]
        part_backward = inputs.per_chunk(by_kind([one.backward for one in passes]))
        if part == "recompute":
            part_backward = part_backward * repeating_share(inputs)
            work[part] = inputs.stages.all_chunks(part_backward + repeats * split)
            backward = backward + part_backward
            continue
        part_forward = inputs.per_chunk(by_kind([one.forward for one in passes]))
        if part == "compute":
            for end, where in ends:
                part_forward = part_forward + end.forward[:, None, None] * where
                part_backward = part_backward + end.backward[:, None, None] * where
        work[part] = work.get(part, 0.0) + inputs.stages.all_chunks(part_forward + part_backward)
        forward, backward = forward + part_forward, backward + part_backward
    weight_grad = inputs.per_chunk(by_kind([np.asarray(passes["compute"].weight_grad) for passes in per_kind]))
    for end, where in ends:
        weight_grad = weight_grad + np.asarray(end.weight_grad)[:, None, None] * where
    return StageTimes(forward, backward, weight_grad, work, repeats, split)


def totals_of(inputs: PlanInputs, times: StageTimes, *, links: bool) -> ChunkTotals:
    """What the schedules' array forms need, (plans,); without links the hand-offs are free.

    Of two copies of the model the first is taken: what is wanted is the time of each stage.
    """
    count = inputs.stages.count
    forward = _of_a_rank(inputs, times.forward)
    backward = _of_a_rank(inputs, times.backward + times.mean_repeats)
    busy = forward + backward
    handoff = handoffs(inputs)
    zero = np.zeros(len(inputs.plans))
    heaviest = busy.max(axis=1)
    lighter = heaviest[:, None] - busy
    # groups behind the last of the heaviest stages; padding (count 0) comes last and is transparent
    behind = np.logical_and.accumulate(((lighter > 0) | (count == 0))[:, ::-1], axis=1)[:, ::-1]
    last = (count > 0).sum(axis=1) - 1
    return ChunkTotals(
        rank_sum_s=(busy * count).sum(axis=1),
        rank_max_s=heaviest,
        rank_min_s=np.where(count > 0, busy, np.inf).min(axis=1),
        forward_max_s=forward.max(axis=1),
        backward_max_s=backward.max(axis=1),
        rank_last_s=np.take_along_axis(busy, last[:, None], axis=1)[:, 0],
        behind_max_s=(lighter * count * behind).sum(axis=1),
        handoff_sum_s=handoff.sum_s if links else zero,
        handoff_max_s=handoff.max_s if links else zero,
        **_chunk_extremes(inputs, times),
    )


def _of_a_rank(inputs: PlanInputs, of_chunks: FloatArray) -> FloatArray:
    """A rank's chunks together, (plans, stages); of two copies the first alone."""
    both = (inputs.copies > 1)[:, None]
    return np.asarray(np.where(both, of_chunks[:, :, 0], inputs.stages.all_chunks(of_chunks)))


def _chunk_extremes(inputs: PlanInputs, times: StageTimes) -> dict[str, FloatArray]:
    """The lightest and heaviest chunk of all ranks by kind of work, (plans,)."""
    kinds = {
        "forward": times.forward,
        "input_grad": times.input_grad,
        "weight_grad": times.weight_grad + times.mean_repeats,
    }
    real = inputs.stages.chunk_count > 0
    least = {f"chunk_{kind}_min_s": np.where(real, s, np.inf).min(axis=(1, 2)) for kind, s in kinds.items()}
    most = {f"chunk_{kind}_max_s": np.where(real, s, 0.0).max(axis=(1, 2)) for kind, s in kinds.items()}
    return least | most


def _take(totals: ChunkTotals, rows: IntArray) -> ChunkTotals:
    return ChunkTotals(**{name: np.asarray(values)[rows] for name, values in vars(totals).items()})


def pipeline_s(inputs: PlanInputs, totals: ChunkTotals) -> FloatArray:
    """Makespan of the pipeline by each schedule's array form, (plans,)."""
    result = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.rows_by_schedule():
        p, m, v = (column[rows] for column in inputs.plans.pipeline_sizes)
        result[rows] = schedule.pipeline_time_s(p, m, v, _take(totals, rows))
    return result


def equal_stages_s(inputs: PlanInputs, times: StageTimes) -> FloatArray:
    """Makespan if the same work were spread evenly over the stages and the links were free, (plans,)."""
    ranks, count = inputs.plans.pipeline_parallel, inputs.stages.count[:, :, None] * inputs.stages.chunk_count
    again = times.mean_repeats
    of_names = ("f", times.forward), ("b", times.backward + again), ("w", times.weight_grad + again)
    mean = {name: (of_chunks * count).sum(axis=(1, 2)) / ranks / inputs.copies for name, of_chunks in of_names}
    result = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.rows_by_schedule():
        p, m, v = (column[rows] for column in inputs.plans.pipeline_sizes)
        forward, backward, weight = (mean[name][rows] / v for name in "fbw")
        split = weight if schedule.splits_backward else np.zeros_like(weight)
        result[rows] = schedule.makespan_s(p, m, v, forward, backward - split, split)
    return result


def optimizer_s(inputs: PlanInputs) -> FloatArray:
    """Optimizer step of each stage, (plans, stages): states read and written, gradients read, weights written."""
    gpu, assumed = inputs.problem.cluster.gpu, inputs.problem.assumptions
    dense, expert = inputs.parameters
    sharded = inputs.plans.optimizer_sharding[:, None] >= 1
    own = np.where(
        sharded,
        dense / inputs.sharding_ways[:, None] + expert / inputs.expert_sharding_ways[:, None],
        dense + expert,
    )
    states = optimizer_bytes_per_parameter(inputs) + main_gradient_bytes_per_parameter(inputs)
    moved = own * (2 * states + gradient_bytes_per_parameter(inputs) + inputs.problem.training.weight_bytes)
    # clearing the gradients touches all of them
    moved = moved + gradient_bytes_per_parameter(inputs) * (dense + expert)
    return moved / (gpu.hbm_bandwidth_bytes_per_s * beside_stages(assumed.hbm_efficiency.value))


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step of each plan, (plans,)."""

    step: FloatArray
    pipeline: FloatArray
    bubble_fraction: FloatArray
    """1 − Σ busy/(p·makespan): fill, drain, imbalance and hand-offs together."""
    terms: dict[str, FloatArray]
    """WORK_PARTS, IDLE_PARTS and STEP_PARTS; they add up to `step`. Empty where they were not asked for."""


def step_times(
    inputs: PlanInputs, times: StageTimes, pipeline: FloatArray, pipeline_free: FloatArray | None = None
) -> StepTimes:
    """Put a step together from stage times and the makespan with and without links.

    Without the latter what the pipeline waits is not told apart: the step and its bubble, no terms.
    """
    p, m = inputs.plans.pipeline_parallel, inputs.plans.num_microbatches
    # of two copies of the model a micro-batch passes one
    passes = m / inputs.copies
    work = {name: passes * (part * inputs.stages.count).sum(axis=1) / p for name, part in times.work.items()}
    busy = sum(work.values(), np.zeros(len(inputs.plans)))
    real = inputs.stages.count > 0
    exposed = data_parallel_s(inputs, gradient_bytes_per_parameter(inputs))
    after = {
        "data_parallel": np.where(real, exposed, 0.0).max(axis=1) + tied_embedding_s(inputs),
        "optimizer": np.where(real, optimizer_s(inputs), 0.0).max(axis=1),
        "overhead": np.full(len(inputs.plans), inputs.problem.assumptions.step_overhead_s.value),
    }
    step = pipeline + sum(after.values(), np.zeros(len(inputs.plans)))
    terms = {}
    if pipeline_free is not None:
        equal = equal_stages_s(inputs, times)
        # never below zero but by rounding, and a bubble of -3e-17 s is a riddle to whoever reads it
        idle = np.maximum(equal - busy, 0.0), pipeline_free - equal, pipeline - pipeline_free
        terms = work | dict(zip(IDLE_PARTS, idle, strict=True)) | after
    return StepTimes(step, pipeline, np.maximum(1.0 - busy / pipeline, 0.0), terms)
