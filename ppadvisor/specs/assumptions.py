"""Numbers that nobody can know before the run: each with a default, a range and where it comes from.

Every report shows the ones it used; `--assume NAME=VALUE` or `[assumptions]` of a job file replaces one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ppadvisor.errors import InputError, unknown_name
from ppadvisor.specs.calibrated import CalibratedAssumption

GIVEN = "given by the user"
CALIBRATED = "calibrated"

DEFAULT = "default assumption"
"""Provenance of an assumption that nobody knows better."""
GIVEN = "given by the user"
"""Provenance of what the user knows better."""


@dataclass(frozen=True)
class Assumption:
    """A default, the range that published runs leave open, the unit, and the source."""

    value: float
    low: float
    high: float
    unit: str
    source: str
    provenance: str = DEFAULT


@dataclass(frozen=True)
class Assumptions:
    """All assumptions of the engine. Fractions are of the datasheet's number."""

    gemm_efficiency: Assumption = Assumption(
        0.65,
        0.45,
        0.80,
        "fraction of peak",
        "large matrix products of published A100/H100 runs reach 0.57-0.73 of the dense peak; best shapes 0.80-0.87 "
        "(stas00/ml-engineering, MAMF table)",
    )
    attention_efficiency: Assumption = Assumption(
        0.50,
        0.30,
        0.75,
        "fraction of peak",
        "FlashAttention-2 forward 0.50-0.73 of A100 peak (Dao 2023, arXiv 2307.08691, figure 5)",
    )
    attention_backward_efficiency: Assumption = Assumption(
        0.40, 0.24, 0.60, "fraction of peak", "FlashAttention-2 backward (Dao 2023, arXiv 2307.08691, figure 6)"
    )
    hbm_efficiency: Assumption = Assumption(
        0.80, 0.70, 0.92, "fraction of bandwidth", "STREAM-like kernels on A100/H100 reach 0.80-0.92 of the datasheet"
    )
    intra_node_efficiency: Assumption = Assumption(
        0.70,
        0.55,
        0.85,
        "fraction of bandwidth",
        "all-reduce bus bandwidth of 8 A100 about 200-208 of 300 GB/s (NVIDIA/nccl-tests issues 149, 178)",
    )
    inter_node_efficiency: Assumption = Assumption(
        0.80, 0.50, 0.96, "fraction of bandwidth", "85-96 of 100 GB/s over 4 HDR links (NVIDIA/nccl-tests issue 119)"
    )
    nic_sharing_exponent: Assumption = Assumption(
        0.8,
        0.6,
        1.0,
        "exponent",
        "r ranks of a node in one ring get r^x of one NIC's rate, 1 is perfect sharing; 0.8 suits BLOOM's and vTrain's "
        "data-parallel times",
    )
    collective_latency_s: Assumption = Assumption(
        20e-6, 5e-6, 50e-6, "s", "start of a collective inside a node (nccl-tests, small messages)"
    )
    handoff_latency_s: Assumption = Assumption(
        60e-6, 10e-6, 100e-6, "s", "one point-to-point message with its synchronisation"
    )
    layer_launch_s: Assumption = Assumption(
        0.6e-3,
        0.2e-3,
        0.85e-3,
        "s",
        "CPU time to launch a layer's forward: 0.85 ms fits vTrain's A100 single-node runs with small layers; "
        "flash attention launches fewer kernels",
    )
    step_overhead_s: Assumption = Assumption(
        10e-3, 1e-3, 50e-3, "s", "per step: gradient-norm and loss synchronisation, data loading, logging"
    )
    gemm_launch_s: Assumption = Assumption(5e-6, 3e-6, 10e-6, "s", "start and tail of one matrix-product kernel")
    data_parallel_overlap: Assumption = Assumption(
        0.5, 0.0, 0.95, "fraction", "share of gradient reduction and parameter gathering hidden under compute"
    )
    gather_piece_s: Assumption = Assumption(
        0.0,
        0.0,
        0.0,
        "s",
        "CPU time for one rank's piece of one tensor in ZeRO-3; nothing where a collective takes a flat tensor, as in "
        "FSDP and in DeepSpeed since its version 0.5.5",
    )
    context_parallel_overlap: Assumption = Assumption(
        0.5, 0.0, 0.9, "fraction", "share of the key/value exchange hidden under attention"
    )
    expert_parallel_overlap: Assumption = Assumption(
        0.0, 0.0, 0.8, "fraction", "share of the token exchange hidden (none without a dedicated overlap schedule)"
    )
    expert_load_factor: Assumption = Assumption(
        1.0, 1.0, 1.5, "ratio", "tokens of the fullest expert rank over the mean (1 = balanced routing)"
    )
    allocator_overhead: Assumption = Assumption(
        0.07,
        0.0,
        0.15,
        "fraction of allocated",
        "reserved over allocated in published runs: 1.03-1.08 (SimuMax, B200), 1.06-1.15 (Vocabulary Parallelism); "
        "next to nothing with expandable segments",
    )
    eager_overhead: Assumption = Assumption(
        0.30,
        0.05,
        0.40,
        "fraction of activations",
        "takes the place of allocator_overhead for eager layers without fused kernels; 0.25-0.40 suits alike the runs "
        "of Efficient Parallelization Layouts (arXiv 2311.05610) that are labelled calibrates",
    )
    reduction_buckets: Assumption = Assumption(
        2.0,
        1.0,
        4.0,
        "buckets",
        "flattened buckets of gradients alive at once, where the trainer reduces by buckets: 1 where the CPU waits for "
        "each, all where it runs ahead (DeepSpeed, stage_1_and_2.py)",
    )
    cuda_context_bytes: Assumption = Assumption(
        1.25 * 2**30,
        0.5 * 2**30,
        1.6 * 2**30,
        "bytes",
        "CUDA context and kernels of one process: V100 1.1-1.3, A100 1.5 GiB under CUDA 11 (BigScience's notes on its "
        "runs), about 0.5 GiB where kernels are loaded lazily",
    )
    workspace_bytes: Assumption = Assumption(
        0.1 * 2**30,
        0.07 * 2**30,
        0.35 * 2**30,
        "bytes",
        "cuBLAS and fused-kernel workspaces (Megatron CI static memory)",
    )
    communicator_bytes: Assumption = Assumption(
        0.125 * 2**30,
        0.03 * 2**30,
        0.65 * 2**30,
        "bytes",
        "NCCL buffers of one communicator on one rank: 9.2 MiB a connection and channel (NCCL 2.10, init.cc:464), few "
        "for two ranks, 0.65 GiB for eight A100 in a node",
    )

    def changed(self, given: dict[str, float]) -> Assumptions:
        """These assumptions with some values replaced. InputError for an unknown name or a value out of reach."""
        names = tuple(f.name for f in fields(self))
        updates = {}
        for name, value in given.items():
            if name not in names:
                raise unknown_name("assumption", name, names)
            old: Assumption = getattr(self, name)
            _check(name, value, old.unit)
            updates[name] = replace(
                old, value=value, low=min(old.low, value), high=max(old.high, value), provenance=GIVEN
            )
        return replace(self, **updates)

    def calibrated(self, measured: Mapping[str, CalibratedAssumption]) -> Assumptions:
        """These assumptions with what was measured on the cluster; what the user gave stays.

        InputError for an unknown name or a value out of reach.
        """
        names = tuple(f.name for f in fields(self))
        updates = {}
        for name, one in measured.items():
            if name not in names:
                raise unknown_name("calibrated assumption", name, names)
            old: Assumption = getattr(self, name)
            for number in (one.low, one.value, one.high):
                _check(name, number, old.unit)
            if old.provenance != GIVEN:
                updates[name] = Assumption(one.value, one.low, one.high, old.unit, one.source, CALIBRATED)
        return replace(self, **updates)


LARGEST = 1e15
"""No time, size or ratio of a run is near this: what lies beyond is a slip of the keyboard."""


def _check(name: str, value: float, unit: str) -> None:
    """InputError for a value that the quantity cannot have; not a number is none of them."""
    largest = 1.0 if unit.startswith(("fraction", "exponent")) else LARGEST
    # the fullest rank has the mean at least, and what runs at no rate at all never ends
    least = 1.0 if unit == "ratio" else 0.0
    if not least <= value <= largest or (value == 0 and "efficiency" in name):
        above = "above 0" if "efficiency" in name else f"at least {least:g}"
        raise InputError(f"assumption {name}: got {value:g}; needs {above} and at most {largest:g} ({unit})")
