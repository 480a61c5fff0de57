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
from ppadvisor.specs.base import Struct

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Ints = int | IntArray
Floats = float | FloatArray


class Kind(IntEnum):
    """What an action does. `BACKWARD` is the whole backward, where it is not split.

    The vocabulary's are a rank's share of the head, where that is spread over all ranks: S, then T, which gives the
    gradient of the hidden states; where S gives that too, only the head's weights are left for U.
    """

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRAD = 2
    WEIGHT_GRAD = 3
    VOCABULARY_FORWARD = 4
    VOCABULARY_BACKWARD = 5
    VOCABULARY_WEIGHT_GRAD = 6

    @property
    def letter(self) -> str:
        return KIND_LETTERS[self]


KIND_LETTERS = "FBIWSTU"


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
    paired: NDArray[np.bool_] | None = None
    """(actions,): True for a forward run as one with the backward after it; what both make is sent after the second."""

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
        paired = np.zeros(len(self), dtype=np.bool_) if self.paired is None else self.paired
        return " ".join(f"{action}{'+' * together}" for action, together in zip(self, paired.tolist(), strict=True))

    @classmethod
    def of(cls, actions: Iterable[tuple[int, int, int]]) -> RankOrder:
        """The order of these (kind, chunk, micro-batch), one after the other."""
        return cls(np.array(list(actions), dtype=np.int32).reshape(-1, 3))

    @classmethod
    def parse(cls, text: str) -> RankOrder:
        """The order written as `F0.0 F0.1+ B0.0`: kind, chunk, micro-batch, + where paired; what `str` prints."""
        words = ([*word[1:].rstrip("+").split("."), word[0]] for word in text.split())
        order = cls.of((KIND_LETTERS.index(letter), int(chunk), int(batch)) for chunk, batch, letter in words)
        paired = np.array([word.endswith("+") for word in text.split()], dtype=np.bool_)
        return cls(order.actions, paired if paired.any() else None)

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


class StageTotals(Struct):
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


class ChunkTimes(NamedTuple):
    """Seconds of one chunk; a backward that is not split takes both gradients."""

    forward_s: Floats
    input_grad_s: Floats
    weight_grad_s: Floats

    @property
    def backward_s(self) -> FloatArray:
        return np.add(self.input_grad_s, self.weight_grad_s)

    @property
    def all_s(self) -> FloatArray:
        return self.forward_s + self.backward_s


class ChunkTotals(StageTotals):
    """What a search also knows where ranks hold several chunks or split the backward: the least and most of one chunk.

    The other totals stay those of whole ranks; hand-offs are those of all p·v − 1 boundaries (none where p = 1).
    """

    chunk_forward_min_s: Floats
    chunk_input_grad_min_s: Floats
    chunk_weight_grad_min_s: Floats
    chunk_forward_max_s: Floats
    chunk_input_grad_max_s: Floats
    chunk_weight_grad_max_s: Floats

    @property
    def chunk_backward_min_s(self) -> FloatArray:
        return self.lightest.backward_s

    @property
    def chunk_backward_max_s(self) -> FloatArray:
        return self.heaviest.backward_s

    @property
    def lightest(self) -> ChunkTimes:
        return ChunkTimes(self.chunk_forward_min_s, self.chunk_input_grad_min_s, self.chunk_weight_grad_min_s)

    @property
    def heaviest(self) -> ChunkTimes:
        return ChunkTimes(self.chunk_forward_max_s, self.chunk_input_grad_max_s, self.chunk_weight_grad_max_s)

    def usual(self, p: Ints, v: Ints) -> ChunkTimes:
        """The mean chunk of the ranks but the heaviest; its kinds in the proportion of `heaviest`."""
        others_s = (np.asarray(self.rank_sum_s) - self.rank_max_s) / np.maximum(np.asarray(p) - 1, 1) / v
        return ChunkTimes(*(others_s * np.asarray(part_s) / self.heaviest.all_s for part_s in self.heaviest))

    @classmethod
    def of_chunks(
        cls,
        forward_s: FloatArray,
        backward_s: FloatArray,
        handoff_s: FloatArray | None = None,
        weight_grad_s: FloatArray | None = None,
    ) -> ChunkTotals:
        """The totals of times given in full: (..., p, v) per rank and chunk, (..., p·v − 1) per boundary.

        `backward_s` is the whole of it, `weight_grad_s` a part, half of it unless given.
        """
        weight_s = backward_s / 2 if weight_grad_s is None else weight_grad_s
        kinds = {"forward": forward_s, "input_grad": backward_s - weight_s, "weight_grad": weight_s}
        least = {f"chunk_{kind}_min_s": seconds.min(axis=(-2, -1)) for kind, seconds in kinds.items()}
        most = {f"chunk_{kind}_max_s": seconds.max(axis=(-2, -1)) for kind, seconds in kinds.items()}
        ranks = StageTotals.of(forward_s.sum(axis=-1), backward_s.sum(axis=-1), handoff_s)
        return cls(**vars(ranks), **least, **most)

    @classmethod
    def known(cls, totals: StageTotals, v: Ints) -> ChunkTotals:
        """`totals` where they know of chunks; else all chunks of a rank count as equal, W as half of a backward."""
        if isinstance(totals, ChunkTotals):
            return totals
        most_s = (np.divide(totals.forward_max_s, v), *(np.divide(totals.backward_max_s, v) / 2,) * 2)
        names = ("chunk_forward", "chunk_input_grad", "chunk_weight_grad")
        most = {f"{name}_max_s": seconds for name, seconds in zip(names, most_s, strict=True)}
        return cls(**vars(totals), **most, **{f"{name}_min_s": 0.0 for name in names})


class Bounds(NamedTuple):
    """Seconds between which a time is proved to lie."""

    lower_s: FloatArray
    upper_s: FloatArray


class _Makespan(Protocol):
    def __call__(
        self, p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0, /
    ) -> FloatArray: ...


class _OrderForTimes(Protocol):
    def __call__(
        self,
        p: int,
        m: int,
        v: int,
        forward_s: ArrayLike,
        input_grad_s: ArrayLike,
        weight_grad_s: ArrayLike,
        handoff_s: ArrayLike = 0.0,
        freed_at_input_grad: float = 0.0,
    ) -> tuple[RankOrder, ...]: ...


class Schedule(Struct):
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
    """(p, v) -> the global stage that each chunk of each rank holds, shape (p, v·copies); 0 takes the input."""

    bubble_formula: str
    """`bubble_fraction` as it is written, in p, m, v and numbers; arithmetic that a program can read too."""
    in_flight_formula: str
    """`in_flight_microbatches` likewise, in p, m, v, the rank r and what `formula_symbols` gives."""
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
    formula_symbols: Callable[[int, int, int], Mapping[str, float]] | None = None
    """(p, m, v) -> further symbols of the two formulas with their values; None: they need none."""
    splits_backward: bool = False
    split_backwards: Callable[[Ints, Ints, Ints], FloatArray] | None = None
    """(p, rank, chunk) -> backwards of the chunk that are split, where some are and some are whole; None: all."""
    order_for_times: _OrderForTimes | None = None
    """(p, m, v, forward_s, input_grad_s, weight_grad_s, handoff_s = 0, freed_at_input_grad = 0) -> the order made for
    these times, per rank or boundary, where a schedule has one; `order` is then that for F = I = W and free links."""
    loss_waits: bool = False
    """All m losses are computed before the first backward, so that all their logits are alive at once."""
    spreads_head: bool = False
    """Embedding and head are divided over all ranks."""
    head_buffers: tuple[int, int] = (0, 0)
    """Bytes for each element of the hidden state that a rank keeps for a head divided so: in a layer's backward, and in
    the head's own steps."""
    parameter_copies: int = 1
    """Copies of each stage, on two ranks where 2; a micro-batch passes one of them."""
    asynchronous: bool = False
    """No flush after a step: the closed forms are those of the steady state, what m micro-batches more take and hold,
    while `order` begins with an empty pipeline and ends with one."""
    weight_versions: Callable[[Ints, Ints], FloatArray] | None = None
    """(p, rank) -> versions of its weights that a rank keeps at once; None: 1."""

    def split_share(self, p: Ints, m: Ints, rank: Ints, chunk: Ints) -> FloatArray:
        """Of the backwards of a chunk, those that are split into input and weight gradients."""
        if self.split_backwards is None:
            return over(float(self.splits_backward), p, m, rank, chunk)
        return over(self.split_backwards(p, rank, chunk) / np.asarray(m), p, m, rank, chunk)

    def rank_orders(self, p: int, m: int, v: int | None = None) -> tuple[RankOrder, ...]:
        """The order of each rank; an `InputError` where the schedule cannot run p, m, v. Without v its default."""
        chunks = self.virtual_stages.default if v is None else v
        self.refuse(p, m, chunks)
        return self.order(p, m, chunks)

    def refuse(self, p: int, m: int, v: int) -> None:
        """An `InputError` where the schedule cannot run p, m, v."""
        problem = self.problem(p, m, v)
        if problem is not None:
            raise InputError(f"schedule {self.id}: {problem}")

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
    change = np.array([1.0, -1.0, -freed_at_input_grad, freed_at_input_grad - 1.0, 0.0, 0.0, 0.0])
    return np.array([change[rank_order.kind].cumsum().max() for rank_order in order])


def over(value: ArrayLike, *arguments: ArrayLike) -> FloatArray:
    """`value` as an array of the shape to which the arguments broadcast, also where it depends on some of them only."""
    shape = np.broadcast_shapes(np.shape(value), *(np.shape(argument) for argument in arguments))
    return np.broadcast_to(np.asarray(value, dtype=np.float64), shape)


def looped_placement(p: int, v: int) -> IntArray:
    """Stage of chunk c of rank r: c·p + r, each chunk once around all ranks; for v = 1 stage r is rank r."""
    return np.arange(p * v, dtype=np.int64).reshape(v, p).T


def chunk_turns(m: int, v: int, group: int) -> tuple[IntArray, IntArray]:
    """Chunk and micro-batch of each chunk forward in turn: `group` micro-batches on chunk 0, then chunk 1, ..."""
    batch, chunk = np.divmod(np.arange(m * v, dtype=np.int64), v)
    turns = np.lexsort((batch, chunk, batch // group))
    return chunk[turns], batch[turns]


def chunk_actions(kind: Kind, chunk: IntArray, microbatch: IntArray) -> NDArray[np.int32]:
    """Rows of a `RankOrder` that do this kind of work on these chunks and micro-batches."""
    return np.stack([np.full_like(chunk, kind), chunk, microbatch], axis=1).astype(np.int32)
