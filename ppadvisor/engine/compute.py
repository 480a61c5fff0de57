"""Compute time of one layer, of the embedding and of the head, on one rank for one micro-batch.

A matrix product takes the longer of its FLOPs at a stated fraction of the peak and its bytes at a stated fraction
of the memory bandwidth, plus a start-up; everything else is bytes; a layer never takes less than the CPU needs to
launch its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.once import once_per_layer
from ppadvisor.engine.parameters import Shard, Weight, layer_weights, mtp_weights
from ppadvisor.specs.model import LayerKind

BACKWARD_LAUNCH = 1.3
"""CPU time to launch a layer's backward over that of its forward (autograd adds bookkeeping; vTrain's A100 runs)."""
ELEMENTWISE_BACKWARD = 1.5
"""Bytes moved by the element-wise kernels of the backward over those of the forward (reads the gradient too)."""
UNFUSED_NORM_BYTES = 28
"""Moved for one element by the steps of a norm in plain torch beyond the 4 of one kernel: to fp32 2 + 4, square 4 + 4,
mean 4, product 4 + 4, back 4 + 2, weight 2 + 2 (own count)."""
FLASH_BACKWARD = 2.5
"""FLOPs of FlashAttention's backward over its forward: five products for two (Dao 2023, arXiv 2307.08691, 3.1)."""


@dataclass(frozen=True)
class Pass:
    """Seconds of a forward and of a backward (both gradients), arrays of one shape."""

    forward: FloatArray
    backward: FloatArray
    """Both gradients."""
    weight_grad: FloatArray | float = 0.0
    """The part of the backward that makes the gradients of the weights."""


def gemm_s(inputs: PlanInputs, m: FloatArray, n: FloatArray, k: FloatArray, count: FloatArray) -> FloatArray:
    """Seconds of `count` products (m, k) x (k, n): max(2 m n k / (peak e), bytes / (HBM e)) + launch, each (plans,)."""
    problem = inputs.problem
    assumed, gpu = problem.assumptions, problem.cluster.gpu
    flops_s = 2 * m * n * k / (problem.peak_flops_per_s * assumed.gemm_efficiency.value)
    moved = problem.training.activation_bytes * (m * k + k * n + m * n)
    bytes_s = moved / (gpu.hbm_bandwidth_bytes_per_s * assumed.hbm_efficiency.value)
    return count * np.maximum(flops_s, bytes_s) + assumed.gemm_launch_s.value


def moved_s(inputs: PlanInputs, moved: FloatArray) -> FloatArray:
    """Seconds to move bytes through the GPU's memory."""
    gpu, assumed = inputs.problem.cluster.gpu, inputs.problem.assumptions
    return moved / (gpu.hbm_bandwidth_bytes_per_s * assumed.hbm_efficiency.value)


@once_per_layer
def linear_compute(inputs: PlanInputs, weight: Weight) -> Pass:
    """One linear layer: a product forward; the same FLOPs twice backward (gradients of input and of weight)."""
    plans, model = inputs.plans, inputs.problem.model
    t = plans.tensor_parallel.astype(np.float64)
    ones = np.ones(len(plans))
    if weight.shard is Shard.EXPERT and model.moe:
        etp = plans.expert_tensor_parallel
        experts = model.moe.num_experts / plans.expert_parallel
        dispatched = inputs.tokens * model.moe.experts_per_token * etp / t
        m, ways, count = dispatched / experts, etp.astype(np.float64), experts
    elif weight.shard is Shard.REPLICATED:
        m, ways, count = inputs.tokens / inputs.sequence_ways, ones, ones
    else:
        groups = float(model.num_query_groups)
        ways = np.minimum(t, groups) if weight.shard is Shard.KEY_VALUE else t
        m, count = inputs.tokens, ones
    rows, cols = weight.rows * ones, weight.cols * ones
    k, n = (rows / ways, cols) if weight.row_parallel else (rows, cols / ways)
    forward = gemm_s(inputs, m, n, k, count)
    weight_grad = gemm_s(inputs, k, n, m, count)
    return Pass(forward, gemm_s(inputs, m, k, n, count) + weight_grad, weight_grad)


@once_per_layer
def attention_core(inputs: PlanInputs, kind: LayerKind) -> Pass:
    """Scores, softmax and values. Flash: causal, so half of the scores, fewer under a window; eager: all of them.

    Mean keys of a token: w (1 - w / 2s), w = min(window, s): s / 2 without a window.
    """
    problem, plans = inputs.problem, inputs.plans
    model, assumed, training = problem.model, problem.assumptions, problem.training
    seq, heads = training.sequence_length, model.num_attention_heads
    # scores over the query-key width, values over the value width
    widths = 2 * model.head_dim
    if model.mla:
        widths = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim + model.mla.v_head_dim
    per_key = 2 * inputs.tokens * heads * widths / plans.tensor_parallel
    peak = problem.attention_peak_flops_per_s
    if training.attention == "flash":
        window = min(kind.window or seq, seq)
        flops = per_key * window * (1 - window / (2 * seq))
        forward = flops / (peak * assumed.attention_efficiency.value)
        backward = FLASH_BACKWARD * flops / (peak * assumed.attention_backward_efficiency.value)
        return Pass(forward, backward)
    products = per_key * seq / (peak * assumed.gemm_efficiency.value)
    scores = inputs.tokens * seq * heads / plans.tensor_parallel
    dropout = 5 if training.dropout else 0
    # bytes per score: softmax reads and writes 16 bit, mask and dropout kernels theirs
    forward = products + moved_s(inputs, (6 + dropout) * scores)
    return Pass(forward, 2 * products + moved_s(inputs, (8 + dropout) * scores))


@once_per_layer
def activation_bytes(inputs: PlanInputs, kind: LayerKind) -> FloatArray:
    """Bytes that the activation of a layer's feed-forward reads and writes, forward, (plans,)."""
    model, t = inputs.problem.model, inputs.plans.tensor_parallel
    inner = 6 if model.gated_mlp else 4
    if not kind.moe or model.moe is None:
        return np.asarray(inner * model.ffn_hidden_size * inputs.tokens / t)
    width = model.moe.moe_ffn_hidden_size * model.moe.experts_per_token + model.moe.shared_experts_ffn_hidden_size
    return np.asarray(inner * width * inputs.tokens / t)


def elementwise_compute(inputs: PlanInputs, kind: LayerKind) -> Pass:
    """Norms, residuals, activation, rotary embedding, dropout: bytes read and written, counted kernel by kernel."""
    problem, plans = inputs.problem, inputs.plans
    model, training = problem.model, problem.training
    norms = 0 if training.fused_norm else UNFUSED_NORM_BYTES * model.norms_per_layer
    residual = ((22 if training.dropout else 18) + norms) * model.hidden_size * inputs.tokens / inputs.sequence_ways
    width = activation_bytes(inputs, kind)
    if kind.moe and model.moe:
        # permutation writes and reads every dispatched token twice on either side of the experts
        dispatched = inputs.tokens * model.moe.experts_per_token / plans.tensor_parallel
        width = width + 8 * model.hidden_size * dispatched
    rotary = np.zeros(len(plans))
    if model.positional_embedding == "rope":
        heads = model.num_attention_heads + model.num_query_groups
        rotary = 8 * heads * model.head_dim * inputs.tokens / plans.tensor_parallel
    forward = moved_s(inputs, residual + width + rotary)
    return Pass(forward, ELEMENTWISE_BACKWARD * forward)


def layer_compute(inputs: PlanInputs, kind: LayerKind) -> Pass:
    """Seconds of one layer of this kind, no communication, no recomputation, not less than its launch time. (plans,)"""
    core, rest = attention_core(inputs, kind), elementwise_compute(inputs, kind)
    forward, backward = core.forward + rest.forward, core.backward + rest.backward
    weight_grad = np.zeros_like(forward)
    for weight in layer_weights(inputs.problem.model, kind):
        if weight.is_matrix:
            linear = linear_compute(inputs, weight)
            forward, backward = forward + linear.forward, backward + linear.backward
            weight_grad = weight_grad + linear.weight_grad
    launch = inputs.problem.assumptions.layer_launch_s.value
    launched = np.maximum(backward, BACKWARD_LAUNCH * launch)
    return Pass(np.maximum(forward, launch), launched, weight_grad * launched / backward)


@once_per_layer
def head_compute(inputs: PlanInputs) -> Pass:
    """Output layer and loss: a product with V / t columns and the traffic of the loss over the logits. (plans,)

    Once more for every multi-token-prediction layer, with the projection of hidden state and embedding, 2 h -> h.
    """
    problem = inputs.problem
    loss = problem.framework.loss(problem.training)
    columns = inputs.vocab_size / inputs.plans.tensor_parallel
    hidden = np.full(len(inputs.plans), float(problem.model.hidden_size))
    ones = np.ones(len(inputs.plans))
    logits = inputs.tokens * inputs.logits_per_token
    forward = gemm_s(inputs, inputs.tokens, columns, hidden, ones) + moved_s(
        inputs, loss.traffic_forward_bytes * logits
    )
    weight_grad = gemm_s(inputs, hidden, columns, inputs.tokens, ones)
    backward = gemm_s(inputs, inputs.tokens, hidden, columns, ones) + weight_grad
    backward = backward + moved_s(inputs, loss.traffic_backward_bytes * logits)
    mtp = problem.model.mtp_num_layers
    forward, backward, weight_grad = ((1 + mtp) * seconds for seconds in (forward, backward, weight_grad))
    for weight in mtp_weights(problem.model):
        if weight.name == "mtp_projection":
            linear = linear_compute(inputs, weight)
            forward, backward = forward + mtp * linear.forward, backward + mtp * linear.backward
            weight_grad = weight_grad + mtp * linear.weight_grad
    return Pass(forward, backward, weight_grad)


@once_per_layer
def embedding_compute(inputs: PlanInputs) -> Pass:
    """Look-up forward, scatter-add of the dense gradient backward: bytes only. (plans,)"""
    problem = inputs.problem
    rows = 2 * problem.training.activation_bytes * problem.model.hidden_size * inputs.tokens
    table = problem.training.weight_bytes * problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    backward = moved_s(inputs, rows + 3 * table)
    return Pass(moved_s(inputs, rows), backward, backward)
