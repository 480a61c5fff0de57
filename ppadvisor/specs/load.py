"""From a name or a file to a specification: presets, a config.json, our own TOML."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ppadvisor.errors import InputError, unknown_name
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.specs.files import read_mapping
from ppadvisor.specs.model import MlaSpec, ModelSpec, MoeSpec
from ppadvisor.specs.stack import Constant, StackSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import trust, validate

PresetKind = Literal["models", "gpus", "clusters", "stacks"]


def _folder(kind: PresetKind) -> Path:
    # importlib.resources would find it too, and takes 5 ms to be imported
    return Path(__file__).parent.parent / "presets" / kind


def preset_names(kind: PresetKind) -> tuple[str, ...]:
    """Ids of all presets of a kind, sorted; an id is the file's name."""
    return tuple(sorted(f.name[:-5] for f in _folder(kind).iterdir() if f.name.endswith(".toml")))


def resolve_preset(kind: PresetKind, name: str) -> str:
    """The id that `name` means: itself, or the only id that begins with it. InputError otherwise."""
    names = preset_names(kind)
    wanted = name.lower()
    if wanted in names:
        return wanted
    begins = [n for n in names if n.startswith(wanted)] if wanted else []
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise InputError(f"{kind[:-1]} {name!r} is ambiguous: {', '.join(begins)}")
    raise unknown_name(kind[:-1], name, names)


def preset_data(kind: PresetKind, name: str) -> dict[str, Any]:
    """The fields of a preset as they stand in its TOML file."""
    text = (_folder(kind) / f"{resolve_preset(kind, name)}.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


@cache  # presets do not change while a program runs, and a sweep asks for the same ones again and again
def load_gpu(name: str) -> GpuSpec:
    """A GPU preset by its id or an unambiguous beginning of it."""
    gpu_id = resolve_preset("gpus", name)
    return trust(GpuSpec, preset_data("gpus", gpu_id), f"preset gpus/{gpu_id}.toml")


@cache
def load_stack(name: str) -> StackSpec:
    """A software stack preset by its id or an unambiguous beginning of it."""
    stack_id = resolve_preset("stacks", name)
    data, where = preset_data("stacks", stack_id), f"preset stacks/{stack_id}.toml"
    data["constants"] = {
        generation: {name: trust(Constant, constant, where) for name, constant in constants.items()}
        for generation, constants in data["constants"].items()
    }
    return trust(StackSpec, {"id": stack_id, **data}, where)


def assumptions_of(
    cluster: ClusterSpec, training: TrainingSpec, stack: str, given: Assumptions | None = None
) -> Assumptions:
    """The defaults; instead of them what the software stack reaches (`stack` where the training names none), then what
    was calibrated on the cluster, then what is given.
    """
    of_stack = load_stack(training.stack or stack).applied(given or Assumptions(), cluster.gpu.architecture)
    return of_stack.calibrated(cluster.calibrated)


def load_cluster(name: str, num_gpus: int | None = None) -> ClusterSpec:
    """A cluster from a preset name or a file of that form, of `num_gpus` GPUs where given."""
    origin = cluster_origin(name)
    if _looks_like_a_file(name):
        from ppadvisor.specs.cluster_file import read_cluster

        cluster = read_cluster(Path(name))
    else:
        data = preset_data("clusters", name)
        data["gpu"] = load_gpu(data["gpu"])
        links = ("intra_node_bandwidth_bytes_per_s", "inter_node_bandwidth_bytes_per_s")
        cluster = trust(ClusterSpec, data | {"provenance": dict.fromkeys(links, origin)}, origin)
    return with_num_gpus(cluster, num_gpus, origin)


def cluster_origin(name: str) -> str:
    """Where a cluster of this name is read. InputError for an unknown preset."""
    return name if _looks_like_a_file(name) else f"preset clusters/{resolve_preset('clusters', name)}.toml"


def with_num_gpus(cluster: ClusterSpec, num_gpus: int | None, where: str = "cluster") -> ClusterSpec:
    """The same machines in another number, where one is given: whole nodes, or a part of one."""
    if num_gpus is None:
        return cluster
    return validate(ClusterSpec, fields_for(cluster, num_gpus), where)


def fields_for(cluster: ClusterSpec, num_gpus: int) -> dict[str, Any]:
    """The fields of the same machines in another number."""
    return {**vars(cluster), "num_gpus": num_gpus, "gpus_per_node": min(cluster.gpus_per_node, num_gpus)}


def load_model(name: str) -> ModelSpec:
    """A model from a preset name, a Hugging Face config.json (or its directory), or a TOML file of ours."""
    if not name.strip():
        raise InputError("model: the name is empty; needs a preset, a config.json (or its directory) or a TOML file")
    path = Path(name)
    if _looks_like_a_file(name) or _is_directory(path):
        return _model_from_path(path)
    return _model_preset(name)


def _looks_like_a_file(name: str) -> bool:
    return "/" in name or Path(name).suffix.lower() in (".json", ".toml", ".yaml", ".yml")


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # too long to be the name of anything
        return False


@cache
def _model_preset(name: str) -> ModelSpec:
    model_id = resolve_preset("models", name)
    data, where = preset_data("models", model_id), f"preset models/{model_id}.toml"
    kinds: dict[str, type[MoeSpec | MlaSpec]] = {"moe": MoeSpec, "mla": MlaSpec}
    parts = {name: trust(kind, data[name], where) for name, kind in kinds.items() if name in data}
    return trust(ModelSpec, data | parts, where)


def model_of_hf(name: str) -> ModelSpec | None:
    """The preset that is read from the config.json of this Hugging Face model, by the source that it names."""
    if not re.fullmatch(r"[\w.-]{1,100}/[\w.-]{1,100}", name):
        return None
    stated = re.compile(rf"config\.json of {re.escape(name)}(?![\w.-]*\w)")
    found = [preset for preset in preset_names("models") if stated.search(str(preset_data("models", preset)["source"]))]
    return _model_preset(found[0]) if found else None


def _model_from_path(path: Path) -> ModelSpec:
    if _is_directory(path):
        path = path / "config.json"
    data = read_mapping(path)
    if "num_layers" in data and "model_type" not in data and "architectures" not in data:
        return validate(ModelSpec, {"name": path.stem} | data, str(path))
    from ppadvisor.specs.hf_config import model_from_hf_config

    return model_from_hf_config(data, str(path))
