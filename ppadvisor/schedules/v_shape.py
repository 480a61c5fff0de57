"""Schedules of two chunks a rank in a V that hold less than 1F1B: a block repeated, and its ends rearranged.

A micro-batch goes down the ranks forward (chunk 0), up (chunk 1), and so back. A block says in which time slot each
rank does these four for micro-batch 0, six slots later for the next one, and so on: the two slots left are for the
weight gradients. Source: Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, and the
authors' repository zero-bubble-pipeline-parallelism, zbv_greedy.py. The program is our own: the pipeline is filled slot
by slot, each rank taking the earliest of its actions that is ready and leaves room for those it overtakes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.schedules.base import FloatArray, IntArray, Ints, Kind, RankOrder, over

DOWN, UP, BACK_DOWN, BACK_UP, WEIGHTS, IDLE = range(6)
"""What a rank does in a slot: forward of chunk 0, of chunk 1, input gradient of chunk 1, of chunk 0; the rest."""
KIND = np.array([Kind.FORWARD, Kind.FORWARD, Kind.INPUT_GRAD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD])
CHUNK = np.array([0, 1, 1, 0, 0])
PERIOD = 6

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Block:
    """What is repeated, and the memory it is given."""

    slots: IntArray
    """Slot of the four actions of micro-batch 0 on each rank, (4, p)."""
    limit: int
    """Chunks whose activations a rank may hold; no less than the block itself needs."""
    careful: bool
    """While the pipeline fills, keep room for the forwards that come up; see `_held_back`."""


def _before(done: IntArray, m: int) -> IntArray:
    """How many of each action could be done by now: as many as of what they need."""
    before = np.full_like(done, m)
    before[DOWN, 1:] = done[DOWN, :-1]
    before[UP, :-1], before[UP, -1] = done[UP, 1:], done[DOWN, -1]
    before[BACK_DOWN, 1:] = done[BACK_DOWN, :-1]
    np.minimum(before[BACK_DOWN], done[UP], out=before[BACK_DOWN])
    before[BACK_UP, :-1], before[BACK_UP, -1] = done[BACK_UP, 1:], done[BACK_DOWN, -1]
    return before


def _leaves_room(block: Block, done: IntArray, slot: IntArray, action: int) -> Flags:
    """Whether each rank, doing this forward now, can still do all that it overtakes in the sequence of the block.

    Every gradient frees a chunk, weight gradients being done when room is needed: what counts is forwards less
    gradients. Overtaken are the other forwards and the gradients of earlier slots. Their sum is largest after one of
    those forwards: the first, the last, or the last before a kind of gradient begins.
    """
    other = DOWN + UP - action
    begins = block.slots[other]
    last = (slot[action] - begins - 1) // PERIOD
    turns = np.stack([done[other], last, *((slot[k] - begins - 1) // PERIOD for k in (BACK_DOWN, BACK_UP))])
    turns = np.clip(turns, done[other], np.maximum(last, done[other]))
    at = begins + PERIOD * turns
    gradients = (np.maximum(0, -((block.slots[k] - at) // PERIOD) - done[k]) for k in (BACK_DOWN, BACK_UP))
    overtaken = np.where(last >= done[other], turns + 1 - done[other] - sum(gradients), 0).max(axis=0)
    held = done[DOWN] + done[UP] - done[BACK_DOWN] - done[BACK_UP]
    return np.asarray(held + 1 + np.maximum(overtaken, 0) <= block.limit)


def _held_back(block: Block, done: IntArray) -> Flags:
    """Where a rank does not go on with chunk 0, before its first gradient of it, to have room for chunk 1.

    The later ranks get more of the forwards that come up early: min(r + 1, half the limit) of them, and the first
    gradients' room on the earlier ranks. Source: the authors' v_auto_schedule.py, in words.
    """
    rank, half = np.arange(done.shape[1]), block.limit // 2
    early = np.minimum(rank + 1, half)
    room = block.limit - early + np.maximum(0, done[BACK_DOWN] - (half - early))
    return np.asarray((done[BACK_UP] == 0) & (done[DOWN] >= room))


def _choose(block: Block, m: int, done: IntArray, weights: IntArray) -> IntArray:
    """What each rank does in a slot, given how many of each action it has done."""
    slot = block.slots + PERIOD * done
    ready = done < _before(done, m)
    due = done[BACK_DOWN] + done[BACK_UP] - weights
    held = done[DOWN] + done[UP] - weights
    full = held >= block.limit
    for action in (DOWN, UP):
        ready[action] &= _leaves_room(block, done, slot, action) & (~full | (due > 0))
    room_first = np.stack([full, full])
    if block.careful:
        ready[DOWN] &= ~_held_back(block, done)
        early = done[BACK_UP] < 2 + (np.arange(done.shape[1]) + 1) // 3
        room_first[DOWN] |= early & (due > 0) & (held + 1 == block.limit)
    chosen = np.where(ready, slot, np.iinfo(np.int64).max).argmin(axis=0)
    some = ready.any(axis=0)
    make_room = some & (chosen <= UP) & room_first[np.minimum(chosen, UP), np.arange(len(chosen))]
    fallback = np.where(due > 0, WEIGHTS, IDLE)
    return np.asarray(np.where(make_room, WEIGHTS, np.where(some, chosen, fallback)))


def _rank_order(actions: IntArray) -> RankOrder:
    """Number the micro-batches; weight gradients follow the input gradients, first come, first served."""
    actions = actions[actions != IDLE]
    chunk, batch = CHUNK[actions], np.zeros_like(actions)
    for action in range(WEIGHTS):
        rows = np.flatnonzero(actions == action)
        batch[rows] = np.arange(len(rows))
    gradients = np.flatnonzero((actions == BACK_DOWN) | (actions == BACK_UP))
    rows = np.flatnonzero(actions == WEIGHTS)
    chunk[rows], batch[rows] = chunk[gradients], batch[gradients]
    return RankOrder(np.stack([KIND[actions], chunk, batch], axis=1).astype(np.int32))


def _longer(order: RankOrder, m: int, more: int) -> RankOrder:
    """The order of m micro-batches with `more`: what is between two forwards of chunk 0, late, comes that often."""
    starts = np.flatnonzero((order.kind == Kind.FORWARD) & (order.chunk == 0))
    begin, end = starts[m - 3], starts[m - 2]
    again = np.tile(order.actions[begin:end], (more, 1))
    again[:, 2] += np.repeat(np.arange(1, more + 1, dtype=np.int32), end - begin)
    after = order.actions[end:].copy()
    after[:, 2] += more
    return RankOrder(np.concatenate([order.actions[:end], again, after]))


def idle_units(p: Ints, m: Ints, limit: Ints) -> FloatArray:
    """Chunk actions for which each rank idles where F = I = W and it may hold `limit` micro-batches.

    max(6·p − 1 − 6·limit, p − 1) where m > limit: what the authors' search reaches with the same memory, see
    v_auto_schedule.py. Less for fewer micro-batches, which never find the memory full: max(4·p − 1 − 4·m, 2·p − 3 or,
    p odd, 2·p − 2). Own derivation. Equal to the replay for all m where p ≤ 10, and for all p up to 64 where m ≤ limit
    or m ≥ 2·p; elsewhere up to 1 + ⌊(p + 2)/16⌋ less.

    >>> idle_units(8, 32, np.array([4, 5])).tolist()
    [23.0, 17.0]
    """
    ranks, batches = np.asarray(p), np.asarray(m)
    full = np.maximum(6 * ranks - 1 - 6 * np.asarray(limit), ranks - 1)
    few = np.maximum(4 * ranks - 1 - 4 * batches, 2 * ranks - 3 + ranks % 2)
    return over(np.where(ranks > 1, np.where(batches <= limit, few, full), 0))


def block_order(m: int, block: Block, *, at_most: int | None = None) -> tuple[RankOrder, ...]:
    """The order of each rank: slot by slot for `at_most` micro-batches (2·p + 4), the steady state longer for more."""
    p = block.slots.shape[1]
    few = min(m, 2 * p + 4 if at_most is None else at_most)
    done, weights = np.zeros((4, p), dtype=np.int64), np.zeros(p, dtype=np.int64)
    log = list[IntArray]()
    while (weights < 2 * few).any():
        chosen = _choose(block, few, done, weights)
        if (chosen == IDLE).all():
            raise RuntimeError(f"a block that does not fit into {block.limit} chunks: nobody can go on")
        for action in range(WEIGHTS):
            done[action] += chosen == action
        weights += chosen == WEIGHTS
        log.append(chosen)
    orders = tuple(_rank_order(column) for column in np.array(log).T)
    return orders if few == m else tuple(_longer(order, few, m - few) for order in orders)
