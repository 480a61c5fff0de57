"""The training run and the plan that torchtitan's options make.

Source: pytorch/torchtitan commit 238fa995, models/llama3/infra/parallelize.py:311-331 (FSDP and its precision),
distributed/utils.py:243-263 (precision without FSDP), distributed/activation_checkpoint.py (recomputation).
"""

from __future__ import annotations

from typing import Any

from ppadvisor import schedules
from ppadvisor.frameworks.profile import Split
from ppadvisor.frameworks.torchtitan.check_features import MODE, OPTION
from ppadvisor.frameworks.torchtitan.job import (
    CONVERTERS,
    ETP,
    GLOBAL,
    LOCAL,
    MICROBATCH,
    MODULES,
    PER_STAGE,
    RESHARD,
    SCHEDULE,
    SCHEDULES,
    SEQ,
    SHARD,
    C,
    E,
    Job,
    P,
    T,
)
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import validate

LOW = {"bfloat16": "bf16", "float32": "fp32"}


def mixed_precision(job: Job) -> bool:
    """Whether `mixed_precision_param` has an effect: FSDP applies it, or autocast where there are replicas alone."""
    return job.sharded or (job.t == 1 and job.p == 1)


def precision(job: Job) -> str:
    """Of the matrix products."""
    if any(name.startswith("quantize.linear.") for name in job.words(CONVERTERS)):
        return "fp8"
    if job.text("training.dtype") == "bfloat16":
        return "bf16"
    return LOW.get(job.text("training.mixed_precision_param"), "bf16") if mixed_precision(job) else "fp32"


def training_of(job: Job, where: str) -> TrainingSpec | None:
    """The training run; None where a number is missing."""
    tokens = job.whole(SEQ)
    if not job.batch or not tokens or tokens < 1:
        return None
    pure = job.text("training.dtype") == "bfloat16"
    data: dict[str, Any] = {
        "sequence_length": tokens,
        "global_batch_size": job.batch,
        "framework": "torchtitan",
        "precision": precision(job),
        "optimizer": "adam-pure-bf16" if pure else "adam" if job.text("optimizer.name") == "Adam" else "adamw",
        "gradient_precision": "bf16" if pure else "fp32",
    }
    return validate(TrainingSpec, data, where)


def plan_of(job: Job, where: str) -> PlanSpec | None:
    """The plan; None where GPUs, batch or layers make none, or where the order of work stands in another file."""
    chunks, m, v = job.layers_per_chunk, job.m_of_pass, job.v
    schedule = "none" if job.p == 1 else SCHEDULES.get(job.schedule)
    if chunks is None or m is None or not v or job.passes is None or job.d is None or schedule is None:
        return None
    if v != 1 if schedule in ("none", "gpipe", "1f1b") else v < 2:
        return None
    m *= job.passes
    experts = job.model is not None and job.model.moe is not None
    data: dict[str, Any] = {
        "pipeline_parallel": job.p,
        "tensor_parallel": job.t,
        "data_parallel": job.d,
        "context_parallel": job.c,
        "expert_parallel": job.e if experts else 1,
        "expert_tensor_parallel": job.etp if experts else 1,
        "virtual_stages": v,
        "micro_batch_size": job.b,
        "num_microbatches": m,
        "schedule": schedule,
        "microbatch_group_size": schedules.microbatch_group(schedule, job.p, m, v),
        "optimizer_sharding": sharding(job),
        "layers_per_stage": of_ranks(schedule, chunks, job.p, v),
        "layers_per_chunk": chunks,
        **_recomputation(job, chunks, schedule),
    }
    return validate(PlanSpec, data, where)


def of_ranks(schedule: str, chunks: Split, p: int, v: int) -> Split:
    """Layers of each rank, all its chunks together."""
    return tuple(sum(chunks[stage] for stage in held) for held in _held(schedule, p, v))


def _held(schedule: str, p: int, v: int) -> list[list[int]]:
    """The stages of each rank."""
    if v == 1:
        return [[stage] for stage in range(p)]
    held: list[list[int]] = schedules.get(schedule).placement(p, v).tolist()
    return held


def sharding(job: Job) -> int:
    """ZeRO: 3 where weights are gathered anew after the forward, 2 where they stay; DDP alone divides nothing."""
    if job.replicate > 1 and not job.sharded:
        return 0
    policy = job.text(RESHARD)
    return 3 if policy == "always" or (policy == "default" and job.p == 1) else 2


def layers_recomputed(every: int, schedule: str, chunks: Split, v: int) -> Split:
    """Of each chunk the layers that `selective` recomputes: every nth, counted on over the chunks of a rank."""
    found = [0] * len(chunks)
    for held in _held(schedule, len(chunks) // v, v):
        seen = 0
        for stage in held:
            found[stage] = (seen + chunks[stage]) // every - seen // every
            seen += chunks[stage]
    return tuple(found)


def every_nth(job: Job) -> int | None:
    """n of layer-wise recomputation, 1 for every layer; None where nothing is recomputed by layers."""
    mode, option = job.text(MODE), job.text(OPTION)
    if mode == "full":
        return 1
    return max(int(option[:6]), 1) if mode == "selective" and option.isascii() and option.isdigit() else None


def _recomputation(job: Job, chunks: Split, schedule: str) -> dict[str, Any]:
    """In our words; where chunks have unlike numbers of recomputed layers, the fewest of any (a remark says so)."""
    every = every_nth(job)
    if every is None:
        return {"recompute": "none"}
    fewest = min(layers_recomputed(every, schedule, chunks, job.v or 1))
    if every == 1 or fewest == max(chunks):
        return {"recompute": "full"}
    if fewest == 0:
        return {"recompute": "none"}
    return {"recompute": "full", "recompute_method": "block", "recompute_num_layers": fewest}


def places_of(job: Job) -> dict[str, tuple[str, int | None]]:
    """Of each field of the plan the option to change, and the line where its value stands."""
    names = {
        "pipeline_parallel": P,
        "tensor_parallel": T,
        "context_parallel": C,
        "expert_parallel": E,
        "expert_tensor_parallel": ETP,
        "virtual_stages": PER_STAGE if (job.v or 1) > 1 else SCHEDULE,
        "micro_batch_size": LOCAL if job.p == 1 else MICROBATCH,
        "num_microbatches": GLOBAL if job.p == 1 else LOCAL,
        "schedule": SCHEDULE,
        "microbatch_group_size": SCHEDULE,
        "recompute": MODE,
        "optimizer_sharding": SHARD if sharding(job) == 0 else RESHARD,
        "sequence_parallel": T,
        "layers_per_stage": MODULES,
        "sequence_length": SEQ,
        "global_batch_size": GLOBAL,
    }
    return {field: (name, job.line(name)) for field, name in names.items()}
