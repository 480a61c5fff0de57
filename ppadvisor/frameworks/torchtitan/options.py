"""torchtitan's options with their defaults: the last form that it read from TOML.

Source: pytorch/torchtitan commit 238fa995 (23 February 2026), torchtitan/config/job_config.py. The next commit,
9810191b, moved the configurations into Python; those take the same names on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMIT = "238fa995"

Value = bool | int | float | str | list[str] | None


class NoDefault:
    """An option without a default, of this type."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


_DATALOADER: dict[str, Value | NoDefault] = {
    "num_workers": 0,
    "persistent_workers": False,
    "pin_memory": False,
    "prefetch_factor": NoDefault(int),
}

SECTIONS: Mapping[str, Mapping[str, Value | NoDefault]] = {
    "job": {
        "config_file": NoDefault(str),
        "dump_folder": "./outputs",
        "description": "default job",
        "print_config": False,
        "save_config_file": NoDefault(str),
        "custom_config_module": "",
    },
    "profiling": {
        "enable_profiling": False,
        "save_traces_folder": "profile_traces",
        "profile_freq": 10,
        "profiler_active": 1,
        "profiler_warmup": 3,
        "enable_memory_snapshot": False,
        "save_memory_snapshot_folder": "memory_snapshot",
    },
    "metrics": {
        "log_freq": 10,
        "enable_tensorboard": False,
        "disable_color_printing": False,
        "save_tb_folder": "tb",
        "save_for_all_ranks": False,
        "enable_wandb": False,
    },
    "model": {
        "name": "llama3",
        "flavor": "debugmodel",
        "hf_assets_path": "./tests/assets/tokenizer",
        "tokenizer_path": NoDefault(str),
        "converters": [],
        "print_after_conversion": False,
    },
    "optimizer": {
        "name": "AdamW",
        "lr": 8e-4,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "implementation": "fused",
        "early_step_in_backward": False,
    },
    "lr_scheduler": {
        "warmup_steps": 200,
        "total_steps": NoDefault(int),
        "decay_ratio": NoDefault(float),
        "decay_type": "linear",
        "min_lr_factor": 0.0,
    },
    "training": {
        "dataset": "c4_test",
        "dataset_path": NoDefault(str),
        "local_batch_size": 8,
        "global_batch_size": -1,
        "seq_len": 2048,
        "max_norm": 1.0,
        "steps": 10000,
        "enable_cpu_offload": False,
        "dtype": "float32",
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
        "gc_freq": 50,
        "gc_debug": False,
    },
    "training.dataloader": _DATALOADER,
    "parallelism": {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": -1,
        "fsdp_reshard_after_forward": "default",
        "tensor_parallel_degree": 1,
        "disable_loss_parallel": False,
        "enable_async_tensor_parallel": False,
        "pipeline_parallel_degree": 1,
        "module_fqns_per_model_part": NoDefault(list),
        "pipeline_parallel_first_stage_less_layers": 1,
        "pipeline_parallel_last_stage_less_layers": 1,
        "pipeline_parallel_layers_per_stage": NoDefault(int),
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_schedule_csv": "",
        "pipeline_parallel_microbatch_size": 1,
        "pipeline_parallel_expert_parallel_overlap": True,
        "context_parallel_degree": 1,
        "context_parallel_load_balancer": "headtail",
        "context_parallel_rotate_method": "allgather",
        "expert_parallel_degree": 1,
        "expert_tensor_parallel_degree": 1,
        "expert_parallel_comm_backend": "standard",
    },
    "checkpoint": {
        "enable": False,
        "enable_ft_dataloader_checkpoints": True,
        "folder": "checkpoint",
        "interval": 500,
        "initial_load_path": NoDefault(str),
        "initial_load_model_only": True,
        "initial_load_in_hf": False,
        "initial_load_in_hf_quantized": False,
        "last_save_model_only": True,
        "last_save_in_hf": False,
        "export_dtype": "float32",
        "async_mode": "disabled",
        "keep_latest_k": 10,
        "load_step": -1,
        "exclude_from_loading": [],
        "enable_first_step_checkpoint": False,
        "create_seed_checkpoint": False,
        "load_only": False,
    },
    "activation_checkpoint": {
        "mode": "selective",
        "selective_ac_option": "2",
        "per_op_sac_force_recompute_mm_shapes_by_fqns": ["moe.router.gate"],
        "early_stop": False,
        "memory_budget": 0.5,
        "visualize_memory_budget_pareto": False,
        "preserve_rng_state": True,
        "determinism_check": "default",
        "debug": False,
    },
    "compile": {"enable": False, "components": ["model", "loss"], "backend": "inductor"},
    "quantize": {},
    "quantize.linear": {},
    "quantize.linear.float8": {
        "enable_fsdp_float8_all_gather": False,
        "precompute_float8_dynamic_scale_for_fsdp": False,
        "recipe_name": NoDefault(str),
        "filter_fqns": [],
        "emulate": False,
    },
    "quantize.linear.mx": {
        "mxfp8_dim1_cast_kernel_choice": "triton",
        "recipe_name": "mxfp8_cublas",
        "filter_fqns": ["output"],
    },
    "quantize.grouped_mm": {},
    "quantize.grouped_mm.float8": {"fqns": []},
    "quantize.grouped_mm.mx": {"recipe_name": "mxfp8", "fqns": []},
    "comm": {
        "init_timeout_seconds": 300,
        "train_timeout_seconds": 100,
        "trace_buf_size": 20000,
        "save_traces_folder": "comm_traces",
        "save_traces_file_prefix": "rank_",
        "mode": "default",
    },
    "memory_estimation": {"enable": False, "disable_fake_mode": False},
    "fault_tolerance": {
        "enable": False,
        "process_group": "gloo",
        "process_group_timeout_ms": 10000,
        "replica_id": 0,
        "group_size": 0,
        "min_replica_size": 1,
        "semi_sync_method": NoDefault(str),
    },
    "experimental": {"custom_import": "", "custom_args_module": ""},
    "validation": {
        "enable": False,
        "dataset": "c4_validation",
        "dataset_path": NoDefault(str),
        "local_batch_size": 8,
        "seq_len": 2048,
        "freq": 10,
        "steps": -1,
    },
    "validation.dataloader": _DATALOADER,
    "debug": {
        "seed": NoDefault(int),
        "deterministic": False,
        "deterministic_warn_only": False,
        "moe_force_load_balance": False,
    },
}
"""Section, with its dots -> option -> default."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "parallelism.context_parallel_rotate_method": ("allgather", "alltoall"),
    "parallelism.expert_parallel_comm_backend": ("standard", "deepep"),
    "training.dtype": ("bfloat16", "float32"),
    "training.mixed_precision_param": ("bfloat16", "float32"),
    "training.mixed_precision_reduce": ("float32",),
    "activation_checkpoint.mode": ("selective", "full", "memory_budget", "none"),
    "optimizer.name": ("Adam", "AdamW"),
    "optimizer.implementation": ("for-loop", "foreach", "fused"),
}
"""What the code behind an option takes; the parser itself lets any value of a TOML file through."""

RENAMED: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.mixed_precision": "training.mixed_precision_param",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "parallelism.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "parallelism.pipeline_parallel_split_points": "parallelism.module_fqns_per_model_part",
    "model.tokenizer_path": "model.hf_assets_path",
    "optimizer.fused": "optimizer.implementation",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "float8": "quantize.linear.float8",
    "mx": "quantize.linear.mx",
}
"""Names of earlier versions -> where the value stands now."""


def default_of(name: str) -> Value | NoDefault | None:
    """The default of `section.option`; None of what is none."""
    section, _, option = name.rpartition(".")
    return SECTIONS.get(section, {}).get(option)
