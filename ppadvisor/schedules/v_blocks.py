"""The blocks of V-Half and V-Min, and the longest paths through what `v_shape` makes of them.

Source of the blocks: Qi et al. 2024, arXiv 2405.15362, and the authors' zbv_greedy.py. The paths are found in the
replay: of equal chunks, and with hand-offs while these are short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ppadvisor.schedules.base import ChunkTimes, FloatArray, Floats, IntArray, Ints, over
from ppadvisor.schedules.split_backward import EqualChunks, Path, extremes, longest_s
from ppadvisor.schedules.v_shape import Block, idle_units

Offsets = tuple[tuple[int, int, int, int], ...]
"""Paths by what they pass beside 2·m of F, of I and of W, and hand-offs."""
HALF_OF_FEW: Mapping[int, Offsets] = {
    2: ((0, 2, -2, 2), (0, 1, 0, 2), (2, -1, 0, 2), (0, 0, 1, 2), (2, 0, -2, 2)),
    4: ((2, 8, -5, 16), (7, 3, -5, 14), (4, 0, 1, 10), (2, 2, 1, 12), (7, 0, -2, 12)),
}
"""V-Half's for 2 and 4 ranks, where no general form holds."""


def half_limit(p: Ints) -> IntArray:
    """Micro-batches that a rank of V-Half may hold: ⌊p/2⌋ + 1. Source: the authors' schedule playground, (p + 2)//2."""
    return np.asarray(p, dtype=np.int64) // 2 + 1


def min_limit(p: Ints) -> IntArray:
    """Micro-batches that a rank of V-Min may hold: ⌊(p + 1)/3⌋ + 1. Source: as `half_limit`, (p + 4)//3."""
    return (np.asarray(p, dtype=np.int64) + 4) // 3


def half_block(p: int) -> Block:
    """Micro-batch 0 two slots a rank on the way down and one on the way up, forward and back.

    For even p the authors let three slots pass before the gradients, to hit no slot twice; we wait on the last rank.
    """
    rank, odd = np.arange(p, dtype=np.int64), p % 2
    down = 2 * rank
    down[-1] += 2 * (1 - odd)
    up, back_down, back_up = (3 * p - 2, 3 * p - 1, 6 * p - 2) if odd else (3 * p + 1, 3 * p + 3, 6 * p + 4)
    slots = np.stack([down, up - rank, back_down + down, back_up - rank])
    return Block(slots, limit=2 * int(half_limit(p)), careful=p == 4)


def min_block(p: int) -> Block:
    """Micro-batch 0 a slot a rank, but for what else would be done twice in a slot, or where memory is left for it.

    V-Half's block where that may hold no more: p = 1, 2, 3, 5. The authors wait before the gradients where p is a
    multiple of 3; we wait two slots on the first rank, and on the first two where one chunk of the limit would be left.
    """
    if min_limit(p) == half_limit(p):
        return half_block(p)
    rank = np.arange(p, dtype=np.int64)
    down = rank + 2 * np.minimum(rank, (1, 0, 2)[p % 3])
    up = down[-1] + p
    up += (1 - up) % 6
    back_up = up + down[-1] + p + 1
    back_up += (3 - back_up) % 6
    slots = np.stack([down, up - rank, up + 1 + down, back_up - rank])
    return Block(slots, limit=2 * int(min_limit(p)), careful=True)


def _alike(p: Ints, m: Ints, limit: Ints) -> Path:
    """Not a path, but what all F, I and W being equal takes, shared out among them."""
    each = 2 * np.asarray(m) + idle_units(p, m, limit) / 3
    return Path(each, each, each, 4 * (np.asarray(p) - 1))


def _unfilled_s(p: Ints, m: Ints, limit: Ints, chunk: ChunkTimes, handoff_s: Floats) -> FloatArray:
    """For so few micro-batches that memory is never full: one through all and back, the others behind it."""
    ranks, batches = np.asarray(p), np.asarray(m)
    around = 2 * ranks + batches - 1
    found_s = longest_s((Path(around, around, 1, 4 * (ranks - 1)),), chunk, handoff_s)
    alike_s = longest_s((_alike(p, m, limit),), chunk, handoff_s)
    return over(np.where(2 * batches > ranks, np.maximum(found_s, alike_s), found_s))


def _half_busy_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """V-Half's where a rank is busy from micro-batch to micro-batch."""
    ranks, each, even = np.asarray(p), 2 * np.asarray(m), 1 - np.asarray(p) % 2
    ends, links = each + 2 * ranks - 2, 6 * ranks - 8
    return (
        Path(each + ranks - 1 - even, each + 3 * ranks - 3 + even, each - ranks - 3 * even, links + 6 * even),
        Path(ends, ends, each - ranks - 3 * even, links + 2 + 4 * even),
        Path(each + ranks + even, ends - 2 - 5 * even, each + even, 5 * ranks - 9 - even),
        Path(ends, ends - 2 - 5 * even, each - ranks + 2 + 2 * even, links - 4 * even),
        Path(each + ranks - 1, each + 2 * ranks - 3 - 5 * even, each - 1 + 3 * even, 5 * ranks - 9 - even),
        Path(each + ranks - 1 - 2 * even, ends - 2 + (ranks + 1) * even, each - 1 - ranks * even, links - 2),
    )


def _half_waiting_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """V-Half's where four I or four F of neighbouring ranks take longer than all of one rank."""
    ranks, batches, even = np.asarray(p), np.asarray(m), 1 - np.asarray(p) % 2
    inputs, forwards = 4 * batches + 2 * ranks - 4 - 4 * even, 4 * batches + ranks - 5 - 3 * even
    links = 2 * batches
    return (
        Path(2 * ranks + 4 * even, inputs, batches - (ranks - 1 + even) / 2, links + 5 * ranks - 9 - even),
        Path(forwards, 3 * ranks + 1 + 2 * even, batches - (ranks - 3 + even) / 2, links + 3 * ranks),
        Path(forwards, 3 * ranks - 1 - 2 * even, batches - (ranks - 7 - 7 * even) / 2, links + 3 * ranks),
    )


def half_s(p: Ints, m: Ints, chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    """Seconds of V-Half's makespan, equal chunks and links; 2·m·max(F + I + W, 2·I + W/2, 2·F + W/2) in the long run.

    Exact for F = I = W as far as `idle_units` is; else see `v_half.makespan_s`.
    """
    ranks, batches, limit = np.asarray(p), np.asarray(m), half_limit(p)
    many_s = longest_s(_half_busy_paths(p, m), chunk, handoff_s)
    waiting_s = longest_s(_half_waiting_paths(p, m), chunk, handoff_s)
    many_s = np.where(batches >= ranks, np.maximum(many_s, waiting_s), many_s)
    each, inputs = 2 * batches, 4 * batches + 2
    for few, offsets in HALF_OF_FEW.items():
        paths = [Path(each + f, each + i, each + w, x) for f, i, w, x in offsets]
        if few == 4:
            paths.append(Path(8, inputs, 1, each + 10))
        many_s = np.where(ranks == few, longest_s(paths, chunk, handoff_s), many_s)
    many_s = np.where(batches > limit, many_s, _unfilled_s(p, m, limit, chunk, handoff_s))
    return over(np.where(ranks > 1, many_s, 2 * batches * chunk.all_s))


def min_s(p: Ints, m: Ints, chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    """Seconds of V-Min's makespan, equal chunks and links; 2·m·max(F + I + W, 3·I, 3·F) in the long run.

    `half_s` where the block is V-Half's. Exact for F = I = W as far as `idle_units` is; else see `v_min.makespan_s`.
    """
    ranks, batches, limit = np.asarray(p), np.asarray(m), min_limit(p)
    third, second = (ranks % 3 == 0) * 1, (ranks % 3 == 2) * 1
    each, links = 6 * batches, 5 * batches + 2 * ranks
    inputs = each + 2 * ranks - 10 - 2 * third - 6 * second
    forwards = each + 2 * ranks - 15 - 5 * third - 9 * second
    paths = (
        _alike(p, m, limit),
        Path(2 * ranks + 2 + second, inputs, 3 + second, links),
        Path(forwards, 2 * ranks + 7 + 3 * third + 4 * second, 3 + second, links),
    )
    many_s = longest_s(paths, chunk, handoff_s)
    found_s = np.where(batches > limit, many_s, _unfilled_s(p, m, limit, chunk, handoff_s))
    return over(np.where(limit == half_limit(p), half_s(p, m, chunk, handoff_s), found_s))


def limited_plans(
    p: Ints, m: Ints, limit: Ints, hidden: float, usual_s: Callable[[ChunkTimes, FloatArray], FloatArray]
) -> EqualChunks:
    """Plans of V-Half or V-Min for the bounds: equal chunks take at least and at most what equal F, I and W do.

    These as long as the shortest of them, a rank's work, or one micro-batch through all; or as long as the longest.
    """
    ranks, batches = np.asarray(p), np.asarray(m)
    units = 6 * batches + idle_units(p, m, limit)
    late = (1 + (ranks + 2) // 16) * ((ranks > 10) & (batches > limit) & (batches < 2 * ranks))

    def at_least_s(chunk: ChunkTimes) -> FloatArray:
        alone = Path(2 * ranks, 2 * ranks, 1), Path(2 * batches, 2 * batches, 2 * batches)
        return np.maximum(units * extremes(chunk)[0], longest_s(alone, chunk))

    def at_most_s(chunk: ChunkTimes) -> FloatArray:
        return np.asarray((units + late) * extremes(chunk)[1])

    return EqualChunks(p, m, 2, at_least_s, at_most_s, usual_s, hidden)
