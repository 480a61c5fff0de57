"""Model FLOPs of one step as Megatron-LM counts them."""

from __future__ import annotations

from ppadvisor.specs.model import ModelSpec


def megatron_flops_per_token(model: ModelSpec, sequence_length: int, vocab_size: int) -> float:
    """FLOPs of one token, forward and backward, as Megatron-LM counts model FLOPs.

    F/token = 6 { h [N_d f e + N_m e (f_m k + f_s)] + L' A + n_mtp (3h + 2h^2) + h V (1 + n_mtp) } + 6 s L' C
    with e = 3 for a gated MLP else 2, L' = L + n_mtp, A the attention projections, C = a k (causal: half of the
    scores) or a (d_qk + d_v) / 2 under MLA; 6 = (forward + 2 backward) x 2 per multiply-add. V is `vocab_size`,
    as stored (padded). Source: NVIDIA/Megatron-LM commit d98e8a64, training.py:802-1388,
    `num_floating_point_operations`. Sliding windows are not credited, as there.
    """
    h, seq = model.hidden_size, sequence_length
    mtp = model.mtp_num_layers
    gate = 3 if model.gated_mlp else 2
    moe_flags = [model.is_moe_layer(i) for i in range(model.num_layers)]
    moe_flags += [moe_flags[-1]] * mtp
    num_moe = sum(moe_flags)
    feed_forward = float((len(moe_flags) - num_moe) * model.ffn_hidden_size * gate)
    if model.moe:
        routed = model.moe.moe_ffn_hidden_size * model.moe.experts_per_token
        feed_forward += num_moe * gate * (routed + model.moe.shared_experts_ffn_hidden_size)
    projections, _ = _attention(model)
    layers = model.num_layers + mtp
    linear = h * feed_forward + layers * projections + mtp * (3 * h + 2 * h * h) + h * vocab_size * (1 + mtp)
    return 6 * linear + attention_core_flops_per_token(model, seq)


def _attention(model: ModelSpec) -> tuple[float, float]:
    """(A, C) of the formula: projection weights met by a token, and half the width of scores and values."""
    h, a = model.hidden_size, model.num_attention_heads
    if model.mla is None:
        width = a * model.head_dim
        return h * (width + 2 * model.head_dim * model.num_query_groups) + width * h, width
    mla = model.mla
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    query = h * a * qk if mla.q_lora_rank is None else mla.q_lora_rank * (h + a * qk + 1)
    key_value = mla.kv_lora_rank * (h + a * (mla.qk_nope_head_dim + mla.v_head_dim) + 1)
    projections = query + key_value + h * mla.qk_rope_head_dim + a * mla.v_head_dim * h
    return projections, a * qk / 2 + a * mla.v_head_dim / 2


def head_in_layers(model: ModelSpec, sequence_length: int) -> float:
    """FLOPs of the output layer (again for each MTP layer) over those of a mean layer: what it weighs in a split."""
    layers = megatron_flops_per_token(model, sequence_length, 0)
    whole = megatron_flops_per_token(model, sequence_length, model.vocab_size)
    return (whole - layers) / (layers / (model.num_layers + model.mtp_num_layers))


def attention_core_flops_per_token(model: ModelSpec, sequence_length: int) -> float:
    """FLOPs of scores and values of all layers for one token, forward and backward: 6 s L' C of the count above."""
    return 6.0 * sequence_length * (model.num_layers + model.mtp_num_layers) * _attention(model)[1]
