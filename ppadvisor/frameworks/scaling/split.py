"""A split in the words of Aleph Alpha's scaling: the first module of every stage.

Source: Aleph-Alpha/scaling commit 737f855, src/scaling: core/topology/topology_config.py:71-79 (options),
core/nn/parallel_module/pipeline_partitioning.py (what they mean) and transformer/model/model.py:84 (the modules: the
embedding, the layers, the final norm, the head).
"""

from __future__ import annotations

import json

from ppadvisor.frameworks.profile import Split
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec

SIZE = "topology.pipe_parallel_size"
METHOD = "topology.pipe_partition_method"
OVERWRITE = "topology.pipe_partition_overwrite"

BEFORE, AFTER = 1, 2
"""Modules in front of the layers and behind them."""


def split_settings(_: ModelSpec, plan: PlanSpec) -> dict[str, str]:
    """The number of stages, and where each begins unless an even division of the modules does that."""
    p, split = plan.pipeline_parallel, plan.layers_per_chunk
    if p == 1:
        return {}
    even = split == own_split(sum(split), p)
    return {SIZE: str(p)} | ({METHOD: "uniform"} if even else {OVERWRITE: json.dumps(stage_starts(split))})


def own_split(num_layers: int, stages: int) -> Split:
    """Layers of each stage where the modules are divided evenly and the first stages take one more (`uniform`).

    >>> own_split(80, 4)
    (20, 21, 21, 18)
    """
    base, more = divmod(BEFORE + num_layers + AFTER, stages)
    sizes = [base + (stage < more) for stage in range(stages)]
    sizes[0] -= BEFORE
    sizes[-1] -= AFTER
    return tuple(sizes)


def stage_starts(split: Split) -> list[int]:
    """The first module of each stage, and behind them the number of modules.

    >>> stage_starts((20, 20, 20, 20))
    [0, 21, 41, 61, 83]
    """
    ends = [BEFORE + sum(split[: stage + 1]) for stage in range(len(split))]
    return [0, *ends[:-1], ends[-1] + AFTER]
