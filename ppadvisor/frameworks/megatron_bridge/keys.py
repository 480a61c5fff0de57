"""What Megatron-Bridge's keys mean in Megatron-LM's options.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d: docs/megatron-lm-to-megatron-bridge.md (names), models/gpt_provider.py and
models/transformer_config.py (defaults), training/mixed_precision.py (recipes of precision).
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from ppadvisor.frameworks.megatron.options import options
from ppadvisor.frameworks.megatron.unmodelled import MEMORY, MEMORY_AND_TIME, OTHER_MODELS, TIME

SAME_IN_MODEL = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
    *("microbatch_group_size_per_vp_stage", "account_for_embedding_in_pipeline_split"),
    *("account_for_loss_in_pipeline_split", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads"),
    *("num_query_groups", "kv_channels", "add_bias_linear", "add_qkv_bias", "normalization", "qk_layernorm"),
    *("position_embedding_type", "vocab_size", "hidden_dropout", "attention_dropout", "softmax_type"),
    *("transformer_impl", "attention_backend", "mtp_num_layers", "moe_router_topk", "moe_ffn_hidden_size"),
    *("moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_router_enable_expert_bias"),
    *("moe_router_score_function", "moe_router_pre_softmax", "moe_grouped_gemm", "moe_token_dispatcher_type"),
    *("moe_layer_recompute", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim"),
    *("qk_pos_emb_head_dim", "v_head_dim", "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("recompute_modules", "moe_layer_freq", "window_attn_skip_freq", "distribute_saved_activations"),
)
"""Keys of `model` that have the name of the option's value."""

RENAMED_IN_MODEL = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "num_moe_experts": "num_experts",
    "pipeline_model_parallel_layout": "pipeline_model_parallel_layout",
    "hybrid_layer_pattern": "hybrid_layer_pattern",
}
LISTS_AS_TEXT = ("moe_layer_freq", "window_attn_skip_freq")
"""Lists of 0 and 1, which a command line writes as one text."""

ELSEWHERE = {
    "train.global_batch_size": "global_batch_size",
    "train.micro_batch_size": "micro_batch_size",
    "train.step_batch_size_schedule": "step_batch_size_schedule",
    "optimizer.optimizer": "optimizer",
    "optimizer.sgd_momentum": "sgd_momentum",
    "optimizer.use_precision_aware_optimizer": "use_precision_aware_optimizer",
    "optimizer.exp_avg_dtype": "exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype": "exp_avg_sq_dtype",
    "optimizer.main_grads_dtype": "main_grads_dtype",
    "optimizer.main_params_dtype": "main_params_dtype",
    "optimizer.optimizer_cpu_offload": "optimizer_cpu_offload",
    "ddp.num_distributed_optimizer_instances": "num_distributed_optimizer_instances",
    "ddp.nccl_ub": "nccl_ub",
    "comm_overlap.overlap_moe_expert_parallel_comm": "overlap_moe_expert_parallel_comm",
    "comm_overlap.delay_wgrad_compute": "delay_wgrad_compute",
    "comm_overlap.defer_embedding_wgrad_compute": "defer_embedding_wgrad_compute",
}
"""Keys of other sections."""

BY_RULES_OF_ITS_OWN = (
    *("cross_entropy_loss_fusion", "tp_comm_overlap", "cpu_offloading_num_layers", "encoder_seq_length", "spec"),
    *("use_torch_fsdp2", "use_megatron_fsdp", "fp8_param_gather", "fp4_param_gather", "first_last_layers_bf16", "fp4"),
    *("cp_comm_type", "no_persist_layer_norm", "enable_mhc_connections", "sft"),
)
"""Options whose value in Bridge has another default, another section or another kind of value."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "uint8": "fp8"}
ATTENTION_BACKENDS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}
"""Numbers of megatron.core.transformer.enums.AttnBackend, as a saved configuration holds them."""


def _precision(base: str, fp8: str = "", recipe: str = "delayed", **more: bool) -> dict[str, str | bool]:
    found: dict[str, str | bool] = {base: True, "grad_reduce_in_fp32": base == "bf16"}
    if fp8:
        found |= {"fp8": fp8, "fp8_recipe": recipe}
    return found | more


_ENDS = {"first_last_layers_bf16": True, "fp8_param_gather": True}
PRECISIONS: dict[str, dict[str, str | bool]] = {
    "bf16_mixed": _precision("bf16"),
    "fp16_mixed": _precision("fp16"),
    "bf16_with_nvfp4_mixed": _precision("bf16") | {"fp4": "e2m1", "fp4_param_gather": True},
    "nemotron_3_super_bf16_with_nvfp4_mixed": _precision("bf16")
    | {"fp4": "e2m1", "fp4_param_gather": True, "first_last_layers_bf16": True},
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": _precision("bf16", "hybrid", "tensorwise", **_ENDS),
    "nanov2_bf16_with_fp8_current_scaling_mixed": _precision("bf16", "hybrid", "blockwise", **_ENDS),
} | {
    name: value
    for base in ("bf16", "fp16")
    for name, value in {
        f"{base}_with_fp8_delayed_scaling_mixed": _precision(base, "hybrid", "delayed", fp8_param_gather=True),
        f"{base}_with_mxfp8_mixed": _precision(base, "e4m3", "mxfp8", fp8_param_gather=True),
        f"{base}_with_fp8_current_scaling_mixed": _precision(base, "hybrid", "tensorwise", **_ENDS),
        f"{base}_with_fp8_subchannel_scaling_mixed": _precision(base, "hybrid", "blockwise"),
    }.items()
}
"""training/mixed_precision.py: each recipe by its name, hyphens for underscores too."""


@cache
def fields_of(section: str) -> frozenset[str]:
    """The names that Bridge knows in a section; none of a section that is not listed."""
    text = (resources.files("ppadvisor.frameworks.megatron_bridge") / "fields.txt").read_text(encoding="utf-8")
    parts = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#")).split("[")
    sections = {name: frozenset(names.split()) for name, _, names in (part.partition("]") for part in parts if part)}
    return sections.get(section, frozenset())


@cache
def unmodelled_in_model() -> tuple[str, ...]:
    """What changes memory and time and is in no formula, by the same name in `model`."""
    others = (*SAME_IN_MODEL, *BY_RULES_OF_ITS_OWN, *RENAMED_IN_MODEL.values(), *ELSEWHERE.values())
    dests = (*MEMORY_AND_TIME, *MEMORY, *TIME, *OTHER_MODELS)
    return tuple(dest for dest in dests if dest in fields_of("model") and dest not in others)


@cache
def names_by_flag() -> dict[str, str]:
    """Megatron's flag -> Bridge's key."""
    keys = {dest: f"model.{dest}" for dest in (*SAME_IN_MODEL, *unmodelled_in_model())}
    keys |= {dest: f"model.{key}" for key, dest in RENAMED_IN_MODEL.items()}
    keys |= {dest: key for key, dest in ELSEWHERE.items()}
    keys |= {
        "seq_length": "dataset.seq_length",
        "use_distributed_optimizer": "ddp.use_distributed_optimizer",
        "bf16": "mixed_precision",
        "fp16": "mixed_precision",
        "fp8": "mixed_precision.fp8",
        "fp4": "mixed_precision.fp4",
        "grad_reduce_in_bf16": "mixed_precision.grad_reduce_in_fp32",
        "untie_embeddings_and_output_weights": "model.share_embeddings_and_output_weights",
        "swiglu": "model.gated_linear_unit",
        "window_size": "model.window_size",
        "tp_comm_overlap": "comm_overlap.tp_comm_overlap",
        "use_megatron_fsdp": "ddp.use_megatron_fsdp",
        "use_torch_fsdp2": "dist.use_torch_fsdp2",
        "fp8_param_gather": "mixed_precision.fp8_param_gather",
        "fp4_param_gather": "mixed_precision.fp4_param_gather",
        "first_last_layers_bf16": "mixed_precision.first_last_layers_bf16",
        "cpu_offloading_num_layers": "model.cpu_offloading_num_layers",
    }
    return {flag: key for dest, key in keys.items() for flag in options()[dest].flags}
