"""A split in the words of torchtitan's TOML, the shortest way to say it.

Source: pytorch/torchtitan commit 238fa995, torchtitan/distributed/pipeline_parallel.py:54-123, 236-344.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

from ppadvisor.frameworks.torchtitan.job import LESS, MODULES, PER_STAGE, SCHEDULE, SCHEDULES, TORCH_NAMES, P
from ppadvisor.frameworks.torchtitan.split import DEFAULT_STAGES, MOST_COUNTED, own_split, stage_modules
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec


def torch_name(schedule: str) -> str:
    """torch's name of a schedule; of one that it does not have, ours.

    >>> torch_name("zb-v")
    'ZBVZeroBubble'
    """
    return next((name for name in TORCH_NAMES if SCHEDULES[name.lower()] == schedule), schedule)


def stage_options(plan: PlanSpec) -> Iterator[tuple[str, int | list[list[str]]]]:
    """(option of `parallelism`, value): what embedding and head count as, layers of a stage; else every module."""
    split = plan.layers_per_chunk
    stages, layers = len(split), sum(split)
    by_default = plan.virtual_stages == DEFAULT_STAGES.get(plan.schedule, 2)
    # 1 and 1 are the defaults
    for first, last in ((1, 1), *product(range(MOST_COUNTED + 1), repeat=2)):
        per_stage = -(-(layers + first + last) // stages)
        makes_them = by_default or -(-(layers + first + last) // per_stage) == stages
        if makes_them and own_split(layers, stages, first, last) == split:
            if (first, last) != (1, 1):
                yield _short(LESS[0]), first
                yield _short(LESS[1]), last
            if not by_default:
                yield _short(PER_STAGE), per_stage
            return
    yield _short(MODULES), stage_modules(split, head="output")


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def settings(_: ModelSpec, plan: PlanSpec) -> dict[str, str]:
    """Options of a file that build a plan's stages, the schedule with them."""
    if plan.pipeline_parallel == 1:
        return {}
    section = P.rpartition(".")[0]
    options = {f"{section}.{name}": json.dumps(value) for name, value in stage_options(plan)}
    return {P: str(plan.pipeline_parallel), SCHEDULE: torch_name(plan.schedule)} | options
