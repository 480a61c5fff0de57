"""What a search knows of plans before it evaluates them: bytes below which no peak lies, seconds that no step beats.

Both are parts of the sums that `evaluate` makes, of a plan's sizes and of what its first and its last rank hold; what
is left out is never below zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ppadvisor.engine.distinct import Distinct
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.layer_work import made_again
from ppadvisor.engine.memory import communicator_groups, together
from ppadvisor.engine.memory_activations import logits_bytes, output_weight_gradient_bytes
from ppadvisor.engine.memory_axes import AT_LOSS, Term
from ppadvisor.engine.memory_states import (
    gradients_bytes,
    optimizer_states_bytes,
    weight_gradient_buffers_bytes,
    weights_bytes,
)
from ppadvisor.engine.recomputation import layer_saved
from ppadvisor.engine.split_work import layer_backward_work_bytes
from ppadvisor.engine.stages import Stages
from ppadvisor.engine.step_time import plain_pass
from ppadvisor.specs.plan import IntArray, PlanTable
from ppadvisor.specs.recomputation import NONE, Recomputation

BLOCK_ROWS = 16_384
"""Plans bounded at a time."""

STATES = (weights_bytes, gradients_bytes, optimizer_states_bytes)
"""What stays of a layer, of the embedding and of the head, whatever the micro-batches do."""


@dataclass(frozen=True)
class LeastMemory:
    """Bytes that the memory of each plan is not below, (plans,)."""

    peak: FloatArray
    conservative: FloatArray


def least_memory(plans: PlanTable, of_plans: Distinct) -> LeastMemory:
    """What the first rank of each plan and what its last one needs at least, the larger; `of_plans` is what they share.

    The states of their layers, of the embedding and of the head; what the layers save of the micro-batches in flight;
    on the first rank the work of a layer, on the last the logits; the allowances that hang on the plan's sizes, and of
    the allocator's the share.
    """
    ends, spread = _ends(of_plans, plans.recomputations), _spread_bytes(of_plans.sizes)
    peak = np.zeros(len(plans))
    for start in range(0, len(plans), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        of_block = of_plans.take(rows)
        choice = plans.recompute[rows] * len(of_plans.sizes.plans) + of_block.size
        peak[rows] = np.maximum(*(end.needs(of_block, choice) for end in ends))
    return LeastMemory(peak, peak + spread[of_plans.size])


@dataclass(frozen=True)
class _End:
    """The first ranks, or the last ones, of the pipelines of a search: what they need at least, allowances included."""

    group: IntArray
    """Which group of ranks it is, (layouts,)."""
    saved: FloatArray
    """By a layer of each kind of a micro-batch, (recomputations x sizes, kinds)."""
    states: FloatArray
    """(sizes, kinds)"""
    beside: FloatArray
    """Whatever layers there are, (recomputations x sizes,)."""

    def needs(self, of_plans: Distinct, choice: IntArray) -> FloatArray:
        """Bytes of each plan, (plans,); `choice`: its recomputation and size."""
        layers = _held_at(of_plans.layouts.stages.layers, self.group)
        in_flight = of_plans.in_flight_of(self.group) / of_plans.layouts.copies[of_plans.layout]
        total = self.beside[choice]
        for kind in range(layers.shape[1]):
            of_layer = self.saved[:, kind][choice]
            of_layer *= in_flight
            of_layer += self.states[:, kind][of_plans.size]
            of_layer *= layers[:, kind][of_plans.layout]
            total += of_layer
        return total


def _ends(of_plans: Distinct, choices: tuple[Recomputation, ...]) -> tuple[_End, _End]:
    """The first and the last ranks."""
    sizes, stages = of_plans.sizes, of_plans.layouts.stages
    assumed, eager = sizes.problem.assumptions, sizes.problem.framework.eager_temporaries
    lost = 1.0 if eager else 1.0 + assumed.allocator_overhead.value
    saved = np.concatenate([_least_saved(sizes, choice) for choice in choices]) * lost
    states = _states_per_layer(of_plans) * lost
    in_work = _least_in_work(of_plans, choices)
    embedding, head = (np.tile(of_end, len(choices)) for of_end in _least_of_ends(of_plans))
    process = assumed.cuda_context_bytes.value + assumed.workspace_bytes.value
    process_bytes = process + communicator_groups(sizes) * assumed.communicator_bytes.value
    constant = np.tile(process_bytes, len(choices))
    first, last = np.zeros_like(stages.sizes[0]), stages.sizes[0] - 1
    at_first = in_work + embedding * _held_at(stages.has_embedding, first).min(initial=1.0)
    at_last = head * _held_at(stages.has_head, last).min(initial=1.0)
    return (
        _End(first, saved, states, at_first * lost + constant),
        _End(last, saved, states, at_last * lost + constant),
    )


def _spread_bytes(sizes: PlanInputs) -> FloatArray:
    """How far above the middle the conservative end is at least, (sizes,): the allowances that are known."""
    assumed = sizes.problem.assumptions
    ranges = {
        "cuda_context": np.asarray(assumed.cuda_context_bytes.high - assumed.cuda_context_bytes.value),
        "workspace": np.asarray(assumed.workspace_bytes.high - assumed.workspace_bytes.value),
        "communicator_buffers": communicator_groups(sizes)
        * (assumed.communicator_bytes.high - assumed.communicator_bytes.value),
    }
    return together(ranges)


def _held_at(of_groups: FloatArray, group: IntArray) -> FloatArray:
    """(layouts, groups, ...) -> (layouts, ...), one group of each."""
    return of_groups[np.arange(len(group)), group]


def _ranks(
    of_plans: Distinct, layers: FloatArray, *, embedding: float = 0.0, head: float = 0.0, times: int = 1
) -> PlanInputs:
    """Ranks of each size that hold such layers, (ranks, kinds), and ends; all sizes so many times."""
    size = np.tile(np.arange(len(of_plans.sizes.plans)), times)
    shape = len(size), len(layers)
    one, places = np.ones((*shape, 1)), np.ones(shape, dtype=np.int64)
    held = np.broadcast_to(layers[:, None], (*shape, 1, layers.shape[1]))
    none, ends = np.zeros_like(one), np.zeros(len(size))
    stages = Stages(places - 1, places, one, held, embedding * one, head * one, none, none, ends, ends)
    shared = replace(of_plans, size=size, layout=np.zeros_like(size))
    return PlanInputs(of_plans.sizes.problem, of_plans.sizes.plans.take(size), stages, distinct=shared)


def _sum(terms: list[Term], moment: str) -> FloatArray:
    """What some terms have at a moment, together."""
    return np.asarray(sum(term[moment] for term in terms if moment in term))


def _states_per_layer(of_plans: Distinct) -> FloatArray:
    """Bytes of weights, gradients and optimizer states of one layer of each kind, (sizes, kinds)."""
    inputs = _ranks(of_plans, np.eye(len(of_plans.sizes.kinds)))
    return _sum([term(inputs) for term in STATES], "optimizer_step")


def _least_of_ends(of_plans: Distinct) -> tuple[FloatArray, FloatArray]:
    """(states of the embedding; states of the head and the logits at the loss or the head's backward), (sizes,)."""
    none = np.zeros((1, len(of_plans.sizes.kinds)))
    embedding, head = _ranks(of_plans, none, embedding=1.0), _ranks(of_plans, none, head=1.0)
    at_loss = (*STATES, weight_gradient_buffers_bytes, logits_bytes, output_weight_gradient_bytes)
    of_head = [term(head) for term in at_loss]
    logits = np.max([_sum(of_head, moment) for moment in AT_LOSS], axis=0)
    return _sum([term(embedding) for term in STATES], "optimizer_step")[:, 0], logits[:, 0]


def _least_in_work(of_plans: Distinct, choices: tuple[Recomputation, ...]) -> FloatArray:
    """What the backward of a layer works with at least, (recomputations x sizes,): of the kind that needs the least."""
    kinds, number = len(of_plans.sizes.kinds), len(of_plans.sizes.plans)
    inputs = _ranks(of_plans, np.eye(kinds), times=len(choices))
    plans = replace(inputs.plans, recompute=np.repeat(np.arange(len(choices)), number), recomputations=choices)
    inputs = replace(inputs, plans=plans)
    work = _sum([layer_backward_work_bytes(inputs), weight_gradient_buffers_bytes(inputs)], "layer_backward")
    again = made_again(inputs)
    needed = work if again is None else work + again
    return np.asarray(needed.min(axis=1))


def _least_saved(sizes: PlanInputs, choice: Recomputation) -> FloatArray:
    """What a layer of each kind saves of a micro-batch at least, (sizes, kinds)."""
    saved = layer_saved(sizes, choice)
    if choice.method == "block":
        return np.asarray(np.minimum(saved, layer_saved(sizes, NONE)))
    return np.asarray(saved / choice.num_layers) if choice.kind == "full" and choice.num_layers else saved


def least_steps_s(of_plans: Distinct) -> FloatArray:
    """Seconds that the step of each plan is not below, (plans,): the work of all layers, spread evenly over the ranks.

    Nothing recomputed, no bubble, no hand-off, no embedding and no head.
    """
    sizes, size = of_plans.sizes, of_plans.size
    kinds, kind_of_layer = sizes.problem.model.layer_kinds()
    number = np.bincount(kind_of_layer, minlength=len(kinds))
    layers_s = np.zeros(len(sizes.plans))
    for kind, layers in zip(kinds, number.tolist(), strict=True):
        one = plain_pass(sizes, kind)
        layers_s += layers * (one.forward + one.backward)
    return np.asarray((layers_s * sizes.plans.num_microbatches / sizes.plans.pipeline_parallel)[size])
