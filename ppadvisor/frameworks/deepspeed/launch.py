"""A plan as a configuration of DeepSpeed and the arguments of its PipelineModule, read again before it is handed out.

Source: microsoft/DeepSpeed commit 38327e07, deepspeed/runtime/config.py, runtime/pipe/module.py:125-187.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Configuration, Given, Launch
from ppadvisor.frameworks.deepspeed.config import BY_PROGRAM, read_json_text
from ppadvisor.frameworks.deepspeed.split import split_settings
from ppadvisor.frameworks.read_back import differences, plan_values, training_values
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

NAME = "the configuration"


def launch(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec, *, one_connection: bool
) -> Launch:
    """JSON, what it does not say, and what the program has to say. RefusedError where DeepSpeed would refuse it."""
    text = json.dumps(_config(model, training, plan), indent=2) + "\n"
    read = read_json_text(text, NAME, _given(model, training, plan, cluster))
    if read.broken:
        raise RefusedError(f"DeepSpeed does not run this plan: {read.broken[0].message}")
    unsaid = tuple(_unsaid(training, plan, read))
    return Launch(text, read, unsaid, tuple(_beside(model, training, plan, cluster)))


def _given(model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec) -> Given:
    return Given(
        num_gpus=cluster.num_gpus,
        model=model,
        tensor_parallel=plan.tensor_parallel,
        expert_parallel=plan.expert_parallel,
        sequence_length=training.sequence_length,
        recompute=_by_program(plan),
        **_of_run(training, plan),
    )


def _of_run(training: TrainingSpec, plan: PlanSpec) -> dict[str, Any]:
    """Of the run, what is unlike what `check` takes where nothing is said of the program."""
    usual = {field.name: field.default for field in fields(TrainingSpec)}
    values = {name: getattr(training, name) for name in BY_PROGRAM}
    if plan.tensor_parallel == 1:
        del values["sequence_parallel"]
    return {name: value for name, value in values.items() if value != usual[name]}


def _unsaid(training: TrainingSpec, plan: PlanSpec, read: Configuration) -> Iterator[str]:
    if read.training is None or read.plan is None:
        yield "the whole: no training run or plan follows from the options"
        return
    wanted, found = (training_values(one, plan, loss="torch") for one in (training, read.training))
    yield from differences(wanted, found, "DeepSpeed")
    yield from differences(plan_values(plan), plan_values(read.plan), "DeepSpeed")


def _config(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        "zero_optimization": {"stage": plan.optimizer_sharding},
        "optimizer": _optimizer(training),
    }
    if training.precision in ("fp16", "bf16", "fp8"):
        config["fp16" if training.precision == "fp16" else "bf16"] = {"enabled": True}
    config["data_types"] = {"grad_accum_dtype": training.gradient_precision or "fp32"}
    if plan.pipeline_parallel > 1:
        config["pipeline"] = {
            "stages": plan.pipeline_parallel,
            "partition": _method(model, plan),
            "activation_checkpoint_interval": _interval(plan),
        }
    return config


def _optimizer(training: TrainingSpec) -> dict[str, Any]:
    if training.optimizer.startswith("sgd"):
        return {"type": "SGD", "params": {"momentum": 0.9 if training.optimizer == "sgd-momentum" else 0}}
    return {"type": "Adam" if training.optimizer == "adam" else "AdamW"}


def _method(model: ModelSpec, plan: PlanSpec) -> str:
    return split_settings(model, plan).get("partition_method", "type:<layer>")


def _interval(plan: PlanSpec) -> int:
    """Layers between two kept inputs; 0 where nothing is recomputed, or the pipeline engine cannot."""
    return (plan.recompute_num_layers or 1) if plan.recompute == "full" else 0


def _by_program(plan: PlanSpec) -> str | None:
    """Recomputation that the file cannot say."""
    in_file = plan.recompute == "none" or (plan.recompute == "full" and plan.pipeline_parallel > 1)
    return None if in_file else plan.recomputation.text


def _beside(model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec) -> Iterator[str]:
    """What stands in the program, and how `check` reads the file again."""
    p, t, d = plan.pipeline_parallel, plan.tensor_parallel, plan.data_parallel
    if p > 1:
        stages = f"num_stages={p}" if t == 1 else f"topology=PipeModelDataParallelTopology({p}, {t}, {d})"
        method = f"partition_method={_method(model, plan)!r}"
        yield f"in your program: PipelineModule(layers, {stages}, {method}); DeepSpeed takes neither from the file"
        yield "<layer>, <embedding>, <head> are the names of your classes, or parts of them"
    elif t > 1:
        yield f"in your program: tensor parallelism over {t} GPUs, d {d}"
    if t > 1 and training.sequence_parallel:
        yield "in your program: sequence parallelism"
    of_run = _of_run(training, plan)
    for name, value in of_run.items():
        yield f"in your program: {name} = {value}"
    if plan.expert_parallel > 1:
        yield f"in your program: MoE(ep_size={plan.expert_parallel})"
    words = ["--model", "MODEL", "--gpus", str(cluster.num_gpus), "--seq-len", str(training.sequence_length)]
    words += ["--tp", str(t)] if t > 1 else []
    words += ["--ep", str(plan.expert_parallel)] if plan.expert_parallel > 1 else []
    yield "yours, in the file: learning rate and its schedule, gradient clipping"
    by_program = _by_program(plan)
    if by_program:
        yield f"in your program: recomputation {by_program}"
        words += ["--recompute", by_program]
    for name, value in of_run.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", value]
    yield f"read it again with: ppadvisor check FILE {shlex.join(words)}"
