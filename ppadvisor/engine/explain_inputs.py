"""One plan as the explanations see it: its pipeline, and the numbers behind the field's symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.compute import Pass
from ppadvisor.engine.expressions import Formula, number
from ppadvisor.engine.inputs import FloatArray, PlanInputs, layout_of
from ppadvisor.engine.partition import Placement
from ppadvisor.engine.pipeline import Pipeline, pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import repeated_for_weights
from ppadvisor.engine.repeated import repeating_share, split_share
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.step_time import StageTimes, layer_passes
from ppadvisor.frameworks.profile import Spread, Tensor
from ppadvisor.schedules.base import Schedule

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
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.problem, self.estimate.plan)

    @property
    def inputs(self) -> PlanInputs:
        return self.pipeline.inputs

    @property
    def times(self) -> StageTimes:
        return self.pipeline.times

    @cached_property
    def placement(self) -> Placement:
        """For each rank, the stage (in model order) of each of its chunks."""
        plan = self.estimate.plan
        return layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement

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
    def has_chunks(self) -> bool:
        """Whether a rank holds more than one stage."""
        return len(self.placement[0]) > 1

    @property
    def element(self) -> int:
        """Bytes of an element of an activation."""
        return self.problem.training.activation_bytes

    @property
    def over_sequence(self) -> str:
        """How the residual stream is divided."""
        return " / t" if self.problem.training.sequence_parallel else ""

    @property
    def over_boundary(self) -> str:
        """How a rank keeps what passes between stages."""
        return " / t" if self.problem.framework.partitions_boundaries else self.over_sequence

    @property
    def logits(self) -> str:
        """Logits of one token on one rank."""
        return "V" if self.problem.framework.gathers_logits else "V / t"

    def formula(
        self, text: str, source: str, values: Mapping[str, float] | None = None, *, alive: bool = True
    ) -> Formula:
        """A formula with the plan's symbols and some of its own."""
        return Formula(text, source, {**self.values, **(values or {})}, alive)

    def symbol(self, name: str, kind: int) -> str:
        """A symbol of one kind of layer: numbered where there are several."""
        return name if len(self.inputs.kinds) == 1 else f"{name}{kind + 1}"

    def layers_of_kind(self) -> FloatArray:
        """Layers of each kind in the model, (kinds,); of two copies one, since a micro-batch passes one."""
        return np.asarray(self.inputs.stages.layers[0].sum(axis=0) / self.inputs.copies[0])

    def recomputed_of_kind(self) -> FloatArray:
        """Layers of each kind that repeat work in their backward, (kinds,)."""
        held = self.inputs.stages.chunk_layers[0] * repeating_share(self.inputs)[0][:, :, None]
        return np.asarray(held.sum(axis=(0, 1)) / self.inputs.copies[0])

    def repeated_of_kind(self) -> FloatArray:
        """Layers of each kind that their groups of weights repeat, by the share of split backwards, (kinds,)."""
        share = repeated_for_weights(self.inputs) * split_share(self.inputs)
        held = self.inputs.stages.chunk_layers[0] * share[0][:, :, None]
        return np.asarray(held.sum(axis=(0, 1)) / self.inputs.copies[0])

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
