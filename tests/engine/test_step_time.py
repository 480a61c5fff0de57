"""Step time: it reduces to the textbook, keeps its parts, and moves the right way when something gets faster."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from ppadvisor import schedules
from ppadvisor.engine.evaluate import estimate_fitting, estimate_plan, evaluate
from ppadvisor.engine.flops import megatron_flops_per_token
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.step_time import (
    IDLE_PARTS,
    STEP_PARTS,
    WORK_PARTS,
    pipeline_s,
    stage_times,
    step_times,
    totals_of,
)
from ppadvisor.schedules.base import StageTotals
from ppadvisor.schedules.replay import replay
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.plan import PlanSpec
from tests.problems import FRAMEWORKS, MODELS, cluster, model, plan, problem, random_plans, table_of

CASES = [(name, framework) for name in MODELS for framework in FRAMEWORKS]
every_case = pytest.mark.parametrize(("name", "framework"), CASES)
every_model = pytest.mark.parametrize("name", MODELS)


@cache
def case(name: str, framework: str) -> tuple[Problem, tuple[PlanSpec, ...]]:
    """A problem on eight nodes and random plans for it."""
    of = problem(model(name), num_gpus=64, global_batch_size=256, framework=framework)
    return of, tuple(random_plans(of, 16, seed=3))


def inputs_of(of: Problem, *plans: PlanSpec, every_stage: bool = True) -> PlanInputs:
    """The plans as a table."""
    return PlanInputs.of(of, table_of(plans), every_stage=every_stage)


def shown(of: Problem, one: PlanSpec) -> PlanEstimate:
    """The plan as it is reported: replayed."""
    return estimate_plan(of, one, margin=0.9)


@pytest.mark.parametrize(("schedule", "m"), [("1f1b", 1), ("1f1b", 8), ("1f1b", 32), ("gpipe", 8), ("gpipe", 32)])
def test_equal_stages_and_free_links_are_the_textbook(schedule: str, m: int) -> None:
    """F = 1, B = 2 on every one of p stages takes (m + p - 1)(F + B), of which (p - 1)(F + B) are bubble.

    Huang et al. 2019 (arXiv 1811.06965), section 2.3; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1.
    """
    for p in (2, 3, 4, 6, 12):
        one = plan([12 // p] * p, schedule=schedule, num_microbatches=m)
        for every_stage in (True, False):
            inputs = inputs_of(problem(), one, every_stage=every_stage)
            ones = (inputs.stages.count > 0).astype(np.float64)
            work = {name: (3.0 if name == "compute" else 0.0) * ones for name in WORK_PARTS}
            of_chunk = ones[:, :, None]
            times = replace(stage_times(inputs), forward=of_chunk, backward=2 * of_chunk, work=work)
            pipeline = pipeline_s(inputs, totals_of(inputs, times, links=False))
            assert pipeline.tolist() == [(m + p - 1) * 3]
            step = step_times(inputs, times, pipeline, pipeline)
            assert step.terms["bubble"].tolist() == [(p - 1) * 3]
            assert step.bubble_fraction[0] == pytest.approx((p - 1) / (m + p - 1), rel=1e-12)
            assert (step.terms["imbalance"].tolist(), step.terms["handoff"].tolist()) == ([0], [0])


def test_naive_is_one_stage_after_the_other() -> None:
    """One micro-batch: forward and backward of all stages in turn, and one stage of p works at any time."""
    of = problem(model("llama"), assume=Assumptions().changed({"handoff_latency_s": 0.0}))
    time = shown(of, plan([3] * 4, schedule="naive", num_microbatches=1, micro_batch_size=64)).time
    in_turn = sum(stage.forward_s + stage.backward_s for stage in time.stages)
    assert time.pipeline_s == pytest.approx(in_turn + time.terms["handoff_s"], rel=1e-12)
    assert time.equal_stage_bubble_fraction == 3 / 4
    assert time.bubble_fraction == pytest.approx(1 - in_turn / (4 * time.pipeline_s), rel=1e-12)


def test_without_a_pipeline_there_is_no_bubble() -> None:
    """p = 1: m times forward and backward, nobody waits."""
    time = shown(problem(), plan([12], data_parallel=16, num_microbatches=4)).time
    (stage,) = time.stages
    assert time.pipeline_s == pytest.approx(4 * (stage.forward_s + stage.backward_s), rel=1e-12)
    assert time.bubble_fraction == pytest.approx(0, abs=1e-12)
    for part in IDLE_PARTS:
        assert time.terms[f"{part}_s"] == pytest.approx(0, abs=1e-12)


@every_case
def test_the_parts_add_up_to_the_step(name: str, framework: str) -> None:
    """Work, idle and what follows the pipeline are the step time, and work and idle are the pipeline."""
    of, plans = case(name, framework)
    for one in plans:
        time = shown(of, one).time
        assert set(time.terms) == {f"{part}_s" for part in (*WORK_PARTS, *IDLE_PARTS, *STEP_PARTS)}
        assert sum(time.terms.values()) == pytest.approx(time.step_time_s, rel=1e-12)
        pipeline = sum(time.terms[f"{part}_s"] for part in (*WORK_PARTS, *IDLE_PARTS))
        assert pipeline == pytest.approx(time.pipeline_s, rel=1e-12)
        idle = sum(time.terms[f"{part}_s"] for part in IDLE_PARTS)
        assert idle / time.pipeline_s == pytest.approx(time.bubble_fraction, abs=1e-12)
        assert time.utilization_fraction == 1 - time.bubble_fraction
        assert all(time.terms[f"{part}_s"] >= 0 for part in (*WORK_PARTS, *STEP_PARTS, "bubble", "handoff"))


def boundary_s(of: Problem, one: PlanSpec) -> list[float]:
    """One-way hand-off over each boundary, from the places of the first pipeline's ranks."""
    assumed, machines = of.assumptions, of.cluster
    ways = one.context_parallel * (one.tensor_parallel if of.training.sequence_parallel else 1)
    volume = 2 * of.training.sequence_length * one.micro_batch_size * of.model.hidden_size / ways
    width = one.tensor_parallel * one.context_parallel * one.data_parallel
    nodes = [stage * width // machines.gpus_per_node for stage in range(one.pipeline_parallel)]
    intra = machines.intra_node_bandwidth_bytes_per_s * assumed.intra_node_efficiency.value
    inter = machines.inter_node_bandwidth_bytes_per_s * assumed.inter_node_efficiency.value
    speeds = [intra if here == there else inter for here, there in pairwise(nodes)]
    return [volume / speed + assumed.handoff_latency_s.value for speed in speeds]


@every_case
def test_bubble_and_idle_time_are_the_replays(name: str, framework: str) -> None:
    """Replaying the order of work with the stage times shown gives pipeline, bubble and idle shares."""
    of, plans = case(name, framework)
    for one in plans:
        time, schedule = shown(of, one).time, schedules.get(one.schedule)
        result = replay(
            schedule.rank_orders(one.pipeline_parallel, one.num_microbatches),
            schedule.placement(one.pipeline_parallel, 1),
            forward_s=[stage.forward_s for stage in time.stages],
            backward_s=[stage.backward_s for stage in time.stages],
            handoff_s=boundary_s(of, one),
        )
        assert time.pipeline_s == pytest.approx(result.makespan_s, rel=1e-12)
        assert time.bubble_fraction == pytest.approx(result.bubble_fraction, abs=1e-12)
        idle = 1 - result.busy_s / result.makespan_s
        np.testing.assert_allclose([stage.idle_fraction for stage in time.stages], idle, atol=1e-12)


def totals(inputs: PlanInputs) -> StageTotals:
    """What the array forms know of the plans."""
    return totals_of(inputs, stage_times(inputs), links=True)


@every_case
def test_the_search_starts_from_the_same_stages(name: str, framework: str) -> None:
    """Runs of equal stages and stages one by one give the array forms the same sums, maxima and ends."""
    of, plans = case(name, framework)
    grouped, listed = (vars(totals(inputs_of(of, *plans, every_stage=every))) for every in (False, True))
    for total_name, values in listed.items():
        np.testing.assert_allclose(grouped[total_name], values, rtol=1e-12, atol=1e-15, err_msg=total_name)


@every_case
def test_the_replayed_pipeline_is_within_the_bounds(name: str, framework: str) -> None:
    """Of each plan, what is shown lies between the bounds that its schedule states for what the search knew."""
    of, plans = case(name, framework)
    for one in plans:
        inputs = inputs_of(of, one, every_stage=False)
        schedule = schedules.get(one.schedule)
        bounds = schedule.pipeline_time_bounds_s(one.pipeline_parallel, one.num_microbatches, 1, totals(inputs))
        pipeline = shown(of, one).time.pipeline_s
        assert float(bounds.lower_s[0]) <= pipeline * (1 + 1e-12)
        assert pipeline <= float(bounds.upper_s[0]) * (1 + 1e-12)


@every_case
def test_rows_do_not_know_each_other(name: str, framework: str) -> None:
    """A plan evaluated alone has the step time and bubble that it has in a table of many."""
    of, plans = case(name, framework)
    many = evaluate(of, table_of(plans), margin=0.9)
    for row, one in enumerate(plans):
        alone = evaluate(of, table_of([one]), margin=0.9)
        assert alone.step_time_s[0] == pytest.approx(many.step_time_s[row], rel=1e-12)
        assert alone.bubble_fraction[0] == pytest.approx(many.bubble_fraction[row], abs=1e-12)


def test_the_search_guesses_model_like_pipelines_within_five_percent() -> None:
    """On even plans with a heavier first and last stage the array form is within 5 % of the replay, as 1F1B states."""
    of = problem(model("llama", num_layers=48, hidden_size=4096, vocab_size=128_000), num_gpus=64)
    plans = [
        plan([48 // p] * p, data_parallel=64 // p, num_microbatches=m) for p in (2, 4, 8, 16) for m in (p, 2 * p, 4 * p)
    ]
    guessed = evaluate(of, table_of(plans), margin=0.9).step_time_s
    replayed = [shown(of, one).time.step_time_s for one in plans]
    assert guessed == pytest.approx(replayed, rel=0.05)


FASTER: dict[str, dict[str, object]] = {
    "links within a node": {"intra_node_bandwidth_bytes_per_s": 450e9},
    "links between nodes": {"inter_node_bandwidth_bytes_per_s": 50e9},
    "memory": {"hbm_bandwidth_bytes_per_s": 3e12},
    "matrix products": {"peak_flops_per_s": {"bf16": 800e12}},
}


@every_case
@pytest.mark.parametrize("what", FASTER)
def test_faster_machines_never_slow_a_plan(name: str, framework: str, what: str) -> None:
    """More bandwidth anywhere, or more FLOP/s: no stage, no part outside the pipeline and no step takes longer."""
    of, plans = case(name, framework)
    better = replace(of, cluster=cluster(64, **FASTER[what]))
    for one in plans[:6]:
        before, after = shown(of, one).time, shown(better, one).time
        assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
        for stage, old in zip(after.stages, before.stages, strict=True):
            assert stage.forward_s <= old.forward_s
            assert stage.backward_s <= old.backward_s
        assert all(after.terms[f"{part}_s"] <= before.terms[f"{part}_s"] for part in STEP_PARTS)


@every_case
def test_fewer_bytes_never_slow_a_plan(name: str, framework: str) -> None:
    """A smaller vocabulary, gradients of 16 bit on the wire, a shorter sequence: none of them costs time."""
    of, plans = case(name, framework)
    smaller = replace(of, model=of.model.changed(vocab_size=1000))
    shorter = replace(of, training=of.training.changed(sequence_length=1024))
    half = replace(of, training=of.training.changed(gradient_precision="bf16"))
    for one in plans[:6]:
        before = shown(of, one).time
        for better in (smaller, shorter):
            assert shown(better, one).time.step_time_s <= before.step_time_s * (1 + 1e-12)
        assert shown(half, one).time.terms["data_parallel_s"] <= before.terms["data_parallel_s"]


@every_case
def test_more_micro_batches_take_longer(name: str, framework: str) -> None:
    """At the same micro-batch size the step grows strictly with m, and the bubble never does."""
    of, _ = case(name, framework)
    for schedule in (x for x in ("gpipe", "1f1b") if x in of.framework.schedules):
        one = {"schedule": schedule, "tensor_parallel": 2, "data_parallel": 4, "expert_parallel": 2}
        one |= {} if of.model.moe else {"expert_parallel": 1}
        times = [shown(of, plan([3, 3, 3, 3], **{**one, "num_microbatches": m})).time for m in (1, 2, 3, 4, 7, 8, 32)]
        steps = [time.step_time_s for time in times]
        assert all(y > x for x, y in pairwise(steps))
        bubbles = [time.bubble_fraction for time in times]
        assert all(y <= x + 1e-9 for x, y in pairwise(bubbles))


@every_case
def test_recomputation_costs_time(name: str, framework: str) -> None:
    """none < selective < full on every stage, in the backward and nowhere else."""
    of, _ = case(name, framework)
    none, selective, full = (shown(of, plan([6, 6], recompute=r)).time for r in ("none", "selective", "full"))
    for stages in zip(none.stages, selective.stages, full.stages, strict=True):
        assert stages[0].forward_s == stages[1].forward_s == stages[2].forward_s
        assert stages[0].backward_s < stages[1].backward_s < stages[2].backward_s
    assert none.terms["recompute_s"] == 0
    assert none.model_flops_utilization == none.hardware_flops_utilization
    assert full.hardware_flops_utilization > full.model_flops_utilization


def test_utilisation_counts_model_flops_only() -> None:
    """MFU is model FLOPs of the step over peak x GPUs x step time, and tokens/s the batch over the step time."""
    of, plans = case("llama", "generic")
    time = shown(of, plans[0]).time
    flops = megatron_flops_per_token(of.model, 2048, 5000) * 2048 * 256
    assert time.model_flops == pytest.approx(flops, rel=0.01)  # the padding of the vocabulary is counted too
    assert time.model_flops_utilization == pytest.approx(time.model_flops / (64 * 400e12 * time.step_time_s), rel=1e-12)
    assert time.tokens_per_s == pytest.approx(2048 * 256 / time.step_time_s, rel=1e-12)
    assert time.tokens_per_s_per_gpu == pytest.approx(time.tokens_per_s / 64, rel=1e-12)


def test_only_what_fits_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that fits is the whole estimate; one that does not is None, and its order of work was not run."""
    of = problem(model("llama"))
    assert estimate_fitting(of, plan([6, 6]), margin=0.9) == estimate_plan(of, plan([6, 6]), margin=0.9)

    def run(*_: object, **__: object) -> None:
        raise AssertionError("replayed")

    monkeypatch.setattr("ppadvisor.engine.shown.spans_of", run)
    with pytest.raises(AssertionError, match="replayed"):
        estimate_fitting(of, plan([6, 6]), margin=0.9)
    assert estimate_fitting(of, plan([6, 6]), margin=1e-6) is None
