"""torchtitan's checks of GPUs, batch and the sizes of the model.

Source: pytorch/torchtitan commit 238fa995; below torchtitan/ where no other place is named.
"""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check, Told
from ppadvisor.frameworks.configuration import Outcome
from ppadvisor.frameworks.torchtitan.flavors import FLAVORS
from ppadvisor.frameworks.torchtitan.job import (
    ETP,
    GLOBAL,
    LOCAL,
    REPLICATE,
    SEQ,
    SHARD,
    C,
    E,
    Job,
    P,
    T,
)


def _degrees(job: Job) -> Told | None:
    values = {name: job.whole(name) for name in (REPLICATE, C, T, P, E, ETP)}
    found = {name: f"{_short(name)} {value}" for name, value in values.items() if value is not None and value < 1}
    shard = job.whole(SHARD)
    if shard is not None and shard != -1 and shard < 1:
        found[SHARD] = f"{_short(SHARD)} {shard} (-1 is what the others leave)"
    return Told(f"degrees are at least 1: {', '.join(found.values())}", tuple(found)) if found else None


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _world(job: Job) -> str | None:
    if _degrees(job) or job.shard is not None:
        return None
    shard = job.whole(SHARD)
    others = f"replicate {job.replicate} x t {job.t} x p {job.p} x c {job.c}"
    if shard == -1:
        return f"{job.world} GPUs are no multiple of {others} = {job.replicate * job.t * job.p * job.c}"
    product = job.replicate * job.t * job.p * job.c * (shard or 0)
    return f"shard {shard} x {others} = {product}, but there are {job.world} GPUs; shard -1 takes what is left"


def _experts_tensor(job: Job) -> str | None:
    if job.e == 1 or job.etp in (1, job.t):
        return None
    return f"expert tensor parallel {job.etp} is neither 1 nor t {job.t}"


def _expert_ranks(job: Job) -> str | None:
    etp = job.size(ETP)
    if job.shard is None or (job.e == 1 and etp == 1):
        return None
    ranks = job.shard * job.c * job.t
    if ranks % (job.e * etp) == 0:
        return None
    return f"the {ranks} ranks (shard x c x t) are no multiple of e {job.e} x expert tensor {etp}"


def _experts(job: Job) -> str | None:
    if job.model is None or job.model.moe is None or job.model.moe.num_experts % job.e == 0:
        return None
    return f"{job.model.moe.num_experts} experts are no multiple of expert parallel {job.e}"


def _positive(job: Job) -> Told | None:
    values = {name: job.whole(name) for name in (LOCAL, SEQ)}
    found = tuple(name for name, value in values.items() if value is not None and value < 1)
    return Told(f"{', '.join(found)} must be larger than 0", found) if found else None


def _batch(job: Job) -> str | None:
    batch = job.whole(GLOBAL)
    if batch == 0:
        return "a batch of 0; -1 is one pass of every replica"
    if not (batch and batch > 0 and job.local and job.d) or job.passes:
        return None
    whole = job.local * job.d
    up = -(-batch // whole) * whole
    return f"a batch of {batch} is no multiple of local {job.local} x d {job.d} = {whole}; the next that is: {up}"


def _sequence(job: Job) -> str | None:
    s, divisor = job.whole(SEQ), 2 * job.t * job.c
    return f"{s} tokens are no multiple of t x 2 c = {divisor}" if s and s > 0 and s % divisor else None


def _heads(job: Job) -> str | None:
    if job.model is None:
        return None
    heads = job.model.num_attention_heads
    if heads % job.t:
        return f"{heads} attention heads are no multiple of t {job.t}; allowed t: {_divisors(heads)}"
    groups = job.model.num_query_groups
    if job.model.mla is None and groups % job.t:
        return (
            f"{groups} key/value heads are no multiple of t {job.t}, and torchtitan copies none; "
            f"allowed t: {_divisors(groups)}"
        )
    return None


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 128) + 1) if number % n == 0)


def _name(job: Job) -> str | None:
    if job.named or job.given.get("experimental.custom_import"):
        return None
    return f"model {job.text('model.name')!r} is not registered; known: {', '.join(FLAVORS)}"


def _flavor(job: Job) -> str | None:
    flavor = job.text("model.flavor")
    if not job.named or flavor in FLAVORS[job.named] or job.given.get("experimental.custom_import"):
        return None
    return f"{job.named} has no flavor {flavor!r}; known: {', '.join(FLAVORS[job.named])}"


def _ddp(job: Job) -> str | None:
    if job.replicate == 1 or job.shard is None or job.sharded or job.replicate == job.world:
        return None
    return f"replicas without sharding (DDP) take all GPUs: replicate {job.replicate} of {job.world}"


SIZES = (T, P, C, SHARD, REPLICATE)

CHECKS = (
    Check("model_name", ("model.name",), "protocols/train_spec.py, get_train_spec", _name),
    Check("model_flavor", ("model.flavor",), "train.py:138", _flavor),
    Check("degrees", (*SIZES, E, ETP), "distributed/parallel_dims.py:45-51", _degrees),
    Check("positive_sizes", (LOCAL, SEQ), "train.py:201", _positive),
    Check("world_size", (SHARD, T, P, C, REPLICATE), "distributed/parallel_dims.py:53-56", _world),
    Check("expert_tensor", (ETP, T), "distributed/parallel_dims.py:58-59", _experts_tensor),
    Check("expert_ranks", (E, ETP), "distributed/parallel_dims.py:136-160", _expert_ranks),
    Check("global_batch_size", (GLOBAL, LOCAL, *SIZES), "train.py:196-209", _batch),
    Check("sequence_length", (SEQ, T, C), "models/llama3/infra/parallelize.py:69-74", _sequence),
    Check("data_parallel_only", (SHARD, REPLICATE), "models/llama3/infra/parallelize.py:148-151", _ddp),
    Check("attention_heads", (T,), "models/llama3/infra/parallelize.py:217-241", _heads, Outcome.FAILS),
    Check("experts", (E,), "distributed/expert_parallel.py:108-124", _experts, Outcome.FAILS),
)
