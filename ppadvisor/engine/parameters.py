"""What is stored as parameters: every weight of every kind of layer, exactly, and how a rank's share of it is cut.

A layer is a tuple of `Weight`s. The same tuples give the parameter count, the matrix multiplications of the
compute model and the weight-shaped temporaries of the memory model, so that the three cannot disagree.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ppadvisor.specs.model import LayerKind, MlaSpec, ModelSpec, MoeSpec

IntArray = NDArray[np.int64]


class Shard(Enum):
    """How a weight is divided among the ranks of a stage."""

    TENSOR = "divided by t"
    KEY_VALUE = "divided by min(t, key/value groups)"
    REPLICATED = "whole on every rank"
    EXPERT = "divided by expert parallel x expert tensor parallel"


@dataclass(frozen=True)
class Weight:
    """`count` matrices of `rows` inputs and `cols` outputs; a bias or a norm has rows = 0 and is a vector of `cols`."""

    name: str
    rows: int
    cols: int
    shard: Shard
    count: int = 1
    row_parallel: bool = False
    """Cut along its inputs (its output is then summed over the ranks), not along its outputs."""

    @property
    def size(self) -> int:
        return self.count * max(self.rows, 1) * self.cols

    @property
    def is_matrix(self) -> bool:
        return self.rows > 0


def _vector(name: str, size: int, shard: Shard = Shard.REPLICATED) -> Weight:
    return Weight(name, 0, size, shard)


def norm_size(model: ModelSpec) -> int:
    """Parameters of one norm over the hidden size: h for RMSNorm, 2 h with a bias."""
    if not model.norm_weight:
        return 0
    return model.hidden_size * (2 if model.has_norm_bias else 1)


def _qk_norm_weights(model: ModelSpec) -> tuple[Weight, ...]:
    width, kv_width = model.num_attention_heads * model.head_dim, model.num_query_groups * model.head_dim
    if model.qk_norm == "none":
        return ()
    if model.qk_norm == "head":
        return (_vector("query_norm", model.head_dim), _vector("key_norm", model.head_dim))
    return (_vector("query_norm", width, Shard.TENSOR), _vector("key_norm", kv_width, Shard.KEY_VALUE))


def _attention_weights(model: ModelSpec) -> tuple[Weight, ...]:
    h, width = model.hidden_size, model.num_attention_heads * model.head_dim
    kv_width = model.num_query_groups * model.head_dim
    weights = [
        Weight("query", h, width, Shard.TENSOR),
        Weight("key", h, kv_width, Shard.KEY_VALUE),
        Weight("value", h, kv_width, Shard.KEY_VALUE),
        Weight("attention_output", width, h, Shard.TENSOR, row_parallel=True),
    ]
    if model.qkv_bias:
        weights += [
            _vector("query_bias", width, Shard.TENSOR),
            _vector("key_bias", kv_width, Shard.KEY_VALUE),
            _vector("value_bias", kv_width, Shard.KEY_VALUE),
        ]
    if model.attention_output_bias:
        weights.append(_vector("attention_output_bias", h))
    if model.attention_sinks:
        weights.append(_vector("attention_sinks", model.num_attention_heads, Shard.TENSOR))
    return (*weights, *_qk_norm_weights(model))


def _mla_weights(model: ModelSpec, mla: MlaSpec) -> tuple[Weight, ...]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): projections and their norms.

    The down-projections and the latent norms are small and whole on every tensor-parallel rank (Megatron-Core).
    """
    h, heads = model.hidden_size, model.num_attention_heads
    query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank is None:
        query = [Weight("query", h, query_width, Shard.TENSOR)]
    else:
        query = [
            Weight("query_down", h, mla.q_lora_rank, Shard.REPLICATED),
            _vector("query_latent_norm", mla.q_lora_rank),
            Weight("query_up", mla.q_lora_rank, query_width, Shard.TENSOR),
        ]
    weights = [
        *query,
        Weight("key_value_down", h, mla.kv_lora_rank + mla.qk_rope_head_dim, Shard.REPLICATED),
        _vector("key_value_latent_norm", mla.kv_lora_rank),
        Weight("key_value_up", mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim), Shard.TENSOR),
        Weight("attention_output", heads * mla.v_head_dim, h, Shard.TENSOR, row_parallel=True),
    ]
    if model.qkv_bias:  # of the down-projections alone; an uncompressed query has none (DeepseekV3Attention)
        weights.append(_vector("key_value_down_bias", mla.kv_lora_rank + mla.qk_rope_head_dim))
        if mla.q_lora_rank is not None:
            weights.append(_vector("query_down_bias", mla.q_lora_rank))
    if model.attention_output_bias:
        weights.append(_vector("attention_output_bias", h))
    return tuple(weights)


def _mlp_weights(model: ModelSpec, width: int, prefix: str, count: int, shard: Shard, bias: bool) -> list[Weight]:
    h = model.hidden_size
    inner = width * (2 if model.gated_mlp else 1)
    weights = [
        Weight(f"{prefix}_up", h, inner, shard, count),
        Weight(f"{prefix}_down", width, h, shard, count, row_parallel=True),
    ]
    if bias:
        down_bias_shard = Shard.EXPERT if shard is Shard.EXPERT else Shard.REPLICATED
        weights += [
            Weight(f"{prefix}_up_bias", 0, inner, shard, count),
            Weight(f"{prefix}_down_bias", 0, h, down_bias_shard, count),
        ]
    return weights


def _moe_weights(model: ModelSpec, moe: MoeSpec) -> tuple[Weight, ...]:
    h = model.hidden_size
    weights = [Weight("router", h, moe.num_experts, Shard.REPLICATED)]
    if moe.router_bias:
        weights.append(_vector("router_bias", moe.num_experts))
    weights += _mlp_weights(model, moe.moe_ffn_hidden_size, "experts", moe.num_experts, Shard.EXPERT, moe.expert_bias)
    if width := moe.shared_experts_ffn_hidden_size:
        weights += _mlp_weights(model, width, "shared_experts", 1, Shard.TENSOR, False)
        if moe.shared_expert_gate:
            weights.append(Weight("shared_expert_gate", h, 1, Shard.REPLICATED))
    return tuple(weights)


@functools.lru_cache(maxsize=256)
def layer_weights(model: ModelSpec, kind: LayerKind) -> tuple[Weight, ...]:
    """Every weight of one transformer layer of this kind, norms and biases included."""
    attention = _mla_weights(model, model.mla) if model.mla else _attention_weights(model)
    if kind.moe and model.moe:
        feed_forward = _moe_weights(model, model.moe)
    else:
        feed_forward = tuple(_mlp_weights(model, model.ffn_hidden_size, "mlp", 1, Shard.TENSOR, model.mlp_bias))
    norms = tuple(_vector(f"norm_{i + 1}", norm_size(model)) for i in range(model.norms_per_layer))
    return (*attention, *feed_forward, *norms)


def embedding_weights(model: ModelSpec, vocab_size: int) -> tuple[Weight, ...]:
    """Weights in front of the first layer: token table, learned positions, the norm after them."""
    weights = [_vector("token_embedding", vocab_size * model.hidden_size, Shard.TENSOR)]
    if model.max_position_embeddings:
        # Megatron keeps the whole position table on every tensor-parallel rank of the first stage.
        weights.append(_vector("position_embedding", model.max_position_embeddings * model.hidden_size))
    if model.embedding_norm:
        weights.append(_vector("embedding_norm", norm_size(model)))
    return tuple(weights)


def head_weights(model: ModelSpec, vocab_size: int, *, own_copy: bool) -> tuple[Weight, ...]:
    """Weights behind the last layer; `own_copy`: the output matrix is stored here (untied, or tied across stages)."""
    weights = [_vector("final_norm", norm_size(model))] if model.final_norm else []
    if own_copy:
        weights.append(Weight("output_layer", model.hidden_size, vocab_size, Shard.TENSOR))
    if model.lm_head_bias:
        weights.append(_vector("output_layer_bias", vocab_size, Shard.TENSOR))
    return tuple(weights)


def mtp_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """One multi-token-prediction layer: a layer of the last kind, the 2h -> h projection and three norms.

    Source: DeepSeek-V3 (arXiv 2412.19437) section 2.2; embedding and output layer are shared with the main model.
    """
    if not model.mtp_num_layers:
        return ()
    h = model.hidden_size
    return (
        *layer_weights(model, model.layer_kind(model.num_layers - 1)),
        Weight("mtp_projection", 2 * h, h, Shard.TENSOR),
        *(_vector(name, norm_size(model)) for name in ("mtp_embedding_norm", "mtp_hidden_norm", "mtp_final_norm")),
    )


def count_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model: tied embeddings once, the vocabulary unpadded, MTP layers included.

    >>> from ppadvisor.specs.load import load_model
    >>> count_parameters(load_model("llama-2-7b"))  # Llama-2-7B as published
    6738415616
    """
    kinds, kind_of_layer = model.layer_kinds()
    layers = sum(sum(w.size for w in layer_weights(model, kinds[k])) for k in kind_of_layer)
    ends = (
        *embedding_weights(model, model.vocab_size),
        *head_weights(model, model.vocab_size, own_copy=not model.tied_embeddings),
    )
    mtp = model.mtp_num_layers * sum(w.size for w in mtp_weights(model))
    return layers + sum(w.size for w in ends) + mtp


def count_active_parameters(model: ModelSpec) -> int:
    """Parameters that one token meets: of the routed experts only `experts_per_token`; MTP left out."""
    if model.moe is None:
        return count_parameters(model)
    expert = sum(w.size // model.moe.num_experts for w in _moe_weights(model, model.moe) if w.shard is Shard.EXPERT)
    idle = (model.moe.num_experts - model.moe.experts_per_token) * expert
    moe_layers = sum(model.is_moe_layer(i) for i in range(model.num_layers))
    return count_parameters(model.changed(mtp_num_layers=0)) - moe_layers * idle


def rank_parameters(
    weights: tuple[Weight, ...],
    *,
    tensor_parallel: IntArray,
    expert_ways: IntArray,
    num_query_groups: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Parameters of `weights` on one rank: (all but routed experts, routed experts).

    tensor_parallel t and expert_ways (expert parallel x expert tensor parallel) are arrays of one shape, which
    is the shape of both results. Key/value weights are cut at most into `num_query_groups` parts and then
    replicated, as Megatron-Core does.
    """
    by_shard = {shard: float(sum(w.size for w in weights if w.shard is shard)) for shard in Shard}
    kv_ways = np.minimum(tensor_parallel, num_query_groups)
    dense = by_shard[Shard.REPLICATED] + by_shard[Shard.TENSOR] / tensor_parallel + by_shard[Shard.KEY_VALUE] / kv_ways
    return dense, by_shard[Shard.EXPERT] / expert_ways
