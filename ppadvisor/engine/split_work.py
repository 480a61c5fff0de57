"""Memory of the action that runs at the peak: a layer's whole backward, or a step of one that is split.

The steps are told apart where a framework says what torch's engine works with in them (`input_step_work`).
"""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind
from ppadvisor.engine.layer_work import halves_in_work, last_matrix_bytes, made_again
from ppadvisor.engine.memory_activations import logits_bytes, output_weight_gradient_bytes
from ppadvisor.engine.memory_axes import NOTHING, Term, at, plus
from ppadvisor.engine.memory_waiting import largest_in_chunk, saved_while_waiting, waiting_per_chunk
from ppadvisor.engine.once import once_per_layer, remembered
from ppadvisor.engine.recomputation import layer_saved, repeated_for_weights, weight_groups
from ppadvisor.engine.stash import Steps, Work
from ppadvisor.frameworks.profile import Repeats
from ppadvisor.specs.model import LayerKind


def layer_backward_work_bytes(inputs: PlanInputs) -> Term:
    """Gradients and gathered inputs alive in the backward of one layer, in the half that needs more.

    Where a step of a split backward runs at the peak, what that needs: `input_step_bytes`, `weight_step_bytes`.
    """
    work = inputs.largest_layer(halves_in_work(inputs)[1])
    if inputs.stash is not None and inputs.stash.under_way is not None:
        steps = inputs.stash.under_way
        work = np.where(steps.any > 0, steps.bytes_of(step_bytes(inputs)), work)
    return at(work, "layer_backward")


def recomputed_layer_bytes(inputs: PlanInputs) -> Term:
    """The layer in work under recomputation: `made_again`.

    Where weight gradients repeat it for each group of weights and one of them runs at the peak: `pile_per_chunk`.
    """
    made = made_again(inputs)
    if made is None:
        return NOTHING
    if repeated_for_weights(inputs).any():
        pile, stash = pile_per_chunk(inputs), inputs.stash
        if stash is None or stash.under_way is None:
            made = np.maximum(made, pile.max(axis=2))
        else:
            steps = stash.under_way
            piled = np.sum((steps.weight_grad + steps.first_weight_grad) * pile, axis=2)
            made = np.where(piled > 0, piled, made)
    return at(made, "layer_backward")


def loss_in_work_bytes(inputs: PlanInputs) -> FloatArray:
    """What is alive of the loss while an input gradient runs on the chunk with the head, (plans, stages, chunks).

    In torch's engine that frees nothing, so all that the loss saved stays to its end; and the logits' gradient.
    """
    problem, layers = inputs.problem, np.maximum(inputs.stages.chunk_layers.sum(axis=3), 1.0)
    loss = problem.framework.loss(problem.training)
    logits = (inputs.tokens * inputs.logits_per_token)[:, None, None] * inputs.stages.chunk_head
    # as much of the micro-batch is not counted among those that wait
    gradient = problem.training.activation_bytes / layers
    return np.asarray(logits * (loss.saved_bytes + gradient))


def loss_bytes(inputs: PlanInputs) -> Term:
    """Logits and loss: `logits_bytes`, and where an input gradient runs at the peak `loss_in_work_bytes`."""
    term, under_way = logits_bytes(inputs), loss_under_way_bytes(inputs)
    return term if under_way is None else plus(term, at(under_way, "layer_backward"))


def loss_under_way_bytes(inputs: PlanInputs) -> FloatArray | None:
    """`loss_in_work_bytes` where it is alive at the peak, (plans, stages); None: not told apart."""
    if inputs.stash is None or inputs.stash.under_way is None:
        return None
    return np.asarray((inputs.stash.under_way.input_grad * loss_in_work_bytes(inputs)).sum(axis=2))


def input_step_bytes(inputs: PlanInputs, kind: LayerKind) -> FloatArray:
    """What the input gradient of a layer works with in torch's engine, with what it has put aside by then, (plans,)."""
    problem = inputs.problem
    assert problem.framework.input_step_work is not None
    moments = problem.framework.input_step_work(problem.model, problem.training, kind)
    return np.asarray(np.max([inputs.tensor_bytes(tensors) for tensors in moments], axis=0))


def weight_step_bytes(inputs: PlanInputs, kind: LayerKind, matrices: int = 2) -> FloatArray:
    """What a layer's weight gradients add, in torch's engine, to what waits but for that layer, (plans,).

    The gradients that it has put aside too, and two matrices' gradients: each is added up when the next is made
    (torch 2.13, pipelining/_backward.py:325-339, `dweights`); of a step's first micro-batch one, which becomes the sum.
    Attention, whose weights come first, has let go by then.
    """
    problem, framework = inputs.problem, inputs.problem.framework
    left = tuple(t for t in problem.tensors(framework.waiting_tensors, kind) if t.attention_share < 1)
    saved = inputs.tensor_bytes(problem.tensors(framework.saved_tensors, kind))
    return inputs.tensor_bytes(left) - saved + matrices * last_matrix_bytes(inputs, kind)


@remembered
def step_bytes(inputs: PlanInputs) -> Steps:
    """What each step of a split backward works with beside what is held, (plans, stages, chunks)."""
    whole = inputs.stages.chunk_embedding * inputs.problem.framework.whole_backward_on_first > 0
    later, first = (
        largest_in_chunk(inputs, by_kind([weight_step_bytes(inputs, kind, matrices) for kind in inputs.kinds]))
        for matrices in (2, 1)
    )
    halves = largest_in_chunk(inputs, halves_in_work(inputs)[1])
    step = largest_in_chunk(inputs, by_kind([input_step_bytes(inputs, kind) for kind in inputs.kinds]))
    return Steps(np.where(whole, 0.0, step), np.where(whole, halves, later), np.where(whole, halves, first))


def work_of(inputs: PlanInputs) -> Work | None:
    """What the actions work with, (plans, stages, chunks); None: not told apart."""
    if inputs.problem.framework.input_step_work is None:
        return None
    steps, other, made = step_bytes(inputs), inputs.largest_layer(halves_in_work(inputs)[1]), made_again(inputs)
    again = np.zeros_like(other) if made is None else made
    with_loss = steps.input_grad + loss_in_work_bytes(inputs) + again[:, :, None]
    later, first = steps.weight_grad + again[:, :, None], steps.first_weight_grad + again[:, :, None]
    if repeated_for_weights(inputs).any():
        pile = pile_per_chunk(inputs)
        later, first = (
            np.where(pile > 0, of_step + pile, more)
            for of_step, more in ((steps.weight_grad, later), (steps.first_weight_grad, first))
        )
    return Work(Steps(with_loss, later, first), other + again)


def repeats_of(inputs: PlanInputs, kind: LayerKind) -> Repeats:
    """What a layer's weight gradients repeat."""
    problem = inputs.problem
    assert problem.framework.repeats is not None
    return problem.framework.repeats(problem.model, problem.training, kind)


@once_per_layer
def left_per_layer(inputs: PlanInputs) -> FloatArray:
    """Bytes that the repeats of a recomputed layer leave behind until the stage's last weight gradient, (plans, kinds).

    Groups of weights x what no weight gradient reads.
    """
    left = by_kind([inputs.tensor_bytes(repeats_of(inputs, kind).left) for kind in inputs.kinds])
    return left * weight_groups(inputs)


@once_per_layer
def last_repeats(inputs: PlanInputs) -> FloatArray:
    """Bytes of repeats at the worst moment of a stage's last layer, (plans, kinds): those before, and a whole one.

    With the output of its attention, which the forward holds to its end, and without its input, which is kept anyway.
    """
    per_kind = []
    for index, kind in enumerate(inputs.kinds):
        one = repeats_of(inputs, kind)
        before = [times * inputs.tensor_bytes((*one.left, *beside)) for times, beside in one.worst]
        per_kind.append(np.max(before, axis=0) + layer_saved(inputs)[:, index])
    return by_kind(per_kind)


def repeats_to_the_end(inputs: PlanInputs) -> FloatArray:
    """`last_repeats` where a layer behind, or the head, holds on to all of them, (plans, stages, chunks).

    At the layer's last group, or behind it when the output layer makes its weight's gradient.
    """
    per_kind = []
    for index, kind in enumerate(inputs.kinds):
        one = repeats_of(inputs, kind)
        before = (one.groups - 1) * inputs.tensor_bytes((*one.left, *one.at_end))
        per_kind.append(before + layer_saved(inputs)[:, index])
    head = output_weight_gradient_bytes(inputs).get("head_backward", 0.0) * np.ones_like(inputs.stages.count)
    with_head = largest_in_chunk(inputs, left_per_layer(inputs)) + head[:, :, None] * inputs.stages.chunk_head
    return np.maximum(largest_in_chunk(inputs, by_kind(per_kind)), with_head)


@remembered
def pile_per_chunk(inputs: PlanInputs) -> FloatArray:
    """What the weight gradients of a chunk of recomputed layers pile up, (plans, stages, chunks).

    The graph of a later layer holds that of the earlier, and so their repeats: all layers' but the last's, and its own.
    Less `used_gradients`.
    """
    before, last, used = repeats_before(inputs), repeats_of_last(inputs), used_gradients(inputs)
    return np.asarray((repeated_for_weights(inputs) > 0) * (before + last - used))


def repeats_before(inputs: PlanInputs) -> FloatArray:
    """What the repeats of a chunk's recomputed layers but the last leave, (plans, stages, chunks)."""
    left = left_per_layer(inputs)
    return np.maximum(inputs.per_chunk(left) * repeated_for_weights(inputs) - largest_in_chunk(inputs, left), 0.0)


def repeats_of_last(inputs: PlanInputs) -> FloatArray:
    """What the repeats of a chunk's last recomputed layer hold at their worst, (plans, stages, chunks)."""
    last = largest_in_chunk(inputs, last_repeats(inputs))
    behind = (inputs.stages.chunk_head > 0) | (repeated_for_weights(inputs) < 1)
    return np.where(behind, np.maximum(last, repeats_to_the_end(inputs)), last)


def used_gradients(inputs: PlanInputs) -> FloatArray:
    """Of the micro-batch in a weight gradient, what was put aside for layers that are done, (plans, stages, chunks).

    Torch lets go of a group's gradients as it goes through them (torch 2.13, pipelining/_backward.py:325-347); counted
    among those that wait are those of all layers but one, and the last of the recomputed is in work.
    """
    layers = np.maximum(inputs.stages.chunk_layers.sum(axis=3), 1.0)
    gradients = waiting_per_chunk(inputs) - saved_while_waiting(inputs)
    return np.asarray(np.maximum(repeated_for_weights(inputs) - 1.0 / layers, 0.0) * np.maximum(gradients, 0.0))
