"""A model in Megatron's options: the inverse of `model_of`.

Source: NVIDIA/Megatron-LM d98e8a64, arguments.py:1308-1340 (widths), argument_utils.py:290-345 (activation, groups),
transformer_config.py (experts, latent attention), router.py (scores and their bias).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from ppadvisor.specs.model import MlaSpec, ModelSpec, MoeSpec

POSITIONS = {"learned": "learned_absolute", "rope": "rope"}
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}


class Flag(NamedTuple):
    """One option with its values, and what is not obvious of it."""

    name: str
    values: tuple[str, ...] = ()
    comment: str = ""


def flag(name: str, *values: int | str, comment: str = "") -> Flag:
    """`flag("--num-layers", 32)`."""
    return Flag(name, tuple(map(str, values)), comment)


def model_flags(model: ModelSpec, sequence_length: int) -> Iterator[Flag]:
    """Sizes first, then what the layers are made of."""
    yield flag("--num-layers", model.num_layers)
    yield flag("--hidden-size", model.hidden_size)
    yield flag("--ffn-hidden-size", model.ffn_hidden_size)
    yield flag("--num-attention-heads", model.num_attention_heads)
    if model.mla is None and model.num_query_groups != model.num_attention_heads:
        yield flag("--group-query-attention", comment="without it --num-query-groups is ignored")
        yield flag("--num-query-groups", model.num_query_groups)
    yield flag("--kv-channels", model.head_dim, comment="width of an attention head")
    yield from _positions(model, sequence_length)
    yield flag("--vocab-size", model.vocab_size, comment="before padding")
    yield from _parts(model)
    yield from _window(model)
    if model.mla:
        yield from _latent(model.mla)
    if model.moe:
        yield from _experts(model, model.moe)
    if model.mtp_num_layers:
        yield flag("--mtp-num-layers", model.mtp_num_layers)


def _positions(model: ModelSpec, sequence_length: int) -> Iterator[Flag]:
    yield flag("--seq-length", sequence_length)
    rows = model.max_position_embeddings or sequence_length
    yield flag("--max-position-embeddings", rows, comment="" if model.max_position_embeddings else "required")
    yield flag("--position-embedding-type", POSITIONS.get(model.positional_embedding, "none"))


def _parts(model: ModelSpec) -> Iterator[Flag]:
    """Megatron has biases everywhere, or none, or those of the query, key and value projections alone."""
    if model.gated_mlp:
        yield flag("--swiglu")
    yield flag("--normalization", NORMS[model.normalization])
    if not model.tied_embeddings:
        yield flag("--untie-embeddings-and-output-weights")
    if not (model.qkv_bias and model.attention_output_bias and feed_forward_bias(model)):
        yield flag("--disable-bias-linear")
        if model.qkv_bias:
            yield flag("--add-qkv-bias")
    if model.mla:
        yield flag("--qk-layernorm", comment="the norms of the latents")
    elif model.qk_norm == "head":
        yield flag("--qk-layernorm")
    if model.attention_sinks:
        yield flag("--softmax-type", "learnable", comment="attention sinks")


def _window(model: ModelSpec) -> Iterator[Flag]:
    if model.sliding_window is None:
        return
    yield flag("--window-size", f"{model.sliding_window - 1},0", comment="keys before a token's own")
    windows = [int(model.attention_window(layer) is not None) for layer in range(model.num_layers)]
    if not all(windows):
        yield flag("--window-attn-skip-freq", pattern(windows), comment="0: the layer attends to everything")


def _latent(mla: MlaSpec) -> Iterator[Flag]:
    yield flag("--multi-latent-attention")
    if mla.q_lora_rank:
        yield flag("--q-lora-rank", mla.q_lora_rank)
    yield flag("--kv-lora-rank", mla.kv_lora_rank)
    yield flag("--qk-head-dim", mla.qk_nope_head_dim)
    yield flag("--qk-pos-emb-head-dim", mla.qk_rope_head_dim)
    yield flag("--v-head-dim", mla.v_head_dim)


def _experts(model: ModelSpec, moe: MoeSpec) -> Iterator[Flag]:
    yield flag("--num-experts", moe.num_experts)
    yield flag("--moe-router-topk", moe.experts_per_token)
    yield flag("--moe-ffn-hidden-size", moe.moe_ffn_hidden_size)
    layers = [int(model.is_moe_layer(layer)) for layer in range(model.num_layers)]
    if not all(layers):
        yield flag("--moe-layer-freq", pattern(layers), comment="0: a dense layer")
    # Megatron builds one expert out of all shared ones
    if shared := moe.shared_experts_ffn_hidden_size:
        yield flag("--moe-shared-expert-intermediate-size", shared, comment="of all shared experts together")
        if moe.shared_expert_gate:
            yield flag("--moe-shared-expert-gate")
    if moe.score_correction_bias:
        yield flag("--moe-router-score-function", "sigmoid", comment="which the bias of the scores needs")
        yield flag("--moe-router-enable-expert-bias")
    elif moe.experts_per_token == 1:
        yield flag("--moe-router-pre-softmax", comment="which one expert a token needs")
    yield flag("--moe-grouped-gemm")
    yield flag("--moe-token-dispatcher-type", "alltoall")


def feed_forward_bias(model: ModelSpec) -> bool:
    """Of the dense layers; of a model without any, of its experts."""
    dense = not all(model.is_moe_layer(layer) for layer in range(model.num_layers))
    return model.mlp_bias if dense or model.moe is None else model.moe.expert_bias


def pattern(layers: list[int]) -> str:
    """Layers as Megatron writes them.

    >>> pattern([0, 0, 0, 1, 1])
    '[0]*3+[1]*2'
    """
    return "+".join(f"[{kind}]*{len(list(run))}" for kind, run in groupby(layers))
