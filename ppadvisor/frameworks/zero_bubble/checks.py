"""What the zero-bubble fork checks at start-up, and what it passes over without a word.

Source: sail-sg/zero-bubble-pipeline-parallelism 39f2c186; the file stands beside each.
"""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.configuration import Broken, Outcome, Remark
from ppadvisor.frameworks.megatron.accepted import CHECKS
from ppadvisor.frameworks.megatron.options import table_of
from ppadvisor.frameworks.megatron.run import BY_LAYERS
from ppadvisor.frameworks.zero_bubble.rules import TIED
from ppadvisor.frameworks.zero_bubble.run import GROUP, MEMORY, PACKAGE, PENDING, V_SCHEDULES, ForkRun

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
FEWEST_CONNECTIONS = 8
ZBPP = "megatron/core/zbpp_utils.py"

FROM_MEGATRON = (
    *("required_options", "positive_sizes", "world_size", "global_batch_size", "training_batch", "attention_heads"),
    *("query_groups", "head_width", "feed_forward_width", "positions", "experts", "precision"),
    *("query_groups_ignored", "sequence_over_ranks", "heads_of_groups"),
)
"""Rules of Megatron that the fork, which is older, has too."""


def broken_rules(run: ForkRun) -> Iterator[Broken]:
    """What the parser refused, then every rule that the run breaks."""
    yield from run.arguments.broken
    for check in CHECKS:
        found = check.broken(run) if check.rule in FROM_MEGATRON else None
        if found is not None:
            yield found
    for own in OWN:
        found = own.broken(run)
        if found is not None:
            yield found


def _tied(run: ForkRun) -> str | None:
    tied = not run.on("untie_embeddings_and_output_weights")
    return TIED if tied else None


def _fusion(run: ForkRun) -> str | None:
    missing = run.own_runtime and not run.on("gradient_accumulation_fusion")
    return "its runtime needs gradient accumulation fusion; drop --no-gradient-accumulation-fusion" if missing else None


def _communication(run: ForkRun) -> str | None:
    if not run.on("pre_communication_optimization") or (run.own_runtime and run.overlaps_handoffs):
        return None
    return "without --enable-zb-runtime it needs --no-pre-communication-optimization"


def _connections(run: ForkRun) -> str | None:
    text = run.arguments.environment.get(CONNECTIONS) or str(FEWEST_CONNECTIONS)
    if not run.own_runtime or not run.overlaps_handoffs or not text.isdigit() or len(text) > 6:
        return None
    return f"its runtime needs {CONNECTIONS} of 8 or more, got {text}" if int(text) < FEWEST_CONNECTIONS else None


def _layers(run: ForkRun) -> str | None:
    if run.layers is None or run.padded_layers is None or run.p == 1:
        return None
    if run.padded_layers % run.p:
        return f"{run.layers} layers are no multiple of p {run.p}; --allow-padding-num-layers leaves some out"
    of_rank, size = run.padded_layers // run.p, run.whole(BY_LAYERS)
    if run.in_a_v and of_rank % 2:
        return f"schedules in a V need an even number of layers a rank, got {of_rank}"
    if run.gives(BY_LAYERS) and not run.in_a_v and (not size or of_rank % size):
        return f"{of_rank} layers of a rank are no multiple of {size} layers a virtual stage"
    return None if run.layers_per_chunk else f"{run.layers} layers leave a stage of p {run.p} without one"


def _zero_bubble(run: ForkRun) -> str | None:
    if not run.split_backward:
        return None
    sharded = run.on("use_distributed_optimizer")
    conditions = (
        (run.p == 1, "zero bubble needs pipeline parallelism"),
        (sharded and run.on("overlap_param_gather"), "zero bubble excludes --overlap-param-gather"),
        (sharded and run.on("overlap_grad_reduce"), "zero bubble excludes --overlap-grad-reduce"),
        (run.in_a_v and run.gives(BY_LAYERS), f"a V has two chunks a rank by itself; drop {run.option(BY_LAYERS)}"),
        (run.in_a_v and (run.text(MEMORY) or "zb") not in V_SCHEDULES, f"{run.option(MEMORY)} is min, half or zb"),
        (run.on("enable_optimizer_post_validation") and not run.on("fp16"), "post validation needs --fp16"),
    )
    return next((text for holds, text in conditions if holds), None)


def _not_split(run: ForkRun) -> str | None:
    """zbpp_utils.py, WeightGradStore.is_supported: the whole backward is run instead, without a word."""
    if not run.split_backward or run.p == 1:
        return None
    if run.text("transformer_impl") == "transformer_engine":
        return "with Transformer Engine the backward is not split, silently: --transformer-impl local"
    if run.on("overlap_grad_reduce"):
        return "with --overlap-grad-reduce the backward is not split, silently"
    return None


def _context(run: ForkRun) -> str | None:
    legacy = run.c > 1 and run.on("use_legacy_models")
    return "context parallelism is not supported in its legacy models" if legacy else None


def _interleaved(run: ForkRun) -> str | None:
    """schedules.py: each rank passes p micro-batches through a chunk in turn."""
    if run.schedule != "interleaved-1f1b" or run.m is None or run.m % run.p == 0:
        return None
    return f"interleaving needs micro-batches that are a multiple of p {run.p}, got {run.m}"


OWN = (
    Check("untied_embeddings", ("untie_embeddings_and_output_weights",), f"{ZBPP}:73", _tied),
    Check("fused_gradients", ("gradient_accumulation_fusion",), f"{ZBPP}:86", _fusion),
    Check("first_communication", ("pre_communication_optimization",), f"{ZBPP}:89", _communication),
    Check("many_connections", (CONNECTIONS,), f"{ZBPP}:93-100", _connections),
    Check("layers_divide", ("num_layers", "pipeline_model_parallel_size", BY_LAYERS), f"{ZBPP}:108-118", _layers),
    Check("zero_bubble", ("enable_zero_bubble", "zero_bubble_v_schedule"), f"{ZBPP}:130-143", _zero_bubble),
    Check("backward_not_split", ("transformer_impl", "overlap_grad_reduce"), ZBPP, _not_split, Outcome.WRONG),
    Check("context_parallel", ("context_parallel_size",), "megatron/training/arguments.py:560", _context),
    Check("interleaved", ("global_batch_size",), "pipeline_parallel/schedules.py", _interleaved, Outcome.FAILS),
)
RULES = ("unknown_option", "left_over_words", "option_value", *FROM_MEGATRON, *(check.rule for check in OWN))


def remarks(run: ForkRun) -> Iterator[Remark]:
    """What breaks no rule and is modelled otherwise, or not at all."""
    arguments = run.arguments
    if run.schedule is None:
        dest = next((dest for dest in ("enable_1f1b_v", GROUP) if dest in arguments.given), MEMORY)
        text = f"{run.option(dest)}: this schedule is not modelled; there is no estimate"
        yield Remark("not_modelled", text, (run.option(dest),), arguments.line(dest))
    if run.schedule == "zb-h2" and run.pending != 2 * run.p:
        text = f"{run.option(PENDING)} {arguments.value(PENDING)}: taken as 2 p = {2 * run.p} (ZB-H2)"
        yield Remark("assumed", text, (run.option(PENDING),), arguments.line(PENDING))
    for dest in ("cpu_offload", "num_seq_splits", "standalone_embedding_stage", "defer_embedding_wgrad_compute"):
        given = arguments.given.get(dest)
        if given is not None and given.value != table_of(PACKAGE)[dest].default:
            text = f"{given.flag} changes memory and time; the estimate is made without it"
            yield Remark("not_modelled", text, (given.flag,), given.line or None)
