"""What is to know of a job of torchtitan's that breaks no rule: what has no effect, is slow, or stands in no formula.

Source: pytorch/torchtitan commit 238fa995, torchtitan/.
"""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.frameworks.configuration import Remark
from ppadvisor.frameworks.torchtitan.check_features import ASYNC, IN_BACKWARD, MODE, OPTION, compiled
from ppadvisor.frameworks.torchtitan.check_stages import FULL_SCHEDULES
from ppadvisor.frameworks.torchtitan.job import CONVERTERS, ETP, GLOBAL, LOCAL, REPLICATE, SCHEDULE, SHARD, E, Job
from ppadvisor.frameworks.torchtitan.options import default_of
from ppadvisor.frameworks.torchtitan.plan import every_nth, layers_recomputed, mixed_precision
from ppadvisor.frameworks.torchtitan.rules import SPLIT
from ppadvisor.specs.plan import PlanSpec

MIXED = "training.mixed_precision_param"
NOT_MODELLED = {
    "training.enable_cpu_offload": "memory and time",
    "optimizer.early_step_in_backward": "memory",
    "parallelism.disable_loss_parallel": "memory and time",
    "parallelism.context_parallel_rotate_method": "time",
    "parallelism.context_parallel_load_balancer": "time",
    "parallelism.expert_parallel_comm_backend": "time",
    "quantize.linear.float8.enable_fsdp_float8_all_gather": "memory and time",
    "quantize.linear.float8.recipe_name": "time",
    "quantize.linear.float8.filter_fqns": "time",
    "quantize.linear.mx.recipe_name": "time",
    "quantize.linear.mx.filter_fqns": "time",
    "compile.backend": "memory and time",
    "fault_tolerance.enable": "memory and time",
    "debug.deterministic": "time",
    "debug.moe_force_load_balance": "time",
}
"""Options that no formula knows -> what they change."""
CONVERTERS_KNOWN = ("quantize.linear.float8",)


def remarks(job: Job, plan: PlanSpec | None) -> list[Remark]:
    """All of them, in the order in which they are told."""
    return [*_no_effect(job), *_slow(job, plan), *_recomputed(job, plan), *_differs(job), *_not_modelled(job)]


def _remark(kind: str, message: str, job: Job, *names: str) -> Remark:
    lines = (job.line(name) for name in names)
    return Remark(kind, message, names, next((line for line in lines if line is not None), None))


def _no_effect(job: Job) -> Iterator[Remark]:
    dense = job.model is not None and job.model.moe is None
    if not mixed_precision(job) and job.text("training.dtype") == "float32" and job.text(MIXED) != "float32":
        text = "mixed precision is applied by FSDP: with shard x c = 1 and t or p above 1 all is computed in fp32"
        yield _remark("no_effect", f"{text}; training.dtype = 'bfloat16' trains in 16 bits", job, MIXED, SHARD)
    if job.e > 1 and dense:
        yield _remark("no_effect", f"expert parallel {job.e} of a model without experts", job, E)
    if job.e == 1 and not dense and job.whole(ETP) not in (None, 1, job.t):
        text = f"expert tensor parallel has none without expert parallel: experts are divided over t {job.t}"
        yield _remark("no_effect", text, job, ETP, E)
    if job.on(ASYNC) and job.t == 1:
        yield _remark("no_effect", "async tensor parallelism has none without tensor parallelism", job, ASYNC)


def _slow(job: Job, plan: PlanSpec | None) -> Iterator[Remark]:
    m, stages = job.m_of_pass, job.p * (job.v or 1)
    if plan is None or m is None or job.p == 1:
        return
    if plan.schedule in SPLIT and every_nth(job):
        text = "splits the backward; torch then repeats a recomputed layer for its input gradient and for each group"
        yield _remark("slow", f"{plan.schedule} {text} of weights", job, SCHEDULE, MODE)
    if m < stages and job.schedule not in FULL_SCHEDULES:
        noun = "micro-batch" if m == 1 else "micro-batches"
        yield _remark("slow", f"{m} {noun} for {stages} stages: a large bubble", job, LOCAL)
    if job.passes and job.passes > 1:
        text = (
            f"a step fills the pipeline {job.passes} times, with {m} micro-batches each; the estimate fills it once "
            f"with {m * job.passes}, so its bubble is too small; local_batch_size {(job.local or 0) * job.passes} does"
        )
        yield _remark("not_modelled", text, job, GLOBAL, LOCAL)


def _recomputed(job: Job, plan: PlanSpec | None) -> Iterator[Remark]:
    mode, every = job.text(MODE), every_nth(job)
    if (mode == "selective" and job.text(OPTION) == "op") or mode == "memory_budget":
        what = "recomputation by operator" if mode == "selective" else "a budget for the compiler"
        text = f"{what} is taken as none: less memory than estimated, and more time"
        yield _remark("not_modelled", text, job, MODE, OPTION)
    elif plan is not None and every is not None and every > 1:
        counts = layers_recomputed(every, plan.schedule, plan.layers_per_chunk, plan.virtual_stages)
        if min(counts) != max(counts):
            text = f"one layer of every {every} is {min(counts)} to {max(counts)} of a stage; {min(counts)} are taken"
            yield _remark("not_modelled", text, job, OPTION, MODE)


def _differs(job: Job) -> Iterator[Remark]:
    """What the estimate takes otherwise than torchtitan."""
    if job.replicate > 1 and job.sharded:
        text = f"states are divided over {job.shard} ranks and kept {job.replicate} times"
        yield _remark("not_modelled", f"{text}; the estimate divides them over all", job, REPLICATE, SHARD)
    if compiled(job):
        text = "compiled layers keep and move less; the estimate is that of plain layers"
        yield _remark("not_modelled", text, job, "compile.enable")
    if job.on(ASYNC) and job.t > 1:
        yield _remark("not_modelled", "async tensor parallelism hides what the estimate counts", job, ASYNC)
    unknown = [name for name in job.words(CONVERTERS) if name not in CONVERTERS_KNOWN]
    if unknown:
        yield _remark("not_modelled", f"{', '.join(unknown)}: memory and time of it are not known", job, CONVERTERS)


def _not_modelled(job: Job) -> Iterator[Remark]:
    converted = job.words(CONVERTERS)
    for name, what in NOT_MODELLED.items():
        if name not in job.given or job.given[name] == default_of(name):
            continue
        if name.startswith("quantize.") and name.rpartition(".")[0] not in converted:
            continue
        if name == IN_BACKWARD and (job.p > 1 or job.e > 1):
            continue
        yield _remark("not_modelled", f"{name} changes {what}; the estimate is made without it", job, name)
