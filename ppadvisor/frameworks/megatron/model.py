"""The model that Megatron builds from its options.

Source: NVIDIA/Megatron-LM d98e8a64, arguments.py:1308-1340 (widths), argument_utils.py:290-345 (activation, groups),
gpt_layer_specs.py:643-660 (expert layers), router.py:67 and experts.py:223 (biases), multi_latent_attention.py.
"""

from __future__ import annotations

import re
from typing import Any

from ppadvisor.frameworks.megatron.patterns import layer_pattern
from ppadvisor.frameworks.megatron.run import Run
from ppadvisor.specs.model import MlaSpec, ModelSpec, MoeSpec
from ppadvisor.specs.validation import validate

POSITIONS = {"learned_absolute": "learned", "rope": "rope", "yarn": "rope", "mrope": "rope"}


def model_of(run: Run, *, name: str, vocab_size: int, where: str) -> ModelSpec:
    """The model. InputError where its numbers make none."""
    hidden, heads = run.whole("hidden_size") or 0, run.whole("num_attention_heads") or 0
    bias = run.on("add_bias_linear")
    positions = "rope" if run.on("use_rotary_position_embeddings") else run.text("position_embedding_type") or ""
    positional = POSITIONS.get(positions, "none")
    data: dict[str, Any] = {
        "name": name,
        "source": where,
        "num_layers": run.layers,
        "hidden_size": hidden,
        "ffn_hidden_size": feed_forward_width(run),
        "num_attention_heads": heads,
        "num_query_groups": run.whole("num_query_groups") if run.on("group_query_attention") else heads,
        "head_dim": run.whole("kv_channels") or (hidden // heads if heads else 0),
        "vocab_size": vocab_size,
        "gated_mlp": run.on("swiglu") or run.on("quick_geglu"),
        "tied_embeddings": not run.on("untie_embeddings_and_output_weights"),
        "normalization": "rmsnorm" if run.text("normalization") == "RMSNorm" else "layernorm",
        "positional_embedding": positional,
        "max_position_embeddings": run.whole("max_position_embeddings") if positional == "learned" else None,
        "qkv_bias": bias or run.on("add_qkv_bias"),
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "qk_norm": "head" if run.on("qk_layernorm") and not run.on("multi_latent_attention") else "none",
        "attention_sinks": run.text("softmax_type") == "learnable",
        "moe": _experts(run, where),
        "mla": _latent(run, where),
        "mtp_num_layers": run.whole("mtp_num_layers") or 0,
        **_window(run),
    }
    return validate(ModelSpec, data, where)


def feed_forward_width(run: Run) -> int:
    """1309-1320: 4 h, or of a gated one 8/3 h down to a multiple of 64."""
    hidden = run.whole("hidden_size") or 0
    gated = int((4 * hidden * 2 / 3) / 64) * 64
    return run.whole("ffn_hidden_size") or (gated if run.on("swiglu") else 4 * hidden)


def _experts(run: Run, where: str) -> MoeSpec | None:
    experts = run.whole("num_experts")
    if not experts:
        return None
    shared, bias = run.whole("moe_shared_expert_intermediate_size"), run.on("add_bias_linear")
    data: dict[str, Any] = {
        "num_experts": experts,
        "experts_per_token": run.whole("moe_router_topk"),
        "moe_ffn_hidden_size": run.whole("moe_ffn_hidden_size") or feed_forward_width(run),
        "num_shared_experts": 1 if shared else 0,
        "shared_expert_ffn_hidden_size": shared or None,
        "shared_expert_gate": run.on("moe_shared_expert_gate"),
        "router_bias": bias,
        "expert_bias": bias,
        "score_correction_bias": run.on("moe_router_enable_expert_bias"),
        **_expert_layers(run),
    }
    return validate(MoeSpec, data, where)


def _expert_layers(run: Run) -> dict[str, Any]:
    text = str(run.arguments.value("moe_layer_freq"))
    if re.fullmatch(r"\d{1,6}", text):
        return {"layer_period": max(int(text), 1)}
    pattern = layer_pattern(text) or ()
    return {"moe_layers": tuple(index for index, expert in enumerate(pattern) if expert and index < (run.layers or 0))}


def _latent(run: Run, where: str) -> MlaSpec | None:
    if not run.on("multi_latent_attention"):
        return None
    data = {
        "q_lora_rank": run.whole("q_lora_rank"),
        "kv_lora_rank": run.whole("kv_lora_rank"),
        "qk_nope_head_dim": run.whole("qk_head_dim"),
        "qk_rope_head_dim": run.whole("qk_pos_emb_head_dim"),
        "v_head_dim": run.whole("v_head_dim"),
    }
    return validate(MlaSpec, data, where)


def _window(run: Run) -> dict[str, Any]:
    """`--window-size 127,0`: 127 keys before and the token's own; full attention in every skip-freq-th layer."""
    match = re.fullmatch(r"\(?\s*(\d{1,9})\s*,\s*-?\d{1,9}\s*\)?", run.text("window_size") or "")
    if not match:
        return {}
    skip = run.text("window_attn_skip_freq") or ""
    if re.fullmatch(r"\d{1,6}", skip):
        return {"sliding_window": int(match[1]) + 1, "sliding_window_period": max(int(skip), 1)}
    pattern = layer_pattern(skip)
    if pattern is None:
        return {"sliding_window": int(match[1]) + 1}
    full = tuple(index for index, windowed in enumerate(pattern) if not windowed and index < (run.layers or 0))
    return {"sliding_window": int(match[1]) + 1, "full_attention_layers": full}
