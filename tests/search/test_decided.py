"""What a search prunes: the bounds hold, and nothing that it says differs from that of a search that evaluates all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from ppadvisor.engine.bounds import least_memory, least_steps_s
from ppadvisor.engine.distinct import distinct_of
from ppadvisor.engine.evaluate import VERDICTS, EstimateTable, evaluate
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.problem import Problem
from ppadvisor.search import decided as pruning
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import Ranked, rank
from ppadvisor.search.space import build_space
from ppadvisor.specs.plan import IntArray
from tests.problems import FRAMEWORKS, MODELS, cluster, model, problem
from tests.search.asked import TIGHT, ask, every_case, plain

EVERY_FRAMEWORK = (*FRAMEWORKS, "deepspeed", "torchtitan")
LONG = 32768
"""Tokens of a sequence at which activations are most of the memory of the small models."""
CHOICES = ("none", "selective", "full", "full:block:1", "full:uniform:2")


@contextmanager
def pruned(always: bool) -> Iterator[None]:
    """Every table is pruned, however short, or none is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "FEW_PLANS", 0 if always else 10**9)
        yield


def tight(name: str, framework: str) -> Problem:
    """Long sequences on GPUs that few plans fit."""
    positions = {"max_position_embeddings": LONG} if name == "gpt" else {}
    machines = cluster(16, **TIGHT)
    return problem(model(name, **positions), machines=machines, framework=framework, sequence_length=LONG)


@cache
def searched(name: str, framework: str, pruning_: bool) -> Ranked:
    """A search among plain schedules."""
    of = tight(name, framework)
    with pruned(pruning_):
        return rank(of, plain(of), margin=0.9)


def whole(search: Ranked) -> EstimateTable:
    """The estimates of all plans of a search, none bounded."""
    return evaluate(search.problem, search.plans, margin=0.9)


@pytest.mark.parametrize("framework", EVERY_FRAMEWORK)
@pytest.mark.parametrize("name", MODELS)
def test_no_plan_is_below_its_bounds(name: str, framework: str) -> None:
    """Peak and step of a plan are not below what the bounds say: any schedule, ZeRO stage and recomputation."""
    of = problem(model(name), num_gpus=32, framework=framework, attention="flash")
    choices = tuple(c for c in CHOICES if ":" not in c or c.split(":")[1] in of.framework.recompute_methods)
    choices = tuple(c for c in choices if c != "selective" or of.framework.recompute_modules)
    space = build_space(of, Pins(recompute=choices, optimizer_sharding=of.framework.optimizer_sharding))
    plans, _, _ = legal_plans(of, space.plans)
    plans = plans.take(np.random.default_rng(3).permutation(len(plans))[:4000])
    distinct, found = distinct_of(of, plans), evaluate(of, plans, margin=0.9)
    least = least_memory(plans, distinct)
    assert (least.peak <= found.peak_bytes * (1 + 1e-12)).all()
    assert (least.conservative <= found.conservative_bytes * (1 + 1e-12)).all()
    assert (least_steps_s(distinct) <= found.step_time_s * (1 + 1e-12)).all()
    inputs = PlanInputs.of(of, plans, every_stage=False)
    np.testing.assert_allclose(distinct.in_flight(inputs.stages.count.shape[1]), inputs.in_flight, rtol=1e-15)


@every_case
def test_pruning_loses_nothing_that_fits(name: str, framework: str) -> None:
    """Order, counts and verdicts are those of a search that evaluates every plan; most that do not fit are pruned."""
    short, long = (searched(name, framework, pruning_) for pruning_ in (True, False))
    fits = short.estimates.verdict == VERDICTS.index("fits")
    assert short.decided.bounded.sum() > 0.75 * (~fits).sum() > 0
    assert not long.decided.bounded.any()
    assert (short.rejected, short.space.num_combinations) == (long.rejected, long.space.num_combinations)
    np.testing.assert_array_equal(short.order, long.order)
    np.testing.assert_array_equal(short.estimates.verdict, long.estimates.verdict)
    for column in vars(long.estimates):
        one, other = (getattr(search.estimates, column)[short.order] for search in (short, long))
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@every_case
def test_the_report_is_that_of_the_whole_search(name: str, framework: str) -> None:
    """The answer of `plan`, why others lost included, is the same whether plans are pruned or not."""
    of = searched(name, framework, True).problem
    with pruned(always=True):
        short = ask(of, top=3)
    with pruned(always=False):
        long = ask(of, top=3)
    assert short.as_dict() == long.as_dict()


def test_where_nothing_fits_the_report_is_the_same_too() -> None:
    """The nearest miss and what would help it, on GPUs of a third of a GiB."""
    of = problem(machines=cluster(16, memory_bytes=2**28))
    with pruned(always=True):
        short = ask(of)
    with pruned(always=False):
        long = ask(of)
    assert short.nearest_miss is not None
    assert short.as_dict() == long.as_dict()


def least_of(values: FloatArray, rows: IntArray) -> int:
    """The first row with the least value."""
    return int(rows[np.argmin(values[rows])])


@every_case
def test_the_least_of_some_rows_is_found_without_all(name: str, framework: str) -> None:
    """Smallest peak and fastest under a limit, over random rows, as if all were known; not all are evaluated for it."""
    with pruned(always=True):
        of = tight(name, framework)
        search = rank(of, plain(of), margin=0.9)
    found, capacity, rng = whole(search), of.cluster.gpu.memory_bytes, np.random.default_rng(5)
    for _ in range(4):
        rows = np.sort(rng.permutation(len(search.plans))[:2000])
        assert search.decided.least_peak(rows) == least_of(found.peak_bytes, rows)
        too_large = rows[found.verdict[rows] > 0]
        within = too_large[found.peak_bytes[too_large] < 2 * capacity]
        assert search.decided.fastest_below(too_large, 2 * capacity) == least_of(found.step_time_s, within)
    assert search.decided.bounded.any()
    assert search.decided.least_peak(rows[:0]) is None
    assert search.decided.fastest_below(rows, 0.0) is None
    search.decided.complete(np.arange(len(search.plans)))
    for column, values in vars(found).items():
        np.testing.assert_allclose(getattr(search.estimates, column), values, rtol=1e-12, atol=1e-12)
