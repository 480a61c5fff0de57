"""The arrays that every formula starts from: one row a plan, one column a stage (or group of equal stages)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
from ppadvisor.engine.partition import Stages, stages_of
from ppadvisor.engine.problem import Problem
from ppadvisor.frameworks.profile import Spread, Tensor, When
from ppadvisor.specs.model import LayerKind
from ppadvisor.specs.plan import PlanTable

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class PlanInputs:
    """A table of plans with its stages, and what follows from them. Shapes: (plans,) or (plans, stages)."""

    problem: Problem
    plans: PlanTable
    stages: Stages

    @staticmethod
    def of(problem: Problem, plans: PlanTable, *, every_stage: bool) -> PlanInputs:
        """Look up the stages of each plan's split."""
        used, row_split = np.unique(plans.split, return_inverse=True)
        table = stages_of(problem.model, [plans.splits[i] for i in used], every_stage=every_stage)
        return PlanInputs(problem, plans, table.take(row_split.astype(np.int64)))

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
    def in_flight(self) -> FloatArray:
        """Micro-batches whose activations a stage holds at its peak, (plans, stages)."""
        result = np.zeros(self.stages.first_stage.shape)
        for index, name in enumerate(self.plans.schedule_names):
            rows = self.plans.schedule == index
            if rows.any():
                plans = self.plans.take(rows)
                result[rows] = schedules.get(name).in_flight_microbatches(
                    plans.pipeline_parallel[:, None],
                    plans.num_microbatches[:, None],
                    plans.virtual_stages[:, None],
                    self.stages.first_stage[rows],
                )
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
        pairs = [self.rank_parameters(layer_weights(self.problem.model, kind)) for kind in self.kinds]
        dense, expert = zip(*pairs, strict=True)
        return np.stack(dense, axis=-1), np.stack(expert, axis=-1)

    @cached_property
    def end_parameters(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Dense parameters on one rank of (embedding, head, MTP projections and embedding copy), (plans,)."""
        model = self.problem.model
        alone = self.plans.pipeline_parallel == 1
        # per entry of the vocabulary, since its padding depends on t
        table = model.hidden_size * self.vocab_size / self.plans.tensor_parallel
        embedding = self.rank_parameters(embedding_weights(model, 0))[0] + table
        # tied weights exist a second time on the last stage, as soon as it is not also the first
        own_copy = ~alone if model.tied_embeddings else np.ones_like(alone)
        bias = self.vocab_size / self.plans.tensor_parallel if model.lm_head_bias else 0.0
        head = self.rank_parameters(head_weights(model, 0, own_copy=False))[0] + bias + table * own_copy
        extra = tuple(w for w in mtp_weights(model) if w.name.startswith("mtp_"))
        mtp = model.mtp_num_layers * self.rank_parameters(extra)[0] if extra else np.zeros(len(self.plans))
        if model.mtp_num_layers:
            # the prediction layers look tokens up again: their stage keeps a copy of the table (gpt_model.py:173)
            mtp = mtp + table * ~alone
        return embedding, head, mtp

    @cached_property
    def parameters(self) -> tuple[FloatArray, FloatArray]:
        """(dense, routed-expert) parameters of each stage on one rank, (plans, stages)."""
        dense, expert = self.layer_parameters
        embedding, head, mtp = self.end_parameters
        stage_dense = self.per_stage(dense)
        stage_dense = stage_dense + embedding[:, None] * self.stages.has_embedding
        stage_dense = stage_dense + (head + mtp)[:, None] * self.stages.has_head
        return stage_dense, self.per_stage(expert)

    def per_stage(self, per_kind: FloatArray) -> FloatArray:
        """Sum a quantity of one layer, (plans, kinds), over the layers of each stage: (plans, stages)."""
        return np.asarray(np.einsum("psk,pk->ps", self.stages.layers, per_kind))

    def largest_layer(self, per_kind: FloatArray) -> FloatArray:
        """The largest value among the kinds of layer that a stage holds: (plans, kinds) -> (plans, stages)."""
        held = self.stages.layers > 0
        return np.asarray(np.max(np.where(held, per_kind[:, None, :], 0.0), axis=-1, initial=0.0))

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
