"""Megatron's start-up checks of what goes with what: recomputation, overlap, shards, precision, iterations.

Source: NVIDIA/Megatron-LM d98e8a64; lines of arguments.py where no other file is named.
"""

from __future__ import annotations

from collections.abc import Callable

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.run import Run

MODULES = (
    *("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"),
    *("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"),
)
ONE_CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
OVERLAP_A2A = "overlap_moe_expert_parallel_comm"
GRANULARITY, METHOD, NUMBER = "recompute_granularity", "recompute_method", "recompute_num_layers"


def recompute_kind(run: Run) -> str | None:
    """588-590: the short switch means selective."""
    return "selective" if run.on("recompute_activations") else run.text(GRANULARITY)


def needs(dest: str, *conditions: tuple[Callable[[Run], bool], str]) -> Callable[[Run], str | None]:
    """A switch that needs this and that: the first condition that does not hold, in words."""

    def problem(run: Run) -> str | None:
        if not run.on(dest):
            return None
        missing = [text for holds, text in conditions if not holds(run)]
        return f"{flag_of(dest)} {missing[0]}" if missing else None

    return problem


def _recompute(run: Run) -> str | None:
    """1425-1428; transformer_config.py:1900-1938."""
    kind = recompute_kind(run)
    if kind == "selective":
        for dest in (METHOD, NUMBER):
            if run.gives(dest):
                return f"selective recomputation takes no {flag_of(dest)}"
    if kind == "full" and not run.gives(METHOD):
        return "full recomputation needs --recompute-method uniform or block"
    if kind == "full" and (run.whole(NUMBER) or 0) < 1:
        return "full recomputation needs --recompute-num-layers, at least 1"
    return None


def _recompute_modules(run: Run) -> str | None:
    """transformer_config.py:1943-2005."""
    modules = run.texts("recompute_modules")
    if recompute_kind(run) != "selective":
        return None
    unknown = [name for name in modules if name not in MODULES]
    if unknown:
        return f"recompute modules {', '.join(unknown)} are not known; allowed: {', '.join(MODULES)}"
    if "moe_act" in modules and not run.on("moe_grouped_gemm"):
        return "recomputing moe_act needs --moe-grouped-gemm"
    if "mla_up_proj" in modules and not run.on("multi_latent_attention"):
        return "recomputing mla_up_proj needs --multi-latent-attention"
    if "shared_experts" in modules and run.on("moe_shared_expert_overlap"):
        return "recomputing shared_experts excludes --moe-shared-expert-overlap"
    return None


def _cpu_offload(run: Run) -> str | None:
    if (run.whole("cpu_offloading_num_layers") or 0) <= 0:
        return None
    if run.p > 1:
        return "offloading layers to the CPU excludes pipeline parallelism"
    return "offloading layers to the CPU excludes recomputation" if recompute_kind(run) else None


def _one_connection(run: Run) -> str | None:
    """1453-1479; not on Blackwell and later. Where the file does not say, only the shell that starts it knows."""
    value = run.arguments.environment.get(ONE_CONNECTION)
    if value is None or run.on("use_torch_fsdp2") or run.on("use_megatron_fsdp") or run.on(OVERLAP_A2A):
        return None
    if value == "1" or (run.t == 1 and run.c == 1):
        return None
    return f"t or c above 1 needs {ONE_CONNECTION}=1 up to Hopper, got {value or 'nothing'}: export {ONE_CONNECTION}=1"


def _many_connections(run: Run) -> str | None:
    fsdp = run.on("use_torch_fsdp2") or run.on("use_megatron_fsdp")
    one = run.arguments.environment.get(ONE_CONNECTION) == "1"
    return f"FSDP needs {ONE_CONNECTION} above 1, or unset" if fsdp and one else None


def _precision(run: Run) -> str | None:
    if run.on("bf16") and run.on("fp16"):
        return "--bf16 and --fp16 exclude each other"
    if run.text("fp8") and run.text("fp4"):
        return "--fp8-format and --fp4-format exclude each other"
    return None


def _positions(run: Run) -> str | None:
    rope = run.text("position_embedding_type") == "rope" or run.on("use_rotary_position_embeddings")
    if not run.on("add_position_embedding") and not rope:
        return "--no-position-embedding is no longer taken; say --position-embedding-type none or rope"
    mtp = run.whole("mtp_num_layers")
    if mtp and not rope and run.text("position_embedding_type") != "none":
        return "multi-token prediction needs --position-embedding-type rope or none"
    return None


def _latent(run: Run) -> str | None:
    both = run.on("multi_latent_attention") and run.on("group_query_attention")
    return "latent attention and grouped queries exclude each other" if both else None


def _activation(run: Run) -> str | None:
    others = [dest for dest in ("squared_relu", "quick_geglu") if run.on(dest)]
    return f"--swiglu excludes {flag_of(others[0])}" if run.on("swiglu") and others else None


def _length(run: Run) -> str | None:
    """Iterations or samples, for training and its learning rate alike."""
    if run.on("skip_train"):
        return None
    for unit, others in (
        ("iters", ("train_samples", "lr_decay_samples", "lr_warmup_samples")),
        ("samples", ("train_iters", "lr_decay_iters", "lr_warmup_iters")),
    ):
        wrong = [dest for dest in others if run.gives(dest) and run.whole(dest)]
        if run.whole(f"train_{unit}") and wrong:
            return f"training by {unit} excludes {flag_of(wrong[0])}"
        if run.whole(f"train_{unit}") and run.gives("lr_warmup_fraction") and run.whole(f"lr_warmup_{unit}"):
            return f"--lr-warmup-fraction excludes --lr-warmup-{unit}"
    return None


def _fused_loss(run: Run) -> str | None:
    te = run.on("cross_entropy_loss_fusion") and run.text("cross_entropy_fusion_impl") == "te"
    return "Transformer Engine's fused cross entropy is disabled; --cross-entropy-fusion-impl native" if te else None


def _sharded(run: Run) -> bool:
    return run.on("use_distributed_optimizer") or run.on("use_megatron_fsdp") or run.text("optimizer") == "dist_muon"


def _virtual(run: Run) -> bool:
    return run.v is None or run.v > 1


PARAM_GATHER = "overlap_param_gather"
CHECKS = (
    Check("recompute", (GRANULARITY, METHOD, NUMBER), "transformer_config.py:1900-1938", _recompute),
    Check("recompute_modules", ("recompute_modules",), "transformer_config.py:1943-2005", _recompute_modules),
    Check("cpu_offloading", ("cpu_offloading_num_layers",), "transformer_config.py:1885-1898", _cpu_offload),
    Check(
        "overlapped_warmup",
        ("overlap_p2p_comm_warmup_flush",),
        "model_parallel_config.py:570-576",
        needs(
            "overlap_p2p_comm_warmup_flush",
            (_virtual, "needs virtual stages"),
            (lambda run: run.on("overlap_p2p_comm"), "excludes --no-overlap-p2p-communication"),
        ),
    ),
    Check(
        "deferred_embedding_gradients",
        ("defer_embedding_wgrad_compute",),
        "model_parallel_config.py:545-553",
        needs(
            "defer_embedding_wgrad_compute",
            (lambda run: run.p > 1, "needs pipeline parallelism"),
            (lambda run: run.on("gradient_accumulation_fusion"), "excludes --no-gradient-accumulation-fusion"),
        ),
    ),
    Check(
        "overlapped_parameter_gather",
        (PARAM_GATHER, "use_distributed_optimizer", "overlap_grad_reduce"),
        "1024-1029",
        needs(
            PARAM_GATHER,
            (_sharded, "needs --use-distributed-optimizer"),
            (lambda run: run.on("overlap_grad_reduce"), "needs --overlap-grad-reduce"),
        ),
    ),
    Check(
        "gather_with_optimizer_step",
        ("overlap_param_gather_with_optimizer_step",),
        "1066-1074",
        needs(
            "overlap_param_gather_with_optimizer_step",
            (lambda run: run.on("use_distributed_optimizer"), "needs --use-distributed-optimizer"),
            (lambda run: run.on(PARAM_GATHER), "needs --overlap-param-gather"),
            (_virtual, "needs virtual stages"),
        ),
    ),
    Check(
        "torch_fsdp",
        ("use_torch_fsdp2", "pipeline_model_parallel_size"),
        "1031-1049",
        needs(
            "use_torch_fsdp2",
            (lambda run: run.p == 1, "excludes pipeline parallelism"),
            (lambda run: run.e == 1, "excludes expert parallelism"),
            (lambda run: not run.on("use_distributed_optimizer"), "excludes --use-distributed-optimizer"),
            (lambda run: not run.on("gradient_accumulation_fusion"), "needs --no-gradient-accumulation-fusion"),
            (lambda run: run.text("ckpt_format") in ("torch_dist", "torch_dcp"), "needs --ckpt-format torch_dist"),
            (lambda run: run.on("untie_embeddings_and_output_weights"), "needs untied embeddings"),
            (lambda run: not run.on("fp16"), "excludes --fp16"),
        ),
    ),
    Check(
        "megatron_fsdp",
        ("use_megatron_fsdp", "ckpt_format"),
        "1150-1180",
        needs(
            "use_megatron_fsdp",
            (lambda run: run.text("optimizer") in ("sgd", "adam"), "needs --optimizer adam or sgd"),
            (lambda run: run.text("ckpt_format") == "fsdp_dtensor", "needs --ckpt-format fsdp_dtensor"),
        ),
    ),
    Check("one_connection", ("tensor_model_parallel_size", "context_parallel_size"), "1453-1479", _one_connection),
    Check("many_connections", ("use_megatron_fsdp", "use_torch_fsdp2"), "1050, 1172", _many_connections),
    Check(
        "tensor_parallel_overlap",
        ("tp_comm_overlap", "sequence_parallel"),
        "1441",
        needs("tp_comm_overlap", (lambda run: run.on("sequence_parallel") and run.t > 1, "needs sequence parallelism")),
    ),
    Check(
        "hybrid_context_parallel",
        ("hybrid_context_parallel",),
        "1444-1449",
        needs("hybrid_context_parallel", (lambda run: run.p == 1, "excludes pipeline parallelism")),
    ),
    Check(
        "distributed_saved_activations",
        ("distribute_saved_activations",),
        "1405-1420; transformer_config.py:1933",
        needs(
            "distribute_saved_activations",
            (lambda run: run.t > 1, "needs t above 1"),
            (lambda run: recompute_kind(run) == "full", "needs full recomputation"),
            (lambda run: not run.on("sequence_parallel"), "excludes --sequence-parallel"),
        ),
    ),
    Check("precision", ("fp16", "bf16", "fp8", "fp4"), "1201-1216", _precision),
    Check(
        "fp8_parameters",
        ("fp8_param_gather", "use_distributed_optimizer"),
        "1092-1094",
        needs(
            "fp8_param_gather",
            (lambda run: _sharded(run) or run.on("use_torch_fsdp2"), "needs --use-distributed-optimizer"),
        ),
    ),
    Check(
        "precision_aware_optimizer",
        ("use_precision_aware_optimizer", "use_distributed_optimizer"),
        "optimizer_config.py (__post_init__)",
        needs(
            "use_precision_aware_optimizer",
            (_sharded, "needs --use-distributed-optimizer"),
        ),
    ),
    Check("position_embedding", ("position_embedding_type", "add_position_embedding"), "1615, 866-870", _positions),
    Check("latent_attention", ("group_query_attention", "multi_latent_attention"), "1974", _latent),
    Check("activation", ("swiglu", "squared_relu", "quick_geglu"), "argument_utils.py:318-327", _activation),
    Check("iterations_or_samples", ("train_samples", "train_iters"), "1262-1290", _length),
    Check("fused_loss", ("cross_entropy_fusion_impl", "cross_entropy_loss_fusion"), "1690-1696", _fused_loss),
)
