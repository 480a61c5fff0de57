"""Memory of the layer whose backward runs: what is made again for it, gradients, gathered inputs.

A layer's backward goes through its feed-forward, then through its attention. What the former had saved is free by then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind
from ppadvisor.engine.memory_states import gathered_bytes_per_parameter
from ppadvisor.engine.once import once_per_layer, remembered
from ppadvisor.engine.parameters import layer_weights
from ppadvisor.engine.recomputation import (
    drops,
    group_layers,
    layer_input_bytes,
    layer_saved,
    under_own_choice,
    used_choices,
)
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.recomputation import NONE, Recomputation

LAST_MATRICES = ("mlp_down", "experts_down")
"""Of a dense feed-forward and of the routed experts; the largest, or as large as any."""

Halves = tuple[FloatArray, FloatArray]
"""Of a layer's feed-forward and of its attention, (plans,) each."""


def made_again(inputs: PlanInputs) -> FloatArray | None:
    """What the layer in work keeps once its forward has been repeated, (plans, stages); None: nothing is repeated.

    Under full recomputation a whole layer or group of layers, under selective what is made again of one half.
    """
    full = inputs.plans.recomputed_fully()
    if not full.any() and all(choice == NONE for choice in used_choices(inputs)):
        return None
    again = halves_in_work(inputs)[0]
    if not full.any():
        return inputs.largest_layer(again)
    largest = inputs.largest_layer(np.where(full[:, None], layer_saved(inputs), again))
    group = group_layers(inputs)
    kept = layer_input_bytes(inputs)[:, None] * (group > 0)
    return np.where(full[:, None], np.maximum(largest * group - kept, 0.0), largest)


@remembered
def halves_in_work(inputs: PlanInputs) -> tuple[FloatArray, FloatArray]:
    """(made again by selective recomputation, in work) of the half that needs more together, (plans, kinds) each."""
    both = under_own_choice(inputs, _halves_in_work)
    return both[:, : len(inputs.kinds)], both[:, len(inputs.kinds) :]


@once_per_layer
def _halves_in_work(inputs: PlanInputs, choice: Recomputation) -> FloatArray:
    """The same under one recomputation, one beside the other, (plans, 2 kinds)."""
    repeated, in_work = [], []
    for kind in inputs.kinds:
        made, work = repeated_by_half(inputs, kind, choice), work_by_half(inputs, kind, choice)
        half = half_that_needs_more(made, work)
        repeated.append(np.choose(half, made))
        in_work.append(np.choose(half, work))
    return by_kind([*repeated, *in_work])


def half_that_needs_more(made: Halves, work: Halves) -> NDArray[np.int64]:
    """0 where a layer's feed-forward binds, 1 where its attention, (plans,)."""
    return np.asarray(made[1] + work[1] > made[0] + work[0], dtype=np.int64)


def work_by_half(inputs: PlanInputs, kind: LayerKind, choice: Recomputation = NONE) -> Halves:
    """(feed-forward's, attention's less what the former had freed) bytes in work in one layer's backward, (plans,).

    With the gradient of a weight where that makes more: `last_product_bytes`.
    """
    early, late = activations_by_half(inputs, kind, choice)
    if inputs.problem.framework.last_product_work is None:
        return early, late
    return np.maximum(early, last_product_bytes(inputs, kind)), late


def activations_by_half(inputs: PlanInputs, kind: LayerKind, choice: Recomputation = NONE) -> Halves:
    """`work_by_half` without the gradients of weights.

    What selective recomputation makes again was not in the stash, so freeing it gives nothing back.
    """
    problem = inputs.problem
    saved = problem.tensors(problem.framework.saved_tensors, kind)
    freed, _ = _by_half(inputs, tuple(t for t in saved if not drops(choice, t)))
    early, late = (inputs.tensor_bytes(tensors_in_work(inputs, kind, attention=half)) for half in (False, True))
    return early, late - freed


def tensors_in_work(inputs: PlanInputs, kind: LayerKind, *, attention: bool) -> tuple[Tensor, ...]:
    """What the backward of one half of a layer holds."""
    problem = inputs.problem
    work = problem.tensors(problem.framework.backward_work, kind)
    return tuple(t for t in work if t.attention_share != (0 if attention else 1))


def last_matrix_bytes(inputs: PlanInputs, kind: LayerKind) -> FloatArray:
    """The gradient of the feed-forward's last matrix, of all experts of a rank, before it is accumulated, (plans,).

    None of its own where a fused product adds to the accumulated one, or with the whole layer's (ZeRO-2 and 3).
    """
    if inputs.problem.framework.last_product_work is None:
        return np.zeros(len(inputs.plans))
    down = tuple(w for w in layer_weights(inputs.problem.model, kind) if w.name in LAST_MATRICES)
    dense, expert = inputs.rank_parameters(tuple(w for w in down if kind.moe == w.name.startswith("experts")))
    alone = gathered_bytes_per_parameter(inputs) == 0
    return np.asarray(inputs.problem.training.weight_bytes * (dense + expert) * alone)


def last_product_bytes(inputs: PlanInputs, kind: LayerKind) -> FloatArray:
    """What is alive when the gradient of the feed-forward's last matrix is made, (plans,).

    Less what shared experts had saved: they come behind the routed ones, and are done by then.
    """
    problem = inputs.problem
    matrix = last_matrix_bytes(inputs, kind)
    if problem.framework.last_product_work is None:
        return matrix
    beside = inputs.tensor_bytes(problem.tensors(problem.framework.last_product_work, kind))
    return np.where(matrix > 0, matrix + beside - shared_experts_bytes(inputs, kind), 0.0)


def shared_experts_bytes(inputs: PlanInputs, kind: LayerKind) -> FloatArray:
    """What the shared experts of a layer save, (plans,)."""
    problem = inputs.problem
    saved = problem.tensors(problem.framework.saved_tensors, kind)
    return inputs.tensor_bytes(tuple(tensor for tensor in saved if "shared_experts" in tensor.modules))


def repeated_by_half(inputs: PlanInputs, kind: LayerKind, choice: Recomputation) -> Halves:
    """(feed-forward, attention) bytes of a layer that selective recomputation makes again, (plans,) each."""
    problem = inputs.problem
    saved = problem.tensors(problem.framework.saved_tensors, kind)
    return _by_half(inputs, tuple(t for t in saved if drops(choice, t)))


def _by_half(inputs: PlanInputs, tensors: tuple[Tensor, ...]) -> Halves:
    """Bytes of saved tensors of one layer: (feed-forward's, attention's), (plans,) each."""
    none = np.zeros(len(inputs.plans))
    sizes = [(t.attention_share, inputs.tensor_bytes((t,))) for t in tensors]
    attention = sum((share * size for share, size in sizes), none)
    return sum((size for _, size in sizes), none) - attention, attention
