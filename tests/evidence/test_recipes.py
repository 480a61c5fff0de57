"""`validate --kind recipes`: which records are recipes, and what a row says; the search is a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.recipes import INCOMPLETE, Recipes, compare_recipes, recipes_of
from ppadvisor.evidence.records import Record
from tests.evidence.samples import record

SLOW = {"pipeline_parallel": 1, "tensor_parallel": 4, "data_parallel": 1, "micro_batch_size": 1}
FAST = {"pipeline_parallel": 1, "tensor_parallel": 1, "data_parallel": 4, "micro_batch_size": 1}
MARGIN = 0.9


def run(id: str, time_s: float | None, plan: dict[str, Any], **more: Any) -> Record:
    """A run on 4 GPUs that took so long."""
    return record(id=id, measured={"step_time_s": time_s}, usable_for=["time"], plan=plan, **more)


class Stand:
    """A search that knows one plan, and remembers what it was asked."""

    def __init__(self, plan: dict[str, Any] | None, **more: Any) -> None:
        self.case = case_of(run("known", 1.0, plan, **more)) if plan else None
        self.asked: list[Problem] = []

    def __call__(self, problem: Problem, margin: float) -> Sequence[PlanEstimate]:
        self.asked.append(problem)
        return [estimate_plan(problem, self.case.plan, margin=margin)] if self.case else []


def answer(search: Stand, *records: Record) -> Recipes:
    """The report of these records."""
    recipes, skipped = recipes_of(records)
    return compare_recipes(recipes, skipped, search, lambda one, other: "told", margin=MARGIN)


def test_of_one_configuration_the_fastest_run_is_the_recipe() -> None:
    """Three releases of one configuration are one row; another batch is another row; without a time there is none."""
    runs = [run("old", 3.0, SLOW), run("best", 1.0, FAST), run("new", 2.0, SLOW)]
    other = run("other", 9.0, SLOW, training={"global_batch_size": 16})
    report = answer(Stand(FAST), *runs, other, run("silent", None, SLOW))
    assert [(row.id, row.runs, row.measured_step_time_s) for row in report.rows] == [
        ("best", 3, 1.0),
        ("other", 1, 9.0),
    ]
    assert [(one.id, one.reason) for one in report.skipped] == [("silent", INCOMPLETE)]


def test_what_is_computed_alike_is_searched_once() -> None:
    """bf16 stated and bf16 taken where nothing is stated are two configurations and one problem."""
    search = Stand(FAST)
    report = answer(search, run("said", 1.0, SLOW, training={"precision": "bf16"}), run("unsaid", 1.0, SLOW))
    assert (len(report.rows), len(search.asked)) == (2, 1)


def test_a_slower_answer_is_asked_again_with_room_for_the_recipe() -> None:
    """Where ours is slower than the recipe the GPUs are made to hold what is predicted of it, and no smaller."""
    deep = {"num_layers": 192}
    search = Stand(SLOW, model=deep)
    (row,) = answer(search, run("recipe", 1.0, FAST, model=deep)).rows
    assert row.ours is not None
    assert row.recipe.verdict == "does_not_fit"
    assert row.step_time_fraction == row.ours.step_time_s / row.recipe.step_time_s > 1
    sizes = [problem.cluster.gpu.memory_bytes for problem in search.asked]
    needed = max(row.recipe.peak_bytes / MARGIN, row.recipe.conservative_bytes)
    assert (sizes[0], sizes[1] >= max(needed, sizes[0])) == (row.capacity_bytes, True)
    assert row.given_room == row.ours


def test_where_nothing_fits_there_is_no_plan_of_ours() -> None:
    """The row stands without a ratio and without a sentence."""
    (row,) = answer(Stand(None), run("recipe", 1.0, FAST)).rows
    assert (row.ours, row.step_time_fraction, row.difference, row.given_room) == (None, None, None, None)


def test_sequence_parallelism_where_the_recipe_cannot_say() -> None:
    """A recipe with t = 1 leaves it on for the plans that have t > 1; one with t > 1 decides."""
    recipes, _ = recipes_of([run("one", 1.0, FAST), run("two", 1.0, SLOW, training={"global_batch_size": 16})])
    assert recipes[0].case.problem.training.sequence_parallel
    assert recipes[1].case.problem.training == case_of(recipes[1].case.record).problem.training
