"""What recomputation costs: the forward work that a layer repeats in its backward, in seconds and in FLOPs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ppadvisor.engine.compute import Pass, activation_bytes, attention_core, linear_compute, moved_s
from ppadvisor.engine.flops import attention_core_flops_per_token, megatron_flops_per_token
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.once import of_rows
from ppadvisor.engine.parameters import Shard, Weight, layer_weights
from ppadvisor.engine.recomputation import recomputed_share, repeated_for_weights, used_choices, weight_groups
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.recomputation import Recomputation

LINEARS: dict[str, tuple[str, ...]] = {
    "mlp": ("mlp_",),
    "moe": ("experts_", "shared_experts_", "router"),
    "shared_experts": ("shared_experts_",),
    "mla_up_proj": ("query_up", "key_value_up"),
}
"""Module -> how the names of the linears begin that it repeats (an uncompressed query has no up-projection)."""


def repeated_linears(model: ModelSpec, kind: LayerKind, modules: tuple[str, ...]) -> tuple[Weight, ...]:
    """The matrices of a layer whose forward the modules repeat, each once."""
    starts = tuple(start for module in modules for start in LINEARS.get(module, ()))
    return tuple(w for w in layer_weights(model, kind) if w.is_matrix and starts and w.name.startswith(starts))


def repeated_forward_s(
    inputs: PlanInputs, kind: LayerKind, modules: tuple[str, ...], parts: Mapping[str, Pass]
) -> FloatArray:
    """Seconds of one layer's forward that selective recomputation of `modules` repeats, (plans,)."""
    model = inputs.problem.model
    seconds = np.zeros(len(inputs.plans))
    if "core_attn" in modules:
        seconds = seconds + attention_core(inputs, kind).forward
    for weight in repeated_linears(model, kind, modules):
        seconds = seconds + linear_compute(inputs, weight).forward
    whole_half = "moe" if kind.moe else "mlp"
    if whole_half in modules:
        # its collectives are repeated too: the second pair of tensor parallelism, dispatch and combine
        seconds = seconds + parts["tensor_parallel"].forward / 2 + parts["expert_parallel"].forward
    if {whole_half, "moe_act" if kind.moe else "activation"}.intersection(modules):
        seconds = seconds + moved_s(inputs, activation_bytes(inputs, kind))
    residual = inputs.tokens * model.hidden_size / inputs.sequence_ways
    if "layernorm" in modules:
        seconds = seconds + moved_s(inputs, 4 * model.norms_per_layer * residual)
    if "dropout" in modules and inputs.problem.training.dropout:
        seconds = seconds + moved_s(inputs, 2 * 5 * residual)
    return seconds


def repeated_s(inputs: PlanInputs, kind: LayerKind, choice: Recomputation, parts: Mapping[str, Pass]) -> FloatArray:
    """Seconds that a recomputed layer of this kind repeats, (plans,): `parts` are its passes without it."""
    if choice.kind == "full":
        return sum((part.forward for part in parts.values()), np.zeros(len(inputs.plans)))
    if choice.kind == "selective":
        return repeated_forward_s(inputs, kind, choice.modules, parts)
    return np.zeros(len(inputs.plans))


def repeats_some(inputs: PlanInputs) -> bool:
    """Whether a plan repeats some layers of a chunk and not all."""
    return any(choice.method == "block" for choice in used_choices(inputs))


def repeating_share(inputs: PlanInputs) -> FloatArray:
    """Of each chunk's layers, those that repeat `repeated_s`, (plans, stages, chunks): all, if not full by `block`."""
    if not repeats_some(inputs):
        return np.ones((1, 1, 1))
    full = inputs.plans.recomputed_fully()
    return np.where(full[:, None, None], recomputed_share(inputs), 1.0)


def split_share(inputs: PlanInputs) -> FloatArray:
    """Of the backwards of each chunk those that are split, (plans, stages, chunks); of merged ranks a mean."""
    stages = inputs.stages
    share = np.zeros_like(stages.chunk_head)
    first, last = stages.first_stage[:, :, None], stages.last_stage[:, :, None]
    merged = (last > first) | (stages.chunk_count.max(axis=2, keepdims=True) > 1)
    for schedule, rows in inputs.by_schedule:
        p, m, _ = (column[rows][:, None, None] for column in inputs.plans.pipeline_sizes)
        ends = of_rows(first, rows), of_rows(last, rows)
        mean = sum(schedule.split_share(p, m, rank, chunk) for rank in ends for chunk in (0, 1)) / 4
        exact = schedule.split_share(p, m, ends[0], np.arange(share.shape[2]))
        share[rows] = np.where(of_rows(merged, rows), mean, exact)
    return share


def group_repeats_s(inputs: PlanInputs, forwards_s: FloatArray) -> FloatArray:
    """Seconds that a weight gradient of each chunk repeats when it is an action of its own, (plans, stages, chunks).

    Layers x groups of weights x forward: torch 2.13, utils/checkpoint.py:1086-1110, repeats a checkpointed forward for
    every backward that reads of it. `forwards_s`: a layer of each kind, (plans, kinds).
    """
    repeated = repeated_for_weights(inputs)
    if not repeated.any():
        return repeated
    return np.asarray(inputs.per_chunk(forwards_s * weight_groups(inputs)) * repeated)


def repeated_flops_per_token(inputs: PlanInputs, row: int = 0) -> float:
    """FLOPs that the recomputation of one plan of the table repeats for one token; the head is never recomputed.

    The forward is a third of forward and backward together, 2 FLOPs for a weight that a token meets.
    """
    model, seq = inputs.problem.model, inputs.problem.training.sequence_length
    choice = inputs.plans.recomputations[inputs.plans.recompute[row]]
    held = inputs.stages.chunk_layers[row]
    if choice.kind == "full":
        recomputed = (held.sum(axis=2) * recomputed_share(inputs)[row]).sum()
        if repeated_for_weights(inputs)[row].any():
            again = repeated_for_weights(inputs) * split_share(inputs)
            recomputed += (held @ weight_groups(inputs) * again[row]).sum()
        return megatron_flops_per_token(model, seq, 0) / 3 * float(recomputed / held.sum())
    if choice.kind == "none":
        return 0.0
    core = attention_core_flops_per_token(model, seq) / 3 if "core_attn" in choice.modules else 0.0
    layers = held.sum(axis=(0, 1)) / inputs.copies[row]
    for count, kind in zip(layers, inputs.kinds, strict=True):
        linears = repeated_linears(model, kind, choice.modules)
        core += 2.0 * float(count) * sum(_met_by_a_token(model, weight) for weight in linears)
    return core


def _met_by_a_token(model: ModelSpec, weight: Weight) -> float:
    if weight.shard is Shard.EXPERT and model.moe:
        return weight.size * model.moe.experts_per_token / model.moe.num_experts
    return float(weight.size)
