"""The space: everything that was promised, and no more; what is pinned holds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import plan_of
from ppadvisor.search.api import plan
from ppadvisor.search.pins import Pins
from ppadvisor.search.space import build_space
from tests.problems import cluster, model, plain_schedules, problem
from tests.search.asked import all_pinned, ask, every_case, plain, ranked


def expected_space(of: Problem) -> set[tuple[Any, ...]]:
    """Every (p, t, c, d, b, m, schedule, recompute) that the issue asks for, found by trying all numbers."""
    gpus, batch, layers = of.cluster.num_gpus, of.training.global_batch_size, of.model.num_layers
    found = set()
    for p, t, c, d in itertools.product(range(1, gpus + 1), repeat=4):
        splits = p <= layers
        in_node = of.cluster.gpus_per_node % t == 0
        long_enough = c in (1, 2, 4, 8) and of.training.sequence_length / c >= 1024
        if p * t * c * d != gpus or batch % d or not (splits and in_node and long_enough):
            continue
        local = batch // d
        for b, recompute in itertools.product((1, 2, 4, 8, 16, 32, 64), ("none", "selective", "full")):
            if local % b == 0 and (p == 1 or b < local):
                for schedule in ("none",) if p == 1 else ("gpipe", "1f1b"):
                    found.add((p, t, c, d, b, local // b, schedule, recompute))
        if p > 1:
            found |= {(p, t, c, d, local, 1, "naive", recompute) for recompute in ("none", "selective", "full")}
    return found


@pytest.mark.parametrize(("gpus", "batch", "layers"), [(8, 64, 12), (16, 48, 6), (24, 72, 7), (12, 20, 30)])
def test_the_space_is_all_that_was_promised(gpus: int, batch: int, layers: int) -> None:
    """p any stage count, t within a node, c and b powers of two, all recomputation and schedules, and no more."""
    machines = cluster(gpus, gpus_per_node=4)
    of = problem(model(num_layers=layers), machines=machines, global_batch_size=batch)
    plans = build_space(of, Pins()).plans
    names = np.array(plans.schedule_names)[plans.schedule]
    rows = [plan_of(plans, int(row)) for row in np.flatnonzero(np.isin(names, plain_schedules(of)))]
    assert len(set(rows)) == len(rows)  # none twice
    found = {
        (
            *(one.pipeline_parallel, one.tensor_parallel, one.context_parallel, one.data_parallel),
            *(one.micro_batch_size, one.num_microbatches, one.schedule, one.recompute),
        )
        for one in rows
    }
    assert found == expected_space(of)


def test_experts_are_divided_in_every_way() -> None:
    """Each divisor of 8 experts that the ranks of a stage allow, with experts whole on a rank or cut t ways."""
    plans = build_space(problem(model("moe"), num_gpus=8), Pins(pipeline_parallel=(2,), tensor_parallel=(2,))).plans
    found = set(zip(plans.expert_parallel.tolist(), plans.expert_tensor_parallel.tolist(), strict=True))
    assert found == {(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)}


@every_case
def test_every_plan_multiplies_and_holds_all_layers(name: str, framework: str) -> None:
    """p t c d are the GPUs, d b m the batch, the stages the layers; no stage is empty, none is alone at p = 1."""
    plans = ranked(name, framework).space.plans
    width = plans.tensor_parallel * plans.context_parallel * plans.data_parallel
    assert (plans.pipeline_parallel * width == 16).all()
    assert (plans.data_parallel * plans.micro_batch_size * plans.num_microbatches == 64).all()
    assert (width % (plans.expert_parallel * plans.expert_tensor_parallel) == 0).all()
    for split in plans.splits:
        assert sum(split) == 12
        assert min(split) >= 1
    assert {len(plans.splits[i]) for i in plans.split} == set(plans.pipeline_parallel.tolist())


def test_the_searched_values_are_told() -> None:
    """The echo lists, of each quantity, the values that occur."""
    of = problem(num_gpus=8, sequence_length=2048)
    searched = plan(of.model, of.cluster, of.training).problem.searched
    assert searched["pipeline_parallel"] == [1, 2, 4, 8]
    assert searched["context_parallel"] == [1, 2]
    assert searched["micro_batch_size"] == [1, 2, 4, 8, 16, 32, 64]
    assert set(searched["schedule"]) >= {"none", "naive", "gpipe", "1f1b"}
    assert searched["recompute"] == ["none", "selective", "full"]


def test_naive_is_the_whole_local_batch() -> None:
    """With schedule naive: m = 1, b = B / d, p > 1, whatever the batch."""
    for batch in (64, 60, 7):
        of = problem(num_gpus=4, global_batch_size=batch)
        plans = build_space(of, Pins(schedule=("naive",))).plans
        assert (plans.num_microbatches == 1).all()
        assert (plans.micro_batch_size * plans.data_parallel == batch).all()
        assert (plans.pipeline_parallel > 1).all()
        assert set(plans.pipeline_parallel.tolist()) == {2, 4}


PINS: list[Pins] = [
    Pins(pipeline_parallel=(4,)),
    Pins(pipeline_parallel=(2, 8), tensor_parallel=(1, 2)),
    Pins(data_parallel=(4,), context_parallel=(1,)),
    Pins(context_parallel=(4,)),
    Pins(expert_parallel=(2, 4), expert_tensor_parallel=(1,)),
    Pins(micro_batch_size=(4, 16)),
    Pins(num_microbatches=(8,)),
    Pins(num_microbatches=(4, 16), micro_batch_size=(2,)),
    Pins(schedule=("gpipe", "1f1b"), recompute=("full",)),
    Pins(schedule=("naive",)),
    Pins(optimizer_sharding=(0, 2)),
    Pins(virtual_stages=(1,)),
]


@pytest.mark.parametrize("pins", PINS, ids=Pins.describe)
def test_pins_hold_for_every_plan(pins: Pins) -> None:
    """Whatever is pinned has one of the pinned values in every plan that is evaluated or shown."""
    of = problem(model("moe"), sequence_length=4096)
    report, pins = ask(of, pins, top=20), plain(of, pins)
    assert report.plans
    for name, values in pins.given().items():
        assert {getattr(estimate.plan, name) for estimate in report.plans} <= set(values)
        assert set(report.problem.searched[name]) <= set(values)
    assert report.problem.pins == {name: list(values) for name, values in pins.given().items()}


def test_a_pin_may_leave_what_is_searched() -> None:
    """t beyond a node, c beyond the searched lengths and b that is no power of two are taken where they are pinned."""
    wide = problem(model(num_attention_heads=16, num_query_groups=16, head_dim=32), num_gpus=16)
    assert ask(wide, Pins(tensor_parallel=(16,))).plans
    assert ask(problem(), Pins(context_parallel=(8,))).plans
    assert ask(problem(global_batch_size=48), Pins(micro_batch_size=(3,))).plans


def test_pinning_what_was_found_finds_it_again() -> None:
    """All values of the best plan pinned: it is the only plan up to its split, with the same numbers."""
    of = problem(model("moe"))
    best = ask(of).plans[0]
    report = ask(of, all_pinned(best.plan))
    assert report.plans[0] == best
    assert len(report.plans) == 1
