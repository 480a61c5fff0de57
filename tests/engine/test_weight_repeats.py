"""Full recomputation under a split backward on torch: a layer is run again for each group of its weights."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from ppadvisor import schedules
from ppadvisor.engine.evaluate import estimate_plan, evaluate, quick_steps_s
from ppadvisor.engine.explain import explain_estimate
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import layer_saved
from ppadvisor.engine.split_work import pile_per_chunk, recomputed_layer_bytes, used_gradients
from ppadvisor.engine.step_time import layer_passes
from ppadvisor.engine.tables import layers_of_ranks
from ppadvisor.frameworks.torchtitan.repeats import repeats
from ppadvisor.schedules.base import Kind
from ppadvisor.search.constraints import legal_plans
from ppadvisor.specs.plan import PlanSpec
from tests.engine.test_explain import worked_out
from tests.problems import model, plan, problem, table_of

SPLIT = ("interleaved-zero-bubble", "zb-v", "dualpipev")
GROUPS = 9
"""Of a Llama layer: q, k, v, output; gate, up, down; two norms."""
CHUNKS = (3, 4, 2, 3)
every_schedule = pytest.mark.parametrize("schedule", SPLIT)
every_choice = pytest.mark.parametrize("block", [None, 2], ids=["full", "full:block:2"])


@cache
def of_problem(framework: str = "torchtitan", name: str = "llama", num_gpus: int = 2) -> Problem:
    """A small model on two ranks."""
    return problem(model(name), framework=framework, global_batch_size=8, num_gpus=num_gpus)


def of_schedule(schedule: str, block: int | None = None, recompute: str = "full") -> PlanSpec:
    """Unequal chunks, eight micro-batches."""
    limited = {"recompute_method": "block", "recompute_num_layers": block} if block else {}
    return plan(
        layers_of_ranks(schedule, CHUNKS, 2),
        schedule=schedule,
        num_microbatches=8,
        virtual_stages=2,
        layers_per_chunk=CHUNKS,
        recompute=recompute,
        optimizer_sharding=2,
        **limited,
    )


def forward_s(of: Problem, one: PlanSpec) -> float:
    """One layer's."""
    inputs = PlanInputs.of(of, table_of([one]), every_stage=True)
    (kind,) = inputs.kinds
    return sum(float(part.forward[0]) for part in layer_passes(inputs, kind).values())


def repeated_layers(one: PlanSpec, block: int | None) -> NDArray[np.int64]:
    """(ranks, chunks)"""
    placement = schedules.get(one.schedule).placement(2, 2)
    return np.asarray(np.minimum(np.array(CHUNKS)[placement], block or max(CHUNKS)))


@every_choice
@every_schedule
def test_what_each_action_takes(schedule: str, block: int | None) -> None:
    """By hand: I and a whole backward take a forward of the recomputed layers more, W nine, the first stage's none."""
    of, one = of_problem(), of_schedule(schedule, block)
    plain = pipeline_of(of, of_schedule(schedule, recompute="none")).times
    times, layers = pipeline_of(of, one).times, repeated_layers(one, block)
    later = schedules.get(schedule).placement(2, 2) > 0
    again = layers * forward_s(of, one)
    assert times.input_grad[0] == pytest.approx(plain.input_grad[0] + again)
    assert times.backward[0] == pytest.approx(plain.backward[0] + again)
    assert times.weight_step[0] == pytest.approx(plain.weight_grad[0] + GROUPS * again * later)


@every_choice
@every_schedule
def test_the_parts_of_a_step_are_those_of_its_replay(schedule: str, block: int | None) -> None:
    """Recomputation is what all actions repeat, counted in the order of work; bubble and pipeline are the replay's."""
    of, one = of_problem(), of_schedule(schedule, block)
    time, pipeline, layers = estimate_plan(of, one, margin=0.9).time, pipeline_of(of, one), repeated_layers(one, block)
    assert pipeline.orders is not None
    repeats_s = 0.0
    for rank, order in enumerate(pipeline.orders):
        for kind, chunk in zip(order.kind, order.chunk, strict=True):
            first = pipeline.placement[rank, chunk] == 0
            times = {Kind.BACKWARD: 1, Kind.INPUT_GRAD: 1, Kind.WEIGHT_GRAD: 0 if first else GROUPS}.get(kind, 0)
            repeats_s += times * layers[rank, chunk] * forward_s(of, one)
    assert time.terms["recompute_s"] == pytest.approx(repeats_s / 2)
    result = pipeline.replayed(links=True)
    assert result is not None
    assert time.pipeline_s == pytest.approx(result.makespan_s)
    assert time.bubble_fraction == pytest.approx(1 - result.busy_s.sum() / (2 * result.makespan_s))
    assert time.stages[0].backward_s > 0
    idle = sum(time.terms[f"{part}_s"] for part in ("bubble", "imbalance", "handoff"))
    assert idle / time.pipeline_s == pytest.approx(time.bubble_fraction, abs=1e-9)


@every_schedule
def test_a_search_sees_the_same(schedule: str) -> None:
    """The replay of many plans at once agrees, and the array forms come near, by time; by memory they are below."""
    of = of_problem()
    table = table_of([of_schedule(schedule, block) for block in (None, 2)])
    guessed, quick = evaluate(of, table, margin=0.9), quick_steps_s(of, table)
    for row, block in enumerate((None, 2)):
        shown = estimate_plan(of, of_schedule(schedule, block), margin=0.9)
        assert quick[row] == pytest.approx(shown.time.step_time_s, rel=1e-3)
        assert guessed.step_time_s[row] == pytest.approx(shown.time.step_time_s, rel=0.2)
        assert guessed.peak_bytes[row] <= shown.memory.peak_bytes * (1 + 1e-9)


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_how_many_backwards_dualpipev_splits(p: int) -> None:
    """As counted in its order of work, whatever the micro-batches; the others split all."""
    dualpipev = schedules.get("dualpipev")
    for m in (2 * p, 2 * p + 3):
        for rank, order in enumerate(dualpipev.rank_orders(p, m)):
            for chunk in (0, 1):
                counted = int(((order.kind == Kind.WEIGHT_GRAD) & (order.chunk == chunk)).sum())
                assert float(dualpipev.split_share(p, m, rank, chunk)) == pytest.approx(counted / m)
    assert float(schedules.get("zb-v").split_share(p, 9, 0, 1)) == 1
    assert float(schedules.get("1f1b").split_share(p, 9, 0, 0)) == 0


@pytest.mark.parametrize(("name", "expected"), [("gpt", [8]), ("llama", [9]), ("windowed", [9]), ("moe", [9, 13])])
def test_groups_of_weights(name: str, expected: list[int]) -> None:
    """As counted on torch: a matrix with its bias, a norm, each product of the routed experts, the router."""
    spec = model(name)
    of = problem(spec, framework="torchtitan")
    assert sorted({repeats(spec, of.training, kind).groups for kind in spec.layer_kinds()[0]}) == expected


def test_other_frameworks_repeat_once() -> None:
    """Another split keeps what was made again until the weight gradient; whole backwards repeat once anywhere."""
    of, one = of_problem("generic"), of_schedule("zb-v")
    assert not pipeline_of(of, one).times.repeats.any()
    whole = plan([6, 6], schedule="1f1b", num_microbatches=8, recompute="full", optimizer_sharding=2)
    assert not pipeline_of(of_problem(), whole).times.repeats.any()


@pytest.mark.parametrize(("name", "groups"), [("gpt", "8"), ("llama", "9"), ("moe", "13")])
@every_choice
@every_schedule
def test_it_is_priced_and_explained(schedule: str, block: int | None, name: str, groups: str) -> None:
    """No rule refuses it; every formula comes to its number, and the sources name the groups.

    The dense layers of the model with experts are all on the first stage, which repeats nothing for them.
    """
    of, one = of_problem(name=name), of_schedule(schedule, block)
    _, __, refused = legal_plans(of, table_of([one]))
    assert not refused
    estimate = estimate_plan(of, one, margin=0.9)
    parts = explain_estimate(of, estimate)
    for term in parts.time:
        assert worked_out(term.substituted) == pytest.approx(term.seconds, rel=1e-9, abs=1e-12), term
    for stage in parts.stages:
        for part in stage.terms:
            assert worked_out(part.substituted) == pytest.approx(part.bytes, rel=1e-9, abs=1.001), part
    recompute = next(term for term in parts.time if term.name == "recompute")
    assert f"each of {groups} groups of weights" in recompute.source


def test_the_pile_grows_with_the_layers() -> None:
    """Each layer more leaves nine times what no weight gradient reads, less the gradients that are done with.

    By hand for a Llama layer, bytes of a token: q, k, v, attention's output and its statistics, gate, up, activation.
    """
    of = of_problem()
    piles = []
    for layers in (2, 3):
        split = (2, layers, 2, 2)
        one = plan(
            layers_of_ranks("zb-v", split, 2), schedule="zb-v", num_microbatches=4, virtual_stages=2,
            layers_per_chunk=split, recompute="full", optimizer_sharding=2,
        )  # fmt: skip
        inputs = pipeline_of(of, one).inputs
        piles.append(float((pile_per_chunk(inputs) + used_gradients(inputs))[0, 1, 0]))
    left = 2 * (512 + 2 * 128) + 2 * 512 + 4 * 8 + 3 * 2 * 1792
    assert (piles[1] - piles[0]) / 2048 == pytest.approx(GROUPS * left)


def test_without_an_order_of_work_the_heaviest_chunk_counts() -> None:
    """In a search: more than a layer made again once, which is all that a whole backward has."""
    of = of_problem()
    inputs = PlanInputs.of(of, table_of([of_schedule("zb-v")]), every_stage=False)
    found = recomputed_layer_bytes(inputs)["layer_backward"]
    assert (found > 5 * layer_saved(inputs)[0, 0]).any()
