"""The splits that DeepSpeed's partition methods make: it takes no list of stages.

Source: microsoft/DeepSpeed commit 38327e07, deepspeed/runtime/pipe/module.py, `_partition_layers`, and
deepspeed/runtime/utils.py, `partition_balanced`: layers whose class fits a pattern count 1, all others 0, and the first
stages take one more.
"""

from __future__ import annotations

from ppadvisor.frameworks.profile import Split
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec

METHODS = {
    (0, 0): "type:<layer>",
    (0, 1): "type:<layer>|<head>",
    (1, 0): "type:<embedding>|<layer>",
    (1, 1): "type:<embedding>|<layer>|<head>",
}
"""Whether the embedding and the head count -> `partition_method`; <...> is the name of the class, or a part of it."""


def splits(model: ModelSpec, pipeline_parallel: int, virtual_stages: int) -> tuple[Split, ...]:
    """What it can build: as even as it goes, with embedding, head, both or neither counted as a layer."""
    if virtual_stages > 1:
        return ()
    made = (split_of(model.num_layers, pipeline_parallel, *counted) for counted in METHODS)
    return tuple(dict.fromkeys(split for split in made if min(split) >= 1))


def split_of(num_layers: int, stages: int, embedding: int, head: int) -> Split:
    """Layers of each stage where embedding and head count as so many.

    >>> split_of(24, 4, 1, 0)
    (6, 6, 6, 6)
    """
    base, more = divmod(num_layers + embedding + head, stages)
    sizes = [base + (stage < more) for stage in range(stages)]
    sizes[0] -= embedding
    sizes[-1] -= head
    return tuple(sizes)


def split_settings(model: ModelSpec, plan: PlanSpec) -> dict[str, str]:
    """The `partition_method` of a plan's split."""
    p, split = plan.pipeline_parallel, plan.layers_per_chunk
    fitting = (counted for counted in METHODS if split_of(model.num_layers, p, *counted) == split)
    counted = next(fitting, None)
    return {} if p == 1 or counted is None else {"partition_method": METHODS[counted]}
