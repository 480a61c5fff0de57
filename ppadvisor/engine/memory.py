"""Memory of every stage: named terms at a few moments; the peak is the highest moment, the sum of its terms.

Every term is a function of the plan table that returns, for the moments at which it is alive, bytes of shape
(plans, stages). A stage's terms at a moment add up to what is allocated at that moment; the allowances of the process
(context, communicators, fragmentation) come on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind
from ppadvisor.engine.memory_activations import (
    embedding_activations_bytes,
    embedding_gradient_bytes,
    handoff_buffers_bytes,
    head_activations_bytes,
    output_weight_gradient_bytes,
    saved_activations_bytes,
    sent_outputs_bytes,
    spread_head_bytes,
)
from ppadvisor.engine.memory_axes import MOMENTS, Term
from ppadvisor.engine.memory_states import (
    autograd_gradients_bytes,
    gathered_parameters_bytes,
    gradients_bytes,
    main_gradients_bytes,
    optimizer_states_bytes,
    step_blocks_bytes,
    weight_gradient_buffers_bytes,
    weight_versions_bytes,
    weights_bytes,
    whole_gradients_bytes,
)
from ppadvisor.engine.memory_waiting import sent_gradients_bytes, waiting_activations_bytes, waiting_head_bytes
from ppadvisor.engine.once import once_per_layer
from ppadvisor.engine.recomputation import by_chunk, drops, group_layers, recomputed_share, under_own_choice
from ppadvisor.engine.split_work import layer_backward_work_bytes, loss_bytes, recomputed_layer_bytes
from ppadvisor.specs.assumptions import Assumption
from ppadvisor.specs.recomputation import NONE, Recomputation

TERMS: tuple[tuple[str, Callable[[PlanInputs], Term]], ...] = (
    ("weights", weights_bytes),
    ("gradients", gradients_bytes),
    ("autograd_gradients", autograd_gradients_bytes),
    ("whole_gradients", whole_gradients_bytes),
    ("optimizer_states", optimizer_states_bytes),
    ("main_gradients", main_gradients_bytes),
    ("gathered_parameters", gathered_parameters_bytes),
    ("weight_gradient_buffers", weight_gradient_buffers_bytes),
    ("saved_activations", saved_activations_bytes),
    ("waiting_activations", waiting_activations_bytes),
    ("waiting_head", waiting_head_bytes),
    ("weight_versions", weight_versions_bytes),
    ("sent_outputs", sent_outputs_bytes),
    ("sent_gradients", sent_gradients_bytes),
    ("embedding_activations", embedding_activations_bytes),
    ("recomputed_layer", recomputed_layer_bytes),
    ("layer_backward_work", layer_backward_work_bytes),
    ("head_activations", head_activations_bytes),
    ("spread_head", spread_head_bytes),
    ("logits", loss_bytes),
    ("output_weight_gradient", output_weight_gradient_bytes),
    ("embedding_gradient", embedding_gradient_bytes),
    ("handoff_buffers", handoff_buffers_bytes),
)
"""Everything that the allocator hands out. A new term is one function and one line here."""

BETWEEN_STEPS: tuple[str, ...] = (
    "weights",
    "gradients",
    "autograd_gradients",
    "whole_gradients",
    "optimizer_states",
    "main_gradients",
    "weight_gradient_buffers",
    "weight_versions",
)
"""What stays when nothing is in flight; the other terms come and go with the micro-batches."""

ALLOWANCES: tuple[str, ...] = ("allocator_overhead", "step_blocks", "cuda_context", "workspace", "communicator_buffers")
"""What the process holds beyond the tensors; computed from the assumptions, at every moment."""

OUTSIDE_TORCH: tuple[str, ...] = ("cuda_context", "communicator_buffers")
"""Of them, what torch's allocator does not know."""

End = Literal["low", "value", "high"]
ENDS: tuple[End, ...] = ("low", "value", "high")


@dataclass(frozen=True)
class MemoryTable:
    """Memory of each plan and stage at its highest moment. Bytes; (plans, stages) unless said otherwise."""

    terms: dict[str, FloatArray]
    """Each term at the stage's highest moment, allowances included; their sum is `total`."""
    allocated: FloatArray
    """What torch calls max allocated: the terms without the allowances."""
    total: FloatArray
    """What the process needs: the middle estimate."""
    high: FloatArray
    """The conservative end: what the assumptions about memory, each at the heavy end of its range, add together."""
    moment: NDArray[np.int64]
    """Index into MOMENTS; with the terms alone."""
    below: dict[str, FloatArray]
    """How far each allowance may be below its middle."""
    above: dict[str, FloatArray]
    """How far above; `unbalanced`: what an uneven routing of tokens to experts adds."""


def memory_table(inputs: PlanInputs, *, keep_terms: bool) -> MemoryTable:
    """Evaluate every term, take each stage's highest moment. Without `keep_terms` only the sums are kept."""
    nothing = np.zeros_like(inputs.stages.count, dtype=np.float64)
    # then it matters what comes and goes, and when
    eager = inputs.problem.framework.eager_temporaries
    allocated_at, static_at, made = _Sums(nothing), _Sums(nothing), dict[str, Term]()
    for name, term in TERMS:
        of_term = term(inputs)
        allocated_at.add(of_term)
        if name in BETWEEN_STEPS and eager:
            static_at.add(of_term)
        if keep_terms:
            made[name] = of_term
    allocated = allocated_at.highest()
    moment = allocated_at.moment_of(allocated) if keep_terms or eager else np.zeros(allocated.shape, dtype=np.int64)
    transient = allocated - static_at.at(moment) if eager else allocated
    low, middle, high = (_allowances(inputs, allocated, transient, end) for end in ENDS)
    # padding groups hold nothing and must never bind
    real = np.minimum(inputs.stages.ranks, 1.0)
    total = (allocated + _sum_of(middle.values())) * real
    above = {name: high[name] - middle[name] for name in ALLOWANCES} | {"unbalanced": _unbalanced_bytes(inputs)}
    conservative = total + together(above) * real
    if not keep_terms:
        return MemoryTable({}, allocated * real, total, conservative, moment, {}, {})
    chosen = [moment == index for index in range(len(MOMENTS))]
    terms = {name: _chosen(term, chosen) for name, term in made.items()}
    below = {name: middle[name] - low[name] for name in ALLOWANCES}
    terms, below, above = ({name: one + nothing for name, one in of.items()} for of in (terms | middle, below, above))
    return MemoryTable(terms, allocated * real, total, conservative, moment, below, above)


class _Sums:
    """Sums of terms at every moment. Moments that have had the same terms share one array until they differ."""

    def __init__(self, nothing: FloatArray) -> None:
        self._sums = dict.fromkeys(MOMENTS, nothing)

    def add(self, term: Term) -> None:
        made: dict[tuple[int, int], FloatArray] = {}
        for moment, values in term.items():
            before = self._sums[moment]
            key = id(before), id(values)
            if key not in made:
                made[key] = before + values
            self._sums[moment] = made[key]

    def highest(self) -> FloatArray:
        """The sum at the highest moment of each plan and stage."""
        distinct = {id(values): values for values in self._sums.values()}
        return np.asarray(reduce(np.maximum, distinct.values()))

    def moment_of(self, highest: FloatArray) -> NDArray[np.int64]:
        """Index of the highest moment, the first of equals."""
        sums = [values == highest for values in self._sums.values()]
        return np.asarray(np.select(sums, range(len(sums))))

    def at(self, moment: NDArray[np.int64]) -> FloatArray:
        """The sum at a moment of each plan and stage."""
        first, *others = self._sums.values()
        chosen = first
        for number, other in enumerate(others, 1):
            chosen = chosen if other is first else np.where(moment == number, other, chosen)
        return chosen


def _chosen(term: Term, chosen: Sequence[NDArray[np.bool_]]) -> FloatArray:
    """A term at a moment of each plan and stage, (plans, stages): for each of MOMENTS whether it is that."""
    result = np.zeros(chosen[0].shape)
    for moment, here in zip(MOMENTS, chosen, strict=True):
        if moment in term:
            np.copyto(result, term[moment], where=here)
    return result


def together(ranges: Mapping[str, FloatArray]) -> FloatArray:
    """How far a sum may lie off when each part may lie so far off by itself: the root of the sum of squares."""
    return np.asarray(np.sqrt(_sum_of(size * size for size in ranges.values())))


def _sum_of(parts: Iterable[FloatArray]) -> FloatArray:
    """The sum of arrays that have one shape or are stretched to it: the small ones first, which costs least."""
    first, *others = sorted(parts, key=np.size)
    return np.asarray(sum(others, first))


def _unbalanced_bytes(inputs: PlanInputs) -> FloatArray:
    """What an uneven routing of tokens to experts adds at the heavy end of its range, (plans, stages)."""
    load = inputs.problem.assumptions.expert_load_factor
    return _dispatched_bytes(inputs) * (load.high / load.value - 1.0)


def _dispatched_bytes(inputs: PlanInputs) -> FloatArray:
    """What grows with unbalanced routing, (plans, stages): dispatched tokens in the stash and in the layer in work."""
    if inputs.problem.model.moe is None:
        return np.zeros((1, 1))
    whole = _dispatched_per_layer(inputs, NONE)
    kept = under_own_choice(inputs, _dispatched_per_layer)
    full = inputs.plans.recomputed_fully()[:, None]
    again = np.where(full, inputs.largest_layer(whole) * group_layers(inputs), inputs.largest_layer(whole - kept))
    if inputs.stash is None and not by_chunk(inputs):
        stash = inputs.per_stage(np.where(full, 0.0, kept)) * inputs.alike_in_flight
    else:
        of_chunks = inputs.per_chunk(kept) * (1.0 - recomputed_share(inputs)) * inputs.chunk_in_flight
        stash = inputs.stages.all_chunks(of_chunks)
    # what waits for its weight gradient is whole, recomputed where it had to be
    waiting = (inputs.per_chunk(whole) * inputs.stash.at_peak.waiting).sum(axis=2) if inputs.stash else 0.0
    return np.asarray(stash + again + waiting)


@once_per_layer
def _dispatched_per_layer(inputs: PlanInputs, choice: Recomputation) -> FloatArray:
    """Bytes of the tensors of dispatched tokens that a layer keeps under a selective recomputation, (plans, kinds)."""
    problem = inputs.problem
    per_kind = []
    for kind in inputs.kinds:
        tensors = problem.tensors(problem.framework.saved_tensors, kind)
        routed = (t for t in tensors if t.spread.name.startswith("EXPERT") and not drops(choice, t))
        per_kind.append(inputs.tensor_bytes(tuple(routed)))
    return by_kind(per_kind)


def communicator_groups(inputs: PlanInputs) -> FloatArray:
    """Process groups of more than one rank that a rank belongs to, (plans,)."""
    plans = inputs.plans
    twice = [plans.tensor_parallel, plans.data_parallel * plans.context_parallel]
    sizes = [*twice, plans.context_parallel, plans.pipeline_parallel, inputs.expert_ways]
    if inputs.problem.framework.groups_made_twice:
        sizes += twice
    return np.asarray(np.sum([size > 1 for size in sizes], axis=0), dtype=np.float64)


def _allowances(inputs: PlanInputs, allocated: FloatArray, transient: FloatArray, end: End) -> dict[str, FloatArray]:
    """The allowances in the middle or at an end of their ranges, (plans, stages) each or stretched to that.

    `transient`: what of the allocated comes and goes with the micro-batches.
    """
    assumed = inputs.problem.assumptions

    def of(assumption: Assumption) -> float:
        return {"value": assumption.value, "low": assumption.low, "high": assumption.high}[end]

    eager = inputs.problem.framework.eager_temporaries
    lost = transient * of(assumed.eager_overhead) if eager else allocated * of(assumed.allocator_overhead)
    return {
        "allocator_overhead": lost,
        "step_blocks": step_blocks_bytes(inputs, of(assumed.reduction_buckets)),
        "cuda_context": np.full((1, 1), of(assumed.cuda_context_bytes)),
        "workspace": np.full((1, 1), of(assumed.workspace_bytes)),
        "communicator_buffers": communicator_groups(inputs)[:, None] * of(assumed.communicator_bytes),
    }
