"""What recomputation leaves of a layer's activations, what it makes again, and what that costs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind
from ppadvisor.engine.once import of_rows, once_per_layer, remembered
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.recomputation import NONE, Recomputation

IntArray = NDArray[np.int64]


@remembered
def used_choices(inputs: PlanInputs) -> list[Recomputation]:
    """The recomputations that a plan of the table does."""
    used = np.bincount(inputs.plans.recompute, minlength=len(inputs.plans.recomputations)).tolist()
    return [choice for choice, number in zip(inputs.plans.recomputations, used, strict=True) if number]


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
    layers, row = inputs.layers or (inputs, np.arange(len(inputs.plans)))
    made = np.concatenate([of_choice(layers, choice) for choice in first.values()])
    return of_rows(made, place[inputs.plans.recompute] * len(layers.plans) + row)


@remembered
def layer_input_bytes(inputs: PlanInputs) -> FloatArray:
    """The input of a layer, kept where its forward is repeated: divided only by sequence parallelism. (plans,)"""
    problem = inputs.problem
    return problem.training.activation_bytes * problem.model.hidden_size * inputs.tokens / inputs.sequence_ways


@remembered
@once_per_layer
def layer_saved(inputs: PlanInputs, choice: Recomputation = NONE) -> FloatArray:
    """Bytes that one layer of each kind keeps for one micro-batch under a recomputation, (plans, kinds)."""
    if choice.kind == "full":
        return by_kind([layer_input_bytes(inputs)] * len(inputs.kinds))
    problem = inputs.problem
    tensors = [problem.tensors(problem.framework.saved_tensors, kind) for kind in inputs.kinds]
    kept = [tuple(t for t in of_kind if not drops(choice, t)) for of_kind in tensors]
    return by_kind([inputs.tensor_bytes(of_kind) for of_kind in kept])


def saved_per_layer(inputs: PlanInputs) -> FloatArray:
    """Bytes that a layer of each kind keeps for one micro-batch under the plan's recomputation, (plans, kinds).

    Under full recomputation those of a layer that is recomputed.
    """
    return under_own_choice(inputs, layer_saved)


@remembered
def _layers_and_period(inputs: PlanInputs) -> tuple[FloatArray, FloatArray]:
    """(layers of each chunk that are recomputed; layers from one kept input to the next), (plans, stages, chunks) or 1.

    Full recomputation by the method `block`: the first of each chunk (Megatron-LM core/transformer/
    transformer_block.py, _checkpointed_forward: a block is one virtual chunk); `uniform`: all, an input a group.
    """
    most, period = _of_choices(inputs, _most_layers), np.maximum(_of_choices(inputs, _group), 1.0)
    return np.minimum(inputs.stages.chunk_layers.sum(axis=3), most[:, None, None]), period[:, None, None]


def _of_choices(inputs: PlanInputs, of_choice: Callable[[Recomputation], float]) -> FloatArray:
    """A number of each plan's recomputation, (plans,)."""
    numbers = np.array([of_choice(choice) for choice in inputs.plans.recomputations], dtype=np.float64)
    return np.asarray(numbers[inputs.plans.recompute])


def _most_layers(choice: Recomputation) -> float:
    """Layers of a chunk that are recomputed at most."""
    if choice.kind != "full":
        return 0.0
    return choice.num_layers if choice.method == "block" else np.inf


def _group(choice: Recomputation) -> int:
    """Layers that are recomputed in one go at most."""
    if choice.kind != "full":
        return 0
    return choice.num_layers if choice.method == "uniform" else 1


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
    for schedule, rows in inputs.by_schedule:
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
    return np.minimum(inputs.stages.largest_chunk, _of_choices(inputs, _group)[:, None])


@remembered
def by_chunk(inputs: PlanInputs) -> bool:
    """Whether what a rank recomputes hangs on each of its chunks, as some layers of each do, not on all its layers."""
    return any(choice.method == "block" or choice.num_layers > 1 for choice in used_choices(inputs))


def saved_per_rank(inputs: PlanInputs) -> tuple[FloatArray, FloatArray]:
    """Bytes that the layers of a rank keep for one micro-batch: of all chunks; of those with the embedding."""
    if by_chunk(inputs):
        saved = saved_per_chunk(inputs)
        return inputs.stages.all_chunks(saved), inputs.stages.all_chunks(saved * (inputs.stages.chunk_embedding > 0))
    per_layer = saved_per_layer(inputs)
    return inputs.per_stage(per_layer), inputs.of_embedding(per_layer)
