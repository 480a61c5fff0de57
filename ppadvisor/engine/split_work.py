"""Memory of the action that runs at the peak: a layer's whole backward, or a step of one that is split.

The steps are told apart where a framework says what torch's engine works with in them (`input_step_work`).
"""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind, remembered
from ppadvisor.engine.layer_work import halves_in_work, last_matrix_bytes
from ppadvisor.engine.memory_activations import logits_bytes
from ppadvisor.engine.memory_axes import Term, at, plus
from ppadvisor.engine.memory_waiting import largest_in_chunk
from ppadvisor.engine.stash import Steps, Work
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
    left = tuple(t for t in framework.waiting_tensors(problem.model, problem.training, kind) if t.attention_share < 1)
    saved = inputs.tensor_bytes(framework.saved_tensors(problem.model, problem.training, kind))
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
    steps, other = step_bytes(inputs), inputs.largest_layer(halves_in_work(inputs)[1])
    with_loss = steps.input_grad + loss_in_work_bytes(inputs)
    return Work(Steps(with_loss, steps.weight_grad, steps.first_weight_grad), other)
