"""One plan as the explanations see it: its table of one row, and the numbers behind the field's symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ppadvisor import schedules
from ppadvisor.engine.compute import Pass
from ppadvisor.engine.expressions import Formula, number
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory import MOMENTS, in_flight_at, layer_saved
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, StageMemory
from ppadvisor.engine.step_time import StageTimes, layer_passes, stage_times
from ppadvisor.frameworks.profile import Spread, Tensor
from ppadvisor.schedules.base import Schedule
from ppadvisor.specs.plan import PlanTable

SYMBOLS: dict[str, str] = {
    "p": "pipeline stages",
    "r": "the stage, from 0",
    "v": "virtual stages of a rank",
    "m": "micro-batches of a step in one pipeline, B / (d b)",
    "b": "sequences of a micro-batch",
    "s": "tokens of a sequence",
    "t": "tensor parallel",
    "d": "data parallel",
    "c": "context parallel",
    "e": "expert parallel",
    "etp": "expert tensor parallel",
    "gpus": "GPUs of the cluster",
    "N": "micro-batches that pass a chunk before the rank turns to the next one",
    "L": "layers of the model, those of multi-token prediction included where they work too",
    "h": "hidden size",
    "V": "vocabulary as the trainer stores it, padded",
    "T": "tokens of a micro-batch on one context-parallel rank, s b / c",
    "top_k": "experts a token visits",
    "load": "tokens of the fullest expert rank over the mean (assumption expert_load_factor)",
    "P": "parameters on one rank of the stage, routed experts left out",
    "E": "parameters of routed experts on one rank of the stage",
    "n": "layers of the stage",
    "P_layer": "parameters of one layer on one rank",
    "P_embedding": "parameters in front of the first layer on one rank",
    "P_head": "parameters behind the last layer on one rank",
    "P_mtp": "projections and embedding copy of multi-token prediction on one rank",
    "G": "parameters of the largest layer of the stage on one rank",
    "D": "elements of one matrix of each shape in the largest layer, on one rank",
    "k": "micro-batches whose activations the stage holds at its highest moment",
    "S": "bytes that one layer keeps for one micro-batch",
    "A": "bytes that one layer keeps for one micro-batch without recomputation",
    "allocated": "bytes of all tensors of the stage: the terms above",
    "allocator_overhead": "assumption",
    "cuda_context_bytes": "assumption",
    "workspace_bytes": "assumption",
    "communicator_bytes": "assumption",
    "groups": "process groups of more than one rank that a rank belongs to",
    "C": "seconds of one layer's own compute, forward and backward, one micro-batch",
    "C_embedding": "seconds of the embedding, forward and backward, one micro-batch",
    "C_head": "seconds of output layer and loss, forward and backward, one micro-batch",
    "R": "seconds of one layer that recomputation repeats, one micro-batch",
    "X": "seconds of one layer's token exchange that stay exposed, forward and backward, one micro-batch",
    "kv": "elements of one token's keys and values on one rank",
    "latency": "seconds of a collective's start (assumption collective_latency_s)",
    "o_cp": "share of the key/value exchange that hides (assumption context_parallel_overlap)",
    "o_dp": "share of the data-parallel traffic that hides (assumption data_parallel_overlap)",
    "W_tp": "usable bandwidth of the tensor-parallel group, bytes/s",
    "W_cp": "usable bandwidth of the context-parallel group, bytes/s",
    "W_dp": "usable bandwidth of the data-parallel group, bytes/s",
    "W_edp": "usable bandwidth of the experts' data-parallel group, bytes/s",
    "W_tied": "usable bandwidth between first and last stage, bytes/s",
    "W_hbm": "usable bandwidth of the GPU's memory, bytes/s",
    "u": "bytes reduced and gathered for one parameter in a step",
    "z_e": "ranks that share one copy of the experts, t c d / (e etp)",
    "step_overhead_s": "assumption",
    "busy": "seconds of work of an average rank: the parts above",
    "even": "seconds of the pipeline with the same work spread evenly and free links",
    "free": "seconds of the pipeline as it is, replayed with free links",
    "span": "seconds of the pipeline as it is, replayed with its links",
    "F": "model FLOPs of a step, recomputation left out",
    "peak": "dense peak of one GPU at the training precision, FLOP/s",
    "step": "seconds of a step",
}
"""Every symbol of a formula. A symbol of one kind of layer among several carries its number: S1, S2."""

SIZES = {
    "p": "pipeline_parallel",
    "v": "virtual_stages",
    "m": "num_microbatches",
    "b": "micro_batch_size",
    "t": "tensor_parallel",
    "d": "data_parallel",
    "c": "context_parallel",
    "e": "expert_parallel",
    "etp": "expert_tensor_parallel",
}


@dataclass(frozen=True)
class PlanView:
    """One estimated plan with its inputs: one row, every stage."""

    problem: Problem
    estimate: PlanEstimate

    @cached_property
    def inputs(self) -> PlanInputs:
        return PlanInputs.of(self.problem, PlanTable.of(self.estimate.plan), every_stage=True)

    @cached_property
    def times(self) -> StageTimes:
        return stage_times(self.inputs)

    @cached_property
    def passes(self) -> tuple[dict[str, Pass], ...]:
        """The work of one layer of each kind by part."""
        return tuple(layer_passes(self.inputs, kind) for kind in self.inputs.kinds)

    @cached_property
    def values(self) -> dict[str, float]:
        """The symbols that are the same for the whole plan."""
        model, plan = self.problem.model, self.estimate.plan
        moe = {"top_k": float(model.moe.experts_per_token)} if model.moe else {}
        further = self.schedule.formula_symbols
        sizes = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
        return {
            **{symbol: float(getattr(plan, name)) for symbol, name in SIZES.items()},
            **moe,
            **(further(*sizes) if further else {}),
            "s": self.problem.training.sequence_length,
            "gpus": self.problem.cluster.num_gpus,
            "L": model.num_layers,
            "h": model.hidden_size,
            "V": float(self.inputs.vocab_size[0]),
            "T": float(self.inputs.tokens[0]),
            "load": self.problem.assumptions.expert_load_factor.value,
            "z_e": float(self.inputs.expert_sharding_ways[0]),
        }

    @property
    def schedule(self) -> Schedule:
        return schedules.get(self.estimate.plan.schedule)

    @property
    def element(self) -> int:
        """Bytes of an element of an activation."""
        return self.problem.training.activation_bytes

    @property
    def over_sequence(self) -> str:
        """How the residual stream is divided."""
        return " / t" if self.problem.training.sequence_parallel else ""

    def formula(
        self, text: str, source: str, values: Mapping[str, float] | None = None, *, alive: bool = True
    ) -> Formula:
        """A formula with the plan's symbols and some of its own."""
        return Formula(text, source, {**self.values, **(values or {})}, alive)

    def symbol(self, name: str, kind: int) -> str:
        """A symbol of one kind of layer: numbered where there are several."""
        return name if len(self.inputs.kinds) == 1 else f"{name}{kind + 1}"

    def layers(
        self, counts: FloatArray, name: str, per_kind: FloatArray, *, count: str = "n"
    ) -> tuple[str, dict[str, float]]:
        """`n * S`, or `(n1 * S1 + n2 * S2)`, over the kinds of layer that `counts` holds; and the values."""
        held = [kind for kind in range(len(self.inputs.kinds)) if counts[kind] > 0]
        parts = [f"{self.symbol(count, kind)} * {self.symbol(name, kind)}" for kind in held]
        values = {self.symbol(count, kind): float(counts[kind]) for kind in held}
        values |= {self.symbol(name, kind): float(per_kind[kind]) for kind in held}
        return (parts[0] if len(parts) == 1 else f"({' + '.join(parts) or '0'})"), values

    def tensor(self, tensor: Tensor) -> str:
        """Bytes of a tensor for one micro-batch on one rank, as a formula."""
        divided = {
            Spread.WHOLE: "T",
            Spread.SEQUENCE: f"T{self.over_sequence}",
            Spread.TENSOR: "T / t",
            Spread.SCORES: "T * s / t",
            Spread.EXPERT_TOKENS: "T * top_k * load * etp / t",
            Spread.EXPERT_INNER: "T * top_k * load / t",
        }
        return f"{number(tensor.bytes_per_token)} * {divided[tensor.spread]}"


@dataclass(frozen=True)
class StageView:
    """One stage of a plan at its highest moment."""

    plan: PlanView
    memory: StageMemory

    @property
    def stage(self) -> int:
        return self.memory.stage

    @cached_property
    def kept(self) -> float:
        """Micro-batches in flight at the moment."""
        alive = in_flight_at(self.plan.inputs)
        return float(alive[0, self.stage, 0, MOMENTS.index(self.memory.moment)])

    @property
    def has_embedding(self) -> bool:
        return bool(self.plan.inputs.stages.has_embedding[0, self.stage])

    @property
    def has_head(self) -> bool:
        return bool(self.plan.inputs.stages.has_head[0, self.stage])

    @property
    def in_pipeline(self) -> bool:
        """Whether micro-batches are being worked on."""
        return self.memory.moment != "optimizer_step"

    def of_stage(self, values: FloatArray) -> float:
        """The stage's number out of (plans, stages)."""
        return float(values[0, self.stage])

    def layer_sum(self, name: str, per_kind: FloatArray) -> tuple[str, dict[str, float]]:
        """A quantity of a layer, (plans, kinds), over the layers of the stage."""
        return self.plan.layers(self.plan.inputs.stages.layers[0, self.stage], name, per_kind[0])

    def largest_kind(self, per_kind: FloatArray) -> int:
        """The kind of layer of the stage for which (plans, kinds) is largest."""
        held = self.plan.inputs.stages.layers[0, self.stage] > 0
        return int((per_kind[0] * held).argmax())

    @cached_property
    def whole_layers(self) -> FloatArray:
        """What one layer of each kind keeps without recomputation, (plans, kinds)."""
        return layer_saved(self.plan.inputs, recompute="none")
