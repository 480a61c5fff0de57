"""The axes of a memory term, (plans, stages, chunks, moments), and how a number is laid along them."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray

MOMENTS: tuple[str, ...] = ("layer_backward", "loss", "head_backward", "embedding_backward", "optimizer_step")
"""layer_backward: a layer's backward starts with everything in flight. loss: the loss's worst moment. head_backward:
the output layer's backward. embedding_backward: the first stage, that micro-batch's layers already freed.
optimizer_step: nothing in flight."""

STASH_AT = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
"""Whether the micro-batches in flight are alive at each moment (less one at embedding_backward)."""

LOSS_AT = np.array([0.0, 1.0, 1.0, 0.0, 0.0])
"""Whether a moment is one of the loss, when its micro-batch is still all there."""


def at_moments(**moments: float | FloatArray) -> FloatArray:
    """A (1, 1, 1, moments) mask with the given values, zero elsewhere."""
    return np.array([moments.get(name, 0.0) for name in MOMENTS], dtype=np.float64)[None, None, None, :]


def by_stage(values: FloatArray) -> FloatArray:
    """(plans, stages) -> (plans, stages, 1, 1)."""
    return values[:, :, None, None]


def by_chunk(values: FloatArray) -> FloatArray:
    """(plans, stages, chunks) -> (plans, stages, chunks, 1)."""
    return values[:, :, :, None]


def by_plan(values: FloatArray) -> FloatArray:
    """(plans,) -> (plans, 1, 1, 1)."""
    return values[:, None, None, None]
