"""The splits that the zero-bubble fork builds: equal stages, where need be with layers left out at fixed places.

Source: sail-sg/zero-bubble-pipeline-parallelism commit 39f2c186, megatron/training/arguments.py:260-300 and
megatron/legacy/model/transformer.py, `get_offset`: the layers are padded to a multiple of p, and the padding is taken
from the last stage, then from the first, the second, .... It has none of Megatron's flags for uneven stages.
"""

from __future__ import annotations

from ppadvisor.frameworks.profile import Split
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec

PADDING = "--allow-padding-num-layers"
SIZE = "--pipeline-model-parallel-size"
CHUNK = "--num-layers-per-virtual-pipeline-stage"


def splits(model: ModelSpec, pipeline_parallel: int, virtual_stages: int) -> tuple[Split, ...]:
    """The one split that it builds; none where a rank's layers are no multiple of v or a stage would be empty."""
    built = padded_split(model.num_layers, pipeline_parallel, virtual_stages)
    return () if built is None else (built,)


def padded_split(num_layers: int, pipeline_parallel: int, virtual_stages: int) -> Split | None:
    """Layers of each stage in model order; None where there is no such split."""
    per_rank = -(-num_layers // pipeline_parallel)
    if per_rank % virtual_stages:
        return None
    sizes = [per_rank // virtual_stages] * (pipeline_parallel * virtual_stages)
    for stage in range(-1, per_rank * pipeline_parallel - num_layers - 1):
        sizes[stage] -= 1
    return tuple(sizes) if min(sizes) >= 1 else None


def split_settings(_: ModelSpec, plan: PlanSpec) -> dict[str, str]:
    """The flags for a plan's split. V-shaped schedules set v themselves."""
    p, v, split = plan.pipeline_parallel, plan.virtual_stages, plan.layers_per_chunk
    settings = {SIZE: str(p)}
    if plan.schedule == "interleaved-1f1b":
        settings[CHUNK] = str(-(-sum(split) // p) // v)
    return settings | ({PADDING: ""} if sum(split) % p else {})
