"""A second, slow and plain reading of an order of work, which shares no code with `replay`, and random stage times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import FloatArray, IntArray, RankOrder, Schedule

Done = dict[tuple[str, int, int], tuple[float, float]]
"""(letter, stage, micro-batch) -> start and end; `B` stands for the whole backward and for the input gradient."""


class Times(NamedTuple):
    """Seconds of each rank's forward and backward (p,), and of each one-way hand-off (p − 1,)."""

    forward_s: FloatArray
    backward_s: FloatArray
    handoff_s: FloatArray


def runnable_cases(
    ranks: Sequence[int], microbatches: Sequence[int], schedules: Sequence[str] = tuple(SCHEDULES)
) -> list[tuple[str, int, int]]:
    """(schedule id, p, m) of all that the schedules themselves can run with their default v."""
    cases = [(name, p, m) for name in schedules for p in ranks for m in microbatches]
    return [(name, p, m) for name, p, m in cases if get(name).problem(p, m, get(name).virtual_stages.default) is None]


def default_order(schedule: Schedule, p: int, m: int) -> tuple[tuple[RankOrder, ...], IntArray]:
    """The orders of a schedule with its default v, and where its chunks are."""
    return schedule.rank_orders(p, m), schedule.placement(p, schedule.virtual_stages.default)


def _work_missing_or_twice(order: Sequence[RankOrder], placement: IntArray, m: int) -> list[str]:
    stages = range(int(placement.max()) + 1)
    done = [
        (action.kind.letter, int(placement[rank, action.chunk]), action.microbatch)
        for rank, rank_order in enumerate(order)
        for action in rank_order
    ]
    split = any(letter in "IW" for letter, _, _ in done)
    wanted = [(letter, stage, k) for letter in ("FIW" if split else "FB") for stage in stages for k in range(m)]
    missing, extra = Counter(wanted) - Counter(done), Counter(done) - Counter(wanted)
    return [f"missing {sorted(missing)}, too much {sorted(extra)}"] if missing or extra else []


def faults(order: Sequence[RankOrder], placement: IntArray, m: int) -> list[str]:
    """What is wrong with an order: work missing or done twice, or ranks that wait for ever."""
    found = _work_missing_or_twice(order, placement, m)
    if not found and simulate(order, placement, Times(*map(np.ones, (len(order), len(order), 99)))) is None:
        found.append("deadlock")
    return found


class _Simulation:
    """Tries every rank's next action again and again. Each stage is held by one rank; I and W take half a backward."""

    def __init__(self, order: Sequence[RankOrder], placement: IntArray, times: Times) -> None:
        self.order, self.placement, self.times = order, placement, times
        self.owner = {int(stage): rank for (rank, _), stage in np.ndenumerate(placement)}
        self.done: Done = {}
        self.position, self.clock = [0] * len(order), [0.0] * len(order)
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrival: dict[tuple[str, int, int], float] = {}

    def needs(self, letter: str, stage: int, microbatch: int) -> list[tuple[str, int, int]]:
        """What has to be computed before; what is not there (before the first stage, after the last) is left out."""
        wanted = {
            "F": [("F", stage - 1, microbatch)],
            "B": [("F", stage, microbatch), ("B", stage + 1, microbatch)],
            "W": [("B", stage, microbatch)],
        }[letter]
        return [key for key in wanted if key[1] in self.owner]

    def send(self, letter: str, stage: int, microbatch: int, end: float) -> None:
        """Put what was computed on the link to the rank that goes on with it, when the link is free."""
        target = {"F": stage + 1, "B": stage - 1, "W": -1}[letter]
        link = (self.owner[stage], self.owner.get(target, self.owner[stage]))
        if link[0] != link[1]:
            end = max(end, self.link_free.get(link, 0.0)) + float(self.times.handoff_s[min(stage, target)])
            self.link_free[link] = end
        self.arrival[letter, stage, microbatch] = end

    def step(self, rank: int) -> bool:
        """Do the rank's next action, if there is one and what it needs is computed."""
        if self.position[rank] == len(self.order[rank]):
            return False
        action = self.order[rank][self.position[rank]]
        letter = action.kind.letter.replace("I", "B")
        stage = int(self.placement[rank, action.chunk])
        needs = self.needs(letter, stage, action.microbatch)
        if any(key not in self.done for key in needs):
            return False
        there = [self.done[key][1] if key[1] == stage else self.arrival[key] for key in needs]
        start = max([self.clock[rank], *there])
        whole = self.times.forward_s[rank] if letter == "F" else self.times.backward_s[rank]
        self.clock[rank] = start + float(whole) * (0.5 if action.kind.letter in "IW" else 1.0)
        self.done[letter, stage, action.microbatch] = (start, self.clock[rank])
        self.send(letter, stage, action.microbatch, self.clock[rank])
        self.position[rank] += 1
        return True


def simulate(order: Sequence[RankOrder], placement: IntArray, times: Times) -> Done | None:
    """Start and end of all work, or None where the ranks wait for ever."""
    run = _Simulation(order, placement, times)
    ranks = range(len(order))
    while any([run.step(rank) for rank in ranks]):  # noqa: C419 - every rank gets its turn in each round
        pass
    return run.done if all(run.position[rank] == len(order[rank]) for rank in ranks) else None


def model_like_times(rng: np.random.Generator, p: int) -> Times:
    """Equal stages; the first up to 15 % heavier (embedding), the last up to 60 % (head, forward to backward 1 : 1.2).

    In three of ten cases one stage is up to 50 % heavier; links take up to 2 % of a forward, and every 1st to 8th up
    to 50 % more (node borders).
    """
    forward, backward = np.ones(p), np.full(p, 2.0)
    forward[0] += rng.uniform(0.0, 0.15)
    backward[0] = 2 * forward[0]
    if rng.random() < 0.3:
        uneven = rng.integers(p)
        forward[uneven] *= rng.uniform(1.0, 1.5)
        backward[uneven] = 2 * forward[uneven]
    head = rng.uniform(0.0, 0.6)
    forward[-1] += head
    backward[-1] += 1.2 * head
    handoff = np.full(p - 1, rng.uniform(0.0, 0.02))
    every = int(rng.integers(1, 9))
    handoff[every - 1 :: every] += rng.uniform(0.0, 0.5)
    return Times(forward, backward, handoff)


def uniform_times(rng: np.random.Generator, p: int) -> Times:
    """Stages that differ up to tenfold and links up to half a forward: far wilder than a model."""
    return Times(rng.uniform(0.2, 2.0, p), rng.uniform(0.2, 4.0, p), rng.uniform(0.0, 1.0, p - 1))


def log_normal_times(rng: np.random.Generator, p: int) -> Times:
    """Times that differ by factors of hundreds, to look for a bound that breaks."""
    return Times(
        *(np.exp(rng.normal(mean, width, size)) for mean, width, size in ((0, 1.2, p), (0.5, 1.2, p), (-1, 2, p - 1)))
    )
