"""Where nothing fits: the plan that comes closest, and the single changes that would make one fit."""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import plan_of
from ppadvisor.errors import InputError
from ppadvisor.search.advise import miss_note, short_plan
from ppadvisor.search.balance import split_that_fits
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import Ranked, nearest_row, rank
from ppadvisor.search.results import Change, NearestMiss
from ppadvisor.specs.cluster import ClusterSpec

MOST_GPU_DOUBLINGS = 8


def nearest_miss(ranked: Ranked, pins: Pins, *, margin: float) -> NearestMiss | None:
    """Where nothing fits: the closest plan, which stage, by how much, and what would make something fit."""
    row = nearest_row(ranked)
    if row is None:
        return None
    estimate = estimate_plan(ranked.problem, plan_of(ranked.plans, row), margin=margin)
    memory = estimate.memory
    stage = memory.stages[memory.binding_stage]
    message = f"nearest miss: {short_plan(estimate.plan)}; stage {stage.stage} {miss_note(estimate.memory)}"
    return NearestMiss(
        estimate=estimate,
        short_by_bytes=max(-memory.headroom_bytes, memory.conservative_bytes - memory.capacity_bytes),
        message=message,
        changes=(*_other_split(ranked.problem, estimate, margin), *_changes(ranked.problem, pins, margin)),
    )


def _other_split(problem: Problem, estimate: PlanEstimate, margin: float) -> list[Change]:
    """The same plan with other layers on its stages, where that makes it fit."""
    found = split_that_fits(problem, estimate.plan, margin=margin)
    if found is None:
        return []
    layers = ", ".join(map(str, found.plan.layers_per_chunk))
    return [
        Change(
            change=f"layers {layers} on its stages",
            step_time_s=found.time.step_time_s,
            peak_bytes=found.memory.peak_bytes,
            plan=short_plan(found.plan),
        )
    ]


def _changes(problem: Problem, pins: Pins, margin: float) -> list[Change]:
    """Single changes, each tried by a search: lift one pin, shard more, train on more GPUs."""
    trials: list[tuple[str, Problem, Pins]] = [
        (f"lift the pin on {name}", problem, pins.without(name)) for name in pins.given()
    ]
    most = max(problem.framework.optimizer_sharding)
    if most > problem.framework.default_optimizer_sharding and pins.optimizer_sharding is None:
        sharded = pins.with_values(optimizer_sharding=(most,))
        trials.append((f"optimizer_sharding = {most} (ZeRO-{most})", problem, sharded))
    if problem.training.loss != "fused":
        fused = replace(problem, training=problem.training.changed(loss="fused"))
        trials.append(("a fused cross entropy (loss = fused)", fused, pins))
    found = [change for title, changed, with_pins in trials for change in _try(title, changed, with_pins, margin)]
    return found + _more_gpus(problem, pins, margin)


def _more_gpus(problem: Problem, pins: Pins, margin: float) -> list[Change]:
    for doubling in range(1, MOST_GPU_DOUBLINGS + 1):
        gpus = problem.cluster.num_gpus * 2**doubling
        cluster = _grown(problem.cluster, gpus)
        found = _try(f"{gpus} GPUs", replace(problem, cluster=cluster), pins, margin)
        if found:
            return found
    return []


def _grown(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """The cluster with more GPUs; a single node that was not full is filled first."""
    node = cluster.gpus_per_node
    if cluster.num_gpus == node < cluster.gpu.gpus_per_node:
        node = min(cluster.gpu.gpus_per_node, gpus)
    return cluster.changed(num_gpus=gpus, gpus_per_node=node)


def _try(title: str, problem: Problem, pins: Pins, margin: float) -> list[Change]:
    try:
        ranked = rank(problem, pins, margin=margin)
    except InputError:
        return []
    if not len(ranked.order):
        return []
    row = int(ranked.order[0])
    plan = plan_of(ranked.plans, row)
    return [
        Change(
            change=title,
            step_time_s=float(ranked.estimates.step_time_s[row]),
            peak_bytes=int(ranked.estimates.peak_bytes[row]),
            plan=short_plan(plan),
        )
    ]
