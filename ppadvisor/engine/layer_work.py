"""Memory of the layer whose backward runs: what is made again for it, gradients, gathered inputs.

A layer's backward goes through its feed-forward, then through its attention. What the former had saved is free by then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory_axes import at_moments, by_stage
from ppadvisor.engine.recomputation import drops, group_layers, layer_input_bytes, layer_saved, rows_by_choice
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.recomputation import NONE, Recomputation

Halves = tuple[FloatArray, FloatArray]
"""Of a layer's feed-forward and of its attention, (plans,) each."""


def recomputed_layer_bytes(inputs: PlanInputs) -> FloatArray:
    """The layer in work under recomputation: what it keeps once its forward has been repeated.

    Under full recomputation a whole layer or group of layers, under selective what is made again of one half.
    """
    result = by_stage(inputs.largest_layer(halves_in_work(inputs)[0]))
    full = inputs.plans.recomputed_fully()
    if full.any():
        group = inputs.largest_layer(layer_saved(inputs)) * group_layers(inputs)
        kept = layer_input_bytes(inputs)[:, None] * (group_layers(inputs) > 0)
        result = np.where(full[:, None, None, None], by_stage(np.maximum(group - kept, 0.0)), result)
    return result * at_moments(layer_backward=1)


def layer_backward_work_bytes(inputs: PlanInputs) -> FloatArray:
    """Gradients and gathered inputs alive in the backward of one layer, in the half that needs more."""
    return by_stage(inputs.largest_layer(halves_in_work(inputs)[1])) * at_moments(layer_backward=1)


def halves_in_work(inputs: PlanInputs) -> tuple[FloatArray, FloatArray]:
    """(made again by selective recomputation, in work) of the half that needs more together, (plans, kinds) each."""
    shape = (len(inputs.plans), len(inputs.kinds))
    repeated, in_work = np.zeros(shape), np.zeros(shape)
    for choice, rows in rows_by_choice(inputs):
        for index, kind in enumerate(inputs.kinds):
            made, work = repeated_by_half(inputs, kind, choice), work_by_half(inputs, kind, choice)
            half = half_that_needs_more(made, work)[rows]
            repeated[rows, index] = np.choose(half, [of_half[rows] for of_half in made])
            in_work[rows, index] = np.choose(half, [of_half[rows] for of_half in work])
    return repeated, in_work


def half_that_needs_more(made: Halves, work: Halves) -> NDArray[np.int64]:
    """0 where a layer's feed-forward binds, 1 where its attention, (plans,)."""
    return np.asarray(made[1] + work[1] > made[0] + work[0], dtype=np.int64)


def work_by_half(inputs: PlanInputs, kind: LayerKind, choice: Recomputation = NONE) -> Halves:
    """(feed-forward's, attention's less what the former had freed) bytes in work in one layer's backward, (plans,).

    What selective recomputation makes again was not in the stash, so freeing it gives nothing back.
    """
    problem = inputs.problem
    work = problem.framework.backward_work(problem.model, problem.training, kind)
    saved = problem.framework.saved_tensors(problem.model, problem.training, kind)
    freed, _ = _by_half(inputs, tuple(t for t in saved if not drops(choice, t)))
    early = inputs.tensor_bytes(tuple(t for t in work if t.attention_share < 1))
    late = inputs.tensor_bytes(tuple(t for t in work if t.attention_share > 0))
    return early, late - freed


def repeated_by_half(inputs: PlanInputs, kind: LayerKind, choice: Recomputation) -> Halves:
    """(feed-forward, attention) bytes of a layer that selective recomputation makes again, (plans,) each."""
    problem = inputs.problem
    saved = problem.framework.saved_tensors(problem.model, problem.training, kind)
    return _by_half(inputs, tuple(t for t in saved if drops(choice, t)))


def _by_half(inputs: PlanInputs, tensors: tuple[Tensor, ...]) -> Halves:
    """Bytes of saved tensors of one layer: (feed-forward's, attention's), (plans,) each."""
    none = np.zeros(len(inputs.plans))
    sizes = [(t.attention_share, inputs.tensor_bytes((t,))) for t in tensors]
    attention = sum((share * size for share, size in sizes), none)
    return sum((size for _, size in sizes), none) - attention, attention
