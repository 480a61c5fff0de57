"""From option values to specifications: the model, the cluster, the training run, the pins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from ppadvisor import frameworks
from ppadvisor.cli.request import MODEL_INPUTS, MODEL_SWITCHES, PIN_INPUTS, flag_of
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.search.pins import Pins
from ppadvisor.specs.assumptions import GIVEN
from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.specs.load import (
    cluster_origin,
    fields_for,
    load_cluster,
    load_gpu,
    load_model,
    preset_names,
    resolve_preset,
)
from ppadvisor.specs.model import ModelSpec, MoeSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import trust, validate

DEFAULT_FRAMEWORK = "megatron"
FALLBACK_FRAMEWORK = "generic"

OWN_GPUS_PER_NODE = 8

GPU_GIVEN = {
    "gpu_memory": "memory_bytes",
    "gpu_tflops": "peak_flops_per_s",
    "hbm_bandwidth": "hbm_bandwidth_bytes_per_s",
}
LINKS_GIVEN = {
    "intra_node_bandwidth": "intra_node_bandwidth_bytes_per_s",
    "inter_node_bandwidth": "inter_node_bandwidth_bytes_per_s",
}


@dataclass(frozen=True)
class Request:
    """What a set of option values means."""

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    pins: Pins


def read_request(values: Mapping[str, Any]) -> Request:
    """Build the specifications. InputError for what is missing, contradicts or has no effect."""
    model, cluster, pins = _model(values), read_cluster(values), _pins(values)
    return Request(model, cluster, _training(values, cluster, pins), pins)


def choose_framework(values: Mapping[str, Any]) -> str:
    """The framework given; else megatron, or generic where a pinned schedule needs it (said on stderr)."""
    given = values.get("framework")
    if given is not None:
        return str(given)
    pinned = values.get("schedule") or ()
    runs = frameworks.get(DEFAULT_FRAMEWORK).schedules
    elsewhere = [name for name in pinned if name not in runs and name in frameworks.get(FALLBACK_FRAMEWORK).schedules]
    if not elsewhere:
        return DEFAULT_FRAMEWORK
    names = ", ".join(dict.fromkeys(elsewhere))
    print(
        f"ppadvisor: note: {DEFAULT_FRAMEWORK} does not run {names}; taking --framework {FALLBACK_FRAMEWORK}",
        file=sys.stderr,
    )
    return FALLBACK_FRAMEWORK


def _required(values: Mapping[str, Any], name: str) -> Any:
    value = values.get(name)
    if value is None:
        raise InputError(f"{flag_of(name)} is missing")
    return value


def _model(values: Mapping[str, Any]) -> ModelSpec:
    own = [entry.name for entry in (*MODEL_INPUTS, *MODEL_SWITCHES) if entry.name != "model"]
    given = [name for name in own if values.get(name) is not None]
    if values.get("model") is not None:
        if given:
            raise InputError(f"{flag_of(given[0])} has no effect beside --model; give one or the other")
        return load_model(values["model"])
    if not given:
        raise InputError("--model is missing (or --layers, --hidden, --heads and --vocab for a model of your own)")
    return _own_model(values)


def _own_model(values: Mapping[str, Any]) -> ModelSpec:
    """A decoder of plain numbers, with today's usual choices: RMSNorm, rotary positions, no biases."""
    layers, hidden, heads, vocab = (_required(values, name) for name in ("layers", "hidden", "heads", "vocab"))
    if values.get("head_dim") is None and hidden % heads:
        raise InputError(f"--hidden {hidden} is not divisible by --heads {heads}; give --head-dim")
    ffn = values.get("ffn") or 4 * hidden
    gated = values.get("gated_mlp")
    data: dict[str, Any] = {
        "name": "own model",
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
        "num_query_groups": values.get("kv_heads") or heads,
        "head_dim": values.get("head_dim") or hidden // heads,
        "vocab_size": vocab,
        "gated_mlp": True if gated is None else gated,
        "tied_embeddings": bool(values.get("tied_embeddings")),
        "normalization": "rmsnorm",
        "positional_embedding": "rope",
        "moe": _own_moe(values, ffn),
    }
    return validate(ModelSpec, data, "model options")


def _own_moe(values: Mapping[str, Any], ffn: int) -> MoeSpec | None:
    if values.get("experts") is None:
        for name in ("experts_per_token", "expert_ffn"):
            if values.get(name) is not None:
                raise InputError(f"{flag_of(name)} has no effect without --experts")
        return None
    data = {
        "num_experts": values["experts"],
        "experts_per_token": _required(values, "experts_per_token"),
        "moe_ffn_hidden_size": values.get("expert_ffn") or ffn,
    }
    return validate(MoeSpec, data, "model options")


def read_cluster(values: Mapping[str, Any]) -> ClusterSpec:
    """The machines. InputError for what is missing or contradicts."""
    precision = values.get("precision") or "bf16"
    if values.get("cluster") is not None:
        for name in ("gpu", *GPU_GIVEN):
            if values.get(name) is not None:
                raise InputError(f"{flag_of(name)} contradicts --cluster, which has its GPU; give one or the other")
        cluster = load_cluster(values["cluster"])
        if values.get("gpus") is not None:
            cluster = trust(ClusterSpec, fields_for(cluster, values["gpus"]), cluster_origin(values["cluster"]))
        return _with_links(cluster, values)
    gpu, provenance = _gpu(values, precision)
    num_gpus = _required(values, "gpus")
    fields = {
        "name": f"{num_gpus} x {gpu.name}",
        "source": GIVEN,
        "gpu": gpu,
        "num_gpus": num_gpus,
        "gpus_per_node": min(values.get("gpus_per_node") or gpu.gpus_per_node, num_gpus),
        "intra_node_bandwidth_bytes_per_s": gpu.intra_node_bandwidth_bytes_per_s,
        "inter_node_bandwidth_bytes_per_s": gpu.inter_node_bandwidth_bytes_per_s,
        "provenance": provenance,
    }
    return _with_links(trust(ClusterSpec, fields, "cluster options"), values)


def _with_links(cluster: ClusterSpec, values: Mapping[str, Any]) -> ClusterSpec:
    """The cluster with what the user says of nodes and links."""
    changes: dict[str, Any] = {
        field: float(values[name]) for name, field in LINKS_GIVEN.items() if values.get(name) is not None
    }
    provenance = dict(cluster.provenance) | dict.fromkeys(changes, GIVEN)
    if values.get("gpus_per_node") is not None:
        if values["gpus_per_node"] > cluster.num_gpus:
            raise InputError(f"--gpus-per-node {values['gpus_per_node']} is more than --gpus {cluster.num_gpus}")
        changes["gpus_per_node"] = values["gpus_per_node"]
        provenance["gpus_per_node"] = GIVEN
    return trust(ClusterSpec, vars(cluster) | changes | {"provenance": provenance}, "cluster options")


def resolved_names(kind: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Presets of a GPU or cluster by their full names; files stay. InputError for an unknown one, or two alike."""
    load: Callable[[str], object] = load_gpu if kind == "gpu" else load_cluster
    folder: Literal["gpus", "clusters"] = "gpus" if kind == "gpu" else "clusters"
    found: list[str] = []
    for name in names:
        load(name)
        is_preset = any(one.startswith(name.lower()) for one in preset_names(folder))
        full = resolve_preset(folder, name) if is_preset else name
        if full in found:
            raise InputError(f"--{kind}: {full} is given twice")
        found.append(full)
    return tuple(found)


def _gpu(values: Mapping[str, Any], precision: str) -> tuple[GpuSpec, dict[str, str]]:
    """(the GPU, where numbers come from): a preset with what the user changes, or one of the user's own."""
    changes: dict[str, Any] = {field: values[name] for name, field in GPU_GIVEN.items() if values.get(name) is not None}
    provenance = {f"gpu.{field}": GIVEN for field in changes if field != "peak_flops_per_s"}
    if "peak_flops_per_s" in changes:
        changes["peak_flops_per_s"] = {precision: changes["peak_flops_per_s"]}
        provenance[f"gpu.peak_flops_per_s.{precision}"] = GIVEN
    if values.get("gpu") is not None:
        gpu = load_gpu(values["gpu"])
        peaks = dict(gpu.peak_flops_per_s) | changes.pop("peak_flops_per_s", {})
        changed = vars(gpu) | changes | {"peak_flops_per_s": peaks}
        origins = (gpu.inter_node_source, gpu.source, gpu.inter_node_source)
        of_links = zip(("gpus_per_node", *LINKS_GIVEN.values()), (f"preset: {o}" for o in origins), strict=True)
        return trust(GpuSpec, changed, "GPU options"), provenance | dict(of_links)
    if not changes:
        raise InputError("--gpu is missing (or --cluster; or --gpu-memory, --gpu-tflops, --hbm-bandwidth for your own)")
    for name in (*GPU_GIVEN, *LINKS_GIVEN):
        _required(values, name)
    own: dict[str, Any] = {
        "name": "own GPU",
        "source": GIVEN,
        "memory_source": GIVEN,
        "inter_node_source": GIVEN,
        "gpus_per_node": values.get("gpus_per_node") or OWN_GPUS_PER_NODE,
        **{field: values[name] for name, field in LINKS_GIVEN.items()},
        **changes,
    }
    nodes = f"default: {OWN_GPUS_PER_NODE}, or all GPUs where there are fewer"
    return trust(GpuSpec, own, "GPU options"), provenance | {"gpus_per_node": nodes}


def _training(values: Mapping[str, Any], cluster: ClusterSpec, pins: Pins) -> TrainingSpec:
    seq = _required(values, "seq_len")
    batch = values.get("global_batch")
    renamed = {
        "stack": "stack",
        "precision": "precision",
        "fp8_weights": "fp8_weights",
        "optimizer": "optimizer",
        "grad_precision": "gradient_precision",
        "attention": "attention",
        "loss": "loss",
        "dropout": "dropout",
        "fused_norm": "fused_norm",
        "sequence_parallel": "sequence_parallel",
    }
    data: dict[str, Any] = {field: values[name] for name, field in renamed.items() if values.get(name) is not None}
    data |= {
        "sequence_length": seq,
        "global_batch_size": _sequences(batch, seq) if batch else _batch_that_follows(cluster.num_gpus, pins),
        "framework": choose_framework(values),
    }
    if data["framework"] not in frameworks.FRAMEWORKS:
        raise unknown_name("framework", data["framework"], frameworks.FRAMEWORKS, where="--framework")
    return trust(TrainingSpec, data, "training options")


def _batch_that_follows(num_gpus: int, pins: Pins) -> int:
    """B = d b m, where the pins leave one value of each."""
    data_parallel = _data_parallel_that_follows(num_gpus, pins)
    sizes = (data_parallel, pins.micro_batch_size, pins.num_microbatches)
    if any(len(values or ()) != 1 for values in sizes):
        raise InputError(
            "--global-batch is missing (it follows as d b m only where --micro-batch, --microbatches and --dp, or "
            "--pp, --tp and --cp in its place, have one value each)"
        )
    return prod(values[0] for values in sizes if values)


def _data_parallel_that_follows(num_gpus: int, pins: Pins) -> tuple[int, ...] | None:
    """d as pinned, else GPUs / (p t c); None where the pins leave it open."""
    if pins.data_parallel:
        return pins.data_parallel
    if any(len(values or ()) != 1 for values in (pins.pipeline_parallel, pins.tensor_parallel)):
        return None
    model_parallel = prod((*(pins.pipeline_parallel or ()), *(pins.tensor_parallel or ())))
    # where p t is all GPUs already, c is 1 as well; what does not multiply to the GPUs, the search refuses by name
    contexts = pins.context_parallel or ((1,) if model_parallel >= num_gpus else ())
    return tuple(max(num_gpus // (model_parallel * c), 1) for c in contexts)


def _sequences(batch: tuple[str, int], seq: int) -> int:
    """A batch in sequences; one given in tokens must be a whole number of them."""
    unit, amount = batch
    if unit == "sequences":
        return amount
    if amount % seq:
        raise InputError(f"--global-batch: {amount} tokens are not a whole number of sequences of {seq} tokens")
    return amount // seq


def _pins(values: Mapping[str, Any]) -> Pins:
    given = {entry.pin: tuple(dict.fromkeys(values[entry.name])) for entry in PIN_INPUTS if values.get(entry.name)}
    return Pins(**given)
