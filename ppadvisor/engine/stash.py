"""Which forwards a rank holds at its peak, read off its order of work: exact for unequal chunks and split backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ppadvisor.schedules.base import Kind, RankOrder

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class _PerChunk:
    """Arrays of one shape, whose last axis is the chunks."""

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Self:
        """Every array changed alike."""
        return type(self)(*(change(getattr(self, f.name)) for f in fields(self)))

    def row(self, index: int) -> Self:
        """One entry of the first axis."""
        return self.each(lambda values: values[index])

    @classmethod
    def stacked(cls, parts: Iterable[Self]) -> Self:
        """Ranks, or plans, one below the other."""
        rows = list(parts)
        return cls(*(np.stack([getattr(row, f.name) for row in rows]) for f in fields(cls)))


@dataclass(frozen=True)
class Held(_PerChunk):
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


@dataclass(frozen=True)
class Steps(_PerChunk):
    """The steps of a split backward on each chunk, (..., chunks): 1 for the one under way; or the bytes each needs."""

    input_grad: FloatArray
    weight_grad: FloatArray
    """But for the first of a chunk, whose gradients are added to nothing."""
    first_weight_grad: FloatArray

    def bytes_of(self, one: Steps) -> FloatArray:
        """(...,): `one` has the bytes of each."""
        return np.asarray(sum(np.sum(getattr(self, f.name) * getattr(one, f.name), axis=-1) for f in fields(Steps)))

    @property
    def any(self) -> FloatArray:
        """(...,): whether one is under way."""
        return np.asarray((self.input_grad + self.weight_grad + self.first_weight_grad).sum(axis=-1))


@dataclass(frozen=True)
class Work:
    """Bytes that the actions of each rank work with beside what is held."""

    steps: Steps
    """(ranks, chunks)"""
    other: FloatArray
    """A whole backward, (ranks,)."""

    def row(self, index: int) -> Work:
        """One entry of the first axis."""
        return Work(self.steps.row(index), self.other[index])


@dataclass(frozen=True)
class Stash:
    """What the ranks of a plan hold at the moments that count."""

    at_peak: Held
    """When a backward starts with the most in flight."""
    at_loss: Held
    """When the loss of a micro-batch is computed with the most in flight; ranks without the head: `at_peak`."""
    under_way: Steps | None = None
    """At the peak; None where the steps of a split backward are not told apart."""

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Stash:
        """Every array changed alike."""
        under_way = self.under_way and self.under_way.each(change)
        return Stash(self.at_peak.each(change), self.at_loss.each(change), under_way)

    @staticmethod
    def stacked(parts: Sequence[Stash]) -> Stash:
        """Plans one below the other; all of them tell the steps apart or none does."""
        under_way = [part.under_way for part in parts if part.under_way is not None]
        return Stash(
            Held.stacked(part.at_peak for part in parts),
            Held.stacked(part.at_loss for part in parts),
            Steps.stacked(under_way) if under_way else None,
        )


def stash_of(
    orders: Sequence[RankOrder], one: Held, in_work: FloatArray, head: FloatArray, work: Work | None = None
) -> Stash:
    """What each rank holds of its chunks at its heaviest moments: (ranks, chunks) each.

    `one`: bytes of a micro-batch. Of a chunk in a step of its backward the share `in_work` still counts as alive.
    `head`: 1 for the chunk that has the head. Without `work` every action works with the same.
    """
    ranks = range(len(orders))
    rows = [_of_rank(orders[rank], one.row(rank), in_work[rank], head[rank], work and work.row(rank)) for rank in ranks]
    peaks, losses, steps = zip(*rows, strict=True)
    return Stash(Held.stacked(peaks), Held.stacked(losses), Steps.stacked(steps) if work else None)


def share_in_work(layers: FloatArray, saved_bytes: FloatArray, waiting_bytes: FloatArray) -> FloatArray:
    """Share of a chunk of `layers` that is saved, and not waiting, at the worst moment of its input gradient.

    That goes through the layers one by one, and the one in work is counted with what its backward needs, so not among
    those that wait: it is the last of them where more waits than was saved, else the first, all others still saved.
    """
    return np.where(waiting_bytes > saved_bytes, 1.0 / np.maximum(layers, 1.0), 1.0)


def _of_rank(
    order: RankOrder, one: Held, in_work: FloatArray, head: FloatArray, work: Work | None
) -> tuple[Held, Held, Steps]:
    """At the peak and at the loss, and what is under way at the peak, (chunks,)."""
    kind, chunks = order.kind, len(one.alive)
    split = kind == Kind.INPUT_GRAD
    if not split.any():
        return _of_whole_backwards(order, one, head, work)
    ends = (kind == Kind.BACKWARD) | split
    alive = _running(order, (kind == Kind.FORWARD).astype(np.int64) - ends, chunks)
    waiting = _running(order, split.astype(np.int64) - (kind == Kind.WEIGHT_GRAD), chunks)
    sent = _running(order, split.astype(np.int64), chunks)
    now = _on_its_chunk(order, split.astype(np.int64), chunks)
    made = _on_its_chunk(order, (kind == Kind.WEIGHT_GRAD).astype(np.int64), chunks) * (work is not None)
    first = made * (made.cumsum(axis=0) == 1)
    steps = Steps(now, made - first, first)
    working = (now + made) * in_work
    # what an input gradient hands on is not there while it is computed; at a weight gradient nothing has gone yet
    held = Held(alive + working, waiting + made - working, sent - now)
    highest = _heaviest(held, one, _needed(steps, work))
    peak, under_way = held.each(lambda values: values[highest]), steps.each(lambda values: values[highest])
    # the backward of a chunk with the head begins at the loss: its micro-batch is still all there
    at_loss = np.flatnonzero(ends & (head[order.chunk] > 0))
    if not len(at_loss):
        return peak, peak, under_way
    one_more = _on_its_chunk(order, ends.astype(np.int64), chunks)
    before = Held(alive + one_more, waiting - now, sent - now).each(lambda values: values[at_loss])
    loss = _heaviest(before, one)
    return peak, before.each(lambda values: values[loss]), under_way


def _of_whole_backwards(order: RankOrder, one: Held, head: FloatArray, work: Work | None) -> tuple[Held, Held, Steps]:
    """`_of_rank` where nothing waits for a weight gradient: only forwards are alive."""
    ends, chunks = order.kind == Kind.BACKWARD, len(one.alive)
    none = np.zeros(chunks)
    alive = Held(_running(order, (order.kind == Kind.FORWARD).astype(np.int64) - ends, chunks), none, none)
    peak = Held(alive.alive[_heaviest(alive, one, 0.0 if work is None else work.other)], none, none)
    at_loss = np.flatnonzero(ends & (head[order.chunk] > 0))
    if not len(at_loss):
        return peak, peak, Steps(none, none, none)
    before = alive.alive[at_loss]
    before[np.arange(len(at_loss)), order.chunk[at_loss]] += 1
    return peak, Held(before[_heaviest(Held(before, none, none), one)], none, none), Steps(none, none, none)


def _needed(steps: Steps, work: Work | None) -> FloatArray | float:
    """Bytes that each action works with, (actions,)."""
    return 0.0 if work is None else np.where(steps.any > 0, steps.bytes_of(work.steps), work.other)


def _on_its_chunk(order: RankOrder, values: IntArray, chunks: int) -> FloatArray:
    """(actions, chunks): the value of each action on its chunk, nothing on the others."""
    result = np.zeros((len(order), chunks))
    result[np.arange(len(order)), order.chunk] = values
    return result


def _running(order: RankOrder, change: IntArray, chunks: int) -> FloatArray:
    """(actions, chunks): the sum of the changes so far, each on the chunk of its action."""
    changes = _on_its_chunk(order, change, chunks)
    return changes.cumsum(axis=0) if change.any() else changes


def _heaviest(held: Held, one: Held, beside: FloatArray | float = 0.0) -> int:
    """The first of the moments, the first axis, at which a rank holds the most, with what there is beside."""
    return int(np.argmax(held.bytes_of(one) + beside))
