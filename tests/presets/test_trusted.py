"""Presets are built as they stand, without pydantic: they are what it would make of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ppadvisor.specs.base import Spec
from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.specs.load import load_cluster, load_gpu, load_model, load_stack, preset_names
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.stack import StackSpec
from ppadvisor.specs.validation import validate

KINDS: tuple[tuple[Callable[[str], Spec], type[Spec], tuple[str, ...]], ...] = (
    (load_model, ModelSpec, preset_names("models")),
    (load_gpu, GpuSpec, preset_names("gpus")),
    (load_cluster, ClusterSpec, preset_names("clusters")),
    (load_stack, StackSpec, preset_names("stacks")),
)
PRESETS = [(load, kind, name) for load, kind, names in KINDS for name in names]


@pytest.mark.parametrize(("load", "kind", "name"), PRESETS, ids=[name for *_, name in PRESETS])
def test_a_preset_is_valid(load: Callable[[str], Spec], kind: type[Spec], name: str) -> None:
    """Each preset, validated from its plain values, is the same to the last kind of number."""
    preset = load(name)
    assert repr(validate(kind, preset.as_dict(), name)) == repr(preset)
