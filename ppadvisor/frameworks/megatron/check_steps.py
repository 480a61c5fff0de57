"""What Megatron accepts and then fails at the first step, or trains otherwise than the options say.

Source: NVIDIA/Megatron-LM d98e8a64; the file stands beside each.
"""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.configuration import Outcome, Remark
from ppadvisor.frameworks.megatron.check_features import ONE_CONNECTION, recompute_kind
from ppadvisor.frameworks.megatron.run import Run

T, C, SP = "tensor_model_parallel_size", "context_parallel_size", "sequence_parallel"
GROUP = "microbatch_group_size_per_vp_stage"
BATCHES = ("global_batch_size", "micro_batch_size", T)


def _group(run: Run) -> str | None:
    """p <= N <= m, and m mod N = 0 or >= p; N = p by default."""
    p, m = run.p, run.m
    if run.v is None or run.v < 2 or p < 2 or m is None:
        return None
    group = run.whole(GROUP) or p
    if not p <= group <= m:
        return (
            f"interleaving passes N = {group} micro-batches through a chunk, which needs p {p} <= N <= m {m} "
            f"(m = batch {run.batch} / (b {run.b} x d {run.d})): a larger batch, a smaller b or d, or no virtual stages"
        )
    if m % group and m % group < p:
        legal = [n for n in range(p, min(m, 100_000) + 1) if m % n == 0 or m % n >= p]
        return (
            f"{m} micro-batches leave {m % group} behind groups of N = {group}, which needs 0 or at least p {p}; "
            f"N of {', '.join(map(str, legal[:4]))} would do, or m a multiple of p"
        )
    return None


def _experts_need_sequence_parallel(run: Run) -> str | None:
    if not run.whole("num_experts") or run.t == 1 or run.on(SP):
        return None
    return f"experts with t {run.t} raise in the first forward without --sequence-parallel"


def _sequence(run: Run) -> str | None:
    s = run.whole("seq_length")
    if not s or run.t == 1 or not run.on(SP) or s % (run.t * run.c) == 0:
        return None
    return f"sequence length {s} is no multiple of t x c = {run.t * run.c}, over which sequence parallelism divides it"


def _chosen_experts(run: Run) -> str | None:
    experts, chosen = run.whole("num_experts"), run.whole("moe_router_topk")
    if not experts or not chosen or chosen <= experts:
        return None
    return f"a token cannot visit {chosen} of {experts} experts"


def _heads_of_groups(run: Run) -> str | None:
    heads, groups = run.whole("num_attention_heads"), run.whole("num_query_groups")
    if not run.on("group_query_attention") or not heads or not groups or heads % groups == 0:
        return None
    return f"{heads} attention heads are no multiple of {groups} query groups"


def _steps(run: Run) -> str | None:
    if not run.b or not run.d:
        return None
    whole = run.b * run.d * run.weight_shards
    bad = [str(size) for size in run.batch_steps if size % whole]
    return f"batches of {', '.join(bad)} are no multiple of b x d = {whole}: the run stops there" if bad else None


def _groups_ignored(run: Run) -> str | None:
    groups, heads = run.whole("num_query_groups"), run.whole("num_attention_heads")
    if not run.gives("num_query_groups") or run.on("group_query_attention") or groups == heads:
        return None
    if run.on("multi_latent_attention"):
        return None
    return f"without --group-query-attention the {groups} query groups are ignored: every head has its own keys"


def _ramp_ignored(run: Run) -> str | None:
    if not run.gives("rampup_batch_size"):
        return None
    return "--rampup-batch-size is ignored: the full batch from the first step; use --step-batch-size-schedule"


CHECKS = (
    Check("microbatch_group", (GROUP, *BATCHES), "schedules.py:1160-1180", _group, Outcome.FAILS),
    Check("experts_sequence_parallel", (SP, T), "moe_layer.py:636-640", _experts_need_sequence_parallel, Outcome.FAILS),
    Check("sequence_over_ranks", ("seq_length", T, C), "schedules.py:1184-1187", _sequence, Outcome.FAILS),
    Check(
        "chosen_experts",
        ("moe_router_topk", "num_experts"),
        "moe/moe_utils.py:886",
        _chosen_experts,
        Outcome.FAILS,
    ),
    Check(
        "heads_of_groups",
        ("num_query_groups", "num_attention_heads"),
        "attention.py, core attention",
        _heads_of_groups,
        Outcome.FAILS,
    ),
    Check(
        "batch_steps",
        ("step_batch_size_schedule",),
        "num_microbatches_calculator.py:580-587",
        _steps,
        Outcome.FAILS,
    ),
    Check(
        "query_groups_ignored",
        ("group_query_attention", "num_query_groups"),
        "argument_utils.py:330-333",
        _groups_ignored,
        Outcome.WRONG,
    ),
    Check(
        "batch_ramp_ignored",
        ("rampup_batch_size", "step_batch_size_schedule"),
        "num_microbatches_calculator.py:80",
        _ramp_ignored,
        Outcome.WRONG,
    ),
)


def remarks(run: Run) -> list[Remark]:
    """What breaks no rule and is still likely not meant."""
    found = [*_slow(run), *_no_effect(run)]
    if run.on("use_checkpoint_args"):
        text = "sizes of the model are those of the checkpoint, not of this file (--use-checkpoint-args)"
        line = run.arguments.line("use_checkpoint_args")
        found.append(Remark("not_understood", text, ("--use-checkpoint-args",), line))
    if (run.t > 1 or run.c > 1) and ONE_CONNECTION not in run.arguments.environment:
        text = f"t or c above 1 needs {ONE_CONNECTION}=1 on GPUs up to Hopper; the file does not set it"
        found.append(Remark("assumed", text, (ONE_CONNECTION,)))
    return found


def _slow(run: Run) -> list[Remark]:
    if run.p == 1 or run.m is None or run.m >= run.p:
        return []
    bubble = f"the bubble of {run.p} equal stages is (p-1)/(m+p-1) = {(run.p - 1) / (run.m + run.p - 1):.0%}"
    if not run.gives("global_batch_size", "step_batch_size_schedule"):
        text = f"without --global-batch-size the batch is b d, one micro-batch a step: {bubble}"
        return [Remark("slow", text, ("--global-batch-size",))]
    text = f"{run.m} micro-batches for {run.p} stages: {bubble}"
    return [
        Remark("slow", text, ("--global-batch-size", "--micro-batch-size"), run.arguments.line("global_batch_size"))
    ]


def _no_effect(run: Run) -> list[Remark]:
    cases = (
        (SP, run.on(SP) and run.t == 1, "sequence parallelism does nothing at t = 1; Megatron switches it off"),
        (GROUP, run.gives(GROUP) and run.v == 1, "a group of micro-batches matters with virtual stages only"),
        (
            "moe_router_topk",
            run.gives("moe_router_topk") and not run.whole("num_experts"),
            "without --num-experts the model has no experts",
        ),
        (
            "recompute_modules",
            run.gives("recompute_modules") and recompute_kind(run) != "selective",
            "modules are recomputed with --recompute-granularity selective only",
        ),
        (
            "recompute_method",
            run.gives("recompute_method") and recompute_kind(run) is None,
            "nothing is recomputed without --recompute-granularity",
        ),
    )
    return [
        Remark("no_effect", text, (run.arguments.given[dest].flag,), run.arguments.line(dest))
        for dest, holds, text in cases
        if holds and dest in run.arguments.given
    ]
