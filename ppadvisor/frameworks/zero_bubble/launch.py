"""A plan as the bash fragment that starts the zero-bubble fork of Megatron-LM, read again before it is handed out.

Source: sail-sg/zero-bubble-pipeline-parallelism 39f2c186, README.md and examples/pretrain_zero_bubble.sh (options),
megatron/core/zbpp_utils.py (what goes with what).
"""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Given, Launch
from ppadvisor.frameworks.megatron.launch import call_with
from ppadvisor.frameworks.megatron.launch_model import Flag, flag, model_flags
from ppadvisor.frameworks.megatron.launch_plan import parallel_flags, training_flags
from ppadvisor.frameworks.megatron.options import by_flag
from ppadvisor.frameworks.megatron.read_back import unsaid
from ppadvisor.frameworks.zero_bubble.checks import CONNECTIONS
from ppadvisor.frameworks.zero_bubble.config import LGD, read_script_text
from ppadvisor.frameworks.zero_bubble.run import PACKAGE, V_SCHEDULES
from ppadvisor.frameworks.zero_bubble.split import split_settings
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

NAME = "the launch script"
MEMORY_OF_V = {schedule: setup for setup, schedule in V_SCHEDULES.items()}
ITS_UPSTREAMS = ("none", "naive", "1f1b", "interleaved-1f1b")
"""Schedules of Megatron-LM, which its own runtime is not needed for."""
OVERLAPS = ("--overlap-grad-reduce", "--overlap-param-gather")
RECOMPUTE = ("--recompute-granularity", "--recompute-modules", "--recompute-method", "--recompute-num-layers")


def launch(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec, *, one_connection: bool
) -> Launch:
    """The fragment, and what it does not say. RefusedError where the fork would refuse it."""
    lines = list(_script(model, training, plan, cluster))
    read = read_script_text("\n".join(lines), NAME, Given(one_connection=one_connection))
    if read.broken:
        raise RefusedError(f"the zero-bubble fork does not run this plan: {read.broken[0].message}")
    missing = tuple(unsaid(model, training, plan, read, trainer="the fork"))
    told = [f"# not said, the fork has no option for it: {text}" for text in missing]
    return Launch("\n".join([lines[0], *told, *lines[1:]]) + "\n", read, missing)


def _script(model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec) -> Iterator[str]:
    name = " ".join(model.name.split())
    yield f"# {name}: {training.sequence_length} tokens a sequence, {plan.schedule}, {cluster.num_gpus} GPUs"
    yield "# for sail-sg/zero-bubble-pipeline-parallelism, a fork of Megatron-LM"
    yield '# yours, taken from "$@": data, tokenizer, learning rate, iterations, rotary base, initialisation'
    if plan.schedule not in ITS_UPSTREAMS:
        yield f"export {CONNECTIONS}=8  # 8 at least, for hand-offs beside the work"
    yield ""
    arrays = {
        "MODEL_ARGS": _known(model_flags(model, training.sequence_length)),
        "PARALLEL_ARGS": _parallel(model, training, plan),
        "SCHEDULE_ARGS": _schedule(plan),
        "TRAINING_ARGS": _training(model, training, plan),
    }
    yield from call_with(arrays, cluster)


def _known(flags: Iterator[Flag]) -> Iterator[Flag]:
    """What the fork's parser takes; the rest is told where it matters."""
    yield from (one for one in flags if one.name in by_flag(PACKAGE))


def _parallel(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> Iterator[Flag]:
    own = split_settings(model, plan)
    for name, value in own.items():
        yield flag(name, *([value] if value else []))
    placed = ("--pipeline-", "--num-virtual", "--num-layers-per", "--decoder-", "--account-", *OVERLAPS)
    others = _known(parallel_flags(model, training, plan))
    yield from (one for one in others if not one.name.startswith(placed))


def _schedule(plan: PlanSpec) -> Iterator[Flag]:
    """Which order of work, and what it needs."""
    p = plan.pipeline_parallel
    if plan.schedule not in ITS_UPSTREAMS:
        yield flag("--enable-zb-runtime", comment="by name: else hand-offs are not overlapped")
    if plan.schedule in MEMORY_OF_V:
        yield flag("--zero-bubble-v-schedule", comment="two chunks a rank, in a V")
        yield flag("--zero-bubble-v-schedule-mem-setup", MEMORY_OF_V[plan.schedule])
    elif plan.schedule in ("zb-h1", "zb-h2"):
        yield flag("--enable-zero-bubble")
        yield flag(
            "--zero-bubble-max-pending-backward",
            p if plan.schedule == "zb-h1" else 2 * p,
            comment="backwards that may wait",
        )
    elif plan.schedule in ("gis", "gis-h"):
        yield flag("--interleave-group-size", p if plan.schedule == "gis" else (p + 1) // 2)
        yield flag("--num-layers-per-virtual-pipeline-stage", max(plan.layers_per_chunk))
    else:
        yield flag("--no-pre-communication-optimization", comment="of its own runtime, which 1F1B does not use")
        return
    yield flag("--zero-bubble-pipeline-timers-start-iter", 100, comment="times each pass, then schedules by them")
    yield flag("--zero-bubble-pipeline-timers-end-iter", 110)


def _training(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> Iterator[Flag]:
    yield flag("--use-legacy-models", comment="layers whose backward is split")
    yield flag("--transformer-impl", "local", comment="with Transformer Engine it is not split, silently")
    if training.attention == "flash":
        yield flag("--use-flash-attn")
    if plan.recomputation.modules == LGD:
        yield flag("--recompute-lgd", comment="norms, activation and dropout")
    own = (*RECOMPUTE, "--attention-backend") if plan.recomputation.modules == LGD else ("--attention-backend",)
    yield from (one for one in _known(training_flags(model, training, plan)) if one.name not in own)
