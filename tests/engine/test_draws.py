"""Step times over the ranges of the assumptions: a draw is the engine asked with other assumptions."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from ppadvisor.engine.draws import drawn_step_times, drawn_values, shuffled_shares
from ppadvisor.engine.evaluate import estimate_plan, evaluate
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.assumptions import Assumption, Assumptions
from tests.problems import FRAMEWORKS, MODELS, model, plan, problem, random_plans, table_of

every_case = pytest.mark.parametrize(
    ("name", "framework"), [(name, framework) for name in MODELS for framework in FRAMEWORKS]
)


def with_draw(of: Problem, draw: int, number: int) -> Problem:
    """The problem with each assumption the number that it has in one draw."""
    assumed = of.assumptions
    values = {f.name: drawn_values(f.name, getattr(assumed, f.name), number)[draw] for f in fields(assumed)}
    drawn = {name: replace(getattr(assumed, name), value=float(value)) for name, value in values.items()}
    return replace(of, assumptions=replace(assumed, **drawn))


@every_case
def test_a_draw_is_the_engine_with_those_assumptions(name: str, framework: str) -> None:
    """All draws of a plan in one table: over the default it takes what a search with each draw's numbers finds."""
    of = problem(model(name), num_gpus=64, global_batch_size=256, framework=framework)
    plans = random_plans(of, 8, seed=11)
    estimates = [estimate_plan(of, one, margin=0.9) for one in plans]
    drawn = drawn_step_times(of, estimates, number=6)
    default = evaluate(of, table_of(plans), margin=0.9).step_time_s
    for draw in range(6):
        alone = evaluate(with_draw(of, draw, 6), table_of(plans), margin=0.9).step_time_s
        replayed = np.array([estimate.time.step_time_s for estimate in estimates])
        np.testing.assert_allclose(drawn[draw] / replayed, alone / default, rtol=1e-12)


def test_draws_are_near_the_replay_with_those_assumptions() -> None:
    """On even stages with heavier ends a draw is within 1 % of the plan replayed with the draw's numbers."""
    of = problem(model("llama", num_layers=48, hidden_size=4096, vocab_size=128_000), num_gpus=64)
    plans = [plan([48 // p] * p, data_parallel=64 // p, num_microbatches=4 * p) for p in (2, 4, 8)]
    drawn = drawn_step_times(of, [estimate_plan(of, one, margin=0.9) for one in plans], number=20)
    for draw in range(20):
        replayed = [estimate_plan(with_draw(of, draw, 20), one, margin=0.9).time.step_time_s for one in plans]
        assert drawn[draw] == pytest.approx(replayed, rel=0.01)


def test_the_default_is_the_median_of_what_is_drawn() -> None:
    """Of 0.5 in 0.2 to 0.6 half the draws lie evenly below and half evenly above: hand-made for four."""
    values = drawn_values("any", Assumption(0.5, 0.2, 0.6, "fraction", "made up"), 4)
    assert sorted(values) == pytest.approx([0.275, 0.425, 0.525, 0.575])


def test_what_the_user_gave_is_not_drawn() -> None:
    """A number that the user gave is known: every draw has it."""
    given = Assumptions().changed({"gemm_efficiency": 0.5}).gemm_efficiency
    assert set(drawn_values("gemm_efficiency", given).tolist()) == {0.5}


def test_every_slice_is_drawn_once() -> None:
    """Each name has every slice of the range once, in an order of its own that never changes."""
    one, other = (shuffled_shares(name, 200) for name in ("one", "other"))
    assert np.sort(one) == pytest.approx((np.arange(200) + 0.5) / 200)
    assert (one != other).any()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2
    assert shuffled_shares("one", 200).tolist() == one.tolist()
