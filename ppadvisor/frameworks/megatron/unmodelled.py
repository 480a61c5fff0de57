"""Options that change memory or time and that no formula here knows: each is told by name, none is guessed.

Source: NVIDIA/Megatron-LM d98e8a64, the help texts of arguments.py and the configuration classes of megatron/core.
"""

from __future__ import annotations

import re

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Remark
from ppadvisor.frameworks.megatron.options import options
from ppadvisor.frameworks.megatron.patterns import layer_pattern
from ppadvisor.frameworks.megatron.run import Run
from ppadvisor.specs.model import MAX_LAYERS

MEMORY_AND_TIME = (
    *("cpu_offloading_num_layers", "fine_grained_activation_offloading", "optimizer_cpu_offload"),
    *("use_torch_fsdp2", "use_megatron_fsdp", "data_parallel_sharding_strategy", "outer_dp_sharding_strategy"),
    *("num_distributed_optimizer_instances", "tensor_parallel_num_weight_shards"),
    *("expert_tensor_parallel_num_weight_shards", "fp4", "fp4_param_gather"),
    *("first_last_layers_bf16", "te_precision_config_file", "main_grads_dtype", "main_params_dtype"),
    *("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "moe_expert_rank_capacity_factor"),
    *("moe_latent_size", "moe_token_drop_policy", "moe_paged_stash", "moe_use_upcycling", "enable_mhc_connections"),
    *("mtp_standalone", "mtp_use_repeated_layer", "mtp_hsm", "fp32_residual_connection", "attention_output_gate"),
    *("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph", "distribute_saved_activations"),
    *("defer_embedding_wgrad_compute", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"),
    *("gradient_accumulation_fusion", "hierarchical_context_parallel_sizes", "hybrid_context_parallel"),
    *("max_seqlen_per_dp_cp_rank", "decoder_seq_length", "sft", "perform_rl_step", "logit_dtype"),
    *("ep_overlap_early_attn_memory_release", "mlp_chunks_for_training", "freeze_all_layers", "no_rope_freq"),
    *("use_transformer_engine_op_fuser", "spec", "encoder_seq_length"),
)
MEMORY = (
    *("make_vocab_size_divisible_by", "keep_fp8_transpose_cache", "nccl_ub", "fsdp_double_buffer"),
    *("ddp_num_buckets", "ddp_bucket_size", "empty_unused_memory_level", "qk_l2_norm"),
)
TIME = (
    *("tp_comm_overlap", "overlap_p2p_comm_warmup_flush", "moe_shared_expert_overlap", "deterministic_mode"),
    *("use_ring_exchange_p2p", "use_tp_pp_dp_mapping", "cp_comm_type", "no_persist_layer_norm"),
    *("bias_gelu_fusion", "bias_swiglu_fusion", "bias_dropout_fusion", "apply_rope_fusion"),
    *("cross_entropy_loss_fusion", "moe_permute_fusion", "moe_router_fusion", "moe_enable_deepep"),
    *("moe_flex_dispatcher_backend", "use_sharp", "optimizer_cuda_graph", "disable_jit_fuser"),
    *("overlap_param_gather_with_optimizer_step", "overlap_dispatch_backward_with_experts_wgrad"),
)
KINDS = (("memory and time", MEMORY_AND_TIME), ("memory", MEMORY), ("time", TIME))

OTHER_MODELS = (
    *("hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_model", "experimental_attention_variant"),
    *("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
    *("decoder_num_layers", "img_h", "biencoder_projection_dim"),
)
"""Of these there is no model here: hybrid, heterogeneous and encoder-decoder models, other attention."""


def refuse_other_models(run: Run, file: str) -> None:
    """InputError for a kind of model that no formula here knows, or too large a one."""
    for dest in OTHER_MODELS:
        given = run.arguments.given.get(dest)
        if given is not None and given.value != options()[dest].default:
            raise InputError(f"{file}:{given.line}: {given.flag}: models of this kind are not known here")
    if (run.layers or 0) > MAX_LAYERS:
        raise InputError(f"{file}:{run.arguments.line('num_layers')}: --num-layers: at most {MAX_LAYERS:,} here")
    pattern = run.arguments.given.get("moe_layer_freq")
    if (
        pattern is not None
        and not re.fullmatch(r"\d{1,6}", str(pattern.value))
        and not layer_pattern(str(pattern.value))
    ):
        shown = str(pattern.value)[:40]
        raise InputError(
            f"{file}:{pattern.line}: --moe-layer-freq: {shown!r} is no number and no list such as [0]*3+[1]*9"
        )


def not_modelled(run: Run) -> list[Remark]:
    """The options that were given, differ from their default and are in no formula, by what they change."""
    found = []
    for what, dests in KINDS:
        for dest in dests:
            given = run.arguments.given.get(dest)
            if given is not None and given.value != options()[dest].default:
                text = f"{given.flag} changes {what}; the estimate is made without it"
                found.append(Remark("not_modelled", text, (given.flag,), given.line))
    return found
