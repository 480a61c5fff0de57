"""What `verify --layers` runs of a plan: one pipeline of it, with fewer layers if it is asked to.

A rank stands for one GPU of each stage, so t, c, e and d are 1 within the run; the sizes of tensors are those of the
plan's t and e. The trainer around it is plain torch: weights, gradients and both moments of AdamW in one precision,
whole on each rank. What is predicted is predicted of this run, not of the plan that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import layers_of_ranks
from ppadvisor.errors import InputError
from ppadvisor.specs.model import ModelSpec, MoeSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

LEAST = 1e-9
"""A product that is a whole number but for rounding counts as one."""


@dataclass(frozen=True)
class Subject:
    """One run."""

    problem: Problem
    plan: PlanSpec
    asked: PlanSpec
    """The plan that it was made from."""
    scale: float = 1.0

    @property
    def sharded(self) -> bool:
        """It has sizes of a division whose messages are not run."""
        return self.plan.tensor_parallel > 1 or self.plan.expert_parallel > 1


def subject_of(problem: Problem, plan: PlanSpec, *, scale: float = 1.0, ranks_of_node: int) -> Subject:
    """The run of a plan by as many processes as it has stages, so many of them on a machine."""
    asked = plan
    if scale < 1.0:
        problem, plan = scaled(problem, plan, scale)
    t, e = plan.tensor_parallel, plan.expert_parallel
    d = e // math.gcd(e, t)  # as few as can share the experts
    plan = plan.changed(data_parallel=d, optimizer_sharding=0)
    cluster = problem.cluster.changed(num_gpus=plan.pipeline_parallel * t * d, gpus_per_node=ranks_of_node * t * d)
    model = problem.model
    if plan.pipeline_parallel > 1:  # embedding and head are two matrices then, and here nothing keeps them alike
        model = model.changed(tied_embeddings=False)
    training = _training(problem, plan, d * plan.micro_batch_size * plan.num_microbatches)
    return Subject(replace(problem, model=model, cluster=cluster, training=training), plan, asked, scale)


def _training(problem: Problem, plan: PlanSpec, batch: int) -> TrainingSpec:
    """The trainer of the run, said in full."""
    training = problem.training
    said = {
        "global_batch_size": batch,
        "loss": training.loss or problem.framework.default_loss,
        "sequence_parallel": training.sequence_parallel and plan.tensor_parallel > 1,
    }
    halves = {"optimizer": "adam-pure-bf16", "gradient_precision": training.precision}
    whole = {"optimizer": "adam", "gradient_precision": "fp32"}
    kind = whole if training.precision == "fp32" else halves
    return training.changed(**said, **kind)


def kept(count: int, scale: float) -> int:
    """Of so many layers those that are run: the share, rounded up, so that a stage with layers keeps one."""
    return math.ceil(scale * count - LEAST)


def scaled(problem: Problem, plan: PlanSpec, scale: float) -> tuple[Problem, PlanSpec]:
    """Fewer layers: each chunk keeps the first of its layers, by `kept`; a layer keeps its size and its kind.

    InputError for a share that leaves all layers.
    """
    chunks = tuple(kept(count, scale) for count in plan.layers_per_chunk)
    if chunks == plan.layers_per_chunk:
        raise InputError(f"--scale {scale:g} leaves all layers (per chunk at most {max(chunks)}); it must be smaller")
    starts = [sum(plan.layers_per_chunk[:chunk]) for chunk in range(len(chunks))]
    layers = [start + i for start, count in zip(starts, chunks, strict=True) for i in range(count)]
    changes: dict[str, Any] = {
        "layers_per_chunk": chunks,
        "layers_per_stage": layers_of_ranks(plan.schedule, chunks, plan.virtual_stages),
    }
    if plan.recompute_method == "block":
        changes["recompute_num_layers"] = kept(plan.recompute_num_layers or 1, scale)
    model = _of_layers(problem.model, layers)
    return replace(problem, model=model), plan.changed(**changes)


def _of_layers(model: ModelSpec, layers: Sequence[int]) -> ModelSpec:
    """The model with these of its layers alone; of windows only such as are longer than a sequence are run at all."""
    name = f"{model.name}, {len(layers)} of its {model.num_layers} layers"
    experts = [place for place, layer in enumerate(layers) if model.is_moe_layer(layer)]
    changes: dict[str, Any] = {"name": name, "num_layers": len(layers), "declared_parameters": None}
    changes |= dict.fromkeys(("sliding_window", "sliding_window_period", "full_attention_layers"))
    moe = _with_experts_in(model.moe, experts, len(layers)) if model.moe and experts else None
    return model.changed(**(changes | {"moe": moe}))


def _with_experts_in(moe: MoeSpec, experts: Sequence[int], num_layers: int) -> MoeSpec:
    """Experts in these layers; as `first_dense_layers` where that says it, which is how records know it."""
    plain: dict[str, Any] = {"first_dense_layers": experts[0], "layer_period": 1, "layer_offset": 0, "moe_layers": None}
    if list(experts) != list(range(experts[0], num_layers)):
        plain |= {"first_dense_layers": 0, "moe_layers": tuple(experts)}
    return moe.changed(**plain)
