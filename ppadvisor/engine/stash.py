"""Which forwards a rank holds at its peak, read off its order of work: exact for unequal chunks and split backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ppadvisor.schedules.base import Kind, RankOrder

FloatArray = NDArray[np.float64]


def held_at_peak(
    orders: Sequence[RankOrder], saved_bytes: FloatArray, waiting_bytes: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(forwards before their backward, input gradients before their weight gradient) of each chunk, (ranks, chunks).

    Both at the moment at which a rank holds the most: `saved_bytes` for each forward, (ranks, chunks); `waiting_bytes`
    instead between its input gradient and its weight gradient.
    """
    saved, waiting = np.zeros_like(saved_bytes), np.zeros_like(saved_bytes)
    for rank, order in enumerate(orders):
        saved[rank], waiting[rank] = _of_rank(order, saved_bytes[rank], waiting_bytes[rank])
    return saved, waiting


def _of_rank(order: RankOrder, saved_bytes: FloatArray, waiting_bytes: FloatArray) -> tuple[FloatArray, FloatArray]:
    actions, chunks = np.arange(len(order)), len(saved_bytes)
    kind = order.kind
    ends = (kind == Kind.BACKWARD) | (kind == Kind.INPUT_GRAD)
    saved_change = (kind == Kind.FORWARD).astype(np.int64) - ends
    waiting_change = (kind == Kind.INPUT_GRAD).astype(np.int64) - (kind == Kind.WEIGHT_GRAD)
    saved = np.zeros((len(order), chunks), dtype=np.int64)
    waiting = np.zeros((len(order), chunks), dtype=np.int64)
    saved[actions, order.chunk], waiting[actions, order.chunk] = saved_change, waiting_change
    saved, waiting = saved.cumsum(axis=0), waiting.cumsum(axis=0)
    peak = int(np.argmax(saved @ saved_bytes + waiting @ waiting_bytes))
    return saved[peak].astype(np.float64), waiting[peak].astype(np.float64)
