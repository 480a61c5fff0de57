"""The arrays that every formula starts from: one row a plan, one column a stage (or group of equal stages)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ppadvisor import schedules
from ppadvisor.engine.parameters import (
    Weight,
    embedding_weights,
    head_weights,
    layer_weights,
    mtp_weights,
    rank_parameters,
)
from ppadvisor.engine.partition import Layout, Split, Stages, stages_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.stash import Stash
from ppadvisor.frameworks.profile import Spread, Tensor, When
from ppadvisor.schedules.base import Schedule
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.plan import PlanTable, distinct_values

FloatArray = NDArray[np.float64]
NumberT = TypeVar("NumberT", bound=np.generic)
P = ParamSpec("P")
T = TypeVar("T")


def beside_stages(assumed: float | FloatArray) -> FloatArray:
    """An assumption in a formula of shape (plans, stages): a number stays one, one a plan becomes a column."""
    return np.asarray(assumed)[..., None]


def of_rows(values: NDArray[NumberT], rows: NDArray[np.int64]) -> NDArray[NumberT]:
    """Some rows of a table whose plans lie next to each other, laid out the same."""
    return np.take(values.T, rows, axis=-1).T


def by_kind(values: Sequence[FloatArray]) -> FloatArray:
    """(plans,) of each kind of layer -> (plans, kinds), plans next to each other."""
    return np.stack(values).T


def _over_kinds(layers: FloatArray, per_kind: FloatArray) -> FloatArray:
    """Sum over the kinds of layer, the last axis of both."""
    total = layers[..., 0] * per_kind[..., 0]
    for index in range(1, layers.shape[-1]):
        total = total + layers[..., index] * per_kind[..., index]
    return np.asarray(total)


@lru_cache(maxsize=4096)
def layout_of(schedule_id: str, split: Split, virtual_stages: int) -> Layout:
    """Which rank of a schedule's pipeline holds which stages of a split."""
    schedule = schedules.get(schedule_id)
    ranks = len(split) // virtual_stages
    placement = schedule.placement(ranks, virtual_stages).tolist()
    return Layout(split, tuple(tuple(held) for held in placement), schedule.spreads_head)


def layouts_of(plans: PlanTable) -> tuple[list[Layout], NDArray[np.int64]]:
    """The distinct layouts of a table, and which of them each plan has."""
    most_v, schedules_ = int(plans.virtual_stages.max(initial=0)) + 1, len(plans.schedule_names)
    used, row = distinct_values((plans.split * schedules_ + plans.schedule) * most_v + plans.virtual_stages)
    of_schedule, v = np.divmod(used, most_v)
    split, schedule = np.divmod(of_schedule, schedules_)
    named = zip(schedule.tolist(), split.tolist(), v.tolist(), strict=True)
    layouts = [layout_of(plans.schedule_names[index], plans.splits[one], chunks) for index, one, chunks in named]
    return layouts, row


@dataclass(frozen=True)
class PlanInputs:
    """A table of plans with its stages, and what follows from them. Shapes: (plans,) or (plans, stages)."""

    problem: Problem
    plans: PlanTable
    stages: Stages
    stash: Stash | None = None
    """What each chunk holds, (plans, stages, chunks) in its arrays, read off the order of work itself; None: the
    schedules' closed forms, every chunk alike, and nothing told apart that waits for its weight gradient."""
    sizes: Sizes | None = None
    """The distinct sizes of these plans, without stages, and which of them each plan has; None: not told apart."""
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What functions that several terms share have answered, see `remembered`."""

    @staticmethod
    def of(problem: Problem, plans: PlanTable, *, every_stage: bool) -> PlanInputs:
        """Look up what the ranks of each plan hold."""
        layouts, row = layouts_of(plans)
        stages = stages_of(problem.model, layouts, every_stage=every_stage)
        return PlanInputs(problem, plans, stages if len(plans) == 1 else stages.take(row))

    def with_sizes(self, sizes: Sizes) -> PlanInputs:
        """The same, with what hangs on the sizes alone (see `once_per_size`) looked up at those of `sizes_of`."""
        return replace(self, sizes=sizes)

    def row(self, index: int) -> PlanInputs:
        """The table of one plan alone."""
        one = np.array([index])
        held = self.stash and self.stash.each(lambda values: values[one])
        return PlanInputs(self.problem, self.plans.take(one), self.stages.take(one), held)

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        return self.problem.model.layer_kinds()[0]

    @cached_property
    def tokens(self) -> FloatArray:
        """T: tokens of one micro-batch on one context-parallel rank, s b / c."""
        training = self.problem.training
        return training.sequence_length * self.plans.micro_batch_size / self.plans.context_parallel

    @cached_property
    def sequence_ways(self) -> FloatArray:
        """Ranks over which the residual stream is divided: t with sequence parallelism, else 1."""
        t = self.plans.tensor_parallel.astype(np.float64)
        return t if self.problem.training.sequence_parallel else np.ones_like(t)

    @cached_property
    def sharding_ways(self) -> FloatArray:
        """Ranks that share one copy of a stage's non-expert parameters: d c (distributed_data_parallel.py:289)."""
        return (self.plans.data_parallel * self.plans.context_parallel).astype(np.float64)

    @cached_property
    def expert_ways(self) -> NDArray[np.int64]:
        """Ways the routed experts of a stage are cut: e etp."""
        return self.plans.expert_parallel * self.plans.expert_tensor_parallel

    @cached_property
    def expert_sharding_ways(self) -> FloatArray:
        """Expert data parallel: t c d / (e etp)."""
        plans = self.plans
        return plans.tensor_parallel * plans.context_parallel * plans.data_parallel / self.expert_ways

    @cached_property
    def vocab_size(self) -> FloatArray:
        """The vocabulary as the framework stores it."""
        padded = self.problem.framework.padded_vocab_size(self.problem.model.vocab_size, self.plans.tensor_parallel)
        return padded.astype(np.float64)

    @cached_property
    def logits_per_token(self) -> FloatArray:
        """Logits of one token on one rank: V / t, or V where the output layer gathers them. (plans,)"""
        ways = 1 if self.problem.framework.gathers_logits else self.plans.tensor_parallel
        return np.asarray(self.vocab_size / ways)

    def rows_by_schedule(self) -> Iterator[tuple[Schedule, NDArray[np.int64]]]:
        """Each schedule in the table with the rows that run it."""
        for index, name in enumerate(self.plans.schedule_names):
            rows = np.flatnonzero(self.plans.schedule == index)
            if len(rows):
                yield schedules.get(name), rows

    @cached_property
    def copies(self) -> FloatArray:
        """Copies of the model in one pipeline, (plans,): a micro-batch passes one of them."""
        result = np.ones(len(self.plans))
        for schedule, rows in self.rows_by_schedule():
            result[rows] = schedule.parameter_copies
        return result

    @cached_property
    def in_flight(self) -> FloatArray:
        """Micro-batches whose activations a rank holds at its peak, in whole-rank equivalents, (plans, stages).

        A split backward lets go of them at the weight gradient.

        Of a group of equal ranks the first, the last or the one in the middle holds the most, whichever the schedule.
        """
        if self.stash is not None:
            held = self.stash.at_peak.alive + self.stash.at_peak.waiting
            stages_of_rank = held.shape[2] / self.copies
            return np.asarray(held.sum(axis=2) / stages_of_rank[:, None])
        result = np.zeros_like(self.stages.first_stage, dtype=np.float64)
        for schedule, rows in self.rows_by_schedule():
            p, m, v = (column[rows][:, None] for column in self.plans.pipeline_sizes)
            first, last = of_rows(self.stages.first_stage, rows), of_rows(self.stages.last_stage, rows)
            # the first counts for a group of one, and no less than nothing is held
            held = np.maximum(0.0, schedule.in_flight_microbatches(p, m, v, first))
            if (last > first).any():
                for rank in ((first + last) // 2, last):
                    held = np.maximum(held, schedule.in_flight_microbatches(p, m, v, rank))
            result[rows] = held
        return result

    @cached_property
    def chunk_in_flight(self) -> FloatArray:
        """Forwards of each chunk that are alive at a rank's peak, (plans, stages, chunks)."""
        if self.stash is not None:
            return self.stash.at_peak.alive
        return np.asarray(
            np.broadcast_to((self.in_flight / self.copies[:, None])[:, :, None], self.stages.chunk_head.shape)
        )

    @cached_property
    def head_in_flight(self) -> FloatArray:
        """Micro-batches whose loss is alive on the chunk that holds the head, (plans,)."""
        result = np.ones(len(self.plans))
        for schedule, rows in self.rows_by_schedule():
            if schedule.loss_waits:
                result[rows] = self.plans.num_microbatches[rows]
        return result

    def rank_parameters(self, weights: tuple[Weight, ...]) -> tuple[FloatArray, FloatArray]:
        """(dense, routed-expert) parameters of `weights` on one rank, (plans,)."""
        return rank_parameters(
            weights,
            tensor_parallel=self.plans.tensor_parallel,
            expert_ways=self.expert_ways,
            num_query_groups=self.problem.model.num_query_groups,
        )

    @cached_property
    def layer_parameters(self) -> tuple[FloatArray, FloatArray]:
        """(dense, routed-expert) parameters of one layer of each kind on one rank, (plans, kinds)."""
        return _layer_parameters(self)

    @cached_property
    def end_parameters(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Dense parameters on one rank of (embedding, head, MTP projections and embedding copy), (plans,)."""
        return _end_parameters(self)

    @cached_property
    def both_ends(self) -> FloatArray:
        """1 where a rank of a pipeline holds embedding and head (V-shaped placements), (plans, stages)."""
        both = (self.stages.has_embedding > 0) & (self.stages.has_head > 0)
        return np.where(both & (self.plans.pipeline_parallel > 1)[:, None], self.stages.has_head, 0.0)

    @cached_property
    def shared_table(self) -> FloatArray:
        """Copies of the token table that are not needed where a rank holds both ends, (plans,)."""
        model = self.problem.model
        copies = int(model.tied_embeddings) + int(model.mtp_num_layers > 0)
        return copies * model.hidden_size * self.vocab_size / self.plans.tensor_parallel

    @cached_property
    def parameters(self) -> tuple[FloatArray, FloatArray]:
        """(dense, routed-expert) parameters of each stage on one rank, (plans, stages)."""
        dense, expert = self.layer_parameters
        embedding, head, mtp = self.end_parameters
        stage_dense = self.per_stage(dense)
        stage_dense = stage_dense + embedding[:, None] * self.stages.has_embedding
        stage_dense = stage_dense + (head + mtp)[:, None] * self.stages.has_head
        stage_dense = stage_dense - self.shared_table[:, None] * self.both_ends
        return stage_dense, self.per_stage(expert)

    def per_stage(self, per_kind: FloatArray) -> FloatArray:
        """Sum a quantity of one layer, (plans, kinds), over the layers of each stage: (plans, stages)."""
        return _over_kinds(self.stages.layers, per_kind[:, None])

    def per_chunk(self, per_kind: FloatArray) -> FloatArray:
        """Sum a quantity of one layer, (plans, kinds), over the layers of each chunk: (plans, stages, chunks)."""
        return _over_kinds(self.stages.chunk_layers, per_kind[:, None, None])

    def largest_layer(self, per_kind: FloatArray) -> FloatArray:
        """The largest value among the kinds of layer that a stage holds: (plans, kinds) -> (plans, stages)."""
        largest = np.zeros_like(self.stages.count, dtype=np.float64)
        for index in range(per_kind.shape[1]):
            held = self.stages.layers[:, :, index] > 0
            largest = np.maximum(largest, np.where(held, per_kind[:, None, index], 0.0))
        return largest

    def tensor_bytes(self, tensors: tuple[Tensor, ...]) -> FloatArray:
        """Bytes of a layer's tensors for one micro-batch on one rank, (plans,)."""
        total = np.zeros(len(self.plans))
        for tensor in tensors:
            total = total + tensor.bytes_per_token * self._spread_tokens(tensor.spread) * self._exists(tensor.when)
        return total

    def _spread_tokens(self, spread: Spread) -> FloatArray:
        tokens, t = self.tokens, self.plans.tensor_parallel
        moe = self.problem.model.moe
        # Only the parts of the sequence that a rank owns are dispatched; expert tensor parallelism gathers them again.
        dispatched = tokens * (moe.experts_per_token if moe else 0) * self.problem.assumptions.expert_load_factor.value
        if spread is Spread.WHOLE:
            return tokens
        if spread is Spread.SEQUENCE:
            return tokens / self.sequence_ways
        if spread is Spread.TENSOR:
            return tokens / t
        if spread is Spread.SCORES:
            return tokens * self.problem.training.sequence_length / t
        if spread is Spread.EXPERT_TOKENS:
            return dispatched * self.plans.expert_tensor_parallel / t
        return dispatched / t

    def _exists(self, when: When) -> NDArray[np.bool_]:
        if when is When.MANY_SEQUENCES:
            return self.plans.micro_batch_size > 1
        if when is When.CONTEXT_PARALLEL:
            return self.plans.context_parallel > 1
        if when is When.SEQUENCE_PARALLEL:
            return self.sequence_ways > 1
        return np.ones(len(self.plans), dtype=np.bool_)


Sizes = tuple[PlanInputs, NDArray[np.int64]]
"""The distinct sizes of some plans, without stages, and which of them each plan has."""


def sizes_of(problem: Problem, plans: PlanTable) -> Sizes:
    """The sizes of a table of plans, for `PlanInputs.with_sizes`."""
    first, row = plans.distinct_sizes()
    nothing = np.zeros((0, 0), dtype=np.int64)
    none = Stages(nothing, nothing, *(np.zeros((0,) * axes) for axes in (3, 4, 3, 3, 3, 3, 1, 1)))
    return PlanInputs(problem, plans.take(first), none), row


def remembered(function: Callable[Concatenate[PlanInputs, P], T]) -> Callable[Concatenate[PlanInputs, P], T]:
    """A function of the inputs that several terms share: worked out once for each table and arguments."""

    @wraps(function)
    def answer(inputs: PlanInputs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, *args, *kwargs.items())
        if key not in inputs.known:
            inputs.known[key] = function(inputs, *args, **kwargs)
        return cast(T, inputs.known[key])

    return answer


def once_per_size(function: Callable[Concatenate[PlanInputs, P], T]) -> Callable[Concatenate[PlanInputs, P], T]:
    """A function of the plans' sizes alone, not of their stages, schedule or recomputation: worked out for each size.

    Once, however many tables share the sizes. It returns arrays that begin with the axis of the plans, alone or in
    tuples, mappings and records.
    """
    of_sizes = remembered(function)

    @wraps(function)
    def for_every_plan(inputs: PlanInputs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if inputs.sizes is None:
            return of_sizes(inputs, *args, **kwargs)
        sizes, row = inputs.sizes
        return cast(T, _spread(of_sizes(sizes, *args, **kwargs), row))

    return for_every_plan


@once_per_size
def _layer_parameters(inputs: PlanInputs) -> tuple[FloatArray, FloatArray]:
    pairs = [inputs.rank_parameters(layer_weights(inputs.problem.model, kind)) for kind in inputs.kinds]
    dense, expert = zip(*pairs, strict=True)
    return by_kind(dense), by_kind(expert)


@once_per_size
def _end_parameters(inputs: PlanInputs) -> tuple[FloatArray, FloatArray, FloatArray]:
    model = inputs.problem.model
    alone = inputs.plans.pipeline_parallel == 1
    # per entry of the vocabulary, since its padding depends on t
    table = model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    embedding = inputs.rank_parameters(embedding_weights(model, 0))[0] + table
    # tied weights exist a second time on the last stage, as soon as it is not also the first
    own_copy = ~alone if model.tied_embeddings else np.ones_like(alone)
    bias = inputs.vocab_size / inputs.plans.tensor_parallel if model.lm_head_bias else 0.0
    head = inputs.rank_parameters(head_weights(model, 0, own_copy=False))[0] + bias + table * own_copy
    extra = tuple(w for w in mtp_weights(model) if w.name.startswith("mtp_"))
    mtp = model.mtp_num_layers * inputs.rank_parameters(extra)[0] if extra else np.zeros(len(inputs.plans))
    if model.mtp_num_layers:
        # the prediction layers look tokens up again: their stage keeps a copy of the table (gpt_model.py:173)
        mtp = mtp + table * ~alone
    return embedding, head, mtp


def _spread(value: Any, row: NDArray[np.int64]) -> Any:
    if isinstance(value, np.ndarray):
        return of_rows(value, row)
    if isinstance(value, tuple):
        return tuple(_spread(one, row) for one in value)
    if isinstance(value, dict):
        return {name: _spread(one, row) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _spread(getattr(value, f.name), row) for f in fields(value)})
    return value
