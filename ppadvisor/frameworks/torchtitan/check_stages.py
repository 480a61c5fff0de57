"""torchtitan's and torch's checks of stages and schedules, and layers that no stage would hold.

Source: pytorch/torchtitan commit 238fa995, distributed/pipeline_parallel.py where no other place is named; torch 2.13,
torch/distributed/pipelining/schedules.py.
"""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.configuration import Outcome
from ppadvisor.frameworks.torchtitan.flavors import NO_PIPELINE
from ppadvisor.frameworks.torchtitan.job import (
    CSV,
    FROM_CSV,
    LESS,
    LOCAL,
    MICROBATCH,
    MODULES,
    ONE_STAGE,
    PER_STAGE,
    SCHEDULE,
    SCHEDULES,
    TORCH_NAMES,
    V_SHAPED,
    Job,
    P,
    layers_of,
)

ROUNDS = ("interleaved1f1b", "interleavedzerobubble")
FULL_SCHEDULES = ("1f1b", "dualpipev")
"""They refuse fewer micro-batches than stages."""
MOST_NAMED = 6
"""Layers that a message names."""


def _no_pipeline(job: Job) -> str | None:
    if job.p == 1 or job.named not in NO_PIPELINE:
        return None
    return f"{job.named} does not support pipelining: p {job.p}"


def _schedule(job: Job) -> str | None:
    if job.p == 1 or job.schedule in SCHEDULES or job.schedule in FROM_CSV:
        return None
    return f"unknown schedule {job.text(SCHEDULE)!r}; known: {', '.join(TORCH_NAMES)}"


def _microbatch(job: Job) -> str | None:
    size = job.whole(MICROBATCH)
    if job.p == 1 or size is None or not job.local:
        return None
    if size < 1:
        return f"a micro-batch of {size}"
    return f"a local batch of {job.local} is no multiple of the micro-batch {size}" if job.local % size else None


def _per_stage(job: Job) -> str | None:
    per_stage = job.whole(PER_STAGE)
    if job.p == 1 or per_stage is None:
        return None
    if per_stage < 1:
        return f"{per_stage} layers a stage"
    if job.model is None or job.schedule in FROM_CSV:
        return None
    stages = -(-(job.model.num_layers + sum(job.less)) // per_stage)
    counted = f"{job.model.num_layers} layers, embedding and head counted as {sum(job.less)}"
    if stages % job.p:
        return f"{counted}, make {stages} stages of {per_stage}, no multiple of p {job.p}"
    of_rank = stages // job.p
    if job.schedule in ONE_STAGE and of_rank != 1:
        return f"{job.text(SCHEDULE)} has one stage a rank; {counted}, make {of_rank} a rank of {per_stage} each"
    if job.schedule not in ONE_STAGE and of_rank < 2:
        return f"{job.text(SCHEDULE)} has two stages a rank or more; {counted}, make {of_rank} of {per_stage}"
    return None


def _generated(job: Job) -> str | None:
    """What the split that torchtitan makes itself cannot be."""
    stages = job.num_stages
    if job.p == 1 or job.modules is not None or job.model is None or stages is None:
        return None
    counted = job.model.num_layers + sum(job.less)
    if stages > counted:
        return f"{stages} stages for {counted} layers (embedding and head counted as {sum(job.less)})"
    smallest = counted // stages
    if max(job.less) > smallest:
        return f"embedding or head count as {max(job.less)} layers, but the smallest stage has {smallest}"
    return None


def _listed(job: Job) -> str | None:
    """A list of modules by stage: how many stages it has."""
    if job.p == 1 or job.modules is None:
        return None
    stages = len(job.modules)
    if stages == 0 or stages % job.p:
        return f"{stages} lists of modules are no multiple of p {job.p}"
    return None


def _never_run(job: Job) -> str | None:
    """A schedule of one stage a rank is given the first of a rank's stages alone."""
    if job.p == 1 or job.schedule not in ONE_STAGE or job.v in (None, 1):
        return None
    return f"{job.text(SCHEDULE)} runs one stage a rank: of {job.v} the file lists, the others get nothing to do"


def _two_of_a_rank(job: Job) -> str | None:
    if job.p == 1 or job.schedule not in V_SHAPED or job.v in (None, 2):
        return None
    return f"{job.text(SCHEDULE)} has two stages a rank, got {job.v}"


def _dropped(job: Job) -> str | None:
    """Modules that no list names are deleted without a word; one that two lists name is trained twice."""
    if job.p == 1 or job.modules is None or job.model is None:
        return None
    held = [layer for stage in job.modules for layer in sorted(set(layers_of(stage, job.model.num_layers)))]
    missing = sorted(set(range(job.model.num_layers)) - set(held))
    if missing:
        return f"{_named(missing)} on no stage: torchtitan deletes them and trains without"
    if len(held) > job.model.num_layers:
        twice = sorted({layer for layer in held if held.count(layer) > 1})
        return f"{_named(twice)} on more than one stage: each trains its own copy"
    if held != sorted(held):
        return "the layers of the stages are not in the order of the model"
    ends = ((0, "tok_embeddings"), (-1, "norm"), (-1, "output"))
    lost = [name for stage, name in ends if name not in job.modules[stage]]
    return f"{', '.join(lost)} on no stage that needs it: torchtitan trains without" if lost else None


def _named(layers: list[int]) -> str:
    more = ", ..." if len(layers) > MOST_NAMED else ""
    noun = "layer stands" if len(layers) == 1 else "layers stand"
    return f"{len(layers)} {noun} ({', '.join(map(str, layers[:MOST_NAMED]))}{more})"


def _too_few(job: Job) -> str | None:
    """Schedule1F1B and DualPipeV need a micro-batch for each stage."""
    stages = job.p * (job.v or 1)
    m = job.m_of_pass
    if job.p == 1 or m is None or job.schedule not in FULL_SCHEDULES or m >= stages:
        return None
    text = f"{job.text(SCHEDULE)} needs a micro-batch for each of {stages} stages, got m = {m}"
    if job.schedule == "1f1b":
        bubble = (job.p - 1) / (m + job.p - 1)
        text += f"; Interleaved1F1B and GPipe run with fewer, at a bubble of (p-1)/(m+p-1) = {bubble:.0%} for GPipe"
    return text


def _rounds(job: Job) -> str | None:
    m = job.m_of_pass
    if job.p == 1 or m is None or job.schedule not in ROUNDS:
        return None
    rounds = max(1, m // job.p)
    if m % rounds == 0:
        return None
    text = f"{job.text(SCHEDULE)} needs m to be a multiple of m // p = {rounds}, got m = {m}"
    return f"{text}; multiples of p are: {rounds * job.p}, {(rounds + 1) * job.p}"


def _csv(job: Job) -> str | None:
    if job.p == 1 or job.schedule not in FROM_CSV or job.text(CSV):
        return None
    return f"{job.text(SCHEDULE)} takes its order of work from a file"


CHECKS = (
    Check("pipelining", (P, "model.name"), "train.py:219-223", _no_pipeline),
    Check("schedule", (SCHEDULE,), "torch schedules.py, get_schedule_class", _schedule),
    Check("schedule_file", (CSV, SCHEDULE), "pipeline_parallel.py:171-183", _csv),
    Check("microbatch_size", (MICROBATCH, LOCAL), "pipeline_parallel.py:189-193", _microbatch),
    Check("layers_per_stage", (PER_STAGE, SCHEDULE, P), "pipeline_parallel.py:71-109", _per_stage),
    Check("stages", (P, *LESS, PER_STAGE), "pipeline_parallel.py:269-296", _generated),
    Check("module_lists", (MODULES, P), "pipeline_parallel.py:456-459", _listed),
    Check("stages_of_a_rank", (PER_STAGE, MODULES, SCHEDULE), "pipeline_parallel.py:462-465", _two_of_a_rank),
    Check("stages_never_run", (MODULES, SCHEDULE), "pipeline_parallel.py:203-206", _never_run, Outcome.FAILS),
    Check("microbatches", (LOCAL, MICROBATCH, SCHEDULE), "torch schedules.py:1020-1024, 3439-3443", _too_few),
    Check("rounds", (LOCAL, MICROBATCH, SCHEDULE), "torch schedules.py:2935-2942, 3046-3053", _rounds),
    Check("dropped_modules", (MODULES,), "pipeline_parallel.py:394-431", _dropped, Outcome.WRONG),
)
