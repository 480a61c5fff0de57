"""Megatron's start-up checks of GPUs, batch and the sizes of the model.

Source: NVIDIA/Megatron-LM d98e8a64; lines of arguments.py where no other file is named.
"""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check, Told
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.run import BY_COUNT, BY_LAYERS, Run

T, P, C = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
E, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"
GTP = "tensor_parallel_num_weight_shards"
REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "micro_batch_size")
POSITIVE = (
    *(T, P, C, E, ETP, *REQUIRED, "seq_length", "global_batch_size", "ffn_hidden_size", "num_query_groups"),
    *(BY_COUNT, BY_LAYERS, "kv_channels", "moe_router_topk", "moe_ffn_hidden_size"),
)


def _positive(run: Run) -> Told | None:
    values = {dest: run.whole(dest) for dest in POSITIVE}
    found = tuple(dest for dest, value in values.items() if value is not None and value < 1)
    return Told(f"{', '.join(map(flag_of, found))} must be larger than 0", found) if found else None


def _required(run: Run) -> Told | None:
    missing = [dest for dest in REQUIRED if not run.gives(dest)]
    if "num_layers" in missing and run.gives("encoder_num_layers"):
        missing.remove("num_layers")
    if not run.gives("seq_length", "encoder_seq_length"):
        missing.append("seq_length")
    return Told(f"{', '.join(map(flag_of, missing))} must be given", tuple(missing)) if missing else None


def _world(run: Run) -> str | None:
    if run.world % run.model_ranks == 0:
        return None
    shards = f" x {run.weight_shards} weight shards" if run.weight_shards > 1 else ""
    return f"{run.world} GPUs are no multiple of t {run.t} x p {run.p} x c {run.c}{shards} = {run.model_ranks}"


def _weight_shards(run: Run) -> str | None:
    for dest, ranks in ((GTP, run.t), (f"expert_{GTP}", run.etp)):
        shards = run.whole(dest)
        if shards is not None and (shards < ranks or shards % ranks):
            return f"{flag_of(dest)} {shards} is no multiple of the {ranks} tensor-parallel ranks"
    return None


def _expert_world(run: Run) -> str | None:
    ranks = run.etp * run.e * run.p
    if run.d is None or run.world % ranks == 0:
        return None
    return f"{run.world} GPUs are no multiple of expert tensor {run.etp} x expert {run.e} x p {run.p} = {ranks}"


def _batch_named_twice(run: Run) -> str | None:
    both = run.gives("step_batch_size_schedule") and run.gives("global_batch_size")
    return "a batch size and a schedule of batch sizes exclude each other; drop one" if both else None


def _batch(run: Run) -> str | None:
    batch = run.whole("eval_global_batch_size") or (run.batch if run.gives("global_batch_size") else None)
    b = run.whole("eval_micro_batch_size") or run.b
    if not (batch and b and run.d):
        return None
    whole = b * run.d * run.weight_shards
    if batch % whole == 0:
        return None
    up = -(-batch // whole) * whole
    return (
        f"a batch of {batch} is no multiple of b {b} x d {run.d * run.weight_shards} = {whole} "
        f"(d = {run.world} GPUs / {run.model_ranks}); the next that is: {up}"
    )


def _training_batch(run: Run) -> str | None:
    """Where evaluation has a batch of its own, the training batch still has to divide, or be rounded down."""
    own = run.gives("eval_global_batch_size", "eval_micro_batch_size")
    if not own or run.on("decrease_batch_size_if_needed") or not (run.b and run.d and run.batch):
        return None
    whole = run.b * run.d * run.weight_shards
    return f"a batch of {run.batch} is no multiple of b x d = {whole}" if run.batch % whole else None


def _heads(run: Run) -> str | None:
    heads = run.whole("num_attention_heads")
    if not heads or heads % run.t == 0:
        return None
    return f"{heads} attention heads are no multiple of t {run.t}; allowed t: {_divisors(heads)}"


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 128) + 1) if number % n == 0)


def _groups(run: Run) -> str | None:
    groups = run.whole("num_query_groups")
    if not run.on("group_query_attention") or not groups or groups % run.t == 0 or run.t % groups == 0:
        return None
    return f"{groups} query groups and t {run.t}: neither divides the other"


def _head_width(run: Run) -> str | None:
    hidden, heads = run.whole("hidden_size"), run.whole("num_attention_heads")
    if not hidden or not heads or run.gives("kv_channels") or hidden % heads == 0:
        return None
    return f"hidden size {hidden} is no multiple of {heads} attention heads; give --kv-channels or change one"


def _feed_forward(run: Run) -> str | None:
    width = run.whole("ffn_hidden_size")
    if not width or width % run.t == 0:
        return None
    return f"feed-forward width {width} is no multiple of t {run.t}"


def _sequence(run: Run) -> str | None:
    s = run.whole("seq_length")
    if not s or run.c == 1 or s % (2 * run.c) == 0:
        return None
    return f"sequence length {s} is no multiple of 2 x c = {2 * run.c}"


def _positions(run: Run) -> str | None:
    s, most = run.whole("seq_length"), run.whole("max_position_embeddings")
    if not s or not most or most >= s:
        return None
    return f"sequence length {s} is more than the {most} positions"


def _experts(run: Run) -> str | None:
    experts = run.whole("num_experts")
    if run.e == 1:
        return None
    if not experts:
        return f"expert parallel {run.e} needs a model with experts"
    return f"{experts} experts are no multiple of expert parallel {run.e}" if experts % run.e else None


CHECKS = (
    Check("required_options", (*REQUIRED, "seq_length"), "1300-1306, 681", _required),
    Check("positive_sizes", POSITIVE, "682, 695; parallel_state.py", _positive),
    Check("world_size", (T, P, C), "424-448", _world),
    Check("weight_shards", (GTP, f"expert_{GTP}"), "model_parallel_config.py:28-40", _weight_shards),
    Check("expert_world_size", (E, ETP, P), "parallel_state.py:874-884", _expert_world),
    Check("batch_and_schedule", ("step_batch_size_schedule", "global_batch_size"), "686-690", _batch_named_twice),
    Check("global_batch_size", ("global_batch_size", "micro_batch_size", T, P), "698-712", _batch),
    Check("training_batch", ("global_batch_size",), "num_microbatches_calculator.py:381-391", _training_batch),
    Check("attention_heads", (T, "num_attention_heads"), "transformer_config.py:1446", _heads),
    Check("query_groups", ("num_query_groups", T), "transformer_config.py:1460-1468", _groups),
    Check("head_width", ("num_attention_heads", "hidden_size", "kv_channels"), "1331", _head_width),
    Check("feed_forward_width", ("ffn_hidden_size", T), "tensor_parallel/layers.py, utils.py `divide`", _feed_forward),
    Check("context_parallel_sequence", ("seq_length", C), "1335", _sequence),
    Check("positions", ("max_position_embeddings", "seq_length"), "1355", _positions),
    Check("experts", ("num_experts", E), "1646-1650", _experts),
)
