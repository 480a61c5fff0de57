"""What NeMo's keys mean in Megatron-LM's options.

Source: NVIDIA/NeMo 8cfedd72, nemo/collections/nlp/models/language_modeling/megatron_base_model.py and
megatron_gpt_model.py (build_transformer_config, build_model_parallel_config), nemo/collections/nlp/modules/common.
"""

from __future__ import annotations

from functools import cache

from ppadvisor.frameworks.megatron.options import options

SAME = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "micro_batch_size"),
    *("global_batch_size", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("hidden_dropout", "attention_dropout", "max_position_embeddings", "qk_layernorm", "multi_latent_attention"),
    *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "moe_router_topk"),
    *("moe_ffn_hidden_size", "moe_grouped_gemm", "moe_token_dispatcher_type", "moe_shared_expert_intermediate_size"),
    *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "fp32_residual_connection"),
    *("attention_backend", "gradient_accumulation_fusion", "masked_softmax_fusion", "defer_embedding_wgrad_compute"),
)
"""Keys of `model` that have the name of the option's value."""

RENAMED = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "num_moe_experts": "num_experts",
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "bias": "add_bias_linear",
    "qkv_bias": "add_qkv_bias",
    "override_vocab_size": "padded_vocab_size",
    "fp8_params": "fp8_param_gather",
}
NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
POSITIONS = ("learned_absolute", "rope", "none")
PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": "", "32-true": ""}
"""trainer.precision -> what computes; plain 32 has no option."""
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
"""Optimizers whose states are divided over the data-parallel ranks."""
UNSHARDED = ("fused_adam", "adam", "adamw")

UNMODELLED = {
    "cpu_offloading": "memory and time",
    "fsdp": "memory and time",
    "num_micro_batches_with_partial_activation_checkpoints": "memory and time",
    "activations_checkpoint_layers_per_pipeline": "memory and time",
    "moe_token_dropping": "memory and time",
    "drop_layers": "memory and time",
    "enable_cuda_graph": "memory and time",
    "peft": "memory and time",
    "ub_tp_comm_overlap": "time",
}
"""Keys of `model` that change these and are in no formula: told where they are on."""


@cache
def names_by_flag() -> dict[str, str]:
    """Megatron's flag -> NeMo's key."""
    keys = {dest: f"model.{dest}" for dest in SAME}
    keys |= {dest: f"model.{key}" for key, dest in RENAMED.items()}
    keys |= {
        "use_distributed_optimizer": "model.optim.name",
        "bf16": "trainer.precision",
        "fp16": "trainer.precision",
        "fp8": "model.fp8",
        "grad_reduce_in_bf16": "model.optim.grad_sync_dtype",
        "untie_embeddings_and_output_weights": "model.share_embeddings_and_output_weights",
        "swiglu": "model.activation",
        "normalization": "model.normalization",
        "position_embedding_type": "model.position_embedding_type",
        "tokenizer_type": "model.tokenizer",
        "transformer_impl": "model.transformer_engine",
    }
    return {flag: key for dest, key in keys.items() for flag in options()[dest].flags}
