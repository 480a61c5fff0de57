"""What recomputation leaves of a layer's activations, what it makes again, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind, of_rows, once_per_size, remembered
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.recomputation import NONE, Recomputation

IntArray = NDArray[np.int64]


def rows_by_choice(inputs: PlanInputs) -> Iterator[tuple[Recomputation, IntArray]]:
    """Each recomputation in the table with the rows that do it."""
    for index, choice in enumerate(inputs.plans.recomputations):
        rows = np.flatnonzero(inputs.plans.recompute == index)
        if len(rows):
            yield choice, rows


def drops(choice: Recomputation, tensor: Tensor) -> bool:
    """Whether selective recomputation makes the tensor again."""
    return choice.kind == "selective" and not set(tensor.modules).isdisjoint(choice.modules)


def under_own_choice(inputs: PlanInputs, of_choice: Callable[[PlanInputs, Recomputation], FloatArray]) -> FloatArray:
    """What a function of sizes and a recomputation gives for each plan under its own, arrays that begin with (plans,).

    The function must not ask for the number of layers: it is called once for each kind of recomputation and modules.
    """
    chosen = np.bincount(inputs.plans.recompute, minlength=len(inputs.plans.recomputations))
    first: dict[tuple[str, tuple[str, ...]], Recomputation] = {}
    place = np.zeros(len(chosen), dtype=np.int64)
    for index in np.flatnonzero(chosen).tolist():
        choice = inputs.plans.recomputations[index]
        first.setdefault((choice.kind, choice.modules), choice)
        place[index] = list(first).index((choice.kind, choice.modules))
    if len(first) == 1:
        return of_choice(inputs, *first.values())
    distinct, row = inputs.sizes or (inputs, np.arange(len(inputs.plans)))
    made = np.concatenate([of_choice(distinct, choice) for choice in first.values()])
    return of_rows(made, place[inputs.plans.recompute] * len(distinct.plans) + row)


@remembered
def layer_input_bytes(inputs: PlanInputs) -> FloatArray:
    """The input of a layer, kept where its forward is repeated: divided only by sequence parallelism. (plans,)"""
    problem = inputs.problem
    return problem.training.activation_bytes * problem.model.hidden_size * inputs.tokens / inputs.sequence_ways


@remembered
@once_per_size
def layer_saved(inputs: PlanInputs, choice: Recomputation = NONE) -> FloatArray:
    """Bytes that one layer of each kind keeps for one micro-batch under a recomputation, (plans, kinds)."""
    if choice.kind == "full":
        return by_kind([layer_input_bytes(inputs)] * len(inputs.kinds))
    problem = inputs.problem
    tensors = [problem.framework.saved_tensors(problem.model, problem.training, kind) for kind in inputs.kinds]
    kept = [tuple(t for t in of_kind if not drops(choice, t)) for of_kind in tensors]
    return by_kind([inputs.tensor_bytes(of_kind) for of_kind in kept])


def saved_per_layer(inputs: PlanInputs) -> FloatArray:
    """Bytes that a layer of each kind keeps for one micro-batch under the plan's recomputation, (plans, kinds).

    Under full recomputation those of a layer that is recomputed.
    """
    return under_own_choice(inputs, layer_saved)


@remembered
def _layers_and_period(inputs: PlanInputs) -> tuple[FloatArray, FloatArray]:
    """(layers of each chunk that are recomputed; layers from one kept input to the next), (plans, stages, chunks).

    Full recomputation by the method `block`: the first of each chunk (Megatron-LM core/transformer/
    transformer_block.py, _checkpointed_forward: a block is one virtual chunk); `uniform`: all, an input a group.
    """
    held = inputs.stages.chunk_layers.sum(axis=3)
    layers, period = np.zeros_like(held), np.ones_like(held)
    for choice, rows in rows_by_choice(inputs):
        if choice.kind != "full":
            continue
        if choice.method == "block":
            layers[rows] = np.minimum(of_rows(held, rows), choice.num_layers)
        else:
            layers[rows], period[rows] = of_rows(held, rows), choice.num_layers
    return layers, period


@remembered
def recomputed_share(inputs: PlanInputs) -> FloatArray:
    """Of each chunk's layers, those whose whole forward is repeated, (plans, stages, chunks).

    In a chunk with several kinds of layer every kind is taken to have the same share.
    """
    held = inputs.stages.chunk_layers.sum(axis=3)
    return np.asarray(_layers_and_period(inputs)[0] / np.maximum(held, 1.0))


def kept_inputs(inputs: PlanInputs) -> FloatArray:
    """Layer inputs that a chunk keeps for one micro-batch instead of what its layers save, (plans, stages, chunks)."""
    layers, period = _layers_and_period(inputs)
    return np.ceil(layers / period)


def saved_per_chunk(inputs: PlanInputs) -> FloatArray:
    """Bytes that the layers of a chunk keep for one micro-batch, (plans, stages, chunks)."""
    full = inputs.plans.recomputed_fully()
    plain = inputs.per_chunk(saved_per_layer(inputs))
    if not full.any():
        return plain
    whole = inputs.per_chunk(layer_saved(inputs)) * (1.0 - recomputed_share(inputs))
    return np.where(full[:, None, None], whole + layer_input_bytes(inputs)[:, None, None] * kept_inputs(inputs), plain)


@remembered
def repeated_for_weights(inputs: PlanInputs) -> FloatArray:
    """Of a chunk's layers, those that each group of weights repeats in a split backward, (plans, stages, chunks).

    The recomputed ones, where a framework does so; on torch's first stage none, for the whole backward is one there and
    repeats them once.
    """
    framework = inputs.problem.framework
    if framework.repeats is None or not inputs.plans.recomputed_fully().any():
        return np.zeros_like(inputs.stages.chunk_embedding)
    split = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.rows_by_schedule():
        split[rows] = schedule.splits_backward
    apart = 1.0 - framework.whole_backward_on_first * (inputs.stages.chunk_embedding > 0)
    return np.asarray(split[:, None, None] * apart * recomputed_share(inputs))


def weight_groups(inputs: PlanInputs) -> FloatArray:
    """Groups of weights of a layer of each kind that each repeat its forward, (kinds,)."""
    problem = inputs.problem
    assert problem.framework.repeats is not None
    repeats = [problem.framework.repeats(problem.model, problem.training, kind) for kind in inputs.kinds]
    return np.array([float(one.groups) for one in repeats])


@remembered
def group_layers(inputs: PlanInputs) -> FloatArray:
    """Layers that are recomputed in one go, (plans, stages): the group of `uniform`, one of `block`."""
    layers, period = _layers_and_period(inputs)
    return np.asarray(np.minimum(layers, period).max(axis=2))
