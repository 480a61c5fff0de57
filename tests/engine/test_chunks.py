from __future__ import annotations

import numpy as np
import pytest

from ppadvisor import schedules
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.parameters import count_parameters
from ppadvisor.engine.partition import Layout, candidate_splits, stage_ranks, stages_of
from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.engine.stash import Held, share_in_work, stash_of
from ppadvisor.engine.tables import layers_of_ranks, table_of
from ppadvisor.schedules.base import RankOrder, peak_in_flight_chunks
from ppadvisor.specs.plan import PlanSpec
from tests.problems import model, problem

LLAMA = model("llama")
SIZES = [(p, m) for p in (2, 3, 4, 8, 12) for m in (2, 4, 8, 16, 24, 32)]


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_what_is_held_is_counted_along_the_order(name: str) -> None:
    """With chunks of one size and nothing freed in between, the weighted count is the plain one of the schedules."""
    schedule = schedules.get(name)
    v = schedule.virtual_stages.default
    sizes = [(p, m) for p, m in [(1, 1), (1, 4), (4, 1), *SIZES] if schedule.problem(p, m, v) is None]
    assert sizes
    for p, m in sizes:
        orders = schedule.rank_orders(p, m)
        ones = np.ones(schedule.placement(p, v).shape)
        peak = stash_of(orders, Held(ones, ones, 0 * ones), 0 * ones, 0 * ones).at_peak
        assert (peak.alive + peak.waiting).sum(axis=1).tolist() == peak_in_flight_chunks(orders).tolist()


@pytest.mark.parametrize(
    ("layers", "waiting_bytes", "expected"),
    [
        (1, 5.0, ([1.0], [1.0])),  # before the second I: one saved, one waits; its own layer is not waiting yet
        (4, 5.0, ([0.25], [1.75])),  # in the second I's last layer: three of four wait
        (4, 1.0, ([2.0], [0.0])),  # nothing is gained by waiting: both forwards, before the first I
    ],
)
def test_the_layer_in_work_does_not_wait(layers: int, waiting_bytes: float, expected: tuple[list[float], ...]) -> None:
    """A forward takes 2 bytes; F F I I W W hold the most in the last layer of I, counted once, or before the first."""
    orders = (RankOrder.parse("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"),)
    saved, waiting = np.array([[2.0]]), np.array([[waiting_bytes]])
    in_work = share_in_work(np.array([[float(layers)]]), saved, waiting)
    held = stash_of(orders, Held(saved, waiting, 0 * saved), in_work, 0 * saved).at_peak
    assert (held.alive[0].tolist(), held.waiting[0].tolist()) == expected


def test_at_the_loss_its_micro_batch_is_all_there() -> None:
    """F0 F1 I0 I1 W0 W1 of a chunk with the head: at the loss of the second, the first waits and no gradient of it."""
    orders = (RankOrder.parse("F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"),)
    one = np.ones((1, 1))
    stash = stash_of(orders, Held(2 * one, 5 * one, one), 0 * one, one)
    assert (stash.at_loss.alive.item(), stash.at_loss.waiting.item(), stash.at_loss.sent.item()) == (1.0, 1.0, 1.0)
    assert (stash.at_peak.alive.item(), stash.at_peak.waiting.item(), stash.at_peak.sent.item()) == (0.0, 2.0, 1.0)


def test_what_was_sent_adds_up_to_the_end() -> None:
    """F I W F I W: at the second weight gradient's start two gradients were sent and stay, one more than at the first.

    Their bytes move the peak to the last of what would else be equal moments.
    """
    orders = (RankOrder.parse("F0.0 I0.0 W0.0 F0.1 I0.1 W0.1"),)
    one = np.ones((1, 1))
    peak = stash_of(orders, Held(one, 2 * one, one), 0 * one, 0 * one).at_peak
    assert (peak.alive.item(), peak.waiting.item(), peak.sent.item()) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_the_ends_or_the_middle_of_a_run_of_ranks_hold_the_most(name: str) -> None:
    """A search looks at the first, middle and last of equal ranks only: no rank between them holds more."""
    schedule = schedules.get(name)
    v = schedule.virtual_stages.default
    for p, m in ((4, 8), (8, 16), (8, 64), (12, 24), (16, 32), (16, 128)):
        held = np.broadcast_to(schedule.in_flight_microbatches(p, m, v, np.arange(p)), (p,))
        # the first and the last rank are runs of their own (embedding, head); the rest is one run at most
        assert max(held[1:-1]) <= max(held[1], held[(p - 1) // 2], held[-2]) + 1e-9


def plan(name: str, p: int, m: int, v: int) -> PlanSpec:
    """A plan of LLAMA on p GPUs."""
    split = candidate_splits(LLAMA.num_layers, p * v)[0]
    return PlanSpec(
        pipeline_parallel=p,
        tensor_parallel=1,
        data_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        virtual_stages=v,
        micro_batch_size=1,
        num_microbatches=m,
        schedule=name,
        recompute="none",
        optimizer_sharding=1,
        layers_per_stage=layers_of_ranks(name, split, v),
        layers_per_chunk=split,
    )


@pytest.mark.parametrize("name", [n for n in schedules.SCHEDULES if n not in ("none", "naive")])
def test_ranks_hold_the_model_once_for_each_copy(name: str) -> None:
    """Parameters summed over the ranks are the model's, whatever the placement, times the copies of a schedule."""
    schedule = schedules.get(name)
    v = schedule.virtual_stages.default
    inputs = PlanInputs.of(problem(LLAMA, framework="generic"), table_of(plan(name, 4, 8, v)), every_stage=True)
    dense, expert = inputs.parameters
    assert not LLAMA.tied_embeddings
    expected = schedule.parameter_copies * count_parameters(LLAMA)
    assert float(dense.sum() + expert.sum()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in schedules.SCHEDULES if n not in ("none", "naive")])
def test_the_exact_count_is_the_closed_form_for_equal_chunks(name: str) -> None:
    """What the order of work holds of equal chunks is at most what the search's array form says, on every rank."""
    schedule = schedules.get(name)
    v = schedule.virtual_stages.default
    exact = pipeline_of(problem(LLAMA, framework="generic"), plan(name, 4, 8, v)).inputs
    assert exact.stash is not None
    alive = exact.stash.at_peak.alive + exact.stash.at_peak.waiting
    per_rank = alive.sum(axis=2)[0] / (v if schedule.parameter_copies == 1 else 1)
    closed = np.broadcast_to(schedule.in_flight_microbatches(4, 8, v, np.arange(4)), (4,))
    # an order made for the times at hand may use its memory limit to the full, one more than for equal times
    allowed = 1.0 if schedule.order_for_times else 1e-9
    assert (per_rank <= closed + allowed).all()


def test_v_shape_hands_nothing_over_where_it_turns() -> None:
    """A V holds its two middle stages on the last rank: 2 (p - 1) boundaries between neighbours, none further."""
    placement = schedules.get("zb-v").placement(4, 2).tolist()
    stages = stages_of(LLAMA, [Layout((1,) * 8, tuple(map(tuple, placement)))], every_stage=True)
    assert stage_ranks(tuple(map(tuple, placement))) == [0, 1, 2, 3, 3, 2, 1, 0]
    assert (stages.adjacent.tolist(), stages.far.tolist()) == ([6.0], [0.0])
    assert stages.has_embedding[0].tolist() == [1, 0, 0, 0]
    assert stages.has_head[0].tolist() == [1, 0, 0, 0]


def test_a_loop_goes_back_from_the_last_rank() -> None:
    """Interleaving passes p - 1 boundaries in each of v chunks and goes v - 1 times from the last rank to the first."""
    placement = schedules.get("interleaved-1f1b").placement(4, 3).tolist()
    stages = stages_of(LLAMA, [Layout((1,) * 12, tuple(map(tuple, placement)))], every_stage=True)
    assert (stages.adjacent.tolist(), stages.far.tolist()) == ([9.0], [2.0])
