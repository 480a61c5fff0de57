"""A split in torchtitan's words: layers that embedding and head count as, or the modules of every stage.

Source: pytorch/torchtitan commit b5bcd76c, torchtitan/config/configs.py:187-213 (options) and
torchtitan/distributed/pipeline_parallel.py:357-466 (the split that it makes itself).
"""

from __future__ import annotations

import json
from itertools import product

from ppadvisor.frameworks.profile import Split
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec

DEGREE = "parallelism.pipeline_parallel_degree"
FEWER = (
    "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers",
)
MODULES = "parallelism.module_fqns_per_model_part"

DEFAULT_STAGES = {"1f1b": 1, "gpipe": 1}
"""Stages a rank that torchtitan makes of a schedule if it is not told; 2 of all others."""
MOST_COUNTED = 8
"""Layers that embedding and head are tried as, at most."""


def split_settings(_: ModelSpec, plan: PlanSpec) -> dict[str, str]:
    """Options that build a plan's split: what embedding and head count as where that does it, else every module."""
    p, v, split = plan.pipeline_parallel, plan.virtual_stages, plan.layers_per_chunk
    if p == 1:
        return {}
    if v == DEFAULT_STAGES.get(plan.schedule, 2):
        # 1 and 1 are the defaults
        for counted in ((1, 1), *product(range(MOST_COUNTED + 1), repeat=2)):
            if own_split(sum(split), p * v, *counted) == split:
                fewer = {} if counted == (1, 1) else dict(zip(FEWER, map(str, counted), strict=True))
                return {DEGREE: str(p)} | fewer
    return {DEGREE: str(p), MODULES: json.dumps(stage_modules(split))}


def own_split(num_layers: int, num_stages: int, embedding: int, head: int) -> Split | None:
    """The split that torchtitan makes where embedding and head count as so many layers; the first ones take the rest.

    Its own example, of 3 layers on 2 stages with 2 and 2:

    >>> own_split(3, 2, 2, 2)
    (2, 1)
    """
    base, more = divmod(num_layers + embedding + head, num_stages)
    if max(embedding, head) > base:
        return None
    sizes = [base + (stage < more) for stage in range(num_stages)]
    sizes[0] -= embedding
    sizes[-1] -= head
    return tuple(sizes)


def stage_modules(split: Split, head: str = "lm_head") -> list[list[str]]:
    """The names of the modules of each stage, in model order; the head's was `output` while TOML was read.

    >>> stage_modules((1, 1))
    [['tok_embeddings', 'layers.0'], ['layers.1', 'norm', 'lm_head']]
    """
    starts = [sum(split[:stage]) for stage in range(len(split))]
    stages = [[f"layers.{start + i}" for i in range(size)] for start, size in zip(starts, split, strict=True)]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", head]
    return stages
