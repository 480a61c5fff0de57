"""Plans for people, rows for the engine: the two ways between `PlanSpec` and `PlanTable`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.inputs import layout_of
from ppadvisor.engine.partition import Split
from ppadvisor.errors import InputError
from ppadvisor.specs.plan import PlanSpec, PlanTable


def layers_of_ranks(schedule: str, split: Split, virtual_stages: int) -> Split:
    """Layers of each rank, all its chunks together; with two copies of the model, of each stage."""
    if virtual_stages == 1:
        return split
    return tuple(sum(split[stage] for stage in held) for held in layout_of(schedule, split, virtual_stages).placement)


def plan_of(plans: PlanTable, row: int) -> PlanSpec:
    """One row, as people read it."""
    special = ("schedule", "recompute", "split")
    sizes: dict[str, Any] = {
        name: int(getattr(plans, name)[row]) for name in PlanTable.column_names() if name not in special
    }
    schedule, split = plans.schedule_names[int(plans.schedule[row])], plans.splits[int(plans.split[row])]
    recomputation: dict[str, Any] = PlanSpec.recomputation_fields(plans.recomputations[int(plans.recompute[row])])
    return PlanSpec.trusted(
        **sizes,
        **recomputation,
        schedule=schedule,
        microbatch_group_size=schedules.microbatch_group(
            schedule, sizes["pipeline_parallel"], sizes["num_microbatches"], sizes["virtual_stages"]
        ),
        layers_per_stage=layers_of_ranks(schedule, split, sizes["virtual_stages"]),
        layers_per_chunk=split,
    )


def table_of(*plans: PlanSpec) -> PlanTable:
    """A row for each plan. InputError where the layers of ranks and of virtual stages contradict each other."""
    for plan in plans:
        _check_layers(plan)
    special: dict[str, list[Any]] = {
        "schedule": [plan.schedule for plan in plans],
        "split": [plan.layers_per_chunk for plan in plans],
        "recompute": [plan.recomputation for plan in plans],
    }
    distinct = {name: tuple(dict.fromkeys(values)) for name, values in special.items()}
    index = {name: [distinct[name].index(value) for value in values] for name, values in special.items()}
    columns = {
        name: np.array(index.get(name) or [getattr(plan, name) for plan in plans], dtype=np.int64)
        for name in PlanTable.column_names()
    }
    names, splits, recomputations = (distinct[name] for name in special)
    return PlanTable(**columns, schedule_names=names, splits=splits, recomputations=recomputations)


def _check_layers(plan: PlanSpec) -> None:
    stages = plan.pipeline_parallel * plan.virtual_stages
    if len(plan.layers_per_chunk) != stages:
        raise InputError(f"layers_per_chunk: got {len(plan.layers_per_chunk)} numbers, needs p v = {stages}")
    ranks = layers_of_ranks(plan.schedule, plan.layers_per_chunk, plan.virtual_stages)
    if ranks != plan.layers_per_stage:
        raise InputError(f"layers_per_stage: got {plan.layers_per_stage}, but layers_per_chunk make {ranks}")
