"""When a memory term is alive: at which moments it has how many bytes, (plans, stages) each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs, remembered

MOMENTS: tuple[str, ...] = ("layer_backward", "loss", "head_backward", "embedding_backward", "optimizer_step")
"""layer_backward: a layer's backward starts with everything in flight. loss: the loss's worst moment. head_backward:
the output layer's backward. embedding_backward: the first stage, that micro-batch's layers already freed.
optimizer_step: nothing in flight."""

IN_PIPELINE = MOMENTS[:-1]
"""The moments at which micro-batches are in flight (less one at embedding_backward)."""

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
    in_flight = inputs.chunk_in_flight
    if moment == "optimizer_step":
        return np.zeros_like(in_flight)
    freed = inputs.stages.chunk_embedding > 0 if moment == "embedding_backward" else False
    return np.maximum(in_flight - freed, 0.0)


def while_in_flight(inputs: PlanInputs, of_chunks: Callable[[FloatArray], FloatArray]) -> Term:
    """What hangs on the micro-batches in flight in each chunk, (plans, stages, chunks) -> the same; chunks summed."""
    alive, one_fewer = (
        inputs.stages.all_chunks(of_chunks(in_flight_at(inputs, moment))) for moment in ("loss", "embedding_backward")
    )
    return at(alive, *IN_PIPELINE) | at(one_fewer, "embedding_backward")


def plus(one: Term, other: Term) -> Term:
    """The sum of two terms."""
    return one | {moment: one[moment] + values if moment in one else values for moment, values in other.items()}


def in_table(term: Term, shape: tuple[int, ...]) -> FloatArray:
    """A term at every moment, (plans, stages, moments)."""
    nothing = np.zeros(shape)
    return np.stack([np.broadcast_to(term.get(moment, nothing), shape) for moment in MOMENTS], axis=-1)
