"""What a schedule is: the order of work of every rank, and the closed forms that this order must reproduce.

Symbols, as in the literature: p ranks in one pipeline (`pipeline_parallel`), m micro-batches (`num_microbatches`),
v model chunks a rank (`virtual_stages`); F forward, B backward, which a schedule may split into I (gradient of the
input) and W (gradient of the weights). A stage is a run of layers; chunk c of rank r holds stage `placement[r, c]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ppadvisor.errors import InputError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Ints = int | IntArray
Floats = float | FloatArray


class Kind(IntEnum):
    """What an action does. `BACKWARD` is the whole backward, where it is not split."""

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRAD = 2
    WEIGHT_GRAD = 3

    @property
    def letter(self) -> str:
        return KIND_LETTERS[self]


KIND_LETTERS = "FBIW"


class Action(NamedTuple):
    """One piece of work of one rank, for reading and for pictures; orders are kept as arrays."""

    kind: Kind
    chunk: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind.letter}{self.chunk}.{self.microbatch}"


@dataclass(frozen=True, eq=False)
class RankOrder:
    """What one rank does, first to last: an int32 array of shape (actions, 3), columns kind, chunk, micro-batch.

    An array and not a list of `Action`: p = 64, v = 4, m = 1024 with a split backward has 786,432 actions.
    """

    actions: NDArray[np.int32]

    @property
    def kind(self) -> NDArray[np.int32]:
        return self.actions[:, 0]

    @property
    def chunk(self) -> NDArray[np.int32]:
        return self.actions[:, 1]

    @property
    def microbatch(self) -> NDArray[np.int32]:
        return self.actions[:, 2]

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, index: int) -> Action:
        kind, chunk, microbatch = self.actions[index].tolist()
        return Action(Kind(kind), chunk, microbatch)

    def __iter__(self) -> Iterator[Action]:
        return (Action(Kind(kind), chunk, microbatch) for kind, chunk, microbatch in self.actions.tolist())

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def of(cls, actions: Iterable[tuple[int, int, int]]) -> RankOrder:
        """The order of these (kind, chunk, micro-batch), one after the other."""
        return cls(np.array(list(actions), dtype=np.int32).reshape(-1, 3))

    @classmethod
    def parse(cls, text: str) -> RankOrder:
        """The order written as `F0.0 F0.1 B0.0`: kind, chunk, micro-batch; what `str` prints."""
        words = ([*word[1:].split("."), word[0]] for word in text.split())
        return cls.of((KIND_LETTERS.index(letter), int(chunk), int(batch)) for chunk, batch, letter in words)

    @classmethod
    def counting(cls, kinds: NDArray[np.integer]) -> RankOrder:
        """The order of these kinds on one chunk, where each kind takes the micro-batches 0, 1, 2, ... in turn."""
        actions = np.zeros((len(kinds), 3), dtype=np.int32)
        actions[:, 0] = kinds
        for kind in Kind:
            rows = np.flatnonzero(kinds == kind)
            actions[rows, 2] = np.arange(len(rows))
        return cls(actions)


@dataclass(frozen=True)
class VirtualStages:
    """Which v a schedule takes: `minimum`, `minimum` + `step`, ... up to `maximum` (None: no limit)."""

    minimum: int = 1
    maximum: int | None = 1
    step: int = 1

    @property
    def default(self) -> int:
        """The smallest that the schedule needs."""
        return self.minimum

    def allows(self, v: int) -> bool:
        below = self.maximum is None or v <= self.maximum
        return below and v >= self.minimum and (v - self.minimum) % self.step == 0

    def __str__(self) -> str:
        if self.maximum == self.minimum:
            return str(self.minimum)
        values = f"{self.minimum}, {self.minimum + self.step}, ..."
        return values if self.maximum is None else f"{values}, {self.maximum}"


@dataclass(frozen=True)
class StageTotals:
    """What a search knows of unequal stages without listing them: arrays over plans, seconds per micro-batch.

    A rank is one entry of the sums and maxima: its chunks count together. A hand-off is one tensor in one direction
    between two consecutive stages; the other direction is taken to cost the same. Without links both are 0.
    """

    rank_sum_s: Floats
    """Σ_r (F_r + B_r): forward and backward of one micro-batch through the whole model, links left out."""
    rank_max_s: Floats
    """max_r (F_r + B_r)."""
    rank_min_s: Floats
    """min_r (F_r + B_r)."""
    forward_max_s: Floats
    """max_r F_r."""
    backward_max_s: Floats
    """max_r B_r."""
    rank_last_s: Floats
    """F + B of the last rank."""
    behind_max_s: Floats = 0.0
    """Σ over the ranks behind the heaviest one (the last of them where several are equal) of what each is lighter than
    it; 0 where that rank is the last. Left at 0 where the place is not known: a guess may be that much too high."""
    handoff_sum_s: Floats = 0.0
    """Σ over the p−1 boundaries of the one-way hand-off."""
    handoff_max_s: Floats = 0.0
    """The slowest boundary's one-way hand-off."""

    @classmethod
    def of(cls, forward_s: FloatArray, backward_s: FloatArray, handoff_s: FloatArray | None = None) -> StageTotals:
        """The totals of times given in full: (..., p) per rank and (..., p−1) per boundary."""
        rank_s = forward_s + backward_s
        lighter_s = rank_s.max(axis=-1, keepdims=True) - rank_s
        behind = np.logical_and.accumulate(lighter_s[..., ::-1] > 0, axis=-1)[..., ::-1]
        links = np.zeros((1,)) if handoff_s is None or not handoff_s.shape[-1] else handoff_s
        return cls(
            rank_sum_s=rank_s.sum(axis=-1),
            rank_max_s=rank_s.max(axis=-1),
            rank_min_s=rank_s.min(axis=-1),
            forward_max_s=forward_s.max(axis=-1),
            backward_max_s=backward_s.max(axis=-1),
            rank_last_s=rank_s[..., -1],
            behind_max_s=np.where(behind, lighter_s, 0.0).sum(axis=-1),
            handoff_sum_s=links.sum(axis=-1),
            handoff_max_s=links.max(axis=-1),
        )


class Bounds(NamedTuple):
    """Seconds between which a time is proved to lie."""

    lower_s: FloatArray
    upper_s: FloatArray


class _Makespan(Protocol):
    def __call__(
        self, p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0, /
    ) -> FloatArray: ...


@dataclass(frozen=True)
class Schedule:
    """What a schedule declares. A module of this package ends with one, named `SCHEDULE`.

    The first group is said, the second holds for one (p, m, v), the third are array functions over plans: all of
    their arguments broadcast. The tests replay `order` and hold every closed form against it.
    """

    id: str
    title: str
    source: str

    constraint: Callable[[int, int, int], str | None]
    """(p, m, v) -> why the schedule itself (not a framework) cannot run it, or None."""
    order: Callable[[int, int, int], tuple[RankOrder, ...]]
    """(p, m, v) -> the order of each rank; (p, m, v) must have passed `constraint`."""
    placement: Callable[[int, int], IntArray]
    """(p, v) -> the global stage that each chunk of each rank holds, shape (p, v); 0 takes the input."""

    bubble_fraction: Callable[[Ints, Ints, Ints], FloatArray]
    """(p, m, v) -> 1 − Σ busy/(p·makespan) for equal stages and free links."""
    in_flight_microbatches: Callable[[Ints, Ints, Ints, Ints], FloatArray]
    """(p, m, v, rank) -> micro-batches a rank holds at its peak, in whole-rank equivalents."""
    makespan_s: _Makespan
    """(p, m, v, forward_s, backward_s, weight_grad_s = 0) -> seconds for equal chunks of these times and free links;
    where the backward is split `backward_s` is that of the input, elsewhere the two are done as one."""
    pipeline_time_s: Callable[[Ints, Ints, Ints, StageTotals], FloatArray]
    """(p, m, v, totals) -> the best guess of the makespan for unequal stages and links, for ranking."""
    pipeline_time_bounds_s: Callable[[Ints, Ints, Ints, StageTotals], Bounds]
    """(p, m, v, totals) -> what the replayed makespan lies between."""

    virtual_stages: VirtualStages = VirtualStages()
    splits_backward: bool = False
    parameter_copies: int = 1

    def rank_orders(self, p: int, m: int, v: int | None = None) -> tuple[RankOrder, ...]:
        """The order of each rank; an `InputError` where the schedule cannot run p, m, v. Without v its default."""
        chunks = self.virtual_stages.default if v is None else v
        problem = self.problem(p, m, chunks)
        if problem is not None:
            raise InputError(f"schedule {self.id}: {problem}")
        return self.order(p, m, chunks)

    def problem(self, p: int, m: int, v: int) -> str | None:
        """Why (p, m, v) cannot be run: sizes below 1, a v that is not allowed, or the schedule's own constraint."""
        sizes: Mapping[str, int] = {"pipeline_parallel": p, "num_microbatches": m, "virtual_stages": v}
        for name, size in sizes.items():
            if size < 1:
                return f"{name} must be at least 1: got {size}"
        if not self.virtual_stages.allows(v):
            return f"virtual_stages must be {self.virtual_stages}: got {v}"
        return self.constraint(p, m, v)


def no_constraint(_p: int, _m: int, _v: int) -> None:
    """The constraint of a schedule that runs every p, m and allowed v."""


def peak_in_flight_chunks(order: Sequence[RankOrder], freed_at_input_grad: float = 0.0) -> FloatArray:
    """Chunk forwards each rank holds at its peak; a split backward lets go of this share at I and the rest at W."""
    change = np.array([1.0, -1.0, -freed_at_input_grad, freed_at_input_grad - 1.0])
    return np.array([change[rank_order.kind].cumsum().max() for rank_order in order])


def over(value: ArrayLike, *arguments: ArrayLike) -> FloatArray:
    """`value` as an array of the shape to which the arguments broadcast, also where it depends on some of them only."""
    shape = np.broadcast_shapes(np.shape(value), *(np.shape(argument) for argument in arguments))
    return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)


def looped_placement(p: int, v: int) -> IntArray:
    """Stage of chunk c of rank r: c·p + r, each chunk once around all ranks; for v = 1 stage r is rank r."""
    return np.arange(p * v, dtype=np.int64).reshape(v, p).T
