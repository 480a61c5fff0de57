"""From a record to what the engine takes: a problem and a plan; what the record leaves out is filled in and listed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ppadvisor import frameworks, schedules
from ppadvisor.engine.inputs import layout_of
from ppadvisor.engine.partition import balanced_split
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import layers_of_ranks
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.evidence.records import Record, RecordModel
from ppadvisor.evidence.splits import modules_evenly, spread
from ppadvisor.evidence.trainers import (
    MODULES_IN_NOTES,
    NOT_MODELLED,
    ONE_LAYER_A_CHUNK,
    SCHEDULE_NAMES,
    UNKNOWN,
    Trainer,
    keeps_fp8_weights,
    trainer_of,
)
from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.specs.load import assumptions_of, load_gpu
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import OPTIMIZERS, TrainingSpec
from ppadvisor.specs.validation import validate

DEFAULT_GPU = "a100-sxm-80gb"
DEFAULT_SEQUENCE_LENGTH = 4096
DEFAULT_VOCAB_SIZE = 51_200

NARROW = ("mxfp8", "nvfp4")
"""Precisions that are computed as fp8."""

NOTED_MODULES = re.compile(r"recomputed modules: (\w+(?:, \w+)*)")

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A record as the engine takes it."""

    record: Record
    problem: Problem
    plan: PlanSpec
    defaults: tuple[str, ...]
    """What the record does not say, and was taken to be."""


@dataclass
class _Filling:
    """Collects what had to be filled in."""

    taken: list[str] = field(default_factory=list)

    def of(self, name: str, given: T | None, default: T) -> T:
        """The value given, else the default, which is noted."""
        if given is not None:
            return given
        self.taken.append(f"{name} = {str(default).lower() if isinstance(default, bool) else default}")
        return default


class NotModelled(InputError):
    """A record that is right, of a run that the engine has no model of."""


def check_record(record: Record) -> None:
    """InputError, which names the field, for a name or number that no run can have; what is not modelled passes."""
    with suppress(NotModelled):
        case_of(record)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Put the field before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{field}: {error}") from None


def case_of(record: Record) -> Case:
    """The problem and plan of a record. InputError, which says why, where there is none."""
    if record.cluster.device == "cpu":
        raise NotModelled("cluster.device: it ran on a CPU, which is no measurement of a GPU")
    filling = _Filling()
    trainer = trainer_of(record.training.framework)
    if trainer is None:
        filling.taken.append(f"training.framework = {UNKNOWN} (for {record.training.framework})")
        trainer = Trainer(record.training.framework, UNKNOWN)
    plan = _plan(record, trainer, filling)
    training = _training(record, trainer, plan, filling)
    model = _model(record.model, training.sequence_length, filling)
    cluster, profile = _cluster(record, plan, filling), frameworks.get(trainer.profile)
    assumed = assumptions_of(cluster, training, profile.stack)
    return Case(record, Problem(model, cluster, training, profile, assumed), plan, tuple(filling.taken))


def _model(model: RecordModel, sequence_length: int, filling: _Filling) -> ModelSpec:
    data = model.model_dump(exclude_none=True)
    data["vocab_size"] = filling.of("model.vocab_size", model.vocab_size, DEFAULT_VOCAB_SIZE)
    if model.positional_embedding == "learned":
        given = model.max_position_embeddings
        data["max_position_embeddings"] = filling.of("model.max_position_embeddings", given, sequence_length)
    # LayerNorm without a gate is GPT's kind of layer, which has a bias on every linear
    biased = model.normalization == "layernorm" and not model.gated_mlp
    data |= dict.fromkeys(("qkv_bias", "attention_output_bias", "mlp_bias"), biased)
    return validate(ModelSpec, data, "model")


def _cluster(record: Record, plan: PlanSpec, filling: _Filling) -> ClusterSpec:
    given = record.cluster
    with _naming("cluster.gpu"):
        gpu = load_gpu(filling.of("cluster.gpu", given.gpu, DEFAULT_GPU))
    ranks = plan.pipeline_parallel * plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    num_gpus = given.num_gpus or ranks
    stated = given.inter_node_gb_per_s_per_gpu
    between = gpu.inter_node_bandwidth_bytes_per_s if stated is None else stated * 1e9
    if stated is None and num_gpus > gpu.gpus_per_node:
        filling.taken.append("cluster.inter_node_gb_per_s_per_gpu = the GPU preset's")
    data = {
        "name": f"{num_gpus} x {gpu.name}",
        "source": record.source.title,
        "gpu": gpu,
        "num_gpus": num_gpus,
        "gpus_per_node": _domain(record, gpu, num_gpus),
        "intra_node_bandwidth_bytes_per_s": gpu.intra_node_bandwidth_bytes_per_s,
        "inter_node_bandwidth_bytes_per_s": between,
    }
    return validate(ClusterSpec, data, "cluster")


def _domain(record: Record, gpu: GpuSpec, num_gpus: int) -> int:
    """GPUs that share the fast links: a node, of NVL72 the rack; a whole number of them makes the cluster."""
    size = record.cluster.gpus_per_node or gpu.gpus_per_node
    if "NVL72" in (record.cluster.interconnect or ""):
        size = gpu.gpus_per_node
    return next(n for n in range(min(size, num_gpus), 0, -1) if num_gpus % n == 0)


def _training(record: Record, trainer: Trainer, plan: PlanSpec, filling: _Filling) -> TrainingSpec:
    given, model = record.training, record.model
    if given.optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", given.optimizer, OPTIMIZERS, "training.optimizer")
    precision = filling.of("training.precision", given.precision, "bf16")
    fp8_weights = keeps_fp8_weights(trainer, precision, model.name, record.cluster.gpu or "")
    if fp8_weights:
        filling.taken.append("training.fp8_weights = true")
    if precision in NARROW:
        filling.taken.append(f"training.precision = fp8 (for {precision})")
        precision = "fp8"
    profile = frameworks.get(trainer.profile)
    halves = precision in trainer.half_gradients or profile.default_gradient_precision == "weights"
    of_weights = ("bf16" if precision == "fp8" else precision) if halves else "fp32"
    like_gpt = model.normalization == "layernorm" and not model.gated_mlp
    divided = record.plan.sequence_parallel
    if plan.tensor_parallel > 1:
        divided = filling.of("plan.sequence_parallel", divided, trainer.sequence_parallel)
    data: dict[str, Any] = {
        "sequence_length": filling.of("training.sequence_length", given.sequence_length, DEFAULT_SEQUENCE_LENGTH),
        "global_batch_size": given.global_batch_size
        or plan.num_microbatches * plan.micro_batch_size * plan.data_parallel,
        "framework": trainer.profile,
        "stack": (given.attention == "eager" and trainer.eager_stack) or trainer.stack,
        "precision": precision,
        "fp8_weights": fp8_weights,
        "optimizer": given.optimizer,
        "gradient_precision": filling.of("training.gradient_precision", given.gradient_precision, of_weights),
        "attention": filling.of("training.attention", given.attention, "flash"),
        "dropout": filling.of("training.dropout", given.dropout, trainer.dropout and like_gpt),
        "fused_norm": filling.of("training.fused_norm", _said(record, "fused_norm_kernel"), trainer.fused_norm),
        "loss": _loss(record, trainer, filling),
        "sequence_parallel": bool(divided),
    }
    return validate(TrainingSpec, data, "training")


def _said(record: Record, flag: str) -> bool | None:
    """True where a flag of the record says so; its absence says nothing."""
    return True if flag in record.flags else None


def _loss(record: Record, trainer: Trainer, filling: _Filling) -> str:
    """The loss's implementation: a fused one where the record says so, else the trainer's."""
    if record.training.cross_entropy_fusion:
        return "fused"
    return filling.of("training.loss", None, trainer.loss_in_use)


def _plan(record: Record, trainer: Trainer, filling: _Filling) -> PlanSpec:
    given = record.plan
    schedule, v = _schedule(record, filling)
    p, t, c = given.pipeline_parallel, given.tensor_parallel, given.context_parallel
    gpus = record.cluster.num_gpus
    d = filling.of("plan.data_parallel", given.data_parallel or (gpus and gpus // (p * t * c)), 1)
    b = filling.of("plan.micro_batch_size", given.micro_batch_size, 1)
    batch = record.training.global_batch_size
    m = given.num_microbatches or (batch and batch // (b * d)) or filling.of("plan.num_microbatches", None, p)
    sharding = _sharding(record, trainer, filling)
    if record.model.moe is not None:
        filling.taken.append("expert_tensor_parallel = 1")
    chunks = _layers_per_chunk(record, trainer, schedule, v, filling)
    data = {
        "pipeline_parallel": p,
        "tensor_parallel": t,
        "data_parallel": d,
        "context_parallel": c,
        "expert_parallel": given.expert_parallel,
        "expert_tensor_parallel": 1,
        "virtual_stages": v,
        "micro_batch_size": b,
        "num_microbatches": m,
        "schedule": schedule,
        **_recomputation(record, filling),
        "optimizer_sharding": sharding,
        "layers_per_stage": layers_of_ranks(schedule, chunks, v),
        "layers_per_chunk": chunks,
    }
    return validate(PlanSpec, data, "plan")


def _recomputation(record: Record, filling: _Filling) -> dict[str, Any]:
    """What the record says, in its fields or, of modules, in its notes."""
    given, noted = record.plan, NOTED_MODULES.search(record.notes or "")
    modules = given.recompute_modules
    if modules is None and given.recompute is None and noted:
        modules = tuple(MODULES_IN_NOTES[name] for name in noted[1].split(", ") if name in MODULES_IN_NOTES) or None
    return {
        "recompute": filling.of("plan.recompute", given.recompute or (modules and "selective"), "none"),
        "recompute_modules": modules,
        "recompute_method": given.recompute_method,
        "recompute_num_layers": given.recompute_num_layers,
    }


def _sharding(record: Record, trainer: Trainer, filling: _Filling) -> int:
    """The ZeRO stage of the record."""
    given = record.training.optimizer_sharding
    default = frameworks.get(trainer.profile).default_optimizer_sharding
    stage = None if given is None else int(given.removeprefix("zero").replace("none", "0"))
    return filling.of("training.optimizer_sharding", stage, default)


def _schedule(record: Record, filling: _Filling) -> tuple[str, int]:
    """(id of our schedule, v). InputError for a name that there is not, NotModelled for what we do not have."""
    plan = record.plan
    if plan.pipeline_parallel == 1 and plan.schedule is None:
        return "none", 1
    likely = "1f1b" if (plan.virtual_stages or 1) == 1 else "interleaved-1f1b"
    name = filling.of("plan.schedule", plan.schedule, likely)
    if name in NOT_MODELLED:
        raise NotModelled(f"schedule {name}: {NOT_MODELLED[name]}")
    if name in SCHEDULE_NAMES:
        filling.taken.append(f"plan.schedule = {SCHEDULE_NAMES[name]} (for {name})")
        name = SCHEDULE_NAMES[name]
    with _naming("plan.schedule"):
        allowed = schedules.get(name).virtual_stages
    if plan.pipeline_parallel == 1 and name != "none":
        filling.taken.append(f"plan.schedule = none (for {name} on one stage)")
        return "none", 1
    default = _most_layers(record) if name in ONE_LAYER_A_CHUNK else allowed.default
    v = filling.of("plan.virtual_stages", plan.virtual_stages, default)
    if not allowed.allows(v):
        raise InputError(f"plan.virtual_stages: got {v} with schedule {name}; allowed: {allowed}")
    return name, v


def _most_layers(record: Record) -> int:
    """Layers of the rank that has most of them."""
    p, layers = record.plan.pipeline_parallel, record.plan.layers_per_stage
    return -(-record.model.num_layers // p) if layers is None else max(layers)


def _layers_per_chunk(record: Record, trainer: Trainer, schedule: str, v: int, filling: _Filling) -> tuple[int, ...]:
    """Layers of each virtual stage in model order."""
    p, layers = record.plan.pipeline_parallel, record.plan.layers_per_stage
    if trainer.divides_modules and v == 1 and p > 1 and (layers is None or max(layers) - min(layers) <= 1):
        filling.taken.append("plan.layers_per_stage = modules evenly, as the trainer divides them (for layers evenly)")
        return modules_evenly(record.model.num_layers, p)
    if layers is None:
        split = balanced_split(record.model.num_layers, p * v)
        if split is None:
            raise InputError(f"plan.pipeline_parallel: {record.model.num_layers} layers on {p * v} stages (p v)")
        if record.model.num_layers % (p * v):
            filling.taken.append("plan.layers_per_stage = as even as possible")
        return split
    chunks = [0] * (p * v)
    for rank, held in enumerate(layout_of(schedule, tuple(chunks), v).placement):
        for stage, size in spread(layers[rank], held, last=p * v - 1):
            chunks[stage] = size
    return tuple(chunks)
