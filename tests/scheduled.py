"""A few plans of any schedule: sizes that it can run, several v, uneven chunks."""

from __future__ import annotations

import random

from ppadvisor import frameworks, schedules
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import layers_of_ranks
from ppadvisor.specs.plan import PlanSpec
from tests.problems import random_plans, random_split

RUNS = tuple(
    dict.fromkeys(
        [
            *((name, schedule) for name in frameworks.FRAMEWORKS for schedule in frameworks.get(name).schedules),
            *(("generic", schedule) for schedule in schedules.SCHEDULES),
        ]
    )
)
"""(framework, schedule): what each framework lists, and every schedule under the generic one."""

MOST_MICROBATCHES = 32
"""More tell nothing new, and every action of an order is looked at."""


def scheduled_plans(of: Problem, schedule: str, count: int, *, seed: int = 0) -> list[PlanSpec]:
    """Plans that multiply to the GPUs and the batch, with random chunks and every kind of sharding."""
    rng = random.Random(f"{schedule} {seed}")
    found: list[PlanSpec] = []
    while len(found) < count:
        one = _attempt(of, schedule, rng)
        if one is not None:
            found.append(one)
    return found


def _attempt(of: Problem, schedule: str, rng: random.Random) -> PlanSpec | None:
    """One plan, or None where the schedule or the model cannot have these sizes."""
    sizes = random_plans(of, 1, seed=rng.randrange(2**32))[0]
    declared = schedules.get(schedule)
    v = declared.virtual_stages.default + declared.virtual_stages.step * rng.randrange(3)
    p, m = sizes.pipeline_parallel, sizes.num_microbatches
    possible = p * v <= of.model.num_layers and m <= MOST_MICROBATCHES and declared.problem(p, m, v) is None
    if not possible or (schedule == "none") != (p == 1):
        return None
    chunks = random_split(of.model.num_layers, p * v, rng)
    changed = {
        "schedule": schedule,
        "virtual_stages": v,
        "layers_per_stage": layers_of_ranks(schedule, chunks, v),
        "layers_per_chunk": chunks,
    }
    return PlanSpec(**{**sizes.as_dict(), **changed})
