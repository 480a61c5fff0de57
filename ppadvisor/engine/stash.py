"""Which forwards a rank holds at its peak, read off its order of work: exact for unequal chunks and split backwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ppadvisor.schedules.base import Kind, RankOrder

FloatArray = NDArray[np.float64]


def held_at_peak(
    orders: Sequence[RankOrder], saved_bytes: FloatArray, waiting_bytes: FloatArray, in_work: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(forwards before their backward, input gradients before their weight gradient) of each chunk, (ranks, chunks).

    Both at the moment at which a rank holds the most: `saved_bytes` for each forward, (ranks, chunks); `waiting_bytes`
    instead between its input gradient and its weight gradient. Of a chunk in its input gradient the share `in_work`,
    (ranks, chunks), still counts as saved.
    """
    saved, waiting = np.zeros_like(saved_bytes), np.zeros_like(saved_bytes)
    for rank, order in enumerate(orders):
        saved[rank], waiting[rank] = _of_rank(order, saved_bytes[rank], waiting_bytes[rank], in_work[rank])
    return saved, waiting


def share_in_work(layers: FloatArray, saved_bytes: FloatArray, waiting_bytes: FloatArray) -> FloatArray:
    """Share of a chunk of `layers` that is saved, and not waiting, at the worst moment of its input gradient.

    That goes through the layers one by one, and the one in work is counted with what its backward needs, so not among
    those that wait: it is the last of them where more waits than was saved, else the first, all others still saved.
    """
    return np.where(waiting_bytes > saved_bytes, 1.0 / np.maximum(layers, 1.0), 1.0)


def _of_rank(
    order: RankOrder, saved_bytes: FloatArray, waiting_bytes: FloatArray, in_work: FloatArray
) -> tuple[FloatArray, FloatArray]:
    actions, chunks = np.arange(len(order)), len(saved_bytes)
    kind = order.kind
    ends = (kind == Kind.BACKWARD) | (kind == Kind.INPUT_GRAD)
    saved_change = (kind == Kind.FORWARD).astype(np.int64) - ends
    waiting_change = (kind == Kind.INPUT_GRAD).astype(np.int64) - (kind == Kind.WEIGHT_GRAD)
    saved = np.zeros((len(order), chunks), dtype=np.int64)
    waiting = np.zeros((len(order), chunks), dtype=np.int64)
    saved[actions, order.chunk], waiting[actions, order.chunk] = saved_change, waiting_change
    saved, waiting = saved.cumsum(axis=0), waiting.cumsum(axis=0)
    working = np.zeros((len(order), chunks))
    working[actions, order.chunk] = in_work[order.chunk] * (kind == Kind.INPUT_GRAD)
    held, later = saved + working, waiting - working
    peak = int(np.argmax(held @ saved_bytes + later @ waiting_bytes))
    return held[peak], later[peak]
