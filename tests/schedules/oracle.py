"""A second, slow and plain reading of an order of work, which shares no code with `replay`, and random stage times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ppadvisor.schedules import SCHEDULES, get
from ppadvisor.schedules.base import ChunkTotals, FloatArray, IntArray, RankOrder, Schedule

Done = dict[tuple[str, int, int], tuple[float, float]]
"""(letter, stage, micro-batch) -> start and end; `B` stands for the whole backward and for the input gradient."""


class Times(NamedTuple):
    """Seconds of each rank's forward and backward, (p,) or by chunk (p, v), and of each boundary's one-way hand-off.

    Where a schedule splits the backward, I and W take half of it each.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    handoff_s: FloatArray

    def to_replay(self) -> dict[str, Any]:
        """The arguments of `replay`, for schedules that split the backward and for those that do not."""
        half_s = self.backward_s / 2
        given = {"forward_s": self.forward_s, "backward_s": self.backward_s, "handoff_s": self.handoff_s}
        return given | {"input_grad_s": half_s, "weight_grad_s": half_s}

    def totals(self, placement: IntArray) -> ChunkTotals:
        """What the array forms are given of these times."""
        ranks = (self.forward_s, self.backward_s)
        forward_s, backward_s = (np.broadcast_to(s if s.ndim == 2 else s[:, None], placement.shape) for s in ranks)
        if placement.size > placement.max() + 1:  # two copies of the model: what is known is the time of each stage
            _, first = np.unique(placement, return_index=True)
            forward_s, backward_s = (s.ravel()[first][:, np.newaxis] for s in (forward_s, backward_s))
        return ChunkTotals.of_chunks(forward_s, backward_s, self.handoff_s)


def runnable_cases(
    ranks: Sequence[int], microbatches: Sequence[int], schedules: Sequence[str] = tuple(SCHEDULES)
) -> list[tuple[str, int, int]]:
    """(schedule id, p, m) of all that the schedules themselves can run with their default v."""
    cases = [(name, p, m) for name in schedules for p in ranks for m in microbatches]
    return [(name, p, m) for name, p, m in cases if get(name).problem(p, m, get(name).virtual_stages.default) is None]


def by_ranks(cases: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, tuple[int, ...]]]:
    """(schedule id, p, every m): one test a row, since thousands of tests cost more than what they do."""
    counts: dict[tuple[str, int], list[int]] = {}
    for name, p, m in cases:
        counts.setdefault((name, p), []).append(m)
    return [(name, p, tuple(of_ranks)) for (name, p), of_ranks in counts.items()]


def default_order(schedule: Schedule, p: int, m: int) -> tuple[tuple[RankOrder, ...], IntArray]:
    """The orders of a schedule with its default v, and where its chunks are."""
    return schedule.rank_orders(p, m), schedule.placement(p, schedule.virtual_stages.default)


def work_missing_or_twice(order: Sequence[RankOrder], placement: IntArray, m: int) -> list[str]:
    """Actions that an order leaves out, or does more than once; empty where each is done once."""
    stages = range(int(placement.max()) + 1)
    done = [
        (action.kind.letter, int(placement[rank, action.chunk]), action.microbatch)
        for rank, rank_order in enumerate(order)
        for action in rank_order
    ]
    split = {(stage, k) for letter, stage, k in done if letter in "IW"}
    parts = [(stage, k, "FIW" if (stage, k) in split else "FB") for stage in stages for k in range(m)]
    letters = {letter for letter, _, _ in done}
    if "S" in letters:  # the head is spread over all ranks
        parts += [(rank, k, "ST" if "T" in letters else "SU") for rank in range(len(order)) for k in range(m)]
    wanted = [(letter, place, k) for place, k, of_place in parts for letter in of_place]
    missing, extra = Counter(wanted) - Counter(done), Counter(done) - Counter(wanted)
    return [f"missing {sorted(missing)}, too much {sorted(extra)}"] if missing or extra else []


def faults(order: Sequence[RankOrder], placement: IntArray, m: int) -> list[str]:
    """What is wrong with an order: work missing or done twice, or ranks that wait for ever."""
    found = work_missing_or_twice(order, placement, m)
    if not found and simulate(order, placement, Times(*map(np.ones, (len(order), len(order), 99)))) is None:
        found.append("deadlock")
    return found


class _Simulation:
    """Tries every rank's next action again and again. I and W take half a backward, S and T or U what is given."""

    def __init__(
        self, order: Sequence[RankOrder], placement: IntArray, times: Times, head_s: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self.order, self.placement, self.times = order, placement, times
        self.head_s = {"S": head_s[0], "T": head_s[1], "U": head_s[1]}
        self.owner: dict[tuple[int, int], int] = {}
        for rank, rank_order in enumerate(order):
            stages = placement[rank, rank_order.chunk].tolist()
            self.owner |= dict.fromkeys(zip(stages, rank_order.microbatch.tolist(), strict=True), rank)
        self.kinds = {action.kind.letter for action in order[0]}
        self.done: Done = {}
        self.position, self.clock = [0] * len(order), [0.0] * len(order)
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrival: dict[tuple[str, int, int], float] = {}
        self.kept: dict[int, tuple[str, int, int]] = {}
        """Of a rank: what the first of a pair made, and is sent after the second."""

    def needs(self, letter: str, stage: int, k: int) -> list[tuple[str, int, int]]:
        """What has to be computed before; what is not there (before the first stage, after the last) is left out."""
        last = int(self.placement.max())
        if letter in "STU":
            return [("F", last, k)] if letter == "S" else [("S", rank, k) for rank in range(len(self.order))]
        wanted = {
            "F": [("F", stage - 1, k)],
            "B": [("F", stage, k), ("B", stage + 1, k)],
            "W": [("B", stage, k)],
        }[letter]
        if letter == "B" and stage == last and "S" in self.kinds:
            wanted += [("T" if "T" in self.kinds else "S", rank, k) for rank in range(len(self.order))]
        return [key for key in wanted if (key[1], k) in self.owner]

    def send(self, letter: str, stage: int, k: int, end: float) -> None:
        """Put what was computed on the link to the rank that goes on with it, when the link is free."""
        target = {"F": stage + 1, "B": stage - 1}.get(letter, -1)
        here = self.owner[stage, k]
        link = (here, self.owner.get((target, k), here))
        if link[0] != link[1]:
            end = max(end, self.link_free.get(link, 0.0)) + float(self.times.handoff_s[min(stage, target)])
            self.link_free[link] = end
        self.arrival[letter, stage, k] = end

    def there_at(self, letter: str, stage: int, key: tuple[str, int, int]) -> float | None:
        """When what is needed is there; what stays on the rank, or all ranks meet for, as soon as it is computed."""
        if letter in "FB" and key[0] in "FB" and key[1] != stage:
            return self.arrival.get(key)
        return self.done[key][1] if key in self.done else None

    def step(self, rank: int) -> bool:
        """Do the rank's next action, if there is one and what it needs is there."""
        if self.position[rank] == len(self.order[rank]):
            return False
        action, paired = self.order[rank][self.position[rank]], self.order[rank].paired
        letter, stage = action.kind.letter.replace("I", "B"), int(self.placement[rank, action.chunk])
        there = [self.there_at(letter, stage, key) for key in self.needs(letter, stage, action.microbatch)]
        if None in there:
            return False
        start = max([self.clock[rank], *(at for at in there if at is not None)])
        whole = np.atleast_1d((self.times.forward_s if letter == "F" else self.times.backward_s)[rank])
        length = float(whole[action.chunk % len(whole)]) * (0.5 if action.kind.letter in "IW" else 1.0)
        self.clock[rank] = end = start + self.head_s.get(letter, length)
        key = (letter, stage, action.microbatch)
        self.done[key] = (start, end)
        if paired is not None and paired[self.position[rank]]:
            self.kept[rank] = key
        else:
            self.send(*key, end)
            if rank in self.kept:
                self.send(*self.kept.pop(rank), end)
        self.position[rank] += 1
        return True


def simulate(
    order: Sequence[RankOrder], placement: IntArray, times: Times, head_s: tuple[float, float] = (0.0, 0.0)
) -> Done | None:
    """Start and end of all work, or None where the ranks wait for ever."""
    run = _Simulation(order, placement, times, head_s)
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


def uniform_chunk_times(rng: np.random.Generator, placement: IntArray) -> Times:
    """As `uniform_times`, each stage by itself, both copies alike; a boundary within a rank takes no time."""
    stages = int(placement.max()) + 1
    of_one_copy = placement[:, : placement.shape[1] * stages // placement.size]
    ranks, _ = np.nonzero(np.ones_like(of_one_copy))
    owner = ranks[np.argsort(of_one_copy, axis=None)]
    handoff_s = rng.uniform(0.0, 1.0, len(owner) - 1) * (owner[1:] != owner[:-1])
    return Times(rng.uniform(0.2, 2.0, stages)[placement], rng.uniform(0.2, 4.0, stages)[placement], handoff_s)


def log_normal_times(rng: np.random.Generator, p: int) -> Times:
    """Times that differ by factors of hundreds, to look for a bound that breaks."""
    return Times(
        *(np.exp(rng.normal(mean, width, size)) for mean, width, size in ((0, 1.2, p), (0.5, 1.2, p), (-1, 2, p - 1)))
    )


def log_normal_chunk_times(rng: np.random.Generator, placement: IntArray) -> Times:
    """As `log_normal_times`, each chunk by itself; a boundary within a rank takes no time."""
    handoff_s = uniform_chunk_times(rng, placement).handoff_s
    forward_s, backward_s = (np.exp(rng.normal(mean, 1.2, placement.shape)) for mean in (0.0, 0.5))
    return Times(forward_s, backward_s, np.where(handoff_s > 0, np.exp(rng.normal(-1, 2, len(handoff_s))), 0.0))


def model_like_chunk_times(rng: np.random.Generator, placement: IntArray) -> Times:
    """Looped chunks as `model_like_times` has stages, v chunks a rank: embedding in the first, head in the last.

    The head is up to 60 % of a whole rank. In three of ten cases one rank, or one chunk of it, is up to 50 % heavier.
    Links take up to 2 % of a rank's forward, and up to half a chunk's more behind every 1st to 8th rank (node borders).
    """
    p, v = placement.shape
    forward = np.ones((p, v))
    forward[0, 0] += rng.uniform(0.0, 0.15)
    if rng.random() < 0.3:
        uneven = rng.integers(p)
        chunks = slice(None) if rng.random() < 0.5 else rng.integers(v)
        forward[uneven, chunks] *= rng.uniform(1.0, 1.5)
    backward = 2 * forward
    head = rng.uniform(0.0, 0.6) * v
    forward[-1, -1] += head
    backward[-1, -1] += 1.2 * head
    sender = np.arange(p * v - 1) % p
    slow = ((sender + 1) % rng.integers(1, 9) == 0) | (sender == p - 1)
    handoff = rng.uniform(0.0, 0.02) * v + slow * rng.uniform(0.0, 0.5)
    return Times(forward, backward, handoff * (p > 1))
