"""Memory that does not move with the micro-batches: weights, gradients, optimizer states and weight-shaped buffers."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs, by_kind
from ppadvisor.engine.memory_axes import IN_PIPELINE, NOTHING, Term, always, at
from ppadvisor.engine.once import of_rows, once_per_layer, remembered
from ppadvisor.engine.parameters import layer_weights


@remembered
def own_parameters(inputs: PlanInputs, from_stage: int) -> FloatArray:
    """Parameters of a stage of which one rank keeps a state that ZeRO shards from `from_stage` on, (plans, stages)."""
    dense, expert = inputs.parameters
    on = inputs.plans.optimizer_sharding >= from_stage
    if not on.any():
        return dense + expert
    dense_ways = np.where(on, inputs.sharding_ways, 1.0)
    expert_ways = np.where(on, inputs.expert_sharding_ways, 1.0)
    return np.asarray(dense / dense_ways[:, None] + expert / expert_ways[:, None])


def _state(inputs: PlanInputs, bytes_per_parameter: float, from_stage: int) -> FloatArray:
    return bytes_per_parameter * own_parameters(inputs, from_stage)


def gradient_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of one accumulated gradient element."""
    precision = inputs.problem.framework.gradient_precision(inputs.problem.training)
    return 4 if precision == "fp32" else 2


def optimizer_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of optimizer state per parameter: main weights and moments.

    Adam: 12, 18 in all with 16-bit weights and fp32 gradients; 8 in fp32, 16 in all.
    Source: Megatron-LM docs/user-guide/features/dist_optimizer.md; Rajbhandari et al. 2020, section 3.1.
    """
    optimizer, training = inputs.problem.optimizer, inputs.problem.training
    main = 0 if training.precision == "fp32" else optimizer.main_weight_bytes
    return main + optimizer.moments_bytes


def main_gradient_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of the fp32 copy of a 16-bit gradient that the step on the main weights reads: 4, or 0 without it.

    Adam with 16-bit gradients: 20 in all. Source: as `optimizer_bytes_per_parameter`.
    """
    optimizer, training = inputs.problem.optimizer, inputs.problem.training
    main = training.precision != "fp32" and optimizer.main_weight_bytes > 0
    return 4 if main and gradient_bytes_per_parameter(inputs) == 2 else 0


def weight_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of one weight as it is stored: 2 (4 in fp32); fp8 adds its own copy and its transpose, 2.

    Kept in fp8 alone: copy and transpose, and 16 bit where no linear reads it (embedding, head, norms), 2 either way.
    On the heavy side for Blackwell, whose per-tensor scaled products need no transpose. Source: TransformerEngine
    commit d0067d0d, pytorch/tensor/float8_tensor.py and mxfp8_tensor.py.
    """
    training = inputs.problem.training
    beside = training.precision == "fp8" and not training.fp8_weights
    return training.weight_bytes + (2 if beside else 0)


def weights_bytes(inputs: PlanInputs) -> Term:
    """Weights of the stage, divided under ZeRO-3."""
    return always(_state(inputs, weight_bytes_per_parameter(inputs), from_stage=3))


def gradients_bytes(inputs: PlanInputs) -> Term:
    """Accumulated gradients of the stage, divided from ZeRO-2 on."""
    return always(_state(inputs, gradient_bytes_per_parameter(inputs), from_stage=2))


def whole_gradients_bytes(inputs: PlanInputs) -> Term:
    """Gradients that stay whole until the step's only reduction, beside their sharded sum: FSDP2 under pipelining."""
    shards = (inputs.plans.optimizer_sharding >= 2) & (inputs.plans.num_microbatches > 1)
    alive = shards & (inputs.sharding_ways > 1) & inputs.problem.framework.accumulates_whole_gradients
    if not alive.any():
        return NOTHING
    dense, expert = inputs.parameters
    return always(gradient_bytes_per_parameter(inputs) * (dense + expert) * alive[:, None])


def optimizer_states_bytes(inputs: PlanInputs) -> Term:
    """Main weights and moments, divided by d c (experts: by their own data-parallel size) from ZeRO-1 on."""
    return always(_state(inputs, optimizer_bytes_per_parameter(inputs), from_stage=1))


def main_gradients_bytes(inputs: PlanInputs) -> Term:
    """The optimizer's fp32 copy of 16-bit gradients, divided from ZeRO-1 on; at the step alone where it is freed.

    Source: Megatron-LM megatron/core/optimizer (made by the step, freed by the next `zero_grad`).
    """
    each = main_gradient_bytes_per_parameter(inputs)
    if not each:
        return NOTHING
    held = _state(inputs, each, from_stage=1)
    return at(held, "optimizer_step") if inputs.problem.framework.frees_main_gradients else always(held)


def autograd_gradients_alive(inputs: PlanInputs) -> FloatArray:
    """Whether autograd's 16-bit gradients stay beside the fp32 ones that they were added to, 0 or 1 (plans,)."""
    training = inputs.problem.training
    two = training.precision != "fp32" and gradient_bytes_per_parameter(inputs) == 4
    kept = two and inputs.problem.framework.keeps_autograd_gradients
    return np.asarray(kept * (inputs.plans.optimizer_sharding <= 1), dtype=np.float64)


def autograd_gradients_bytes(inputs: PlanInputs) -> Term:
    """Autograd's 16-bit gradients beside the accumulated fp32 ones, whole, from one backward to the next.

    Source: DeepSpeed deepspeed/runtime/bf16_optimizer.py, update_hp_grads (does not free them by default). The next
    backward frees them as it starts; counted at every moment, on the heavy side.
    """
    alive = autograd_gradients_alive(inputs)
    if not alive.any():
        return NOTHING
    dense, expert = inputs.parameters
    return always(inputs.problem.training.activation_bytes * alive[:, None] * (dense + expert))


def step_blocks_bytes(inputs: PlanInputs, buckets: float) -> FloatArray:
    """Flat copies of gradients at their reduction and at the step, (plans, stages): too large for freed activations.

    16-bit gradients: the rank's share in 16 bit, 2 P / d c, and the larger of the flattened buckets that are being
    reduced, 2 min(P, n max(bucket, V h / t)), and the largest tensor in fp64 for its norm, 8 min(V h / t, P / d c).
    fp32 ones beside 16-bit weights: their copy in 16 bit, 2 P, and one tensor's in fp32, 4 V h / t. Nothing where the
    framework has no buckets. Source: DeepSpeed runtime/zero/stage_1_and_2.py:810, :1209-1212, :1532, :1694-1705 (commit
    8eef742f0); runtime/bf16_optimizer.py:285, runtime/engine.py:712-719 (commit 77b649d16). Counted on top of the
    activations, not in their place: blocks as large as these do not fit into what freed activations leave.
    """
    bucket = inputs.problem.framework.reduction_bucket_elements
    if not bucket:
        return np.zeros((1, 1))
    whole = sum(inputs.parameters)
    share = own_parameters(inputs, from_stage=1)
    ends = np.maximum(inputs.stages.has_embedding, inputs.stages.has_head)
    table = (inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel)[:, None] * ends
    if gradient_bytes_per_parameter(inputs) == 4:
        return np.asarray(2 * whole + 4 * table)
    flat = 2 * np.minimum(whole, buckets * np.maximum(bucket, table))
    return np.asarray(2 * share + np.maximum(flat, 8 * np.minimum(table, share)))


def gathered_bytes_per_parameter(inputs: PlanInputs) -> FloatArray:
    """Bytes of a whole parameter of the layer in work: its gradient from ZeRO-2 on, two layers' weights in ZeRO-3."""
    zero = inputs.plans.optimizer_sharding
    per_parameter = np.where(zero >= 2, gradient_bytes_per_parameter(inputs), 0)
    per_parameter = per_parameter + np.where(zero >= 3, 2 * inputs.problem.training.weight_bytes, 0)
    return np.asarray(per_parameter * (inputs.sharding_ways > 1), dtype=np.float64)


def gathered_parameters_bytes(inputs: PlanInputs) -> Term:
    """ZeRO-2 and 3: whole gradients of the layer in work; ZeRO-3: whole weights of it and of the next one."""
    of_parameter = gathered_bytes_per_parameter(inputs)
    if not of_parameter.any():
        return NOTHING
    dense, expert = inputs.layer_parameters
    return at(inputs.largest_layer(dense + expert) * of_parameter[:, None], *IN_PIPELINE)


def distinct_matrix_parameters(inputs: PlanInputs) -> FloatArray:
    """Elements of one matrix of each shape in the largest layer of a stage, on one rank, (plans, stages)."""
    return inputs.largest_layer(_distinct_matrix_parameters(inputs))


@once_per_layer
def _distinct_matrix_parameters(inputs: PlanInputs) -> FloatArray:
    """The same of a layer of each kind, (plans, kinds)."""
    model = inputs.problem.model
    per_kind = []
    for kind in inputs.kinds:
        matrices = tuple(w for w in layer_weights(model, kind) if w.is_matrix)
        dense, expert = inputs.rank_parameters(matrices)
        num_experts = model.moe.num_experts if model.moe else 1
        # a rank's experts share one shape
        per_kind.append(dense + expert * inputs.plans.expert_parallel / num_experts)
    return by_kind(per_kind)


def weight_gradient_buffers_bytes(inputs: PlanInputs) -> Term:
    """Transformer Engine's buffer per distinct weight shape, kept for good: one layer's matrices, one expert's.

    In the weight's precision.

    Source: TransformerEngine, get_dummy_wgrad (with gradient-accumulation fusion); the output layer has its own.
    """
    if not inputs.problem.framework.dummy_weight_gradients:
        return NOTHING
    head = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    elements = distinct_matrix_parameters(inputs) + head[:, None] * inputs.stages.has_head
    return always(inputs.problem.training.weight_bytes * elements)


def weight_versions_bytes(inputs: PlanInputs) -> Term:
    """Asynchronous schedules: the older versions of its weights that a rank keeps for the backwards still to come."""
    several = [(schedule.weight_versions, rows) for schedule, rows in inputs.by_schedule if schedule.weight_versions]
    if not several:
        return NOTHING
    versions = np.ones_like(inputs.stages.count, dtype=np.float64)
    for of_schedule, rows in several:
        p = inputs.plans.pipeline_parallel[rows][:, None]
        versions[rows] = of_schedule(p, of_rows(inputs.stages.first_stage, rows))
    dense, expert = inputs.parameters
    return always((versions - 1) * weight_bytes_per_parameter(inputs) * (dense + expert))
