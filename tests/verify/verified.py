"""Runs without processes: what ranks would write down that keep exactly to a replay."""

from __future__ import annotations

from collections.abc import Callable

from ppadvisor.schedules.base import Kind
from ppadvisor.verify.job import ActionDone, RankDone, StepDone
from ppadvisor.verify.run import replayed
from ppadvisor.verify.work import Work, as_torch_divides

Change = Callable[[int, ActionDone], ActionDone]
BEGIN_S, EMPTY_S = 100.0, 0.016
"""The clock's number at the first start; what a step without work takes."""


def unchanged(_rank: int, action: ActionDone) -> ActionDone:
    """As the replay has it."""
    return action


def done_as_replayed(work: Work, change: Change = unchanged) -> list[RankDone]:
    """One step of each rank, at the times of the replay; each action first goes through `change`."""
    result, ranks = replayed(work, as_torch_divides(work, work.times)), []
    for rank, order in enumerate(work.orders):
        actions = [
            change(rank, ActionDone(f"{work.placement[rank, a.chunk]}{Kind(a.kind).letter}{a.microbatch}", s, e, e - s))
            for a, s, e in zip(order, result.start_s[rank].tolist(), result.end_s[rank].tolist(), strict=True)
        ]
        step = StepDone(
            begin_s=BEGIN_S,
            end_s=BEGIN_S + actions[-1].end_s,
            actions=tuple(action.shifted(BEGIN_S) for action in actions),
        )
        empty = StepDone(begin_s=BEGIN_S, end_s=BEGIN_S + EMPTY_S, actions=())
        ranks.append(RankDone(empty=(empty,), steps=(step,), realtime=True))
    return ranks
