"""Which forwards a rank holds at its peak, read off its order of work: exact for unequal chunks and split backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ppadvisor.schedules.base import Kind, RankOrder

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_NUMBERS = 1_000_000
"""Actions x chunks of the ranks that are looked at together: 8 MB an array."""


@dataclass(frozen=True)
class _PerChunk:
    """Arrays of one shape, whose last axis is the chunks."""

    def each(self, change: Callable[[FloatArray], FloatArray]) -> Self:
        """Every array changed alike."""
        return type(self)(*(change(getattr(self, f.name)) for f in fields(self)))

    def row(self, index: int | IntArray) -> Self:
        """One entry of the first axis, or some."""
        return self.each(lambda values: values[index])

    @classmethod
    def stacked(cls, parts: Iterable[Self]) -> Self:
        """Plans one below the other."""
        rows = list(parts)
        return cls(*(np.stack([getattr(row, f.name) for row in rows]) for f in fields(cls)))

    @classmethod
    def joined(cls, parts: Iterable[Self], order: IntArray) -> Self:
        """The entries of the first axis behind each other, then in an order."""
        groups = list(parts)
        return cls(*(np.concatenate([getattr(group, f.name) for group in groups])[order] for f in fields(cls)))

    def at(self, moment: IntArray) -> Self:
        """Of arrays (ranks, moments, ...) one moment of each rank."""
        ranks = np.arange(len(moment))
        return self.each(lambda values: values[ranks, moment])


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

    def row(self, index: int | IntArray) -> Work:
        """One entry of the first axis, or some."""
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


_Moments = tuple[Held, Held, Steps | None]
"""At the peak, at the loss, and what is under way at the peak, (ranks, chunks)."""


def stash_of(
    orders: Sequence[RankOrder], one: Held, in_work: FloatArray, head: FloatArray, work: Work | None = None
) -> Stash:
    """What each rank holds of its chunks at its heaviest moments: (ranks, chunks) each.

    `one`: bytes of a micro-batch. Of a chunk in a step of its backward the share `in_work` still counts as alive.
    `head`: 1 for the chunk that has the head. Without `work` every action works with the same.
    """
    chunks, groups, found = head.shape[1], list[IntArray](), list[_Moments]()
    for ranks in _alike(orders, chunks):
        actions = _Actions.of([orders[rank] for rank in ranks], chunks)
        of_group = one.row(ranks), in_work[ranks], head[ranks], work and work.row(ranks)
        found.append((_of_split_backwards if actions.split else _of_whole_backwards)(actions, *of_group))
        groups.append(ranks)
    order = np.argsort(np.concatenate(groups))
    peaks, losses, steps = zip(*found, strict=True)
    under_way = Steps.joined(steps, order) if work else None
    return Stash(Held.joined(peaks, order), Held.joined(losses, order), under_way)


def _alike(orders: Sequence[RankOrder], chunks: int) -> Iterator[IntArray]:
    """Ranks with as many actions each, all with split backwards or none, not too many at a time."""
    alike: dict[tuple[int, bool], list[int]] = {}
    for rank, order in enumerate(orders):
        alike.setdefault((len(order), bool((order.kind == Kind.INPUT_GRAD).any())), []).append(rank)
    for (length, _), ranks in alike.items():
        number = max(MOST_NUMBERS // (length * chunks), 1)
        yield from (np.array(ranks[start : start + number]) for start in range(0, len(ranks), number))


def share_in_work(layers: FloatArray, saved_bytes: FloatArray, waiting_bytes: FloatArray) -> FloatArray:
    """Share of a chunk of `layers` that is saved, and not waiting, at the worst moment of its input gradient.

    That goes through the layers one by one, and the one in work is counted with what its backward needs, so not among
    those that wait: it is the last of them where more waits than was saved, else the first, all others still saved.
    """
    return np.where(waiting_bytes > saved_bytes, 1.0 / np.maximum(layers, 1.0), 1.0)


@dataclass(frozen=True)
class _Actions:
    """The orders of ranks with as many actions each, (ranks, actions)."""

    kind: NDArray[np.int32]
    chunk: NDArray[np.int32]
    chunks: int

    @staticmethod
    def of(orders: Sequence[RankOrder], chunks: int) -> _Actions:
        return _Actions(np.stack([o.kind for o in orders]), np.stack([o.chunk for o in orders]), chunks)

    @property
    def split(self) -> bool:
        """Whether any backward is."""
        return bool((self.kind == Kind.INPUT_GRAD).any())

    @cached_property
    def ends(self) -> NDArray[np.bool_]:
        """Where a forward's activations go."""
        return np.isin(self.kind, (Kind.BACKWARD, Kind.INPUT_GRAD))

    @property
    def alive(self) -> FloatArray:
        """(ranks, actions, chunks): forwards before the end of their backward, after each action."""
        return self.running((self.kind == Kind.FORWARD).astype(np.float64) - self.ends)

    def on_its_chunk(self, values: NDArray[Any]) -> FloatArray:
        """(ranks, actions, chunks): the value of each action on its chunk, nothing on the others."""
        # chunk after chunk in memory: sums over the few chunks then run along the many actions
        result = np.moveaxis(np.zeros((self.chunks, *self.chunk.shape)), 0, 2)
        np.put_along_axis(result, self.chunk[:, :, None], values[:, :, None], axis=2)
        return result

    def running(self, change: FloatArray) -> FloatArray:
        """(ranks, actions, chunks): the sum of the changes so far, each on the chunk of its action."""
        changes = self.on_its_chunk(change)
        return changes.cumsum(axis=1, out=changes)

    def heaviest_loss(self, peak: Held, before: Held, one: Held, head: FloatArray) -> Held:
        """What is held when a loss is computed with the most in flight; ranks without a loss: what at the peak.

        `before`: what was there before each end of a backward, but for the micro-batch itself. The backward of a chunk
        with the head begins at the loss: its micro-batch is still all there.
        """
        at_loss = peak.each(np.copy)
        for rank in np.flatnonzero((head > 0).any(axis=1)).tolist():
            losses = np.flatnonzero(self.ends[rank] & (head[rank, self.chunk[rank]] > 0))
            if not len(losses):
                continue
            held = before.row(rank).row(losses)
            held.alive[np.arange(len(losses)), self.chunk[rank, losses]] += 1
            heaviest = int(np.argmax(held.bytes_of(one.row(rank))))
            for name, values in vars(at_loss).items():
                values[rank] = getattr(held, name)[heaviest]
        return at_loss


def _of_whole_backwards(
    actions: _Actions, one: Held, in_work: FloatArray, head: FloatArray, work: Work | None
) -> _Moments:
    """Moments of ranks that hold forwards alone: nothing waits for its weight gradient."""
    alive, none = actions.alive, np.zeros((*actions.chunk.shape, 1))
    held = Held(alive, np.broadcast_to(none, alive.shape), np.broadcast_to(none, alive.shape))
    peak = held.at(_heaviest(held, one, 0.0 if work is None else work.other[:, None]))
    nothing = np.zeros_like(peak.alive)
    steps = None if work is None else Steps(nothing, nothing, nothing)
    return peak, actions.heaviest_loss(peak, held, one, head), steps


def _of_split_backwards(
    actions: _Actions, one: Held, in_work: FloatArray, head: FloatArray, work: Work | None
) -> _Moments:
    """Moments of ranks that also hold what waits for its weight gradient, and what was handed on."""
    split, weight = ((actions.kind == kind).astype(np.float64) for kind in (Kind.INPUT_GRAD, Kind.WEIGHT_GRAD))
    alive, waiting, sent = actions.alive, actions.running(split - weight), actions.running(split)
    now = actions.on_its_chunk(split)
    # what an input gradient hands on is not there while it is computed; at a weight gradient nothing has gone yet
    sent -= now
    before = Held(alive, waiting - now, sent)
    if work is None:
        now *= in_work[:, None]
        held, steps = Held(alive + now, waiting - now, sent), None
        beside: FloatArray | float = 0.0
    else:
        made = actions.on_its_chunk(weight)
        first = made * (made.cumsum(axis=1) == 1)
        steps = Steps(now, made - first, first)
        working = (now + made) * in_work[:, None]
        held, beside = Held(alive + working, waiting + made - working, sent), _needed(steps, work)
    moment = _heaviest(held, one, beside)
    peak = held.at(moment)
    return peak, actions.heaviest_loss(peak, before, one, head), None if steps is None else steps.at(moment)


def _needed(steps: Steps, work: Work) -> FloatArray:
    """Bytes that each action works with, (ranks, actions)."""
    of_steps = steps.bytes_of(work.steps.each(lambda values: values[:, None]))
    return np.where(steps.any > 0, of_steps, work.other[:, None])


def _heaviest(held: Held, one: Held, beside: FloatArray | float) -> IntArray:
    """The first of the moments, the second axis, at which each rank holds the most, with what there is beside."""
    bytes_held = held.bytes_of(one.each(lambda values: values[:, None])) + beside
    return np.asarray(np.argmax(bytes_held, axis=1))
