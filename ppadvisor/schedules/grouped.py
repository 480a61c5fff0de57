"""What PipeOffload's generalised interleaved schedules share: micro-batches pass each chunk in groups of any size.

With groups of N < p a rank waits for the first micro-batch of a group to come round all p ranks: for the first group
and for the last, but not between, where the backwards of the group before take the time. In return it holds
(v − 1)·(p − N) chunks less. Source: Wan et al. 2025, PipeOffload, arXiv 2503.01328; the order is that of
group_interleaved_1f1b.py in sail-sg/zero-bubble-pipeline-parallelism, commit 39f2c186.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTimes,
    ChunkTotals,
    FloatArray,
    Floats,
    IntArray,
    Ints,
    Kind,
    RankOrder,
    StageTotals,
    chunk_actions,
    chunk_turns,
    over,
)
from ppadvisor.schedules.split_backward import EqualChunks, equal_chunk_bounds_s, equal_chunk_guess_s


@dataclass(frozen=True)
class Groups:
    """Plans in which `size` micro-batches pass a chunk before a rank turns to the next; ⌈p/2⌉ ≤ size ≤ p."""

    p: Ints
    m: Ints
    v: Ints
    size: Ints

    @property
    def count(self) -> IntArray:
        """K = ⌈m/N⌉."""
        return np.asarray(-(-np.asarray(self.m) // self.size), dtype=np.int64)

    @property
    def last(self) -> IntArray:
        """R, the micro-batches of the last group."""
        return np.asarray(self.m - (self.count - 1) * np.asarray(self.size), dtype=np.int64)

    @property
    def filled(self) -> Groups:
        """The same with a last group that is whole."""
        return Groups(self.p, self.count * self.size, self.v, self.size)


def grouped_order(p: int, m: int, v: int, group: int) -> tuple[RankOrder, ...]:
    """Rank r: w chunk forwards, then one more and one input and weight gradient in turn, then w times the gradients.

    w = (v − 1)·N + p − r − 1. `group` = N micro-batches pass chunk 0, then chunk 1, ...; gradients likewise from the
    last chunk. The order is made for whole groups; what the last lacks of one is then left out, the turns of the others
    stay. Source: as the module; where max(F, I) is more than half of F + I + W the authors' program spreads groups of
    ⌈p/2⌉ otherwise, which is not modelled.

    >>> print(grouped_order(2, 2, 2, 1)[1])
    F0.0 F1.0 I1.0 W1.0 F0.1 I0.0 W0.0 F1.1 I1.1 W1.1 I0.1 W0.1
    """
    chunk, batch = chunk_turns(-(-m // group) * group, v, group)
    back = v - 1 - chunk
    work = np.concatenate(
        [
            chunk_actions(Kind.FORWARD, chunk, batch),
            chunk_actions(Kind.INPUT_GRAD, back, batch),
            chunk_actions(Kind.WEIGHT_GRAD, back, batch),
        ]
    )
    turn = np.arange(len(chunk))
    orders = []
    for rank in range(p):
        turns = np.concatenate([turn - (v - 1) * group - (p - rank - 1), turn, turn])
        actions = work[np.argsort(turns, kind="stable")]
        orders.append(RankOrder(actions[actions[:, 2] < m]))
    return tuple(orders)


def held_microbatches(groups: Groups, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: [(v − 1)·min(N, m) + min(m, p − r)]/v, the warm-up and one more. Exact.

    Source: as `grouped_order`. Measured: equal to the replay in 1,710 cases (p 2..10, v 1..5, m up to 3·p + 1).
    """
    batches = np.asarray(groups.m)
    once = (np.asarray(groups.v) - 1) * np.minimum(batches, groups.size)
    return over((once + np.minimum(batches, np.asarray(groups.p) - rank)) / groups.v)


def grouped_s(groups: Groups, chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    """Seconds from first start to last end, equal chunks and hand-offs x ≤ W/2.

    m·C + (p − 1)·(F + I + 2·x) + (v − 1)·[p·(F + x) + (K − 2)·max(N·C, l) + max(D, l) + max(R·(I + W), p·(I + x))];
    C = F + I + W, l = p·(max(F, I) + x), D = R·(F + W) + N·I + (N − R)·max(F, W); the (K − 2) and D not for K = 1. A
    rank goes v − 1 times from the last micro-batch of a group on one chunk to the first on the next: that has to come
    round all ranks. Own derivation; how exact it is say the schedules. Longer hand-offs, a guess: (p − 1)/p of
    2·x − W is waited for in every turn.
    """
    ranks, batches, again = np.asarray(groups.p), np.asarray(groups.m), np.asarray(groups.v) - 1
    forward_s, input_s, weight_s = map(np.asarray, chunk)
    size, last, link_s = np.asarray(groups.size), groups.last, np.asarray(handoff_s)
    there_s, back_s = ranks * (forward_s + link_s), ranks * (input_s + link_s)
    loop_s = np.maximum(there_s, back_s)
    turn_s = last * (forward_s + weight_s) + size * input_s + (size - last) * np.maximum(forward_s, weight_s)
    between_s = (groups.count - 2) * np.maximum(size * chunk.all_s, loop_s) + np.maximum(turn_s, loop_s)
    rounds_s = there_s + np.where(groups.count > 1, between_s, 0.0)
    rounds_s = rounds_s + np.maximum(last * (input_s + weight_s), back_s)
    waits_s = batches * groups.v * np.maximum(0.0, 2 * link_s - weight_s) * (ranks - 1) / ranks
    ends_s = (ranks - 1) * (forward_s + input_s + 2 * link_s)
    return over(batches * chunk.all_s + ends_s + again * rounds_s + waits_s)


def grouped_bubble(groups: Groups) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal chunks and free links: idle/(3·m·v + idle).

    idle = 2·(p − 1) + (v − 1)·(p − min(N, m) + [p − 2·R]⁺), which is `grouped_s`.
    """
    return over(1 - 3 * np.asarray(groups.m) * groups.v / grouped_s(groups, ChunkTimes(1.0, 1.0, 1.0)))


def _at_most_s(groups: Groups, chunk: ChunkTimes) -> FloatArray:
    """No less than equal chunks take: for whole groups, and N = p, `grouped_s` is exact with W ≤ F + I.

    More work lasts longer: a forward of no less than W − I, and with smaller groups a last one that is whole.
    """
    longer_s = np.maximum(chunk.forward_s, np.asarray(chunk.weight_grad_s) - chunk.input_grad_s)
    slow = ChunkTimes(longer_s, chunk.input_grad_s, chunk.weight_grad_s)
    exact = (groups.count == 1) | (np.asarray(groups.size) == groups.p)
    return over(np.where(exact, grouped_s(groups, slow), grouped_s(groups.filled, slow)))


def _plans(groups: Groups) -> EqualChunks:
    return EqualChunks(
        groups.p,
        groups.m,
        groups.v,
        at_least_s=lambda chunk: grouped_s(groups, chunk),
        at_most_s=lambda chunk: _at_most_s(groups, chunk),
        usual_s=lambda chunk, handoff_s: grouped_s(groups, chunk, handoff_s),
        hidden=0.0,  # no rank has weight gradients left to do while it would wait
        looped=True,
    )


def grouped_guess_s(groups: Groups, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: see `equal_chunk_guess_s`."""
    return equal_chunk_guess_s(_plans(groups), ChunkTotals.known(totals, groups.v))


def grouped_bounds_s(groups: Groups, totals: StageTotals) -> Bounds:
    """Seconds between which that time lies: see `equal_chunk_bounds_s`."""
    return equal_chunk_bounds_s(_plans(groups), ChunkTotals.known(totals, groups.v))
