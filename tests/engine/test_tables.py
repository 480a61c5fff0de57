"""A search looks at tables of plans, equal ranks, chunks and sizes once: the numbers of each plan by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ppadvisor.engine import evaluate as conductor
from ppadvisor.engine.distinct import distinct_of
from ppadvisor.engine.evaluate import evaluate, verdicts
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.step_time import pipeline_s, stage_times, step_times, totals_of
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.pins import Pins
from ppadvisor.search.space import build_space
from ppadvisor.specs.plan import PlanTable, distinct_first, distinct_rows, distinct_values
from tests.problems import FRAMEWORKS, MODELS, model, problem

ROWS = 24
CHOICES = ("none", "selective", "full", "full:block:1", "full:uniform:2")

every_case = pytest.mark.parametrize(
    ("name", "framework"), [(name, framework) for name in MODELS for framework in (*FRAMEWORKS, "deepspeed")]
)


def some_plans(name: str, framework: str) -> tuple[Problem, PlanTable]:
    """Plans drawn from a whole search: every schedule of the framework, several chunks a rank, every recomputation."""
    of = problem(model(name), num_gpus=32, framework=framework, attention="flash")
    choices = tuple(c for c in CHOICES if ":" not in c or c.split(":")[1] in of.framework.recompute_methods)
    plans, _, _ = legal_plans(of, build_space(of, Pins(recompute=choices, optimizer_sharding=(0, 1))).plans)
    return of, plans.take(np.array(sorted(random.Random(name).sample(range(len(plans)), ROWS))))


@every_case
def test_a_table_has_the_numbers_of_its_rows(name: str, framework: str) -> None:
    """Peak, conservative end, step and bubble of each plan are those of a table of it alone, rank by rank."""
    of, plans = some_plans(name, framework)
    table = evaluate(of, plans, margin=0.9)
    for row in range(len(plans)):
        inputs = PlanInputs.of(of, plans.take(slice(row, row + 1)), every_stage=True)
        memory, times = memory_table(inputs, keep_terms=False), stage_times(inputs)
        step = step_times(inputs, times, pipeline_s(inputs, totals_of(inputs, times, links=True)))
        assert table.peak_bytes[row] == pytest.approx(memory.total.max(), rel=1e-12)
        assert table.conservative_bytes[row] == pytest.approx(memory.high.max(), rel=1e-12)
        assert table.step_time_s[row] == pytest.approx(step.step[0], rel=1e-12)
        assert table.bubble_fraction[row] == pytest.approx(step.bubble_fraction[0], rel=1e-12, abs=1e-12)


@every_case
def test_a_plan_has_the_same_numbers_alone_and_among_others(name: str, framework: str) -> None:
    """A table of one plan, and a plan whose sizes and layout were worked out for a table of all, have one answer."""
    of, plans = some_plans(name, framework)
    table, shared = evaluate(of, plans, margin=0.9), distinct_of(of, plans)
    for row in range(len(plans)):
        alone = evaluate(of, plans.take(slice(row, row + 1)), margin=0.9)
        among = evaluate(of, plans, margin=0.9, distinct=shared, rows=np.array([row]))
        for column, values in vars(table).items():
            for one in (alone, among):
                np.testing.assert_allclose(getattr(one, column)[0], values[row], rtol=1e-12, atol=1e-12)


@every_case
def test_blocks_are_the_table(name: str, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated seven rows at a time, layouts of unlike sizes apart, plans have the very numbers of one whole table."""
    of, plans = some_plans(name, framework)
    whole = evaluate(of, plans, margin=0.9)
    monkeypatch.setattr(conductor, "BLOCK_ROWS", 7)
    monkeypatch.setattr(conductor, "FEW_NUMBERS", 0)
    blocks = evaluate(of, plans, margin=0.9)
    for column, values in vars(whole).items():
        np.testing.assert_allclose(getattr(blocks, column), values, rtol=1e-14, atol=1e-14)


def test_memory_alone_gives_the_same_verdicts() -> None:
    """Where only the verdict is asked for, it is that of the whole evaluation; some plans fit and some do not."""
    of, plans = some_plans("moe", "megatron")
    tight = problem(of.model, num_gpus=32, framework="megatron", machines=None)
    tight_gpu = tight.cluster.gpu.changed(memory_bytes=3 * 2**30)
    small = Problem(of.model, tight.cluster.changed(gpu=tight_gpu), of.training, of.framework, of.assumptions)
    found = evaluate(small, plans, margin=0.9).verdict
    assert len(set(found.tolist())) > 1
    assert verdicts(small, plans, margin=0.9).tolist() == found.tolist()


@pytest.mark.parametrize("largest", [3, 10**12])
def test_numbers_are_told_apart_whether_they_are_counted_or_sorted(largest: int) -> None:
    """The distinct numbers in order, which each is, and where each comes first; small ones and large ones."""
    numbers = np.random.default_rng(11).integers(0, 4, size=50) * largest
    found, index = distinct_values(numbers)
    assert found.tolist() == sorted(set(numbers.tolist()))
    assert (found[index] == numbers).all()
    _, first = distinct_first(numbers)
    assert first.tolist() == [numbers.tolist().index(number) for number in found.tolist()]


def test_rows_are_told_apart_by_all_columns() -> None:
    """Equal rows share a number, unlike ones do not, also where the product of the columns is beyond 64 bits."""
    rng = np.random.default_rng(7)
    columns = [rng.integers(0, 3, size=500) * (2**40 + offset) for offset in range(6)]
    first, row = distinct_rows(columns)
    rows = np.stack(columns, axis=1)
    assert len(first) == len({tuple(one) for one in rows.tolist()})
    assert (rows[first][row] == rows).all()
