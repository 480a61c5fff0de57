"""Whether a replay has become periodic: then more micro-batches take so many seconds a round more, and nothing else.

A start is the maximum of sums of earlier starts, a few rounds back at most. So once every rank has begun every action
of a round a fixed time after the same action of the round before, ROUNDS_ALIKE rounds in a row, it does so for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppadvisor.schedules.base import FloatArray, RankOrder

ROUNDS_ALIKE = 2
"""Rounds in a row that must follow the one before at the same distance; no action waits for one further back."""
BEHIND = 1
"""Rounds at the end that are left out: there the pipeline drains."""
SAME = 1e-12
"""Share of a round by which distances may differ: rounding of the sums."""


def seconds_a_round(orders: Sequence[RankOrder], start_s: Sequence[FloatArray], microbatches: int) -> float | None:
    """Seconds that `microbatches` more of them take each time, or None where the replay had not become periodic.

    `start_s`: the starts of the actions of each rank.
    """
    rounds = len({int(number) for number in orders[0].microbatch}) // microbatches
    found: float | None = None
    for order, start in zip(orders, start_s, strict=True):
        period, odd = divmod(len(order), rounds)
        last = len(order) - odd - BEHIND * period
        window = slice(last - ROUNDS_ALIKE * period, last)
        before = slice(window.start - period, window.stop - period)
        if before.start < 0 or not _one_round_on(order, before, window, microbatches):
            return None
        distance = start[window] - start[before]
        found = float(distance[0]) if found is None else found
        if (np.abs(distance - found) > SAME * found).any():
            return None
    return found


def _one_round_on(order: RankOrder, before: slice, window: slice, microbatches: int) -> bool:
    """Whether the second piece of an order does the same as the first, so many micro-batches later."""
    step = np.array([0, 0, microbatches], dtype=np.int32)
    return bool((order.actions[window] == order.actions[before] + step).all())
