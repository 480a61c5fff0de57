"""Plans and their memory, as several tests look at it."""

from __future__ import annotations

from functools import cache

import pytest

from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import MemoryTable, memory_table
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.plan import PlanSpec
from tests.problems import FRAMEWORKS, MODELS, model, problem, random_plans, table_of

PLANS_A_PROBLEM = 25
CASES = [(name, framework) for name in MODELS for framework in FRAMEWORKS]

every_case = pytest.mark.parametrize(("name", "framework"), CASES)
every_model = pytest.mark.parametrize("name", MODELS)
every_framework = pytest.mark.parametrize("framework", FRAMEWORKS)


@cache
def case(name: str, framework: str) -> tuple[Problem, tuple[PlanSpec, ...]]:
    """A problem of every kind of model, dropout where the model is a GPT, and random plans for it."""
    of = problem(model(name), framework=framework, dropout=name == "gpt")
    return of, tuple(random_plans(of, PLANS_A_PROBLEM))


def memory_of(of: Problem, *plans: PlanSpec) -> MemoryTable:
    """Memory of these plans, every stage and term."""
    return memory_table(PlanInputs.of(of, table_of(plans), every_stage=True), keep_terms=True)


def term(of: Problem, name: str, one: PlanSpec) -> list[float]:
    """One term of each stage at its highest moment."""
    return [float(value) for value in memory_of(of, one).terms[name][0]]
