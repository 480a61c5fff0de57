"""The arrays that every formula starts from: one row a plan, one column a stage (or group of equal stages)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppadvisor import schedules
from ppadvisor.engine.once import of_rows, once_per_layer, once_per_size
from ppadvisor.engine.parameters import (
    Weight,
    embedding_weights,
    head_weights,
    layer_weights,
    mtp_weights,
    rank_parameters,
)
from ppadvisor.engine.partition import Layout, Split, stages_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.stages import Stages
from ppadvisor.engine.stash import Stash
from ppadvisor.frameworks.profile import Spread, Tensor, When
from ppadvisor.schedules.base import Schedule
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.plan import PlanTable, distinct_values

if TYPE_CHECKING:
    from ppadvisor.engine.distinct import Distinct

FloatArray = NDArray[np.float64]
NumberT = TypeVar("NumberT", bound=np.generic)
P = ParamSpec("P")
T = TypeVar("T")


def beside_stages(assumed: float | FloatArray) -> FloatArray:
    """An assumption in a formula of shape (plans, stages): a number stays one, one a plan becomes a column."""
    return np.asarray(assumed)[..., None]


def by_kind(values: Sequence[FloatArray]) -> FloatArray:
    """(plans,) of each kind of layer -> (plans, kinds), plans next to each other."""
    return np.stack(values).T if len(values) > 1 else values[0][:, None]


def over_kinds(layers: FloatArray, per_kind: FloatArray) -> FloatArray:
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
    distinct: Distinct | None = None
    """What these plans share with each other and with those of other tables; None: not told apart."""
    of_layers: tuple[PlanInputs, NDArray[np.int64]] | None = None
    """Of a table of sizes, those that differ for a single layer, and which of them each has."""
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What functions that several terms share have answered, see `remembered`."""

    @staticmethod
    def of(problem: Problem, plans: PlanTable, *, every_stage: bool) -> PlanInputs:
        """Look up what the ranks of each plan hold."""
        layouts, row = layouts_of(plans)
        stages = stages_of(problem.model, layouts, every_stage=every_stage)
        return PlanInputs(problem, plans, stages if len(plans) == 1 else stages.take(row))

    @cached_property
    def layers(self) -> tuple[PlanInputs, NDArray[np.int64]] | None:
        """The sizes on which a single layer hangs, and which of them each plan has; None: not told apart."""
        if self.distinct is None or self.distinct.sizes.of_layers is None:
            return self.of_layers
        layers, row = self.distinct.sizes.of_layers
        return layers, row[self.distinct.size]

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

    @cached_property
    def by_schedule(self) -> list[tuple[Schedule, NDArray[np.int64]]]:
        """Each schedule in the table with the rows that run it."""
        names = self.plans.schedule_names
        rows = (np.flatnonzero(self.plans.schedule == index) for index in range(len(names)))
        return [(schedules.get(name), of_name) for name, of_name in zip(names, rows, strict=True) if len(of_name)]

    @cached_property
    def copies(self) -> FloatArray:
        """Copies of the model in one pipeline, (plans,): a micro-batch passes one of them."""
        result = np.ones(len(self.plans))
        for schedule, rows in self.by_schedule:
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
        if self.distinct is not None:
            return self.distinct.in_flight(self.stages.count.shape[1])
        result = np.zeros_like(self.stages.first_stage, dtype=np.float64)
        for schedule, rows in self.by_schedule:
            p, m, v = (column[rows][:, None] for column in self.plans.pipeline_sizes)
            first, last = of_rows(self.stages.first_stage, rows), of_rows(self.stages.last_stage, rows)
            result[rows] = most_in_flight(schedule, p, m, v, first, last)
        return result

    @cached_property
    def alike_in_flight(self) -> FloatArray:
        """Forwards of each chunk that are alive at a rank's peak by the closed forms, all alike, (plans, stages)."""
        return self.in_flight / self.copies[:, None] if (self.copies > 1).any() else self.in_flight

    @cached_property
    def chunk_in_flight(self) -> FloatArray:
        """Forwards of each chunk that are alive at a rank's peak, (plans, stages, chunks)."""
        if self.stash is not None:
            return self.stash.at_peak.alive
        return np.broadcast_to(self.alike_in_flight[:, :, None], self.stages.chunk_head.shape)

    @cached_property
    def head_in_flight(self) -> FloatArray:
        """Micro-batches whose loss is alive on the chunk that holds the head, (plans,)."""
        result = np.ones(len(self.plans))
        for schedule, rows in self.by_schedule:
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
        return self.stages.head_beside_embedding * (self.plans.pipeline_parallel > 1)[:, None]

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
        if self.both_ends.any():
            stage_dense = stage_dense - self.shared_table[:, None] * self.both_ends
        return stage_dense, self.per_stage(expert)

    def per_stage(self, per_kind: FloatArray) -> FloatArray:
        """Sum a quantity of one layer, (plans, kinds), over the layers of each stage: (plans, stages)."""
        return over_kinds(self.stages.layers, per_kind[:, None])

    def of_embedding(self, per_kind: FloatArray) -> FloatArray:
        """The same over the layers of the chunks that hold the embedding: (plans, stages)."""
        return over_kinds(self.stages.with_embedding, per_kind[:, None])

    def per_chunk(self, per_kind: FloatArray) -> FloatArray:
        """Sum a quantity of one layer, (plans, kinds), over the layers of each chunk: (plans, stages, chunks)."""
        return over_kinds(self.stages.chunk_layers, per_kind[:, None, None])

    def largest_layer(self, per_kind: FloatArray) -> FloatArray:
        """The largest value among the kinds of layer that a stage holds: (plans, kinds) -> (plans, stages)."""
        largest = np.maximum(self.stages.holds[:, :, 0] * per_kind[:, None, 0], 0.0)
        for index in range(1, per_kind.shape[1]):
            largest = np.maximum(largest, self.stages.holds[:, :, index] * per_kind[:, None, index])
        return largest

    def tensor_bytes(self, tensors: tuple[Tensor, ...]) -> FloatArray:
        """Bytes of a layer's tensors for one micro-batch on one rank, (plans,)."""
        total = np.zeros(len(self.plans))
        for tensor in tensors:
            each = tensor.bytes_per_token * self._spread_tokens(tensor.spread)
            total = total + (each if tensor.when is When.ALWAYS else each * self._exists(tensor.when))
        return total

    def _spread_tokens(self, spread: Spread) -> FloatArray:
        tokens, t = self.tokens, self.plans.tensor_parallel
        if spread is Spread.WHOLE:
            return tokens
        if spread is Spread.SEQUENCE:
            return tokens / self.sequence_ways
        if spread is Spread.TENSOR:
            return tokens / t
        if spread is Spread.SCORES:
            return tokens * self.problem.training.sequence_length / t
        moe = self.problem.model.moe
        # Only the parts of the sequence that a rank owns are dispatched; expert tensor parallelism gathers them again.
        dispatched = tokens * (moe.experts_per_token if moe else 0) * self.problem.assumptions.expert_load_factor.value
        if spread is Spread.EXPERT_TOKENS:
            return dispatched * self.plans.expert_tensor_parallel / t
        return dispatched / t

    def _exists(self, when: When) -> NDArray[np.bool_]:
        if when is When.MANY_SEQUENCES:
            return self.plans.micro_batch_size > 1
        if when is When.CONTEXT_PARALLEL:
            return self.plans.context_parallel > 1
        return self.sequence_ways > 1


def most_in_flight(
    schedule: Schedule,
    p: NDArray[np.int64],
    m: NDArray[np.int64],
    v: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> FloatArray:
    """Micro-batches in flight at the peak of groups of equal ranks; no less than nothing. One shape."""
    held = np.maximum(0.0, schedule.in_flight_microbatches(p, m, v, first))
    # the first counts for a group of one
    if (last > first).any():
        for rank in ((first + last) // 2, last):
            held = np.maximum(held, schedule.in_flight_microbatches(p, m, v, rank))
    return np.asarray(held)


@once_per_layer
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
