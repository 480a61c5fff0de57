"""A plan and its training run in Megatron's options: the inverse of `plan_of` and `training_of`.

Source: NVIDIA/Megatron-LM d98e8a64, arguments.py:407-448 (sizes), 1183-1216 (precision of gradients),
transformer_config.py:1900-2026 (recomputation), schedules.py:161-168 (which order of work).
"""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.frameworks.megatron.launch_model import Flag, flag
from ppadvisor.frameworks.megatron.layout import LAYOUT, split_settings
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"


def parallel_flags(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> Iterator[Flag]:
    """How the GPUs are divided; d is what the other sizes leave."""
    yield flag("--tensor-model-parallel-size", plan.tensor_parallel)
    if plan.tensor_parallel > 1 and training.sequence_parallel:
        yield flag("--sequence-parallel")
    for name, value in split_settings(model, plan).items():
        layout = "E embedding, t layer, m prediction layer, L head and loss, | next stage"
        yield flag(name, *([value] if value else []), comment=layout if name == LAYOUT else "")
    if plan.virtual_stages > 1 and plan.microbatch_group_size is not None:
        yield flag(GROUP, plan.microbatch_group_size, comment="p does not divide m")
    yield flag("--context-parallel-size", plan.context_parallel)
    if model.moe:
        yield flag("--expert-model-parallel-size", plan.expert_parallel)
        yield flag("--expert-tensor-parallel-size", plan.expert_tensor_parallel)
    if plan.optimizer_sharding == 1:
        yield flag("--use-distributed-optimizer", comment="ZeRO 1")
    if plan.data_parallel * plan.context_parallel > 1:
        yield flag("--overlap-grad-reduce", comment="the step time counts on it")
        if plan.optimizer_sharding == 1:
            yield flag("--overlap-param-gather")


def training_flags(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> Iterator[Flag]:
    """Batch, precision, kernels."""
    yield flag("--micro-batch-size", plan.micro_batch_size)
    batch = f"{plan.num_microbatches} micro-batches x d {plan.data_parallel} x b {plan.micro_batch_size}"
    yield flag("--global-batch-size", training.global_batch_size, comment=batch)
    yield from _precision(training)
    yield from _optimizer(training)
    # not last: --recompute-modules takes any number of words, and the user's own come behind
    yield from recompute_flags(plan)
    yield from _kernels(model, training)


def _precision(training: TrainingSpec) -> Iterator[Flag]:
    sixteen = {"bf16": "--bf16", "fp8": "--bf16", "fp16": "--fp16"}.get(training.precision)
    if sixteen:
        yield flag(sixteen)
    if training.precision == "fp8":
        yield flag("--fp8-format", "hybrid", comment="e4m3 forward, e5m2 backward")
    if training.fp8_weights:
        yield flag("--fp8-param-gather")
    if sixteen == "--bf16" and training.gradient_precision == "bf16":
        yield flag("--grad-reduce-in-bf16")
    if sixteen == "--fp16" and training.gradient_precision in (None, "fp32"):
        yield flag("--accumulate-allreduce-grads-in-fp32")


def _optimizer(training: TrainingSpec) -> Iterator[Flag]:
    if training.optimizer.startswith("sgd"):
        yield flag("--optimizer", "sgd")
        yield flag("--sgd-momentum", "0.9" if training.optimizer == "sgd-momentum" else "0")
        return
    yield flag("--optimizer", "adam")
    if training.optimizer == "adam-bf16-moments":
        yield flag("--use-precision-aware-optimizer")
        yield flag("--exp-avg-dtype", "bf16")
        yield flag("--exp-avg-sq-dtype", "bf16")


def _kernels(model: ModelSpec, training: TrainingSpec) -> Iterator[Flag]:
    if training.attention == "eager":
        yield flag("--attention-backend", "unfused")
    elif model.mla or model.attention_sinks:
        yield flag("--attention-backend", "auto", comment="not every flash kernel takes this attention")
    else:
        yield flag("--attention-backend", "flash")
    if not training.dropout:
        yield flag("--attention-dropout", "0", comment="0.1 by default")
        yield flag("--hidden-dropout", "0")
    if training.loss == "fused":
        yield flag("--cross-entropy-loss-fusion")
        yield flag("--cross-entropy-fusion-impl", "native")


def recompute_flags(plan: PlanSpec) -> Iterator[Flag]:
    """Nothing where nothing is recomputed."""
    choice = plan.recomputation
    if choice.kind == "none":
        return
    yield flag("--recompute-granularity", choice.kind)
    if choice.kind == "selective":
        yield flag("--recompute-modules", *choice.modules)
        return
    of = "of each virtual stage" if choice.method == "block" else "in a group"
    yield flag("--recompute-method", choice.method)
    yield flag("--recompute-num-layers", choice.num_layers, comment=f"layers {of}")
