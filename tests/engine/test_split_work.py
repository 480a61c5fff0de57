"""What the steps of a split backward work with at a rank's peak, told apart as torch's engine does them."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.engine.recomputation import saved_per_chunk
from ppadvisor.engine.stash import Held, Steps, Work, stash_of
from ppadvisor.engine.timeline import timeline_of_plan
from ppadvisor.schedules.base import RankOrder
from ppadvisor.search.constraints import legal_plans
from tests.problems import model, plan, problem, table_of

STEPS = ("input_grad", "weight_grad", "first_weight_grad")
ONE = np.ones((1, 1))
LAYERS = (2, 2, 2, 2)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ((9.0, 0.0, 0.0), ("input_grad", [1.0, 1.0])),  # the second I: one still alive, one waits
        ((0.0, 9.0, 0.0), ("weight_grad", [1.0, 0.0])),  # the second W: what the first held is gone
        ((0.0, 9.0, 9.0), ("first_weight_grad", [1.0, 1.0])),  # the first W: both there
    ],
)
def test_the_step_that_needs_most_is_the_peak(needs: tuple[float, ...], expected: tuple[str, list[float]]) -> None:
    """F F I I W W of one layer, by hand: 1 byte a forward, 2 waiting; the micro-batch in its step counts as alive."""
    orders = (RankOrder.parse("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"),)
    work = Work(Steps(*(need * ONE for need in needs)), np.zeros(1))
    stash = stash_of(orders, Held(ONE, 2 * ONE, 0 * ONE), ONE, 0 * ONE, work)
    assert stash.under_way is not None
    assert {name: getattr(stash.under_way, name).item() for name in STEPS} == {
        name: float(name == expected[0]) for name in STEPS
    }
    assert [stash.at_peak.alive.item(), stash.at_peak.waiting.item()] == expected[1]


def test_without_their_needs_the_steps_are_not_told_apart() -> None:
    """Then what is held alone decides, as before."""
    stash = stash_of((RankOrder.parse("F0.0 I0.0 W0.0"),), Held(ONE, 2 * ONE, 0 * ONE), 0 * ONE, 0 * ONE)
    assert stash.under_way is None


def test_a_timeline_has_no_gradients_waiting_on_torchs_first_stage() -> None:
    """Its whole backward is done at the weight gradient: till then it holds what was saved, four micro-batches of it.

    Four in flight: measured on torch for InterleavedZeroBubble, p = 4, m = 8.
    """
    of = problem(model("llama", num_layers=8), framework="torchtitan", global_batch_size=8)
    one = plan(list(LAYERS), schedule="interleaved-zero-bubble", num_microbatches=8)
    held = timeline_of_plan(of, one).ranks[0].held_bytes
    assert held is not None
    saved = saved_per_chunk(pipeline_of(of, one).inputs)[0, 0, 0]
    assert held.value.max() == pytest.approx(4 * saved)


@pytest.mark.parametrize(
    ("split", "legal"), [((2, 2, 2, 2), True), ((0, 3, 3, 2), True), ((3, 3, 2, 0), True), ((4, 0, 2, 2), False)]
)
def test_torchtitan_has_no_stage_without_parameters(split: tuple[int, ...], legal: bool) -> None:
    """An embedding or a head alone is a stage; with neither there is nothing for torch's optimizer to hold."""
    of = problem(model("llama", num_layers=8), framework="torchtitan", global_batch_size=8)
    _, __, refused = legal_plans(
        of, table_of([plan(list(split), schedule="gpipe", num_microbatches=8, optimizer_sharding=2)])
    )
    assert [one.code for one in refused] == ([] if legal else ["torchtitan_empty_stage"])
    assert all("stage 1 has no layers" in one.message for one in refused)
