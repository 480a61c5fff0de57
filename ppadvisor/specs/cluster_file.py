"""A cluster as a file of one's own: the keys of a cluster preset, the GPU by its id or as a table, what was calibrated.

name = "our cluster"
source = "data sheet"
gpu = "h100-sxm-80gb"
num_gpus = 64
...
[calibrated.gemm_efficiency]
value = 0.58
low = 0.55
high = 0.61
source = "calibrated on 2026-11-29 to run.log, 40 step lines"
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.files import read_mapping
from ppadvisor.specs.load import load_gpu, preset_names
from ppadvisor.specs.validation import validate


def read_cluster(path: Path) -> ClusterSpec:
    """The cluster of a file. InputError, with the file's name, for whatever is wrong with it."""
    data = read_mapping(path)
    try:
        if isinstance(data.get("gpu"), str):
            data["gpu"] = load_gpu(data["gpu"])
        cluster = validate(ClusterSpec, data, "cluster")
        Assumptions().calibrated(cluster.calibrated)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return cluster


def cluster_toml(cluster: ClusterSpec) -> str:
    """The file that reads as this cluster: the same text for the same cluster."""
    data = cluster.as_dict()
    preset = next((name for name in preset_names("gpus") if load_gpu(name) == cluster.gpu), None)
    data["gpu"] = preset or data["gpu"]
    return "\n".join(_lines(data, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A TOML table: its plain values, then its tables; empty ones are left out."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in table.items() if isinstance(value, dict) and value}
    if path and values:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, inner in tables.items():
        yield from _lines(inner, (*path, key))


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").isalnum() else _value(name)


def _value(value: str | int | float) -> str:
    """Of these kinds a JSON value is a TOML value, but for one character."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
