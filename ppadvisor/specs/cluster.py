"""The machines: one GPU kind, how many, and the links between them."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Literal

from ppadvisor.specs.base import Spec, check_count
from ppadvisor.specs.calibrated import CalibratedAssumption

if TYPE_CHECKING:
    from ppadvisor.specs.kinds import Field, PositiveBytes, PositiveFloat, PositiveInt

Precision = Literal["bf16", "fp16", "fp32", "fp8"]

MAX_GPUS = 10_000_000
"""Beyond any cluster; their divisors are found by trying."""


class GpuSpec(Spec):
    """One GPU as a program sees it. Peaks are dense (no sparsity) matrix rates."""

    name: str
    architecture: str = ""
    """Generation, as `hopper`: what a software stack reaches on it; where empty, what it reaches on any."""
    source: str
    """Datasheet (title and where it stands) of peaks and bandwidths."""
    memory_bytes: PositiveBytes
    """What the driver shows to a program (total memory of the device, after ECC and reservations)."""
    memory_source: str
    """Where `memory_bytes` was read; says so when it is estimated from the nominal size."""
    peak_flops_per_s: dict[Precision, PositiveFloat]
    """Dense peak FLOP/s by precision of the matrix multiplications; `fp32` is TF32 where the GPU has it."""
    hbm_bandwidth_bytes_per_s: PositiveFloat
    intra_node_bandwidth_bytes_per_s: PositiveFloat
    """Per GPU and direction inside a node (NVLink, Infinity Fabric or PCIe)."""
    inter_node_bandwidth_bytes_per_s: PositiveFloat
    """Per GPU and direction between nodes in this GPU's reference system: the default where the user says nothing."""
    inter_node_source: str
    gpus_per_node: PositiveInt
    """GPUs in one node (one high-speed domain) of the reference system."""


class ClusterSpec(Spec):
    """`num_gpus` equal GPUs in nodes of `gpus_per_node`; bandwidths are per GPU and direction."""

    name: str
    source: str
    gpu: GpuSpec
    num_gpus: Annotated[PositiveInt, Field(le=MAX_GPUS)]
    gpus_per_node: PositiveInt
    intra_node_bandwidth_bytes_per_s: PositiveFloat
    inter_node_bandwidth_bytes_per_s: PositiveFloat
    provenance: dict[str, str] = field(default_factory=dict)
    """Field name -> where its number comes from (`given`, `preset ...`, `default ...`)."""
    calibrated: dict[str, CalibratedAssumption] = field(default_factory=dict)
    """Assumptions that were measured on this cluster, by name: `ppadvisor calibrate` writes them."""

    def check(self) -> None:
        """ValueError for another number of GPUs than there can be, and where the nodes are not whole."""
        check_count("num_gpus", self.num_gpus, MAX_GPUS)
        if self.num_gpus > self.gpus_per_node and self.num_gpus % self.gpus_per_node:
            raise ValueError(
                f"num_gpus (--gpus) must be a whole number of nodes: got {self.num_gpus} GPUs in nodes of "
                f"{self.gpus_per_node}; give gpus_per_node (--gpus-per-node) too"
            )
