"""Where a run's values stand in its file, and what the file says beside them."""

from __future__ import annotations

from ppadvisor.frameworks.configuration import Said
from ppadvisor.frameworks.megatron.arguments import Arguments, Value
from ppadvisor.frameworks.megatron.options import flag_of, options
from ppadvisor.frameworks.megatron.run import BY_COUNT, BY_LAYERS, EMBEDDING, FIRST, LAST, LAYOUT, LOSS, Run

OPTIONS: dict[str, tuple[str, ...]] = {
    "pipeline_parallel": ("pipeline_model_parallel_size",),
    "tensor_parallel": ("tensor_model_parallel_size",),
    "context_parallel": ("context_parallel_size",),
    "expert_parallel": ("expert_model_parallel_size",),
    "expert_tensor_parallel": ("expert_tensor_parallel_size",),
    "virtual_stages": (BY_COUNT, BY_LAYERS, LAYOUT),
    "micro_batch_size": ("micro_batch_size",),
    "num_microbatches": ("global_batch_size",),
    "microbatch_group_size": ("microbatch_group_size_per_vp_stage",),
    "recompute": ("recompute_granularity", "recompute_activations"),
    "optimizer_sharding": ("use_distributed_optimizer",),
    "sequence_parallel": ("sequence_parallel",),
    "layers_per_stage": (LAYOUT, FIRST, LAST),
}
"""Which options say a field of a plan or of its training run, the likeliest first."""

SAYS: dict[str, str] = {
    **{dest: name for name, dests in reversed(OPTIONS.items()) for dest in dests},
    **dict.fromkeys(("recompute_method", "recompute_num_layers", "recompute_modules"), "recompute"),
    **dict.fromkeys((EMBEDDING, LOSS), "layers_per_stage"),
    **dict.fromkeys(("bf16", "fp16", "fp8"), "precision"),
    **dict.fromkeys(("optimizer", "sgd_momentum", "use_precision_aware_optimizer"), "optimizer"),
    **dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), "optimizer"),
    **dict.fromkeys(("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32"), "gradient_precision"),
    **dict.fromkeys(("attention_backend", "transformer_impl", "use_flash_attn"), "attention"),
    **dict.fromkeys(("hidden_dropout", "attention_dropout"), "dropout"),
    **dict.fromkeys(("group_query_attention", "num_query_groups"), "num_query_groups"),
    **dict.fromkeys(("vocab_size", "padded_vocab_size"), "vocab_size"),
    **dict.fromkeys(("swiglu", "quick_geglu"), "gated_mlp"),
    **dict.fromkeys(("position_embedding_type", "use_rotary_position_embeddings"), "positional_embedding"),
    **dict.fromkeys(("window_size", "window_attn_skip_freq"), "sliding_window"),
    **{name: name for name in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "normalization")},
    **{name: name for name in ("max_position_embeddings", "mtp_num_layers", "num_experts", "moe_ffn_hidden_size")},
    **{name: name for name in ("q_lora_rank", "kv_lora_rank", "v_head_dim")},
    "moe_layer_recompute": "recompute",
    "seq_length": "sequence_length",
    "kv_channels": "head_dim",
    "untie_embeddings_and_output_weights": "tied_embeddings",
    "add_bias_linear": "mlp_bias",
    "add_qkv_bias": "qkv_bias",
    "qk_layernorm": "qk_norm",
    "softmax_type": "attention_sinks",
    "multi_latent_attention": "mla",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "moe_router_topk": "experts_per_token",
    "moe_layer_freq": "moe_layers",
    "moe_router_enable_expert_bias": "score_correction_bias",
    "moe_shared_expert_intermediate_size": "shared_expert_ffn_hidden_size",
    "moe_shared_expert_gate": "shared_expert_gate",
    "use_megatron_fsdp": "optimizer_sharding",
    "fp8_param_gather": "fp8_weights",
}
"""Option -> the field that it says, of plan, training run or model."""


def places_of(run: Run) -> dict[str, tuple[str, int | None]]:
    """Of each field of the plan the option to change, and the line where its value stands."""
    found = {}
    for name, dests in OPTIONS.items():
        given = next((dest for dest in dests if dest in run.arguments.given), dests[0])
        found[name] = (flag_of(given), run.arguments.line(given))
    return found


def said_in(arguments: Arguments) -> dict[str, Said]:
    """Every option that the file gives: by its first flag, or of a switch by the one that is given."""
    found = {}
    for dest, given in arguments.given.items():
        takes_value = options()[dest].takes_value
        flag = flag_of(dest) if takes_value else given.flag
        text = f"not known: {given.unknown}" if given.unknown else _text(given.value) if takes_value else "given"
        found[flag] = Said(text, given.line, SAYS.get(dest))
    return found


def _text(value: Value) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
