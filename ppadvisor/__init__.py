"""Pipeline-parallel training plans, ranked: the public names, each imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppadvisor.search.api import plan
    from ppadvisor.search.pins import Pins
    from ppadvisor.specs.assumptions import Assumptions
    from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
    from ppadvisor.specs.load import load_cluster, load_model
    from ppadvisor.specs.model import ModelSpec
    from ppadvisor.specs.training import TrainingSpec

    __version__: str

__all__ = [
    "Assumptions",
    "ClusterSpec",
    "GpuSpec",
    "ModelSpec",
    "Pins",
    "TrainingSpec",
    "__version__",
    "load_cluster",
    "load_model",
    "plan",
]

_MODULES = {
    "Assumptions": "ppadvisor.specs.assumptions",
    "ClusterSpec": "ppadvisor.specs.cluster",
    "GpuSpec": "ppadvisor.specs.cluster",
    "ModelSpec": "ppadvisor.specs.model",
    "Pins": "ppadvisor.search.pins",
    "TrainingSpec": "ppadvisor.specs.training",
    "load_cluster": "ppadvisor.specs.load",
    "load_model": "ppadvisor.specs.load",
    "plan": "ppadvisor.search.api",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version  # 15 ms that only those who ask for the version pay

        return version("ppadvisor")
    if name not in _MODULES:
        raise AttributeError(f"module 'ppadvisor' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
