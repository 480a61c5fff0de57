"""Time of one optimizer step: stage times, the pipeline that they make, and what stands outside of it.

step = pipeline + exposed data-parallel traffic + optimizer + overhead. The parts of a step are means over the ranks, so
that they add up to the step: work (compute, recompute, tensor, context and expert parallel), idle (bubble of equal
stages, imbalance, hand-offs), and what follows the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ppadvisor.engine.inputs import FloatArray, PlanInputs, beside_stages, by_kind, over_kinds
from ppadvisor.engine.memory_states import (
    gradient_bytes_per_parameter,
    main_gradient_bytes_per_parameter,
    optimizer_bytes_per_parameter,
    own_parameters,
)
from ppadvisor.engine.once import once_per_layer
from ppadvisor.engine.recomputation import under_own_choice
from ppadvisor.engine.repeated import group_repeats_s, repeated_s, repeating_share, split_share
from ppadvisor.engine.stages import Stages
from ppadvisor.schedules.base import ChunkTotals
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.recomputation import Recomputation

IntArray = NDArray[np.int64]

WORK_PARTS: tuple[str, ...] = ("compute", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
DIRECTIONS: tuple[str, ...] = ("forward", "backward")
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
    return plain_passes(inputs, kind, messages) | {"recompute": repeated_pass(inputs, kind, messages)}


@once_per_layer
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


@once_per_layer
def plain_pass(inputs: PlanInputs, kind: LayerKind, messages: bool = True) -> Pass:
    """The same with its parts together."""
    parts = plain_passes(inputs, kind, messages)
    forward, backward = ([getattr(part, name) for part in parts.values()] for name in ("forward", "backward"))
    return Pass(sum(forward[1:], forward[0]), sum(backward[1:], backward[0]), parts["compute"].weight_grad)


def repeated_pass(inputs: PlanInputs, kind: LayerKind, messages: bool = True) -> Pass:
    """What each plan's recomputation repeats, all in the backward."""

    def under(sized: PlanInputs, choice: Recomputation) -> FloatArray:
        return repeated_s(sized, kind, choice, plain_passes(sized, kind, messages))

    return Pass(np.zeros(len(inputs.plans)), under_own_choice(inputs, under))


def stage_times(inputs: PlanInputs, *, messages: bool = True) -> StageTimes:
    """Forward and backward of every stage from its layers, the embedding and the head; messages as `layer_passes`."""
    per_kind = [layer_passes(inputs, kind, messages) for kind in inputs.kinds]
    forward = np.zeros_like(inputs.stages.chunk_head)
    backward, work = np.zeros_like(forward), {}
    repeats = group_repeats_s(inputs, of_kinds("backward", [of_kind["recompute"] for of_kind in per_kind]))
    split = split_share(inputs) if repeats.any() else np.ones_like(repeats)
    for part in WORK_PARTS:
        passes = [of_kind[part] for of_kind in per_kind]
        if part == "recompute":
            part_backward = inputs.per_chunk(of_kinds("backward", passes)) * repeating_share(inputs)
            work[part] = inputs.stages.all_chunks(part_backward + repeats * split)
            backward = backward + part_backward
            continue
        seconds = {name: of_kinds(name, passes) for name in DIRECTIONS}
        if part == "compute":
            of_chunks = [with_ends(inputs, name, one).of(inputs.stages) for name, one in seconds.items()]
        else:
            of_chunks = [inputs.per_chunk(one) for one in seconds.values()]
        part_forward, part_backward = of_chunks
        work[part] = inputs.stages.all_chunks(part_forward + part_backward)
        forward, backward = forward + part_forward, backward + part_backward
    weight_grad = with_ends(inputs, "weight_grad", of_kinds("weight_grad", [of["compute"] for of in per_kind]))
    return StageTimes(forward, backward, weight_grad.of(inputs.stages), work, repeats, split)


@dataclass(frozen=True)
class Seconds:
    """One direction of a layer of each kind, (plans, kinds), of the embedding and of the head, (plans,)."""

    per_kind: FloatArray
    embedding: FloatArray
    head: FloatArray

    def of(self, stages: Stages) -> FloatArray:
        """Of each chunk, (plans, stages, chunks)."""
        total = over_kinds(stages.chunk_layers, self.per_kind[:, None, None])
        for end, where in ((self.embedding, stages.chunk_embedding), (self.head, stages.chunk_head)):
            total = total + end[:, None, None] * where
        return total


def with_ends(inputs: PlanInputs, name: str, per_kind: FloatArray) -> Seconds:
    """One direction, (plans, kinds) of layers, with that of the embedding and of the head."""
    ends = (np.asarray(getattr(end, name)) for end in (embedding_compute(inputs), head_compute(inputs)))
    return Seconds(per_kind, *ends)


def of_kinds(name: str, passes: Sequence[Pass]) -> FloatArray:
    """One direction of the passes of a layer of each kind, (plans, kinds)."""
    return by_kind([np.asarray(getattr(one, name)) for one in passes])


@dataclass(frozen=True)
class ChunkSeconds:
    """Seconds of single chunks, (plans, stages, chunks), 0 where there is none; and what is infinite there, else 0."""

    forward: FloatArray
    input_grad: FloatArray
    weight_grad: FloatArray
    padding: FloatArray

    @staticmethod
    def of(inputs: PlanInputs, times: StageTimes) -> ChunkSeconds:
        """Those of the ranks."""
        weight_grad = times.weight_grad + times.mean_repeats
        return ChunkSeconds(times.forward, times.input_grad, weight_grad, inputs.stages.chunk_padding)

    def extremes(self) -> dict[str, FloatArray]:
        """The lightest and heaviest chunk of all ranks by kind of work, (plans,)."""
        kinds = {"forward": self.forward, "input_grad": self.input_grad, "weight_grad": self.weight_grad}
        most = {f"chunk_{kind}_max_s": s.max(axis=(1, 2)) for kind, s in kinds.items()}
        least = {f"chunk_{kind}_min_s": (s + self.padding).min(axis=(1, 2)) for kind, s in kinds.items()}
        return least | most


def over_ranks(values: FloatArray) -> FloatArray:
    """Sum of (plans, stages) over the stages, (plans,), from the first to the last.

    So it is the same, to the bit, whatever other plans stand in the table: the order in which `sum` adds hangs on how
    the array lies in memory.
    """
    if len(values) < values.shape[1]:
        return np.asarray(values.cumsum(axis=1)[:, -1])
    total = np.zeros(len(values))
    for of_stage in values.T:
        total += of_stage
    return total


def totals_of(inputs: PlanInputs, times: StageTimes, *, links: bool, chunks: ChunkSeconds | None = None) -> ChunkTotals:
    """What the schedules' array forms need, (plans,); without links the hand-offs are free.

    Of two copies of the model the first is taken: what is wanted is the time of each stage. `chunks`: what the single
    chunks take, where `times` are those of whole ranks.
    """
    stages = inputs.stages
    forward = _of_a_rank(inputs, times.forward)
    backward = _of_a_rank(inputs, times.backward + times.mean_repeats)
    busy = forward + backward
    handoff = handoffs(inputs)
    zero = np.zeros(len(inputs.plans))
    heaviest = busy.max(axis=1)
    lighter = heaviest[:, None] - busy
    # groups behind the last of the heaviest stages; padding (count 0) comes last and is transparent
    behind = np.logical_and.accumulate(((lighter > 0) | (stages.count == 0))[:, ::-1], axis=1)[:, ::-1]
    last = (stages.count > 0).sum(axis=1) - 1
    return ChunkTotals(
        rank_sum_s=over_ranks(busy * stages.ranks),
        rank_max_s=heaviest,
        rank_min_s=(busy + stages.padding).min(axis=1),
        forward_max_s=forward.max(axis=1),
        backward_max_s=backward.max(axis=1),
        rank_last_s=np.take_along_axis(busy, last[:, None], axis=1)[:, 0],
        behind_max_s=over_ranks(lighter * stages.ranks * behind),
        handoff_sum_s=handoff.sum_s if links else zero,
        handoff_max_s=handoff.max_s if links else zero,
        **(chunks or ChunkSeconds.of(inputs, times)).extremes(),
    )


def _of_a_rank(inputs: PlanInputs, of_chunks: FloatArray) -> FloatArray:
    """A rank's chunks together, (plans, stages); of two copies the first alone."""
    both = (inputs.copies > 1)[:, None]
    every = inputs.stages.all_chunks(of_chunks)
    return np.where(both, of_chunks[:, :, 0], every) if both.any() else every


def _take(totals: ChunkTotals, rows: IntArray) -> ChunkTotals:
    return ChunkTotals(**{name: np.asarray(values)[rows] for name, values in vars(totals).items()})


def pipeline_s(inputs: PlanInputs, totals: ChunkTotals) -> FloatArray:
    """Makespan of the pipeline by each schedule's array form, (plans,)."""
    result = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.by_schedule:
        p, m, v = (column[rows] for column in inputs.plans.pipeline_sizes)
        result[rows] = schedule.pipeline_time_s(p, m, v, _take(totals, rows))
    return result


def equal_stages_s(inputs: PlanInputs, times: StageTimes) -> FloatArray:
    """Makespan if the same work were spread evenly over the stages and the links were free, (plans,)."""
    ranks, stages, again = inputs.plans.pipeline_parallel, inputs.stages, times.mean_repeats
    of_names = ("f", times.forward), ("b", times.backward + again), ("w", times.weight_grad + again)
    sums = {name: over_ranks(stages.all_chunks(of_chunks) * stages.count) for name, of_chunks in of_names}
    mean = {name: seconds / ranks / inputs.copies for name, seconds in sums.items()}
    result = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.by_schedule:
        p, m, v = (column[rows] for column in inputs.plans.pipeline_sizes)
        forward, backward, weight = (mean[name][rows] / v for name in "fbw")
        split = weight if schedule.splits_backward else np.zeros_like(weight)
        result[rows] = schedule.makespan_s(p, m, v, forward, backward - split, split)
    return result


def optimizer_s(inputs: PlanInputs) -> FloatArray:
    """Optimizer step of each stage, (plans, stages): states read and written, gradients read, weights written."""
    gpu, assumed = inputs.problem.cluster.gpu, inputs.problem.assumptions
    states = optimizer_bytes_per_parameter(inputs) + main_gradient_bytes_per_parameter(inputs)
    each = 2 * states + gradient_bytes_per_parameter(inputs) + inputs.problem.training.weight_bytes
    moved = own_parameters(inputs, from_stage=1) * each
    # clearing the gradients touches all of them
    moved = moved + gradient_bytes_per_parameter(inputs) * sum(inputs.parameters)
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
    work = {name: passes * over_ranks(part * inputs.stages.ranks) / p for name, part in times.work.items()}
    busy = sum(work.values(), np.zeros(len(inputs.plans)))
    exposed = data_parallel_s(inputs, gradient_bytes_per_parameter(inputs))
    after = {
        "data_parallel": exposed.max(axis=1) + tied_embedding_s(inputs),
        "optimizer": optimizer_s(inputs).max(axis=1),
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
