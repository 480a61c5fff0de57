"""What must hold of every plan on every machine: faster parts never cost time, m scales, the bubble is the replay's."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppadvisor import schedules
from ppadvisor.engine.evaluate import estimate_plan, evaluate
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.pipeline import Pipeline, pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanTime
from ppadvisor.engine.step_time import STEP_PARTS, WORK_PARTS, pipeline_s, stage_times, step_times, totals_of
from ppadvisor.schedules.replay import replay
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.plan import PlanSpec
from tests.problems import MODELS, cluster, model, plan, problem, random_plans, table_of
from tests.scheduled import scheduled_plans

ROUNDING = 1 + 1e-9
FIXED_ORDERS = tuple(
    name
    for name in schedules.SCHEDULES
    if not schedules.get(name).order_for_times and not schedules.get(name).asynchronous
)
"""Schedules whose order of work hangs on sizes alone."""
PLAIN = ("none", "naive", "gpipe", "1f1b")

FACTORS = st.floats(min_value=1.0, max_value=20.0)
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
SPEEDS = (
    "peak_flops_per_s",
    "hbm_bandwidth_bytes_per_s",
    "intra_node_bandwidth_bytes_per_s",
    "inter_node_bandwidth_bytes_per_s",
)


def machines(speeds: dict[str, float]) -> dict[str, object]:
    """Fields of a cluster with these speeds."""
    return {name: {"bf16": speed} if name == "peak_flops_per_s" else speed for name, speed in speeds.items()}


@cache
def scheduled(name: str) -> tuple[Problem, tuple[PlanSpec, ...]]:
    """A problem on two nodes, and plans that run this schedule on it."""
    of = problem(model("llama"), num_gpus=16, framework="generic")
    return of, tuple(scheduled_plans(of, name, 3, seed=5))


@st.composite
def questions(draw: st.DrawFn) -> tuple[Problem, dict[str, float], PlanSpec]:
    """Any of the models on GPUs of any speed, and a plan for it."""
    of = problem(model(draw(st.sampled_from(sorted(MODELS)))), num_gpus=64, global_batch_size=64)
    exponents = (13, 15.5), (11, 13.2), (10, 12.3), (9, 11.5)
    speeds = {
        name: 10 ** draw(st.floats(min_value=low, max_value=high))
        for name, (low, high) in zip(SPEEDS, exponents, strict=True)
    }
    here = replace(of, cluster=cluster(64, **machines(speeds)))
    return here, speeds, random_plans(here, 1, seed=draw(SEEDS))[0]


def time_of(of: Problem, one: PlanSpec) -> PlanTime:
    """As it is reported: replayed."""
    return estimate_plan(of, one, margin=0.9).time


@settings(max_examples=80)
@given(questions(), st.sampled_from(SPEEDS), FACTORS)
def test_a_faster_machine_never_slows_a_plan(
    question: tuple[Problem, dict[str, float], PlanSpec], what: str, factor: float
) -> None:
    """More FLOP/s or more bandwidth of any kind, on any GPU: no step, stage or part outside the pipeline is slower."""
    of, speeds, one = question
    faster = replace(of, cluster=cluster(64, **machines({**speeds, what: speeds[what] * factor})))
    before, after = time_of(of, one), time_of(faster, one)
    assert after.step_time_s <= before.step_time_s * ROUNDING
    for stage, old in zip(after.stages, before.stages, strict=True):
        assert stage.forward_s <= old.forward_s * ROUNDING
        assert stage.backward_s <= old.backward_s * ROUNDING
    assert all(after.terms[f"{part}_s"] <= before.terms[f"{part}_s"] * ROUNDING for part in STEP_PARTS)
    table = table_of([one])
    guessed = [evaluate(on, table, margin=0.9).step_time_s[0] for on in (of, faster)]
    assert guessed[1] <= guessed[0] * ROUNDING


@settings(max_examples=40)
@given(questions(), st.integers(min_value=1, max_value=4), st.integers(min_value=1, max_value=5000))
def test_fewer_bytes_never_slow_a_plan(
    question: tuple[Problem, dict[str, float], PlanSpec], shorter: int, vocab_size: int
) -> None:
    """A shorter sequence, a smaller vocabulary, a leaner optimizer: none of them costs time.

    Gradients of 16 bit take less time on the wire, and more in an optimizer that keeps a main copy of 32 bit.
    """
    of, _, one = question
    before = time_of(of, one)
    less = {"sequence_length": of.training.sequence_length // 2**shorter}
    for better in (
        replace(of, training=of.training.changed(**less)),
        replace(of, model=of.model.changed(vocab_size=vocab_size)),
        replace(of, training=of.training.changed(optimizer="adam-bf16-moments")),
    ):
        assert time_of(better, one).step_time_s <= before.step_time_s * ROUNDING
    half = replace(of, training=of.training.changed(gradient_precision="bf16"))
    assert time_of(half, one).terms["data_parallel_s"] <= before.terms["data_parallel_s"] * ROUNDING


@pytest.mark.parametrize("name", FIXED_ORDERS)
def test_a_faster_machine_never_slows_a_schedule(name: str) -> None:
    """Whatever the order of work, chunks and split backward included: ten times any speed never makes a step longer."""
    of, plans = scheduled(name)
    usual = {
        "peak_flops_per_s": of.peak_flops_per_s,
        **{speed: float(getattr(of.cluster.gpu, speed)) for speed in SPEEDS[1:]},
    }
    for one in plans:
        before = time_of(of, one).step_time_s
        for what in SPEEDS:
            faster = replace(of, cluster=cluster(16, **machines({**usual, what: usual[what] * 10})))
            assert time_of(faster, one).step_time_s <= before * ROUNDING


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_the_bubble_of_a_step_is_that_of_its_replay(name: str) -> None:
    """Of every schedule: running its order against the stage times gives pipeline and bubble, which the idle parts are.

    Of an asynchronous one, which is never empty, the declared bubble of the steady state is the least.
    """
    of, plans = scheduled(name)
    for one in plans:
        time, pipeline = time_of(of, one), pipeline_of(of, one)
        idle = sum(time.terms[f"{part}_s"] for part in ("bubble", "imbalance", "handoff"))
        assert idle / time.pipeline_s == pytest.approx(time.bubble_fraction, abs=1e-9)
        if pipeline.schedule.asynchronous:
            continue
        assert pipeline.orders is not None
        times = pipeline.times
        result = replay(
            pipeline.orders,
            pipeline.schedule.placement(one.pipeline_parallel, one.virtual_stages),
            forward_s=times.forward[0],
            backward_s=times.backward[0],
            input_grad_s=(times.backward - times.weight_grad)[0],
            weight_grad_s=times.weight_grad[0],
            handoff_s=handoffs_of(of, one),
        )
        assert time.pipeline_s == pytest.approx(result.makespan_s, rel=1e-9)
        busy = result.busy_s.sum() / (one.pipeline_parallel * result.makespan_s)
        assert time.bubble_fraction == pytest.approx(1 - busy, abs=1e-9)


def handoffs_of(of: Problem, one: PlanSpec) -> list[float]:
    """One-way hand-off over each boundary between stages, from the nodes in which their ranks stand."""
    assumed, machine = of.assumptions, of.cluster
    ways = one.context_parallel * (one.tensor_parallel if of.training.sequence_parallel else 1)
    volume = 2 * of.training.sequence_length * one.micro_batch_size * of.model.hidden_size / ways
    width = one.tensor_parallel * one.context_parallel * one.data_parallel
    placement = schedules.get(one.schedule).placement(one.pipeline_parallel, one.virtual_stages)
    one_copy = placement[:, : one.virtual_stages]
    rank_of = {int(stage): rank for rank, held in enumerate(one_copy) for stage in held}
    intra = machine.intra_node_bandwidth_bytes_per_s * assumed.intra_node_efficiency.value
    inter = machine.inter_node_bandwidth_bytes_per_s * assumed.inter_node_efficiency.value
    found = []
    for stage in range(len(rank_of) - 1):
        here, there = rank_of[stage], rank_of[stage + 1]
        near = here * width // machine.gpus_per_node == there * width // machine.gpus_per_node
        seconds = volume / (intra if near else inter) + assumed.handoff_latency_s.value
        found.append(0.0 if here == there else seconds)
    return found


SECONDS = st.floats(min_value=1e-4, max_value=10.0)


@settings(max_examples=100)
@given(
    st.sampled_from(["gpipe", "1f1b"]),
    st.sampled_from([1, 2, 3, 4, 6, 12]),
    st.integers(min_value=1, max_value=48),
    SECONDS,
    SECONDS,
)
def test_equal_stages_and_free_links_are_the_textbook(
    schedule: str, p: int, m: int, forward_s: float, backward_s: float
) -> None:
    """For any p, m, F and B: (m + p - 1)(F + B), (p - 1)(F + B) of it bubble, by array form and by replay alike.

    Huang et al. 2019 (arXiv 1811.06965), section 2.3; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1.
    """
    one = plan([12 // p] * p, schedule=schedule if p > 1 else "none", num_microbatches=m)
    inputs = PlanInputs.of(problem(), table_of([one]), every_stage=True)
    ones = np.ones((1, p, 1))
    work = {part: np.full((1, p), (forward_s + backward_s) * (part == "compute")) for part in WORK_PARTS}
    forward, backward = forward_s * ones, backward_s * ones
    times = replace(stage_times(inputs), forward=forward, backward=backward, weight_grad=backward / 2, work=work)
    together = (m + p - 1) * (forward_s + backward_s)
    by_form = pipeline_s(inputs, totals_of(inputs, times, links=False))
    orders = schedules.get(one.schedule).rank_orders(p, m)
    replayed, idle = Pipeline(one, inputs, times, orders).makespan_s(links=False)
    assert float(by_form[0]) == pytest.approx(together, rel=1e-12)
    assert replayed == pytest.approx(together, rel=1e-12)
    assert idle == pytest.approx([(p - 1) / (m + p - 1)] * p, abs=1e-12)
    step = step_times(inputs, times, by_form, by_form)
    assert float(step.terms["bubble"][0]) == pytest.approx((p - 1) * (forward_s + backward_s), rel=1e-9, abs=1e-12)


def with_microbatches(one: PlanSpec, m: int) -> PlanSpec:
    """The plan with another batch."""
    return one.changed(num_microbatches=m)


@settings(max_examples=40)
@given(questions(), st.integers(min_value=1, max_value=16), st.integers(min_value=1, max_value=16))
def test_time_scales_as_it_must_in_m(question: tuple[Problem, dict[str, float], PlanSpec], few: int, more: int) -> None:
    """Work grows in proportion to m; two flushes are never faster than one of as many; no rank does m at no cost.

    What stands outside the pipeline is paid once a step, whatever m, where nothing is reduced or gathered for each
    micro-batch (ZeRO 0 and 1).
    """
    of, _, drawn = question
    if drawn.schedule == "naive":  # m = 1 alone
        drawn = drawn.changed(schedule="1f1b")
    drawn = drawn.changed(optimizer_sharding=min(drawn.optimizer_sharding, 1))
    first, second, both = (time_of(of, with_microbatches(drawn, m)) for m in (few, more, few + more))
    for part in WORK_PARTS:
        assert both.terms[f"{part}_s"] == pytest.approx(first.terms[f"{part}_s"] * (few + more) / few, rel=1e-9)
    for part in STEP_PARTS:
        assert both.terms[f"{part}_s"] == first.terms[f"{part}_s"]
    assert both.pipeline_s <= (first.pipeline_s + second.pipeline_s) * ROUNDING
    slowest = max(stage.forward_s + stage.backward_s for stage in both.stages)
    assert both.pipeline_s >= first.pipeline_s
    assert both.pipeline_s >= (few + more) * slowest / ROUNDING


@pytest.mark.parametrize("schedule", ["none", "1f1b"])
def test_a_steady_pipeline_takes_as_long_for_each_round(schedule: str) -> None:
    """From some m on, every lcm(1..p) micro-batches more take the same time, that of p = 1 m forwards and backwards."""
    of = problem(model("llama"), assume=Assumptions())
    rng = random.Random(2)
    for _ in range(3):
        layers = [12] if schedule == "none" else rng.choice([[6, 6], [3, 5, 4], [2, 4, 4, 2]])
        one, round_of = plan(layers, schedule=schedule), int(np.lcm.reduce(np.arange(1, len(layers) + 1)))
        ends = [time_of(of, with_microbatches(one, m * round_of)).pipeline_s for m in (20, 21, 22, 23)]
        assert np.diff(ends) == pytest.approx([ends[1] - ends[0]] * 3, rel=1e-9)
        if schedule == "none":
            assert ends[0] == pytest.approx(20 * (ends[1] - ends[0]), rel=1e-9)
