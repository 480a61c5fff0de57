"""Schedules that split the backward: times of any proportion, memory, bounds, the search, and planted faults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from ppadvisor.errors import InputError
from ppadvisor.schedules import get
from ppadvisor.schedules.base import ChunkTotals, FloatArray, IntArray, Kind, RankOrder, StageTotals, looped_placement
from ppadvisor.schedules.replay import replay
from ppadvisor.schedules.split_backward import alternating_order
from ppadvisor.schedules.v_blocks import half_block, half_limit, min_block, min_limit
from ppadvisor.schedules.v_shape import block_order, idle_units
from ppadvisor.schedules.zero_bubble_auto import (
    Choices,
    StageTimes,
    _build,
    _candidates,
    equal_times_order,
    search_order,
)
from tests.schedules.oracle import Times, default_order, faults, log_normal_chunk_times, uniform_chunk_times
from tests.schedules.test_orders import closed_form_faults

ONE_CHUNK = ("zb-h1", "zb-h2", "zb-1p", "zb-2p")
IN_A_V = ("zb-v", "v-half", "v-min")
ALL = ONE_CHUNK + IN_A_V
Draw = Callable[[np.random.Generator, IntArray], Times]


def made_s(name: str, p: int, m: int, forward_s: float, input_s: float, weight_s: float, handoff_s: float = 0) -> float:
    """The replayed makespan of a schedule's own order for equal chunks."""
    order, placement = default_order(get(name), p, m)
    result = replay(order, placement, forward_s, input_grad_s=input_s, weight_grad_s=weight_s, handoff_s=handoff_s)
    return result.makespan_s


def said_s(name: str, p: int, m: int, *times: float) -> float:
    """The same by formula."""
    return float(get(name).makespan_s(p, m, get(name).virtual_stages.default, *times))


@pytest.mark.parametrize("name", [*ONE_CHUNK, "zb-v"])
@pytest.mark.parametrize("p", range(1, 9))
def test_makespan_is_exact_for_times_of_any_proportion(name: str, p: int) -> None:
    """F, I and W that differ up to fiftyfold: `makespan_s` is the replay for all m; ZB-V's for m ≤ p or ≥ 2p − 1."""
    rng = np.random.default_rng(p)
    for m in {*range(1, 2 * p + 2), 3 * p, 25}:
        if name != "zb-v" or not p < m < 2 * p - 1:
            for times in np.exp(rng.normal(0, 1, (4, 3))).tolist():
                assert said_s(name, p, m, *times) == pytest.approx(made_s(name, p, m, *times), rel=1e-12)


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("p", [*range(1, 11), 16])
def test_limited_memory_is_exact_for_equal_kinds(name: str, p: int) -> None:
    """F = I = W: makespan and peak are those of the formulas for every m, p up to 10; and for p = 16 from m = 2p on."""
    for m in range(1 if p <= 10 else 2 * p, 4 * p, 1 if p <= 10 else 7):
        order, placement = default_order(get(name), p, m)
        result = replay(order, placement, 1.0, input_grad_s=1.0, weight_grad_s=1.0)
        assert result.makespan_s == said_s(name, p, m, 1.0, 1.0, 1.0)
        limit = int((half_limit if name == "v-half" else min_limit)(p))
        assert result.in_flight_microbatches.tolist() == [min(m, limit)] * p


def test_idle_units_of_more_ranks_are_near() -> None:
    """p up to 24: where memory has just filled up the replay takes up to 1 + (p + 2)/16 slots more, never less."""
    for name, limit in (("v-half", half_limit), ("v-min", min_limit)):
        for p in (11, 14, 18, 24):
            for m in range(int(limit(p)) - 1, 2 * p + 1, p // 4):
                late = made_s(name, p, m, 1.0, 1.0, 1.0) - 6 * m - float(idle_units(p, m, limit(p)))
                assert 0 <= late <= (1 + (p + 2) // 16 if limit(p) < m < 2 * p else 0)


@pytest.mark.parametrize(
    ("name", "few", "low", "high"),
    [
        ("zb-v", (1.0, 2.0), -0.03, 0.01),
        ("v-half", (1.5, 9.0), -0.003, 0.003),
        ("v-half", (0.0, 1.5), -0.12, 0.04),
        ("v-min", (2.0, 9.0), -0.01, 0.02),
        ("v-min", (0.0, 2.0), -0.12, 0.04),
    ],
)
def test_makespan_is_as_near_as_it_says(name: str, few: tuple[float, float], low: float, high: float) -> None:
    """F = 1, I 0.8 to 2.2, W 0.4 to 1.2, hand-offs free: the form is off by no more than its docstring says."""
    rng = np.random.default_rng(11)
    for p in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12):
        for m in sorted({1, 2, p // 2 + 1, p - 1, p, 3 * p // 2, 2 * p, 4 * p}):
            if few[0] * p <= m < few[1] * p and m > 0:
                for input_s, weight_s in rng.uniform((0.8, 0.4), (2.2, 1.2), (5, 2)).tolist():
                    off = said_s(name, p, m, 1.0, input_s, weight_s) / made_s(name, p, m, 1.0, input_s, weight_s) - 1
                    assert low < off < high, (p, m, input_s, weight_s)


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_zero_bubbles_are_zero_in_span(p: int) -> None:
    """ZB-H2, ZB-2p and ZB-V with F = I = W and m ≥ 2p − 1: no rank idles between its first start and its last end."""
    for name in ("zb-h2", "zb-2p", "zb-v"):
        for m in (2 * p - 1, 3 * p, 4 * p + 1):
            order, placement = default_order(get(name), p, m)
            assert replay(order, placement, 1.0, input_grad_s=1.0, weight_grad_s=1.0).bubble_in_span_fraction < 1e-12


@pytest.mark.parametrize("name", ONE_CHUNK)
def test_short_links_of_equal_stages_are_exact(name: str) -> None:
    """Hand-offs up to min(F, I, W/2)/4 and m ≥ 2p + 2: the guess for equal stages and links is the replay."""
    rng, schedule = np.random.default_rng(3), get(name)
    for p in (2, 3, 4, 6, 8):
        for m in (2 * p + 2, 4 * p):
            forward_s, input_s, weight_s = rng.uniform(0.7, 1.5, 3)
            link_s = min(forward_s, input_s, weight_s / 2) * rng.uniform(0, 0.25)
            chunk_s, links_s = np.ones((p, 1)), np.full(p - 1, link_s)
            totals = ChunkTotals.of_chunks(
                chunk_s * forward_s, chunk_s * (input_s + weight_s), links_s, chunk_s * weight_s
            )
            guess_s = float(schedule.pipeline_time_s(p, m, 1, totals))
            assert guess_s == pytest.approx(made_s(name, p, m, forward_s, input_s, weight_s, link_s), rel=1e-12)


@pytest.mark.parametrize("make", [half_block, min_block])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_the_longer_steady_state_is_what_is_built(make: Callable[[int], Any], p: int) -> None:
    """An order made longer period by period is op for op the one built slot by slot for as many micro-batches."""
    for m in (2 * p + 5, 3 * p + 6):
        longer, built = block_order(m, make(p)), block_order(m, make(p), at_most=m)
        assert [order.actions.tolist() for order in longer] == [order.actions.tolist() for order in built]


def test_a_block_that_does_not_fit_is_told() -> None:
    """One chunk of memory: nobody can go on, and that is said instead of waiting for ever."""
    with pytest.raises(RuntimeError, match="does not fit into 1 chunks"):
        block_order(4, dataclasses.replace(half_block(4), limit=1))


def model_like_times(rng: np.random.Generator, placement: IntArray) -> Times:
    """Equal chunks, embedding on the first stage and head on the last, wherever these are; see `oracle`.

    The first stage is up to 15 % of a rank heavier, the last up to 60 %; in 3 of 10 cases a rank or chunk up to 50 %;
    links take up to 2 % of a rank's forward, at node borders up to half a chunk's more.
    """
    p, v = placement.shape
    forward = np.ones((p, v)) + (placement == 0) * rng.uniform(0.0, 0.15)
    if rng.random() < 0.3:
        forward[rng.integers(p), slice(None) if rng.random() < 0.5 else rng.integers(v)] *= rng.uniform(1.0, 1.5)
    head = (placement == placement.size - 1) * rng.uniform(0.0, 0.6) * v
    owner = np.repeat(np.arange(p), v)[np.argsort(placement, axis=None)]
    slow = (np.minimum(owner[1:], owner[:-1]) + 1) % rng.integers(1, 9) == 0
    handoff = (rng.uniform(0.0, 0.02) * v + slow * rng.uniform(0.0, 0.5)) * (owner[1:] != owner[:-1])
    return Times(forward + head, 2 * forward + 1.2 * head, handoff)


def sample(name: str, draw: Draw, samples: int, share: tuple[float, float] = (0.3, 0.5)) -> FloatArray:
    """Lower bound, guess and upper bound over the replay and m/p, for random times; W is `share` of a backward."""
    rng, schedule = np.random.default_rng(7), get(name)
    v, found = schedule.virtual_stages.default, []
    for p in (1, 2, 3, 4, 6, 8, 12):
        for m in (max(1, p // 2), p, p + 1, 2 * p, 4 * p)[: 5 if p < 12 else 4]:
            order, placement = default_order(schedule, p, m)
            for _ in range(samples):
                times = draw(rng, placement)
                weight_s = times.backward_s * rng.uniform(*share)
                split = {"input_grad_s": times.backward_s - weight_s, "weight_grad_s": weight_s}
                result_s = replay(order, placement, **(times.to_replay() | split)).makespan_s
                totals = ChunkTotals.of_chunks(*times, weight_s)
                bounds, guess_s = (
                    schedule.pipeline_time_bounds_s(p, m, v, totals),
                    schedule.pipeline_time_s(p, m, v, totals),
                )
                ratios = [float(seconds) / result_s for seconds in (bounds.lower_s, guess_s, bounds.upper_s)]
                found.append([*ratios, m / p])
    return np.array(found)


@pytest.mark.parametrize("draw", [model_like_times, uniform_chunk_times, log_normal_chunk_times])
@pytest.mark.parametrize("name", ALL)
def test_bounds_are_bounds(name: str, draw: Draw) -> None:
    """Both bounds hold on model-like, wild and absurd times, W 5 % to 90 % of a backward; the guess is between."""
    lower, guess, upper, _ = sample(name, draw, 3, (0.05, 0.9)).T
    assert lower.max() <= 1 + 1e-12
    assert upper.min() >= 1 - 1e-12
    assert (lower <= guess * (1 + 1e-12)).all()
    assert (guess <= upper * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    ("name", "usual", "low", "high"),
    [
        ("zb-h1", 0.05, -0.08, 0.12),
        ("zb-h2", 0.06, -0.08, 0.12),
        ("zb-1p", 0.05, -0.08, 0.12),
        ("zb-2p", 0.06, -0.08, 0.12),
        ("zb-v", 0.06, -0.11, 0.08),
        ("v-half", 0.06, -0.11, 0.07),
        ("v-min", 0.11, -0.13, 0.14),
    ],
)
def test_guesses_are_as_good_as_their_docstrings_say(name: str, usual: float, low: float, high: float) -> None:
    """On model-like chunks 95 % of the guesses (to a point), and all of them, are as near the replay as stated."""
    off = sample(name, model_like_times, 8)[:, 1] - 1
    assert np.quantile(np.abs(off), 0.95) < usual
    assert low < off.min()
    assert off.max() < high


@pytest.mark.parametrize("name", ALL)
def test_array_forms_give_what_they_give_one_by_one(name: str) -> None:
    """A table of plans that differ in p, m and times: each row is what the plan gives alone."""
    rng, schedule = np.random.default_rng(5), get(name)
    v = schedule.virtual_stages.default
    plans = [(p, m) for p in (1, 2, 4, 5, 8) for m in (1, 5, 8, 16)]
    each = [model_like_times(rng, schedule.placement(p, v)).totals(schedule.placement(p, v)) for p, _ in plans]
    together = ChunkTotals(**{field: np.array([getattr(totals, field) for totals in each]) for field in vars(each[0])})
    p, m = np.array(plans).T
    calls: tuple[Callable[..., Any], ...] = (
        lambda p, m, totals: schedule.pipeline_time_s(p, m, v, totals),
        lambda p, m, totals: schedule.pipeline_time_bounds_s(p, m, v, totals).lower_s,
        lambda p, m, totals: schedule.pipeline_time_bounds_s(p, m, v, totals).upper_s,
        lambda p, m, totals: schedule.makespan_s(p, m, v, totals.forward_max_s, totals.backward_max_s, 0.5),
        lambda p, m, _: schedule.bubble_fraction(p, m, v),
        lambda p, m, _: schedule.in_flight_microbatches(p, m, v, 0),
    )
    for call in calls:
        rows = call(p, m, together)
        assert rows.shape == (len(plans),)
        alone = [float(call(*plan, totals)) for plan, totals in zip(plans, each, strict=True)]
        assert rows.tolist() == pytest.approx(alone)


@pytest.mark.parametrize("name", ALL)
def test_totals_of_whole_ranks_stand_for_equal_chunks(name: str) -> None:
    """Plain `StageTotals` bound the replay of ranks that differ, if each rank's own chunks are equal and W is half."""
    rng, schedule = np.random.default_rng(9), get(name)
    v = schedule.virtual_stages.default
    for p, m in ((2, 4), (4, 8), (5, 7), (8, 24)):
        order, placement = default_order(schedule, p, m)
        times = Times(rng.uniform(0.5, 2.0, p), rng.uniform(1.0, 4.0, p), rng.uniform(0.0, 0.3, p * v - 1))
        result_s = replay(order, placement, **times.to_replay()).makespan_s
        totals = StageTotals.of(times.forward_s * v, times.backward_s * v, times.handoff_s)
        lower_s, upper_s = schedule.pipeline_time_bounds_s(p, m, v, totals)
        assert lower_s * (1 - 1e-12) <= result_s <= upper_s * (1 + 1e-12)
        assert lower_s <= schedule.pipeline_time_s(p, m, v, totals) <= upper_s


# --- the search -------------------------------------------------------------------------------------------------------


def span_s(order: tuple[RankOrder, ...], times: dict[str, Any]) -> float:
    """Longest time of a rank from its first start to its last end."""
    result = replay(order, looped_placement(len(order), 1), **times)
    return max(float(end[-1] - start[0]) for start, end in zip(result.start_s, result.end_s, strict=True))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 8])
def test_search_keeps_to_its_memory_and_is_no_worse_than_by_hand(p: int) -> None:
    """Unequal stages and links, any limit: complete, no deadlock, within memory, not slower than the plain order."""
    rng = np.random.default_rng(p)
    for m in (1, 2, p, 2 * p + 1, 4 * p):
        for limit in (1, max(1, p // 2), p, 1.5 * p, 2 * p - 1, 3 * p, np.inf):
            freed = float(rng.choice([0.0, 0.3, 0.6, 1.0]))
            names = ("forward_s", "input_grad_s", "weight_grad_s")
            times: dict[str, Any] = {name: rng.uniform(0.5, 1.5, p) for name in names}
            times |= {"handoff_s": rng.uniform(0.0, 0.3, p - 1)}
            order = search_order(p, m, **times, memory_limit=limit, freed_at_input_grad=freed)
            assert faults(order, looped_placement(p, 1), m) == []
            result = replay(order, looped_placement(p, 1), **times, freed_at_input_grad=freed)
            assert result.in_flight_chunks.max() <= limit + 1e-6
            if limit >= p:
                by_hand = alternating_order(p, m, forwards_ahead=1)
                assert span_s(order, times) <= span_s(by_hand, times) * (1 + 1e-3)
            usual = equal_times_order(p, m, int(min(limit, m)))
            usual_s = replay(usual, looped_placement(p, 1), **times).makespan_s
            assert result.makespan_s <= usual_s * (1 + 1e-3)


def test_search_finds_more_than_the_handcrafted_orders() -> None:
    """Where W takes half of F and memory is there, the order made for the times is more than 5 % shorter than ZB-H2."""
    times = {"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 0.5, "handoff_s": 0.05}
    order = search_order(8, 24, **times, memory_limit=16, freed_at_input_grad=0.6)
    assert span_s(order, times) < 0.95 * span_s(alternating_order(8, 24, forwards_ahead=2), times)


def test_search_leaves_the_heaviest_stage_no_wait() -> None:
    """One of 8 stages 30 % heavier, 16 micro-batches of memory: its work, and nothing more, is the longest span."""
    heavy = np.ones(8)
    heavy[3] = 1.3
    times: dict[str, Any] = {"forward_s": heavy, "input_grad_s": 1.1 * heavy, "weight_grad_s": 0.8 * heavy}
    order = search_order(8, 24, **times, memory_limit=16)
    assert span_s(order, times) == pytest.approx(24 * 1.3 * 2.9)


@pytest.mark.parametrize("name", ["zb-1p", "zb-2p"])
def test_plain_order_is_that_of_the_search_for_equal_kinds(name: str) -> None:
    """`order` is what `order_for_times` finds for F = I = W and free links; with p in flight that is ZB-H1's."""
    schedule = get(name)
    assert schedule.order_for_times is not None
    for p in (1, 2, 3, 4, 6, 8):
        for m in (1, 2, p, p + 1, 2 * p - 2, 2 * p - 1, 3 * p, 20):
            if m > 0:
                found = schedule.order_for_times(p, m, 1, 1.0, 1.0, 1.0)
                assert [str(order) for order in found] == [str(order) for order in schedule.order(p, m, 1)]
                if name == "zb-1p":
                    by_hand = alternating_order(p, m, forwards_ahead=1)
                    assert [str(order) for order in found] == [str(order) for order in by_hand]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"p": 0}, "p and m must be at least 1: got p = 0, m = 8"),
        ({"memory_limit": 0.5}, "memory_limit must be at least 1 and freed_at_input_grad from 0 to 1: got 0.5 and 0.0"),
        ({"freed_at_input_grad": 1.5}, "freed_at_input_grad from 0 to 1: got None and 1.5"),
        ({"forward_s": -1.0}, "forward_s: times must be finite and not negative"),
        ({"input_grad_s": [1.0, 2.0]}, r"input_grad_s: got shape (2,), needed (4,) or one number"),
        ({"handoff_s": [1.0]}, r"handoff_s: got shape (1,), needed (3,) or one number"),
    ],
)
def test_what_the_search_cannot_use_is_bad_input(given: dict[str, Any], message: str) -> None:
    """The message says what is allowed and what was given."""
    usual = {"p": 4, "m": 8, "forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 1.0}
    with pytest.raises(InputError) as caught:
        search_order(**(usual | given))
    assert message in str(caught.value)


# --- planted faults and speed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("kind", [Kind.FORWARD, Kind.WEIGHT_GRAD])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_one_action_too_early_is_noticed(name: str, kind: Kind, rank: int) -> None:
    """A W before its I is a deadlock; in a V one forward more in the warm-up breaks a closed form.

    With one chunk a rank that forward may fall into a wait and cost nothing: the recorded orders notice it.
    """
    p, m = 4, 9
    schedule = get(name)
    order, placement = default_order(schedule, p, m)
    actions = order[rank].actions.tolist()
    first = next(index for index, action in enumerate(actions) if action[0] == Kind.INPUT_GRAD)
    late = next(index for index, action in enumerate(actions) if index > first and action[0] == kind)
    actions.insert(first, actions.pop(late))
    changed = (*order[:rank], RankOrder.of(actions), *order[rank + 1 :])
    if kind == Kind.WEIGHT_GRAD or name in IN_A_V:
        assert faults(changed, placement, m) or closed_form_faults(schedule, changed, p, m)


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("shift", [-1, 1])
def test_warmup_off_by_one_is_noticed(name: str, rank: int, shift: int) -> None:
    """A rank whose forwards all come a micro-batch too early or too late breaks a closed form, or all wait for ever."""
    p, m = 4, 9
    schedule = get(name)
    order, placement = default_order(schedule, p, m)
    kinds = order[rank].kind
    ahead = int(np.argmax(kinds == Kind.INPUT_GRAD))
    others = kinds[kinds != Kind.FORWARD]
    turns = np.cumsum(others == Kind.INPUT_GRAD)
    as_it_is, places = (
        [int(np.searchsorted(turns, k - ahead - late + 1, side="right")) for k in range(m)] for late in (0, shift)
    )
    assert str(RankOrder.counting(np.insert(others, as_it_is, Kind.FORWARD))) == str(order[rank])
    changed = (*order[:rank], RankOrder.counting(np.insert(others, places, Kind.FORWARD)), *order[rank + 1 :])
    assert faults(changed, placement, m) or closed_form_faults(schedule, changed, p, m)


@pytest.mark.parametrize("name", ALL)
def test_weights_one_later_are_noticed(name: str) -> None:
    """Each weight gradient of a rank put off by one holds a chunk more than the formula says."""
    p, m = 4, 9
    schedule = get(name)
    order, placement = default_order(schedule, p, m)
    for rank in range(p):
        actions = order[rank].actions.copy()
        rows = np.flatnonzero(order[rank].kind == Kind.WEIGHT_GRAD)
        others = np.delete(actions, rows, axis=0)
        places = [*(rows[1:] - np.arange(1, len(rows))), len(others)]
        changed = (*order[:rank], RankOrder(np.insert(others, places, actions[rows], axis=0)), *order[rank + 1 :])
        assert faults(changed, placement, m) == []
        assert "in_flight_microbatches" in closed_form_faults(schedule, changed, p, m)


@pytest.mark.parametrize("name", IN_A_V)
def test_a_forgotten_v_is_noticed(name: str) -> None:
    """In flight in chunks instead of whole ranks, or a bubble of one chunk a rank, is not what the replay gives."""
    schedule = get(name)
    order, _ = default_order(schedule, 4, 8)
    in_chunks = dataclasses.replace(
        schedule, in_flight_microbatches=lambda p, m, v, rank: v * schedule.in_flight_microbatches(p, m, v, rank)
    )
    half = dataclasses.replace(schedule, bubble_fraction=lambda p, m, v: 2 * schedule.bubble_fraction(p, m, v))
    assert closed_form_faults(in_chunks, order, 4, 8) == ["in_flight_microbatches"]
    assert closed_form_faults(half, order, 4, 8) == ["bubble_fraction"]


@pytest.mark.parametrize("make", [half_block, min_block])
def test_a_memory_limit_off_by_one_is_noticed(make: Callable[[int], Any]) -> None:
    """One chunk more to hold, and V-Half and V-Min hold it."""
    schedule = get("v-half" if make is half_block else "v-min")
    block = dataclasses.replace(make(8), limit=make(8).limit + 1)
    assert "in_flight_microbatches" in closed_form_faults(schedule, block_order(24, block), 8, 24)


@pytest.mark.parametrize("name", ALL)
def test_large_orders_are_made_at_once(name: str) -> None:
    """p = 64, m = 1024 in less than a second."""
    begin = time.process_time()
    order = get(name).rank_orders(64, 1024)
    assert time.process_time() - begin < 1.0
    assert sum(map(len, order)) == 3 * 64 * 1024 * get(name).virtual_stages.default


@pytest.mark.parametrize(("p", "m", "seconds"), [(8, 32, 0.3), (32, 256, 3.0)])
def test_search_is_fast(p: int, m: int, seconds: float) -> None:
    """0.3 s for p = 8, m = 32; 3 s for p = 32, m = 256."""
    begin = time.process_time()
    search_order(p, m, 1.0, 1.1, 0.7, 0.02, memory_limit=2 * p)
    assert time.process_time() - begin < seconds


def test_choices_that_decide_nothing_are_not_built_twice() -> None:
    """For random times and limits each of the eight choices makes an order that is among the candidates."""
    rng, fewer = np.random.default_rng(3), 0
    for _ in range(30):
        p = int(rng.integers(2, 6))
        forward, gradient, weights = ((0.5 + rng.random(p) * rng.choice([0.0, 1.0])).tolist() for _ in range(3))
        links, limit = (0.3 * rng.random(p - 1)).tolist(), float(rng.integers(1, 2 * p + 1))
        times = StageTimes(forward, gradient, weights, links, limit)
        tried = [order for name, order in _candidates(3 * p, times) if isinstance(name, Choices)]
        fewer += 8 - len(tried)
        known = {tuple(order.actions.tobytes() for order in one) for one in tried}
        for flags in product((True, False), repeat=3):
            made = _build(3 * p, times, Choices(*flags))
            assert tuple(order.actions.tobytes() for order in made) in known
    assert fewer > 0
