"""The search behind `ppadvisor size`: its bounds never rule out a plan, its answers are those of all points."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.evaluate import evaluate
from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.search.goodput import Losses
from ppadvisor.search.pins import Pins
from ppadvisor.search.size import Candidate, Wanted, default_counts, search_counts, size_report
from ppadvisor.search.size_answers import pareto
from ppadvisor.search.size_points import Run, fewest_by_states, least_days
from ppadvisor.search.size_results import SizePoint, SizeReport, SizeTargets
from tests.problems import MODELS, cluster, model, problem, random_plans, table_of

GPUS = 16
TOKENS = 10**9
RUN = Run(TOKENS, Losses(), 0.9)


def question(num_gpus: int, *, network: float = 25e9, memory: int = 80 * 2**30) -> tuple[Problem, Pins]:
    """A small model on so many GPUs; pinned to few plans, for what is searched has tests of its own."""
    machines = cluster(num_gpus, inter_node_bandwidth_bytes_per_s=network, memory_bytes=memory)
    few = {"micro_batch_size": (1,), "tensor_parallel": (1,), "context_parallel": (1,), "pipeline_parallel": (1, 2)}
    pins = Pins(schedule=("none", "1f1b"), recompute=("none",)).with_values(**few)
    return problem(model("llama"), machines=machines), pins


def candidate(name: str = "test GPU", price: float | None = 2.0, **changed: float) -> Candidate:
    """A candidate in nodes of 8."""
    return Candidate(name, question(8, **changed)[0].cluster, price, lambda gpus: question(gpus, **changed))  # type: ignore[arg-type]


def sized(*candidates: Candidate, days: float | None = None, budget: float | None = None, **run: Any) -> SizeReport:
    """The answer for 2, 8 and 16 GPUs unless said otherwise."""
    counts = run.pop("counts", (2, 8, 16))
    losses, tokens = run.pop("losses", Losses()), run.pop("tokens", TOKENS)
    targets = SizeTargets(tokens=tokens, days=days, budget=budget)
    wanted = Wanted(targets, Run(tokens, losses, 0.9), counts)
    return size_report(candidates, wanted, search_counts(candidates, wanted), assumptions={})


def days_of(report: SizeReport) -> list[float]:
    """Days of each point."""
    return [point.days for point in report.points]


@pytest.mark.parametrize("name", MODELS)
def test_no_plan_is_faster_than_the_bound(name: str) -> None:
    """Of 300 random plans none takes less time than matrix products alone, and none less memory than its states."""
    of = problem(model(name), num_gpus=GPUS)
    table = evaluate(of, table_of(random_plans(of, 300)), margin=0.9)
    rate = of.training.tokens_per_step / table.step_time_s
    assert least_days(of, RUN) <= (TOKENS / rate / 86_400).min()
    needed = fewest_by_states(of, 0.9) * 0.9 * of.cluster.gpu.memory_bytes
    assert needed <= GPUS * table.peak_bytes.min()


def test_bounds_change_no_answer() -> None:
    """With a date that rules some counts out, every answer but the ruled-out points is that of a search of all."""
    every = sized(candidate(), days=1e9)
    date = float(np.mean(days_of(every)[1:]))
    some = sized(candidate(), days=date)
    assert len(some.points) <= len(every.points)
    assert {point.num_gpus for point in some.points} >= {p.num_gpus for p in every.points if p.days <= date}
    fewest = min(point.num_gpus for point in every.points if point.days <= date)
    chosen = some.answers["fewest_that_meet"]
    assert chosen is not None
    assert some.points[chosen].num_gpus == fewest
    assert some.candidates[0].fewest_that_fit == every.candidates[0].fewest_that_fit


def test_days_follow_tokens_and_failures() -> None:
    """Twice the tokens take twice the days; failures make them more, by what goodput says, and more the more GPUs."""
    plain = sized(candidate(), days=1e9)
    twice = sized(candidate(), days=1e9, tokens=2 * TOKENS)
    assert days_of(twice) == pytest.approx([2 * days for days in days_of(plain)])
    failing = sized(candidate(), days=1e9, losses=Losses(1e-2, 60.0, 600.0))
    for point, without in zip(failing.points, plain.points, strict=True):
        assert point.step_time_s == without.step_time_s
        assert point.days == pytest.approx(without.days / point.goodput_fraction)
    kept = [point.goodput_fraction for point in failing.points]
    assert kept == sorted(kept, reverse=True)


def test_a_faster_network_is_never_slower_and_worth_at_most_what_it_saves() -> None:
    """At each count ten times the network takes no more days (to the noise); break-even is the ratio of GPU-hours."""
    report = sized(candidate("slow"), candidate("fast", network=250e9), days=1e9)
    slow, fast = ([p for p in report.points if p.candidate == index] for index in (0, 1))
    assert all(quick.days <= 1.005 * late.days for quick, late in zip(fast, slow, strict=True))
    (even,) = report.break_even
    assert (even.candidate, even.against, even.differs_in) == (1, 0, "network")
    hours = [min(point.num_gpus * point.days * 24 for point in points) for points in (slow, fast)]
    assert even.price_ratio == pytest.approx(hours[0] / hours[1])
    assert even.given_ratio == 1.0


def test_more_memory_is_named_as_the_difference() -> None:
    """Two candidates that differ in memory alone are compared as such, and the larger needs no more GPUs to fit."""
    report = sized(candidate("small", memory=5 * 2**30), candidate("large"), days=1e9)
    assert [even.differs_in for even in report.break_even] == ["memory"]
    small, large = (one.fewest_that_fit for one in report.candidates)
    assert large is not None
    assert small is None or large <= small


def test_pareto_by_the_definition() -> None:
    """A point is marked where no other has as few GPUs, days and cost and fewer of one: by comparing all pairs."""
    report = sized(candidate(), candidate("dear", price=5.0), days=1e9)
    for point in report.points:
        values = (point.num_gpus, point.days, point.cost)
        better = [
            other
            for other in report.points
            if all(a <= b for a, b in zip((other.num_gpus, other.days, other.cost), values, strict=True))  # type: ignore[operator]
            and (other.num_gpus, other.days, other.cost) != values
        ]
        assert point.pareto == (not better)
    assert {point.pareto for point in report.points} == {True, False}


def test_without_prices_kinds_of_gpu_do_not_compare() -> None:
    """Points of two candidates without prices never beat each other, though one has the other's numbers, only worse."""
    report = sized(candidate(price=None), candidate("other", price=None, memory=40 * 2**30), days=1e9)
    assert "cheapest" not in report.answers
    worse = report.points[0].changed(candidate=1, days=2 * report.points[0].days)
    assert pareto([report.points[0], worse]) == [True, True]
    priced: list[SizePoint] = [p.changed(cost=p.days) for p in (report.points[0], worse)]
    assert pareto(priced) == [True, False]


def test_the_default_counts() -> None:
    """Powers of two within a node, then whole nodes, each at most twice the one before, powers of two among them."""
    counts = list(itertools.takewhile(lambda count: count <= 1024, default_counts(8)))
    assert counts[:10] == [1, 2, 4, 8, 16, 24, 32, 40, 48, 64]
    assert {2**i for i in range(11)} <= set(counts)
    assert all(count % 8 == 0 for count in counts[3:])
    assert list(itertools.islice(default_counts(72), 9)) == [1, 2, 4, 8, 16, 32, 64, 72, 144]


def test_a_budget_ends_the_search() -> None:
    """With a budget alone counts go up until three in a row cost more; the fastest is that of those below it."""
    cheap = sized(candidate(), budget=1e9, counts=(2,)).points[0].cost
    assert cheap is not None
    report = sized(candidate(), budget=1.2 * cheap, counts=None)
    affordable = [point for point in report.points if point.cost is not None and point.cost <= 1.2 * cheap]
    chosen = report.answers["fastest"]
    assert chosen is not None
    assert report.points[chosen].days == min(point.days for point in affordable)
    assert all((point.cost or 0.0) > 1.2 * cheap for point in report.points[-3:])


def test_where_nothing_is_legal_the_reason_is_told() -> None:
    """A count at which the pins contradict each other is a point with its reason, and other counts are answered."""

    def ask(gpus: int) -> tuple[Problem, Pins]:
        if gpus == 24:
            raise InputError("not 24")
        return question(gpus)

    report = sized(Candidate("test GPU", cluster(8), 1.0, ask), days=1e9, counts=(16, 24))
    assert [(miss.num_gpus, miss.reason_code, miss.reason) for miss in report.no_plan] == [
        (24, "contradiction", "not 24")
    ]
    assert [point.num_gpus for point in report.points] == [16]
