"""Families of `hf_config` from before Llama: LayerNorm, a feed-forward of two matrices, no key/value groups."""

from __future__ import annotations

from ppadvisor.specs.hf_parts import all_biases, attention_bias, divided_head_dim, no_layer_is_full, trunk, windows
from ppadvisor.specs.hf_reader import ConfigReader, Fields


def _older(r: ConfigReader, **given: object) -> Fields:
    """The trunk of these families; `given` wins. A num_key_value_heads or head_dim in the file is not theirs."""
    own: Fields = {
        "num_query_groups": r.size("num_attention_heads"),
        "head_dim": divided_head_dim(r),
        "normalization": "layernorm",
        "gated_mlp": False,
    }
    return trunk(r, **(own | given))


def gpt2(r: ConfigReader) -> Fields:
    """Learned positions, biases everywhere."""
    r.only("add_cross_attention", False, "a decoder without an encoder")
    ffn = r.optional_size("intermediate_size") or 4 * r.size("hidden_size")
    rows = r.size("max_position_embeddings")
    position: Fields = {"positional_embedding": "learned", "max_position_embeddings": rows}
    return _older(r, ffn_hidden_size=ffn, **position, **all_biases())


def gpt_neox(r: ConfigReader) -> Fields:
    """Two norms in a layer, whether its branches run in parallel or not."""
    biases = all_biases() | attention_bias(r, True)
    return _older(r, parallel_block=r.flag("use_parallel_residual", True), **biases)


def gptj(r: ConfigReader) -> Fields:
    """One norm for both branches; biases in the feed-forward and the head alone."""
    ffn = r.optional_size("intermediate_size") or 4 * r.size("hidden_size")
    return _older(r, ffn_hidden_size=ffn, parallel_block=True, norms_per_layer=1, mlp_bias=True, lm_head_bias=True)


def bloom(r: ConfigReader) -> Fields:
    """ALiBi, and a norm behind the embedding."""
    position: Fields = {"positional_embedding": "alibi", "embedding_norm": True}
    return _older(r, ffn_hidden_size=4 * r.size("hidden_size"), **position, **all_biases())


def opt(r: ConfigReader) -> Fields:
    """Learned positions with two rows in front."""
    hidden, before = r.size("hidden_size"), r.flag("do_layer_norm_before", True)
    r.only("word_embed_proj_dim", hidden, "embeddings as wide as the layers, without projections between them")
    more: Fields = {
        "positional_embedding": "learned",
        "max_position_embeddings": r.size("max_position_embeddings") + 2,  # two rows in front, for padding
        "final_norm": before and not r.flag("_remove_final_layer_norm", False),
        "norm_weight": r.flag("layer_norm_elementwise_affine", True),
    }
    return _older(r, ffn_hidden_size=r.size("ffn_dim"), **more, **all_biases(r.flag("enable_bias", True)))


def _falcon_groups(r: ConfigReader, heads: int, new_block: bool) -> int:
    if not new_block:
        return 1 if r.flag("multi_query", True) else heads
    groups = r.optional_size("num_kv_heads") or heads
    if heads % groups:
        raise r.error("num_attention_heads", f"got {heads}, needs a multiple of num_kv_heads ({groups})")
    return groups


def falcon(r: ConfigReader) -> Fields:
    """Three blocks under one name: 7b (parallel, one norm, one key/value head), 40b (new), rw (sequential, ALiBi)."""
    new_block, parallel = r.flag("new_decoder_architecture", False), r.flag("parallel_attn", True)
    # the new block has a norm for each branch unless told otherwise; the old parallel block shares one
    norms = (r.optional_size("num_ln_in_parallel_attn") or (2 if new_block else 1)) if parallel else 2
    if norms > 2:
        raise r.error("num_ln_in_parallel_attn", f"got {norms}, needs 1 or 2")
    return _older(
        r,
        ffn_hidden_size=r.optional_size("ffn_hidden_size") or 4 * r.size("hidden_size"),
        num_query_groups=_falcon_groups(r, r.size("num_attention_heads"), new_block),
        parallel_block=parallel or new_block,
        norms_per_layer=norms,
        positional_embedding="alibi" if r.flag("alibi", False) else "rope",
        **all_biases(r.flag("bias", False)),
    )


def mpt(r: ConfigReader) -> Fields:
    """ALiBi and no bias anywhere, in the norms neither."""
    attention = ConfigReader(r.mapping("attn_config"), f"{r.where}: attn_config", r.family)
    attention.only("alibi", True, "transformers builds mpt with ALiBi alone")
    attention.only("qk_ln", False, "transformers builds mpt without it")
    attention.only("attn_type", "multihead_attention", "transformers builds mpt without grouped queries")
    r.only("no_bias", True, "transformers builds mpt without biases")
    r.only("norm_type", "low_precision_layernorm", "transformers builds mpt with LayerNorm")
    r.only("expansion_ratio", 4, "transformers builds mpt with 4")
    ffn = 4 * r.size("hidden_size")
    return _older(r, ffn_hidden_size=ffn, positional_embedding="alibi", norm_bias=False)


def starcoder2(r: ConfigReader) -> Fields:
    """Grouped queries and windows with the norms and the feed-forward of the older families."""
    biases, window = all_biases(r.flag("use_bias", True)), windows(r, no_layer_is_full)
    return trunk(r, normalization="layernorm", gated_mlp=False, **biases, **window)
