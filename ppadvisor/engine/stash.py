"""Which forwards a rank holds at its peak, read off its order of work: exact for unequal chunks and split backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ppadvisor.schedules.base import Kind, RankOrder

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Held:
    """What is alive of each chunk of each rank, in micro-batches, (..., chunks); or the bytes of one of each."""

    alive: FloatArray
    """Forwards before their backward."""
    waiting: FloatArray
    """Input gradients before their weight gradient."""
    sent: FloatArray
    """Input gradients that were handed on and stay all the same."""

    def bytes_of(self, one: Held) -> FloatArray:
        """(...,): `one` has the bytes of a micro-batch of each."""
        held = [(getattr(self, f.name), getattr(one, f.name)) for f in fields(Held)]
        total = np.zeros(np.broadcast_shapes(self.alive.shape, one.alive.shape)[:-1])
        for count, each in held:
            if count.any() and each.any():
                total = total + np.sum(count * each, axis=-1)
        return total

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Held:
        """Every array changed alike."""
        return Held(change(self.alive), change(self.waiting), change(self.sent))

    @staticmethod
    def stacked(parts: Iterable[Held]) -> Held:
        """Ranks one below the other."""
        rows = list(parts)
        return Held(*(np.stack([getattr(row, f.name) for row in rows]) for f in fields(Held)))


@dataclass(frozen=True)
class Stash:
    """What the ranks of a plan hold at the moments that count."""

    at_peak: Held
    """When a backward starts with the most in flight."""
    at_loss: Held
    """When the loss of a micro-batch is computed with the most in flight; ranks without the head: `at_peak`."""


def stash_of(orders: Sequence[RankOrder], one: Held, in_work: FloatArray, head: FloatArray) -> Stash:
    """What each rank holds of its chunks at its heaviest moments: (ranks, chunks) each.

    `one`: bytes of a micro-batch. Of a chunk in its input gradient the share `in_work` still counts as alive. `head`: 1
    for the chunk that has the head.
    """
    ranks = range(len(orders))
    rows = [_of_rank(orders[rank], _row(one, rank), in_work[rank], head[rank]) for rank in ranks]
    peaks, losses = zip(*rows, strict=True)
    return Stash(Held.stacked(peaks), Held.stacked(losses))


def _row(held: Held, rank: int) -> Held:
    return held.each(lambda values: values[rank])


def share_in_work(layers: FloatArray, saved_bytes: FloatArray, waiting_bytes: FloatArray) -> FloatArray:
    """Share of a chunk of `layers` that is saved, and not waiting, at the worst moment of its input gradient.

    That goes through the layers one by one, and the one in work is counted with what its backward needs, so not among
    those that wait: it is the last of them where more waits than was saved, else the first, all others still saved.
    """
    return np.where(waiting_bytes > saved_bytes, 1.0 / np.maximum(layers, 1.0), 1.0)


def _of_rank(order: RankOrder, one: Held, in_work: FloatArray, head: FloatArray) -> tuple[Held, Held]:
    """At the peak and at the loss, (chunks,)."""
    kind, chunks = order.kind, len(one.alive)
    split = kind == Kind.INPUT_GRAD
    ends = (kind == Kind.BACKWARD) | split
    alive = _running(order, (kind == Kind.FORWARD).astype(np.int64) - ends, chunks)
    waiting = _running(order, split.astype(np.int64) - (kind == Kind.WEIGHT_GRAD), chunks)
    sent = _running(order, split.astype(np.int64), chunks)
    now = _on_its_chunk(order, split.astype(np.int64), chunks)
    working = now * in_work
    # what an input gradient hands on is not there while it is computed
    peak = _heaviest(Held(alive + working, waiting - working, sent - now), one)
    # the backward of a chunk with the head begins at the loss: its micro-batch is still all there
    at_loss = np.flatnonzero(ends & (head[order.chunk] > 0))
    if not len(at_loss):
        return peak, peak
    one_more = _on_its_chunk(order, ends.astype(np.int64), chunks)
    before = Held(alive + one_more, waiting - now, sent - now).each(lambda values: values[at_loss])
    return peak, _heaviest(before, one)


def _on_its_chunk(order: RankOrder, values: IntArray, chunks: int) -> FloatArray:
    """(actions, chunks): the value of each action on its chunk, nothing on the others."""
    result = np.zeros((len(order), chunks))
    result[np.arange(len(order)), order.chunk] = values
    return result


def _running(order: RankOrder, change: IntArray, chunks: int) -> FloatArray:
    """(actions, chunks): the sum of the changes so far, each on the chunk of its action."""
    changes = _on_its_chunk(order, change, chunks)
    return changes.cumsum(axis=0) if change.any() else changes


def _heaviest(held: Held, one: Held) -> Held:
    """The first of the moments, the first axis, at which a rank holds the most: (chunks,)."""
    highest = int(np.argmax(held.bytes_of(one)))
    return held.each(lambda values: values[highest])
