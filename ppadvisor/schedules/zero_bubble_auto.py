"""The order that the Zero Bubble paper searches for given times, links and memory: ZB-1p, ZB-2p.

Source: Qi et al. 2024, arXiv 2401.10241, section 3.1. The program is our own. It builds an order micro-batch by
micro-batch, once for each of the paper's choices, and takes the best of these, of ZB-H1 and of ZB-H2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ppadvisor.errors import InputError
from ppadvisor.schedules.base import FloatArray, Kind, RankOrder, looped_placement, peak_in_flight_chunks
from ppadvisor.schedules.many_runs import starts_s
from ppadvisor.schedules.replay import build_graph, timed_run
from ppadvisor.schedules.split_backward import alternating_order

ENOUGH = 8
"""The choices are compared over at most this many micro-batches a rank; more would repeat the steady state."""
ALIKE = 1e-3
"""Times no further apart than this share count as equal."""


class StageTimes(NamedTuple):
    """Seconds of F, I, W of each rank (p,), of each boundary's one-way hand-off (p − 1,), and what memory allows."""

    forward_s: list[float]
    input_grad_s: list[float]
    weight_grad_s: list[float]
    handoff_s: list[float]
    memory_limit: float = math.inf
    freed_at_input_grad: float = 0.0


class Choices(NamedTuple):
    """What the paper leaves open and tries both ways."""

    late_forward: bool = True
    """In the warm-up a forward more, although it ends after the first gradient could have come."""
    skip_forward: bool = True
    """Leave out a forward that would hold up the next gradient, where the rank is ahead of the one behind it."""
    always_fill: bool = True
    """Fill a wait shorter than a weight gradient with one, also where the rank has idled less than another."""


class _Builder:
    """The state of every rank while the order is built, and the actions that change it."""

    def __init__(self, m: int, times: StageTimes, choices: Choices) -> None:
        self.p, self.m, self.times, self.choices = len(times.forward_s), m, times, choices
        self.clock, self.held, self.idle = ([0.0] * self.p for _ in range(3))
        self.forward_end, self.input_end = ([list[float]() for _ in range(self.p)] for _ in range(2))
        self.weights_done = [0] * self.p
        self.kinds = [list[int]() for _ in range(self.p)]
        self.decisive: set[str] = set()
        """The choices without which something else would have been done."""

    def forward_there(self, rank: int) -> float:
        """When the rank's next forward could start."""
        return self.forward_end[rank - 1][len(self.forward_end[rank])] + self.times.handoff_s[rank - 1] if rank else 0.0

    def gradient_there(self, rank: int) -> float:
        """When its next input gradient could."""
        if rank == self.p - 1:
            return 0.0
        return self.input_end[rank + 1][len(self.input_end[rank])] + self.times.handoff_s[rank]

    def wait(self, rank: int, until: float) -> float:
        """Idle until then; the time before the first action does not count."""
        wait_s = max(0.0, until - self.clock[rank])
        if self.forward_end[rank]:
            self.idle[rank] += wait_s
        return self.clock[rank] + wait_s

    def forward(self, rank: int) -> None:
        self.clock[rank] = self.wait(rank, self.forward_there(rank)) + self.times.forward_s[rank]
        self.forward_end[rank].append(self.clock[rank])
        self.held[rank] += 1.0
        self.kinds[rank].append(Kind.FORWARD)

    def gradient(self, rank: int) -> None:
        self.clock[rank] = self.wait(rank, self.gradient_there(rank)) + self.times.input_grad_s[rank]
        self.input_end[rank].append(self.clock[rank])
        self.held[rank] -= self.times.freed_at_input_grad
        self.kinds[rank].append(Kind.INPUT_GRAD)

    def weights(self, rank: int) -> None:
        self.clock[rank] += self.times.weight_grad_s[rank]
        self.weights_done[rank] += 1
        self.held[rank] -= 1.0 - self.times.freed_at_input_grad
        self.kinds[rank].append(Kind.WEIGHT_GRAD)

    def weights_due(self, rank: int) -> int:
        return len(self.input_end[rank]) - self.weights_done[rank]

    def fits(self, held: float) -> bool:
        return held <= self.times.memory_limit + 1e-9

    def fill(self, rank: int, until: float) -> None:
        """Weight gradients while the rank would wait: those that fit, and one more if it costs the pipeline nothing."""
        while self.weights_due(rank) and self.clock[rank] + self.times.weight_grad_s[rank] <= until:
            self.weights(rank)
        gap_s = until - self.clock[rank]
        spare_s = max(self.idle) - self.idle[rank]
        if gap_s > 0 and self.weights_due(rank) and (gap_s > spare_s or self.chosen("always_fill")):
            self.weights(rank)

    def chosen(self, name: str) -> bool:
        """The choice of this name, on which it hangs what is done."""
        self.decisive.add(name)
        return bool(getattr(self.choices, name))


def _forwards_more(work: _Builder) -> list[int]:
    """How many forwards each rank does while it waits for the first gradient, as time and memory allow.

    A rank that has forwards left to do is to be ahead of the one behind it, and none is behind that.
    """
    times, more = work.times, [0] * work.p
    gradient_end = work.clock[-1] + times.input_grad_s[-1]
    for rank in reversed(range(work.p - 1)):
        there, clock = gradient_end + times.handoff_s[rank], work.clock[rank]
        while more[rank] + 1 < work.m and work.fits(work.held[rank] + more[rank] + 1):
            end = clock + times.forward_s[rank]
            late, early = clock >= there, end > there
            if late if late == early or work.chosen("late_forward") else early:
                break
            clock, more[rank] = end, more[rank] + 1
        gradient_end = max(clock, there) + times.input_grad_s[rank]
    for rank in range(1, work.p):
        ahead = more[rank - 1]
        more[rank] = min(more[rank], ahead if ahead + 1 == work.m else max(ahead - 1, 0))
    return more


def _warm_up(work: _Builder) -> None:
    """The first micro-batch forward and back, and the forwards between."""
    for rank in range(work.p):
        work.forward(rank)
    for rank, count in enumerate(_forwards_more(work)):
        for _ in range(count):
            work.forward(rank)
    for rank in reversed(range(work.p)):
        work.gradient(rank)


def _wants_forward(work: _Builder, rank: int) -> bool:
    """Whether the rank does a forward in this round; it may leave it out where that holds up its next gradient."""
    done = len(work.forward_end[rank])
    if done >= work.m:
        return False
    if rank == work.p - 1 or done < len(work.forward_end[rank + 1]) + 2:
        return True
    return not _holds_up(work, rank) or not work.chosen("skip_forward")


def _holds_up(work: _Builder, rank: int) -> bool:
    """Whether a forward would hold up the rank's next gradient, and the rank has idled enough to leave it out."""
    times = work.times
    behind = rank + 1
    there = work.clock[behind] + times.forward_s[behind] + times.input_grad_s[behind] + times.handoff_s[rank]
    clock, held, due = work.clock[rank], work.held[rank] + 1, work.weights_due(rank)
    if clock >= there:
        return True
    while not work.fits(held) and due:
        clock, held, due = clock + times.weight_grad_s[rank], held - 1 + times.freed_at_input_grad, due - 1
    if clock + times.forward_s[rank] <= there:
        return False
    return there - work.clock[rank] <= max(work.idle) - work.idle[rank]


def _round(work: _Builder) -> None:
    """One forward down the ranks and one gradient up, each after the weight gradients that fit before it."""
    ranks = range(work.p)
    wants = [_wants_forward(work, rank) for rank in ranks]
    # where a rank leaves its forward out, those before it do too: none gets further ahead of the one behind
    first = next((rank + 1 for rank in reversed(ranks) if not wants[rank]), 0)
    for rank in ranks[first:]:
        while not work.fits(work.held[rank] + 1) and work.weights_due(rank):
            work.weights(rank)
        work.fill(rank, work.forward_there(rank))
        work.forward(rank)
    for rank in reversed(ranks):
        work.fill(rank, work.gradient_there(rank))
        work.gradient(rank)


def _build(m: int, times: StageTimes, choices: Choices) -> tuple[RankOrder, ...]:
    """The order of each rank that these choices make."""
    return _orders_of(_built(m, times, choices))


def _built(m: int, times: StageTimes, choices: Choices) -> _Builder:
    """What each rank does: warm-up, a round for each further micro-batch, and the weight gradients left."""
    work = _Builder(m, times, choices)
    _warm_up(work)
    for _ in range(1, m):
        _round(work)
    for rank in range(work.p):
        while work.weights_due(rank):
            work.weights(rank)
    return work


def _orders_of(work: _Builder) -> tuple[RankOrder, ...]:
    return tuple(RankOrder.counting(np.array(kinds)) for kinds in work.kinds)


def equal_times_order(p: int, m: int, memory_limit: int) -> tuple[RankOrder, ...]:
    """The order for F = I = W and free links: the search finds none with a shorter span, or a shorter makespan.

    ZB-H1's where that has the memory and needs no more: m ≤ p, or a limit of p. Else what the first choices give.
    """
    if (m <= p and m <= memory_limit) or memory_limit == p or p == 1:
        return alternating_order(p, m, forwards_ahead=1)
    ones = [1.0] * p
    return _build(m, StageTimes(ones, ones, ones, [0.0] * (p - 1), memory_limit), Choices())


def _candidates(m: int, times: StageTimes) -> Iterator[tuple[Choices | int, tuple[RankOrder, ...]]]:
    """The order for equal times, named 0; ZB-H1 where it fits, named by its forwards ahead; each choice's; ZB-H2."""
    p = len(times.forward_s)
    yield 0, equal_times_order(p, m, int(times.memory_limit))
    by_hand = [alternating_order(p, m, forwards_ahead=ahead) for ahead in (1, 2)]
    peaks = [peak_in_flight_chunks(order, times.freed_at_input_grad).max() for order in by_hand]
    if peaks[0] <= times.memory_limit + 1e-9:
        yield 1, by_hand[0]
    built: list[_Builder] = []
    for flags in product((True, False), repeat=3):
        choices = Choices(*flags)
        # where no choice decided that differs now, the same would come out
        if not any(all(getattr(w.choices, name) == getattr(choices, name) for name in w.decisive) for w in built):
            built.append(_built(m, times, choices))
            yield choices, _orders_of(built[-1])
    if peaks[1] <= times.memory_limit + 1e-9:
        yield 2, by_hand[1]


def _scores(orders: Sequence[tuple[RankOrder, ...]], times: StageTimes) -> tuple[FloatArray, FloatArray]:
    """Of each order the longest span of a rank, first start to last end, and the makespan."""
    placement = looped_placement(len(times.forward_s), 1)
    of_kinds = {
        Kind.FORWARD: times.forward_s,
        Kind.INPUT_GRAD: times.input_grad_s,
        Kind.WEIGHT_GRAD: times.weight_grad_s,
    }
    runs = [timed_run(build_graph(o, placement), placement, of_kinds, times.handoff_s, times.handoff_s) for o in orders]
    found = np.array([run.spans_s(start) for run, start in zip(runs, starts_s(runs), strict=True)])
    return found[:, 0], found[:, 1]


def _best(m: int, times: StageTimes) -> tuple[Choices | int, tuple[RankOrder, ...]]:
    """The candidate with the shortest longest span, of those not slower than the order for equal times.

    Of those within `ALIKE` of it the one with the shortest makespan.
    """
    candidates = list(_candidates(m, times))
    spans_s, makespans_s = _scores([order for _, order in candidates], times)
    spans_s = np.where(makespans_s <= makespans_s[0] * (1 + ALIKE), spans_s, np.inf)
    return candidates[int(np.argmin(np.where(spans_s <= spans_s.min() * (1 + ALIKE), makespans_s, np.inf)))]


def _named(best: Choices | int, m: int, times: StageTimes) -> tuple[RankOrder, ...]:
    """The candidate of this name for more micro-batches."""
    p = len(times.forward_s)
    if isinstance(best, Choices):
        return _build(m, times, best)
    return alternating_order(p, m, forwards_ahead=best) if best else equal_times_order(p, m, int(times.memory_limit))


def _listed(seconds: ArrayLike, size: int, name: str) -> list[float]:
    values = np.asarray(seconds, dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(f"{name}: times must be finite and not negative")
    if values.shape not in ((), (size,)):
        raise InputError(f"{name}: got shape {values.shape}, needed {(size,)} or one number")
    return [float(value) for value in np.broadcast_to(values, (size,))]


def search_order(
    p: int,
    m: int,
    forward_s: ArrayLike,
    input_grad_s: ArrayLike,
    weight_grad_s: ArrayLike,
    handoff_s: ArrayLike = 0.0,
    memory_limit: float | None = None,
    *,
    freed_at_input_grad: float = 0.0,
) -> tuple[RankOrder, ...]:
    """The order of each rank found for these times: as in the paper the one whose longest span of a rank is shortest.

    Times of F, I, W per rank (p,) or one number; hand-offs per boundary (p − 1,) or one number. `memory_limit` in
    micro-batches whose activations a rank may hold (default p), each until its W, or less `freed_at_input_grad` of it
    from I on. The paper's runs keep 32·h of 34·h + 5·a·s per token between I and W; torch keeps all. Raises
    `InputError`. The paper improves its result by integer programming where it can; this does not, and reaches its
    printed bubbles (`tests/published/zero_bubble_split.json`).
    """
    limit = float(p) if memory_limit is None else float(memory_limit)
    if p < 1 or m < 1:
        raise InputError(f"search for an order: p and m must be at least 1: got p = {p}, m = {m}")
    if not limit >= 1.0 or not 0.0 <= freed_at_input_grad <= 1.0:
        raise InputError(
            "search for an order: memory_limit must be at least 1 and freed_at_input_grad from 0 to 1: "
            f"got {memory_limit} and {freed_at_input_grad}"
        )
    times = StageTimes(
        _listed(forward_s, p, "forward_s"),
        _listed(input_grad_s, p, "input_grad_s"),
        _listed(weight_grad_s, p, "weight_grad_s"),
        _listed(handoff_s, p - 1, "handoff_s"),
        min(limit, float(m)),
        freed_at_input_grad,
    )
    few = min(m, ENOUGH * p)
    best, order = _best(few, times)
    return order if few == m else _named(best, m, times)
