"""The training run and the plan that Megatron's options make.

Source: NVIDIA/Megatron-LM d98e8a64, arguments.py:1183-1216 (precision of gradients), 588-590 and
transformer_config.py:1900-2026 (recomputation), schedules.py:161-168 (which order of work).
"""

from __future__ import annotations

from typing import Any

from ppadvisor.frameworks.configuration import Remark
from ppadvisor.frameworks.megatron.check_features import recompute_kind
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.run import LAYOUT, Run
from ppadvisor.schedules.interleaved_1f1b import group_size
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import MODULES
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import validate


def training_of(run: Run, where: str) -> TrainingSpec | None:
    """The training run; None where a number is missing or the batch follows from nothing."""
    if not run.batch or not run.whole("seq_length"):
        return None
    sixteen = "bf16" if run.on("bf16") else "fp16" if run.on("fp16") else None
    fp8 = bool(run.text("fp8") and sixteen)
    eager = run.text("attention_backend") in ("unfused", "local") or run.text("transformer_impl") == "local"
    data: dict[str, Any] = {
        "sequence_length": run.whole("seq_length"),
        "global_batch_size": run.batch,
        "framework": "megatron",
        "precision": "fp8" if fp8 else sixteen or "fp32",
        "fp8_weights": fp8 and run.on("fp8_param_gather"),
        "optimizer": _optimizer(run),
        "gradient_precision": _gradients(run),
        "attention": "eager" if eager and not run.on("use_flash_attn") else "flash",
        "dropout": run.number("hidden_dropout") > 0 or run.number("attention_dropout") > 0,
        "sequence_parallel": run.on("sequence_parallel"),
    }
    return validate(TrainingSpec, data, where)


def _optimizer(run: Run) -> str:
    if run.text("optimizer") == "sgd":
        return "sgd-momentum" if run.number("sgd_momentum") > 0 else "sgd"
    halves = all(run.text(dest) in ("bf16", "fp16") for dest in ("exp_avg_dtype", "exp_avg_sq_dtype"))
    return "adam-bf16-moments" if run.on("use_precision_aware_optimizer") and halves else "adam"


def _gradients(run: Run) -> str:
    if run.on("bf16"):
        return "bf16" if run.on("grad_reduce_in_bf16") else "fp32"
    return "fp16" if run.on("fp16") and not run.on("accumulate_allreduce_grads_in_fp32") else "fp32"


def plan_of(run: Run, where: str) -> PlanSpec | None:
    """The plan; None where GPUs, batch or layers make none."""
    chunks, d, m, v = run.layers_per_chunk, run.d, run.m, run.v
    if chunks is None or d is None or m is None or v is None:
        return None
    p, group = run.p, run.whole("microbatch_group_size_per_vp_stage")
    experts = bool(run.whole("num_experts"))
    data: dict[str, Any] = {
        "pipeline_parallel": p,
        "tensor_parallel": run.t,
        "data_parallel": d * run.weight_shards,
        "context_parallel": run.c,
        "expert_parallel": run.e,
        "expert_tensor_parallel": run.etp if experts else 1,
        "virtual_stages": v,
        "micro_batch_size": run.b,
        "num_microbatches": m,
        "schedule": "none" if p == 1 else "1f1b" if v == 1 else "interleaved-1f1b",
        "microbatch_group_size": group if v > 1 and group not in (None, p) else None,
        "optimizer_sharding": int(run.on("use_distributed_optimizer") or run.on("use_megatron_fsdp")),
        "layers_per_stage": tuple(sum(chunks[rank::p]) for rank in range(p)),
        "layers_per_chunk": chunks,
        **_recomputation(run),
    }
    return validate(PlanSpec, data, where)


def _own_group(run: Run) -> bool:
    """Whether the file wants another N than the schedule here takes."""
    group = run.whole("microbatch_group_size_per_vp_stage")
    if group is None or run.m is None or (run.v or 1) < 2:
        return False
    return group != int(group_size(run.p, run.m))


def _recomputation(run: Run) -> dict[str, Any]:
    kind = recompute_kind(run)
    if kind == "full":
        method, number = run.text("recompute_method"), run.whole("recompute_num_layers")
        if not method or not number or number < 1 or (method, number) == ("uniform", 1):
            return {"recompute": "full"}
        return {"recompute": "full", "recompute_method": method, "recompute_num_layers": number}
    names = set(run.texts("recompute_modules") or ("core_attn",))
    if run.on("moe_layer_recompute"):
        kind, names = "selective", names | {"moe"}
    if kind != "selective":
        return {"recompute": "none"}
    modules = tuple(name for name in MODULES if name in names)
    if not modules:
        return {"recompute": "none"}
    return {"recompute": "selective", "recompute_modules": None if modules == ("core_attn",) else modules}


def not_in_the_specifications(run: Run) -> list[Remark]:
    """Values of options that are known as such and still have no place in the specifications."""
    cases = (
        ("optimizer", run.text("optimizer") not in ("adam", "sgd"), "its states are taken as Adam's"),
        (
            "exp_avg_dtype",
            run.gives("exp_avg_dtype", "exp_avg_sq_dtype") and _optimizer(run) == "adam",
            "moments are taken as fp32",
        ),
        (
            "recompute_modules",
            bool(set(run.texts("recompute_modules")) - set(MODULES)),
            "modules outside " + ", ".join(MODULES[:7]) + " are taken as kept",
        ),
        (
            "position_embedding_type",
            run.text("position_embedding_type") == "relative",
            "the biases of relative positions are not counted",
        ),
        (
            LAYOUT,
            any("m" in stage for stage in (run.layout or ())[:-1]),
            "prediction layers are counted on the stage of the head",
        ),
        ("microbatch_group_size_per_vp_stage", _own_group(run), "the smallest legal N is taken"),
    )
    return [
        Remark("not_modelled", f"{flag_of(dest)}: {text}", (flag_of(dest),), run.arguments.line(dest))
        for dest, holds, text in cases
        if holds
    ]
