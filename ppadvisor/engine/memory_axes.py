"""When a memory term is alive: at which moments it has how many bytes, (plans, stages) each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.once import remembered
from ppadvisor.engine.stash import Held

MOMENTS: tuple[str, ...] = ("layer_backward", "loss", "head_backward", "embedding_backward", "optimizer_step")
"""layer_backward: a layer's backward starts with everything in flight. loss: the loss's worst moment. head_backward:
the output layer's backward. embedding_backward: the first stage, that micro-batch's layers already freed.
optimizer_step: nothing in flight."""

IN_PIPELINE = MOMENTS[:-1]
"""The moments at which micro-batches are in flight (less one at embedding_backward)."""

AT_LOSS = ("loss", "head_backward")
"""The moments of the loss, when its micro-batch is still all there."""

Term = dict[str, FloatArray]
"""Moment -> bytes of each plan and stage, (plans, stages); nothing at a moment that is missing."""

NOTHING: Term = {}


def always(values: FloatArray) -> Term:
    """The same at every moment."""
    return dict.fromkeys(MOMENTS, values)


def at(values: FloatArray, *moments: str) -> Term:
    """The same at these moments, nothing at the others."""
    return dict.fromkeys(moments, values)


@remembered
def in_flight_at(inputs: PlanInputs, moment: str) -> FloatArray:
    """Micro-batches whose activations are alive in each chunk at a moment, (plans, stages, chunks).

    In the backward of the embedding those of its chunk are one fewer: that micro-batch's layers are already freed.
    """
    held = _held_at(inputs, moment)
    in_flight = held.alive if held else inputs.chunk_in_flight
    if moment == "optimizer_step":
        return np.zeros_like(in_flight)
    freed = inputs.stages.chunk_embedding > 0 if moment == "embedding_backward" else False
    return np.maximum(in_flight - freed, 0.0)


def waiting_at(inputs: PlanInputs, moment: str) -> FloatArray:
    """Micro-batches that wait for their weight gradient in each chunk at a moment, (plans, stages, chunks).

    Told apart for the plans that are shown.
    """
    held = _held_at(inputs, moment)
    return held.waiting if held and moment in IN_PIPELINE else np.zeros_like(inputs.stages.chunk_head)


def sent_at(inputs: PlanInputs, moment: str) -> FloatArray:
    """Input gradients that a split backward handed on to another rank so far in the step: as `waiting_at`."""
    held = _held_at(inputs, moment)
    receives = (inputs.stages.chunk_embedding < 1) & (inputs.stages.chunk_takes_over < 1)
    return held.sent * receives if held and moment in IN_PIPELINE else np.zeros_like(inputs.stages.chunk_head)


def _held_at(inputs: PlanInputs, moment: str) -> Held | None:
    """What the order of work leaves in each chunk at a moment; None: not read off it."""
    if inputs.stash is None:
        return None
    return inputs.stash.at_loss if moment in AT_LOSS else inputs.stash.at_peak


def while_in_flight(inputs: PlanInputs, of_chunks: Callable[[FloatArray], FloatArray]) -> Term:
    """What hangs on the micro-batches in flight in each chunk, (plans, stages, chunks) -> the same; chunks summed."""
    return _in_pipeline(inputs, in_flight_at, of_chunks)


def while_alike(
    inputs: PlanInputs,
    whole: FloatArray,
    of_embedding: FloatArray,
    count: Callable[[FloatArray], FloatArray] = np.asarray,
) -> Term:
    """As `while_in_flight` where the order of work is not known, so that all chunks of a rank hold alike.

    `whole`: bytes that the chunks of a rank have for each of `count(micro-batches in flight)`, (plans, stages);
    `of_embedding`: of them those of the chunks with the embedding.
    """
    in_flight = inputs.alike_in_flight
    counted = count(in_flight)
    peak = whole * counted
    one_less = of_embedding * (counted - count(np.maximum(in_flight - 1.0, 0.0)))
    return at(peak, "layer_backward", *AT_LOSS) | at(peak - one_less, "embedding_backward")


def while_waiting(inputs: PlanInputs, each: FloatArray) -> Term:
    """Bytes of each chunk, (plans, stages, chunks), for every micro-batch that waits there for its weight gradient."""
    return _in_pipeline(inputs, waiting_at, lambda waiting: each * waiting) if inputs.stash else NOTHING


def once_sent(inputs: PlanInputs, each: FloatArray) -> Term:
    """Bytes of each chunk, (plans, stages, chunks), for every input gradient that it has handed on in the step."""
    return _in_pipeline(inputs, sent_at, lambda sent: each * sent) if inputs.stash else NOTHING


def _in_pipeline(
    inputs: PlanInputs,
    counted: Callable[[PlanInputs, str], FloatArray],
    of_chunks: Callable[[FloatArray], FloatArray],
) -> Term:
    """What hangs on a count at each moment, chunks summed. The moments of the loss differ where a stash is known."""

    def summed(moment: str) -> FloatArray:
        return inputs.stages.all_chunks(of_chunks(counted(inputs, moment)))

    peak = summed("layer_backward")
    term = at(peak if inputs.stash is None else summed("loss"), *AT_LOSS)
    return term | at(peak, "layer_backward") | at(summed("embedding_backward"), "embedding_backward")


def plus(one: Term, other: Term) -> Term:
    """The sum of two terms."""
    return one | {moment: one[moment] + values if moment in one else values for moment, values in other.items()}


def in_table(term: Term, shape: tuple[int, ...]) -> FloatArray:
    """A term at every moment, (plans, stages, moments)."""
    nothing = np.zeros(shape)
    return np.stack([np.broadcast_to(term.get(moment, nothing), shape) for moment in MOMENTS], axis=-1)
