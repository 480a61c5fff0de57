"""Memory of a split backward: what waits for its weight gradient, what was sent and stays, both along an order."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind
from ppadvisor.engine.memory_activations import final_norm_bytes
from ppadvisor.engine.memory_axes import NOTHING, Term, once_sent, while_waiting
from ppadvisor.engine.once import once_per_layer
from ppadvisor.engine.recomputation import layer_input_bytes, layer_saved, recomputed_share, saved_per_chunk
from ppadvisor.engine.stash import Held


@once_per_layer
def waiting_per_layer(inputs: PlanInputs) -> FloatArray:
    """Bytes one layer of each kind holds between its input gradient and its weight gradient, (plans, kinds).

    What the framework keeps there: the whole saved set (recomputed, where that was asked for) and the gradients that
    the weight gradients need.
    """
    problem = inputs.problem
    tensors = [problem.tensors(problem.framework.waiting_tensors, kind) for kind in inputs.kinds]
    return by_kind([inputs.tensor_bytes(of_kind) for of_kind in tensors])


def waiting_per_chunk(inputs: PlanInputs) -> FloatArray:
    """Bytes that a chunk's layers hold of a micro-batch that waits for its weight gradient, (plans, stages, chunks).

    On the model's first stage torch's engine does nothing for the input gradient, which nobody wants, and the whole
    backward at the weight gradient: till then it holds what was saved, and no gradients (pipelining/stage.py:1018-1028,
    :1085-1106).
    """
    gradients = inputs.per_chunk(waiting_per_layer(inputs) - layer_saved(inputs)) - received_gradient(inputs)
    waiting = saved_while_waiting(inputs) + gradients
    if not inputs.problem.framework.whole_backward_on_first:
        return waiting
    whole = inputs.per_chunk(layer_saved(inputs)) - let_go_per_chunk(inputs)
    return np.where(inputs.stages.chunk_embedding > 0, whole, waiting)


def received_gradient(inputs: PlanInputs) -> FloatArray:
    """Of the gradients that wait, the one that is a receive buffer, (plans, stages, chunks), counted as such already.

    The gradient of the last layer's output is what was received, if nothing stands between: no dropout, no norm, no
    gather of the sequence. Where the next stage is on the same rank, it is that one's, and counted here.
    """
    problem, stages = inputs.problem, inputs.stages
    changed = problem.training.dropout or problem.model.norms_per_layer > 2
    if changed or not problem.framework.keeps_all_receive_buffers:
        return np.zeros_like(stages.chunk_head)
    received = (stages.chunk_head < 1) & (stages.chunk_hands_over < 1) & (stages.chunk_layers.sum(axis=3) > 0)
    return np.asarray(received * (layer_input_bytes(inputs) * (inputs.sequence_ways == 1))[:, None, None])


def saved_while_waiting(inputs: PlanInputs) -> FloatArray:
    """Of `waiting_per_chunk`, what was saved, (plans, stages, chunks)."""
    return inputs.per_chunk(layer_saved(inputs)) - let_go_per_chunk(inputs) - freed_tail_per_chunk(inputs)


def let_go_per_chunk(inputs: PlanInputs) -> FloatArray:
    """Of what a chunk's layers save, what recomputed ones do not hold while they wait, (plans, stages, chunks).

    Torch's checkpoint lets go of what it made again for the input gradient, and makes it again for weight gradients;
    other frameworks keep it for those.
    """
    if inputs.problem.framework.repeats is None or not inputs.plans.recomputed_fully().any():
        return np.zeros_like(inputs.stages.chunk_head)
    full = inputs.plans.recomputed_fully()[:, None, None]
    return np.asarray(full * (inputs.per_chunk(layer_saved(inputs)) - saved_per_chunk(inputs)))


def largest_in_chunk(inputs: PlanInputs, per_kind: FloatArray) -> FloatArray:
    """The largest value among the kinds of layer of a chunk: (plans, kinds) -> (plans, stages, chunks)."""
    return np.asarray(np.where(inputs.stages.chunk_layers > 0, per_kind[:, None, None, :], 0.0).max(axis=3))


def freed_tail_per_chunk(inputs: PlanInputs) -> FloatArray:
    """Bytes of a chunk's last layer that go with the input gradient, (plans, stages, chunks): of its heaviest kind."""
    problem = inputs.problem
    if problem.framework.freed_tail is None:
        return np.zeros(inputs.stages.chunk_head.shape)
    tails = [problem.framework.freed_tail(problem.model, problem.training, kind) for kind in inputs.kinds]
    freed = largest_in_chunk(inputs, by_kind([inputs.tensor_bytes(of_kind) for of_kind in tails]))
    # a recomputed layer has not saved it
    return freed if problem.framework.repeats is None else freed * (1.0 - recomputed_share(inputs))


def waiting_activations_bytes(inputs: PlanInputs) -> Term:
    """Split backward: what waits for its weight gradient at the peak."""
    return while_waiting(inputs, waiting_per_chunk(inputs)) if inputs.stash else NOTHING


def waiting_gradients_bytes(inputs: PlanInputs) -> Term:
    """Of `waiting_activations_bytes`, the gradients that the weight gradients need beside what was saved."""
    return while_waiting(inputs, np.maximum(waiting_per_chunk(inputs) - saved_while_waiting(inputs), 0.0))


def waiting_head_per_microbatch(inputs: PlanInputs) -> FloatArray:
    """Bytes that the head holds of a micro-batch until its weight gradient, (plans,): its input, the logits' gradient.

    T V / t elements, and T h / x, or with the input of the final norm what that keeps, where nothing is freed.
    Own count; torch's engine as run by `verify --memory`.
    """
    logits = inputs.problem.training.activation_bytes * inputs.tokens * inputs.logits_per_token
    return waiting_norm_per_microbatch(inputs) + logits


def waiting_norm_per_microbatch(inputs: PlanInputs) -> FloatArray:
    """Of `waiting_head_per_microbatch`, what the head keeps of its input, (plans,)."""
    frees = inputs.problem.framework.frees_in_input_gradient
    return layer_input_bytes(inputs) if frees else final_norm_bytes(inputs)


def waiting_head_bytes(inputs: PlanInputs) -> Term:
    """Split backward: `waiting_head_per_microbatch` for every micro-batch that waits on the chunk with the head."""
    if inputs.stash is None:
        return NOTHING
    return while_waiting(inputs, waiting_head_per_microbatch(inputs)[:, None, None] * inputs.stages.chunk_head)


def waiting_norm_bytes(inputs: PlanInputs) -> Term:
    """Of `waiting_head_bytes`, what the head keeps of its input: what was saved, no gradient."""
    if inputs.stash is None:
        return NOTHING
    return while_waiting(inputs, waiting_norm_per_microbatch(inputs)[:, None, None] * inputs.stages.chunk_head)


def sent_gradients_bytes(inputs: PlanInputs) -> Term:
    """Input gradients that were sent and stay to the end of the step: torch's engine, split backward.

    2 T h / x for each input gradient of the step so far on a stage that received its input from another rank: torch
    leaves it in the `.grad` of the buffer that was received into, till the next step begins (pipelining/_backward.py:
    257-261; cleared by stage.py:613-622; a whole backward clears it at once, _backward.py:444-450).
    """
    if not inputs.problem.framework.keeps_input_gradients:
        return NOTHING
    return once_sent(inputs, layer_input_bytes(inputs)[:, None, None])


def held_bytes(inputs: PlanInputs) -> Held:
    """Bytes of a micro-batch of each chunk, (plans, stages, chunks)."""
    stages, framework = inputs.stages, inputs.problem.framework
    head = waiting_head_per_microbatch(inputs)[:, None, None] * stages.chunk_head
    receives = (stages.chunk_embedding < 1) & (stages.chunk_takes_over < 1) & framework.keeps_input_gradients
    sent = layer_input_bytes(inputs)[:, None, None] * receives
    # a rank without layers still holds something for each micro-batch: ties go to the first most
    return Held(saved_per_chunk(inputs) + 1.0, waiting_per_chunk(inputs) + head + 1.0, sent)
