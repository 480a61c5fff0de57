"""The GPU and cluster presets: every file is a whole, plausible record, and known values stand as published."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any

import pytest

from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.specs.validation import validate

PRESETS = files("ppadvisor") / "presets"


def _ids(folder: str) -> list[str]:
    names = (entry.name for entry in (PRESETS / folder).iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def _read(folder: str, preset: str) -> dict[str, Any]:
    return tomllib.loads((PRESETS / folder / f"{preset}.toml").read_text(encoding="utf-8"))


def _gpu(preset: str) -> GpuSpec:
    return validate(GpuSpec, _read("gpus", preset), preset)


def _nominal_bytes(preset: str) -> float:
    match = re.search(r"-(\d+)gb(-|$)", preset)
    assert match is not None, f"no memory size in the id {preset}"
    return int(match[1]) * 1e9


GPUS = _ids("gpus")
CLUSTERS = _ids("clusters")

# GPU ids of the measured runs the tool is validated on: a run names its GPU by the preset's id.
MEASURED_GPUS = (
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a800-sxm-80gb",
    "b200-sxm-180gb",
    "b300-sxm-288gb",
    "gb200-186gb",
    "gb300-288gb",
    "h100-sxm-80gb",
    "h100-sxm-96gb-500w",
    "h200-sxm-141gb",
    "mi300x-192gb",
    "mi355x-288gb",
    "v100-sxm-16gb",
    "v100-sxm-32gb",
)

# Dense peaks as the vendor prints them.
PUBLISHED_PEAKS = (
    ("v100-sxm-32gb", "fp16", 125e12),  # NVIDIA V100 datasheet, January 2020
    ("v100-pcie-16gb", "fp16", 112e12),  # NVIDIA V100 datasheet, January 2020
    ("a100-sxm-80gb", "bf16", 312e12),  # NVIDIA A100 datasheet, June 2021
    ("a100-sxm-80gb", "fp32", 156e12),  # the same, TF32
    ("h100-sxm-80gb", "bf16", 989.4e12),  # NVIDIA H100 architecture whitepaper v1.04
    ("h100-sxm-80gb", "fp8", 1978.9e12),  # the same
    ("h100-pcie-80gb", "bf16", 756e12),  # the same, H100 PCIe
    ("h100-nvl-94gb", "bf16", 1671e12 / 2),  # NVIDIA H100 datasheet, printed with sparsity
    ("b200-sxm-180gb", "bf16", 4.5e15 / 2),  # NVIDIA Blackwell datasheet, printed with sparsity
    ("gb200-186gb", "bf16", 360e15 / 72 / 2),  # NVIDIA GB200 NVL72 datasheet, a rack with sparsity
    ("l40s-48gb", "bf16", 362.05e12),  # NVIDIA L40S datasheet
    ("rtx-3090-24gb", "bf16", 71e12),  # NVIDIA GA102 whitepaper v2, FP32 accumulation
    ("rtx-4090-24gb", "bf16", 165.2e12),  # NVIDIA Ada whitepaper v2.1, FP32 accumulation
    ("mi250x-gcd-64gb", "bf16", 383e12 / 2),  # AMD MI250X data sheet, two dies
    ("mi300x-192gb", "bf16", 1307.4e12),  # AMD MI300X data sheet
    ("mi355x-288gb", "bf16", 2400e6 * 2 * 512 * 1024),  # 2.4 GHz, 1,024 matrix cores of 512 FMA: AMD's 2.5 PFLOP/s
)

# Per GPU and one direction: NVLink and Infinity Fabric datasheets print both directions together.
PUBLISHED_LINKS = (
    ("v100-sxm-32gb", 300e9 / 2),  # NVLink2
    ("a100-sxm-80gb", 600e9 / 2),  # NVLink3
    ("a800-sxm-80gb", 400e9 / 2),  # NVLink3, cut
    ("h100-sxm-80gb", 900e9 / 2),  # NVLink4
    ("h800-sxm-80gb", 400e9 / 2),  # NVLink4, cut
    ("b200-sxm-180gb", 1.8e12 / 2),  # NVLink5
    ("mi300x-192gb", 7 * 128e9 / 2),  # seven Infinity Fabric links
    ("l40s-48gb", 64e9 / 2),  # PCIe 4.0 x16
)

# Gb/s of a whole node and its GPUs, as the operator prints them.
PUBLISHED_NODES = (
    ("aws-p4d", 400, 8),  # AWS EC2 documentation
    ("aws-p5", 3200, 8),  # AWS EC2 documentation
    ("azure-nd-a100-v4", 8 * 200, 8),  # Microsoft Azure documentation, ND A100 v4
    ("azure-nd-h100-v5", 3200, 8),  # Microsoft Azure documentation, ND H100 v5
    ("dgx-a100-superpod", 8 * 200, 8),  # RA-09950-001
    ("gb200-nvl72", 72 * 400, 72),  # DGX GB200 user guide
    ("jean-zay-a100", 4 * 100, 8),  # BLOOM model card: four Omni-Path links
    ("jean-zay-v100", 4 * 100, 4),  # IDRIS: four Omni-Path links per converged node
)


@pytest.mark.parametrize("preset", GPUS)
def test_a_gpu_file_is_a_gpu_spec(preset: str) -> None:
    """A GPU file holds every field of GpuSpec, no other, each of its type."""
    assert set(_read("gpus", preset)) == set(GpuSpec.names())
    _gpu(preset)


@pytest.mark.parametrize("preset", GPUS)
def test_a_gpu_says_where_its_numbers_come_from(preset: str) -> None:
    """Peaks, memory and network of a GPU each name a source in more than a word."""
    gpu = _gpu(preset)
    for source in (gpu.source, gpu.memory_source, gpu.inter_node_source):
        assert len(source.split()) >= 5


@pytest.mark.parametrize("preset", GPUS)
def test_gpu_memory_is_near_the_size_in_its_id(preset: str) -> None:
    """The memory a program sees is at most the nominal size read as GiB, and not much below it read as GB."""
    nominal_bytes = _nominal_bytes(preset)
    assert 0.95 * nominal_bytes <= _gpu(preset).memory_bytes <= 1.075 * nominal_bytes


@pytest.mark.parametrize("preset", GPUS)
def test_gpu_peaks_are_plausible_and_dense(preset: str) -> None:
    """16-bit peaks lie between those of a 3090 and a GB300, fp8 is twice them, and fp32 at most half."""
    peaks = _gpu(preset).peak_flops_per_s
    assert 70e12 <= peaks["fp16"] <= 2600e12
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    assert peaks["fp32"] <= 0.51 * peaks["fp16"]  # datasheets round: 183 beside 362.05 for the L40S
    assert peaks.get("fp8", 2 * peaks["fp16"]) == pytest.approx(2 * peaks["fp16"], rel=0.02)


@pytest.mark.parametrize("preset", GPUS)
def test_gpu_bandwidths_fall_with_distance(preset: str) -> None:
    """A GPU reads its own memory faster than its neighbour's, and that one faster than another node's."""
    gpu = _gpu(preset)
    assert gpu.hbm_bandwidth_bytes_per_s > gpu.intra_node_bandwidth_bytes_per_s > gpu.inter_node_bandwidth_bytes_per_s


def test_the_gpus_of_the_measured_runs_have_presets() -> None:
    """Every GPU named by a measured run can be looked up."""
    assert set(MEASURED_GPUS) <= set(GPUS)


def test_volta_and_ampere_lack_the_later_formats() -> None:
    """V100 has no bf16, and no V100, Ampere or CDNA2 GPU has fp8."""
    without_bf16 = {preset for preset in GPUS if "bf16" not in _gpu(preset).peak_flops_per_s}
    without_fp8 = {preset for preset in GPUS if "fp8" not in _gpu(preset).peak_flops_per_s}
    assert without_bf16 == {preset for preset in GPUS if preset.startswith("v100-")}
    old = ("v100-", "a100-", "a800-", "a10-", "a6000-", "rtx-3090-", "mi250x-")
    assert without_fp8 == {preset for preset in GPUS if preset.startswith(old)}


@pytest.mark.parametrize(("preset", "precision", "flops_per_s"), PUBLISHED_PEAKS)
def test_published_peak(preset: str, precision: str, flops_per_s: float) -> None:
    """A dense peak equals the datasheet's."""
    peaks = {str(key): value for key, value in _gpu(preset).peak_flops_per_s.items()}
    assert peaks[precision] == pytest.approx(flops_per_s, rel=1e-4)


@pytest.mark.parametrize(("preset", "bytes_per_s"), PUBLISHED_LINKS)
def test_published_link(preset: str, bytes_per_s: float) -> None:
    """The link inside a node is counted in one direction: half of the datasheet's figure."""
    assert _gpu(preset).intra_node_bandwidth_bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("preset", "gib"),
    [
        ("h100-sxm-80gb", 79.10),  # Machine Learning Engineering Open Book, debug/pytorch.md
        ("b200-sxm-180gb", 178.35),  # the same
        ("gb300-288gb", 276.50),  # the same
        ("h100-sxm-96gb-500w", 95.00),  # pytorch/torchtitan pull request 1408
        ("a10-24gb", 22.05),  # InternLM/InternLM issue 71
    ],
)
def test_published_memory(preset: str, gib: float) -> None:
    """The memory of a GPU is what torch printed for it."""
    assert _gpu(preset).memory_bytes / 2**30 == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize("preset", CLUSTERS)
def test_a_cluster_file_makes_a_cluster_spec(preset: str) -> None:
    """A preset holds every field of ClusterSpec but provenance and calibration, a known GPU and whole nodes."""
    fields = _read("clusters", preset)
    assert set(fields) == set(ClusterSpec.names()) - {"provenance", "calibrated"}
    assert fields["gpu"] in GPUS
    validate(ClusterSpec, fields | {"gpu": _gpu(fields["gpu"])}, preset)
    assert len(fields["source"].split()) >= 5


@pytest.mark.parametrize("preset", CLUSTERS)
def test_a_cluster_has_the_links_of_its_gpu(preset: str) -> None:
    """Inside a node a cluster is as fast as its GPU's own link, and slower between nodes."""
    fields = _read("clusters", preset)
    gpu = _gpu(fields["gpu"])
    intra_node = fields["intra_node_bandwidth_bytes_per_s"]
    assert intra_node == gpu.intra_node_bandwidth_bytes_per_s
    assert fields["inter_node_bandwidth_bytes_per_s"] < intra_node


@pytest.mark.parametrize(("preset", "node_gb_per_s", "gpus"), PUBLISHED_NODES)
def test_published_node_network(preset: str, node_gb_per_s: int, gpus: int) -> None:
    """The network of a GPU is its share of the node's published Gb/s, in bytes."""
    fields = _read("clusters", preset)
    assert fields["gpus_per_node"] == gpus
    assert fields["inter_node_bandwidth_bytes_per_s"] == pytest.approx(node_gb_per_s * 1e9 / 8 / gpus)
