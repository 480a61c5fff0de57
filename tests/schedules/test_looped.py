"""Schedules that hold several chunks a rank: every v, times of any proportion, groups, links, and planted faults."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.expressions import Formula, evaluate
from ppadvisor.errors import InputError
from ppadvisor.schedules import get
from ppadvisor.schedules.base import ChunkTotals, IntArray, Kind, RankOrder, StageTotals, looped_placement
from ppadvisor.schedules.interleaved_1f1b import group_problem, group_size, in_flight_chunks, order_with_group
from ppadvisor.schedules.replay import replay
from tests.schedules.oracle import (
    Times,
    faults,
    log_normal_chunk_times,
    model_like_chunk_times,
    uniform_chunk_times,
)
from tests.schedules.test_orders import closed_form_faults

LOOPED = ("interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "gis", "gis-h")
Draw = Callable[[np.random.Generator, IntArray], Times]


def runnable(name: str, p: int, v: int, microbatches: range | tuple[int, ...]) -> list[int]:
    """The m of these that the schedule runs with p ranks and v chunks."""
    return [m for m in microbatches if get(name).problem(p, m, v) is None]


def whole_groups(name: str, p: int, m: int, v: int) -> bool:
    """Whether GIS-H's closed forms are exact here: what a last group that is not whole does is in `test_grouped`."""
    return name != "gis-h" or v <= 2 or m <= (p + 1) // 2 or m % ((p + 1) // 2) == 0


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p", range(1, 9))
def test_closed_forms_hold_for_every_number_of_chunks(name: str, p: int, v: int) -> None:
    """Bubble, makespan and in flight equal the replay for v 1..4, m 1..32; no work is missing and no rank waits."""
    schedule = get(name)
    for m in runnable(name, p, v, range(1, 33)):
        order = schedule.rank_orders(p, m, v)
        if whole_groups(name, p, m, v):
            assert closed_form_faults(schedule, order, p, m, v) == [], m
        if m in (1, 2, 3, p, p + 1, 13, 32):
            assert faults(order, schedule.placement(p, v), m) == []


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_makespan_is_exact_for_times_of_any_proportion(name: str, p: int) -> None:
    """F, I and W that differ up to fiftyfold: `makespan_s` equals the replay wherever its docstring says exact."""
    rng, schedule = np.random.default_rng(p), get(name)
    for v in (1, 2, 4):
        for m in runnable(name, p, v, (1, 2, 3, 4, 6, 8, 9, 10, 16, 24)):
            if name == "interleaved-zero-bubble" and m < p and v > 1:
                continue
            order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
            for forward_s, input_s, weight_s in np.exp(rng.normal(0, 1, (4, 3))):
                if name == "gis-h" and (weight_s > forward_s + input_s or m % ((p + 1) // 2)):
                    continue
                result = replay(
                    order, placement, forward_s, input_s + weight_s, input_grad_s=input_s, weight_grad_s=weight_s
                )
                expected = float(schedule.makespan_s(p, m, v, forward_s, input_s, weight_s))
                assert result.makespan_s == pytest.approx(expected, rel=1e-12)


def test_zero_bubble_with_few_microbatches_is_as_near_as_it_says() -> None:
    """m < p, v > 1 and F, I, W that differ up to threefold: up to 12 % low, less than 1 % on average, never high."""
    rng, schedule = np.random.default_rng(3), get("interleaved-zero-bubble")
    off = []
    for p in range(2, 9):
        for v in (2, 3, 4):
            for m in range(1, p):
                order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
                for times in rng.uniform(1.0, 3.0, (4, 3)):
                    made_s = replay(
                        order, placement, times[0], input_grad_s=times[1], weight_grad_s=times[2]
                    ).makespan_s
                    off.append(float(schedule.makespan_s(p, m, v, *times)) / made_s - 1)
    assert max(off) < 1e-12
    assert min(off) > -0.12
    assert np.mean(off) > -0.01


@pytest.mark.parametrize("p", range(1, 9))
def test_group_size_is_the_smallest_legal_one(p: int) -> None:
    """N by trial of all from p to m; torch's m/rounds wherever that is whole; as one array what it is one by one."""
    batches = np.arange(1, 65)
    found = group_size(p, batches)
    for m, group in zip(batches.tolist(), found.tolist(), strict=True):
        legal = [n for n in range(p, m + 1) if group_problem(p, m, n) is None]
        assert group == (legal[0] if legal else m)
        assert group == group_size(p, m)
        rounds = max(1, m // p)
        assert m % rounds or group == m // rounds


@pytest.mark.parametrize(("p", "m"), [(2, 9), (3, 10), (4, 13), (4, 14), (5, 12)])
@pytest.mark.parametrize("v", [2, 3])
def test_every_legal_group_takes_the_same_time_and_holds_what_the_formula_says(p: int, m: int, v: int) -> None:
    """N changes the memory, (v − 1) chunks for each one more, and with free links not the time (Megatron's rule)."""
    for group in (n for n in range(p, m + 1) if group_problem(p, m, n) is None):
        order = order_with_group(p, m, v, group)
        result = replay(order, looped_placement(p, v), 1.0, 2.0)
        assert faults(order, looped_placement(p, v), m) == []
        assert result.makespan_s == 3 * (m * v + p - 1)
        assert result.in_flight_chunks.tolist() == in_flight_chunks(p, m, v, np.arange(p), group).tolist()


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("p", [2, 3, 4, 6])
def test_equal_chunks_with_links_are_exact(name: str, p: int) -> None:
    """Links up to min(F, B), or min(F, I, W/2) for m ≥ 2p: guess and upper bound both equal the replay."""
    rng, schedule = np.random.default_rng(p), get(name)
    splits = schedule.splits_backward
    for v in (2, 3):
        for m in runnable(name, p, v, range(2 * p if splits else p, 4 * p)):
            if (name == "gis" and m % p) or (name == "gis-h" and m % ((p + 1) // 2)):
                continue
            order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
            forward_s, backward_s = rng.uniform(0.5, 2.0, 2)
            link_s = min(forward_s, backward_s / 4 if splits else backward_s) * rng.uniform()
            times = Times(np.full(p, forward_s), np.full(p, backward_s), np.full(p * v - 1, link_s))
            made_s = replay(order, placement, **times.to_replay()).makespan_s
            totals = times.totals(placement)
            assert made_s == pytest.approx(float(schedule.pipeline_time_s(p, m, v, totals)), rel=1e-12)
            if not name.startswith("gis"):  # whose upper bound counts a hand-off as work
                upper_s = float(schedule.pipeline_time_bounds_s(p, m, v, totals).upper_s)
                assert made_s == pytest.approx(upper_s, rel=1e-12)


MULTIPLES, OTHERS = ((1, 0), (2, 0), (4, 0), (8, 0)), ((1, 1), (2, -1), (2, 2), (3, 2))
"""m as (a, b): a·p + b."""


def sample(name: str, draw: Draw, samples: int, counts: tuple[tuple[float, int], ...]) -> np.ndarray:
    """Lower bound, guess and upper bound over the replay, for random times with W of 0.3 to 0.5 of a backward."""
    rng, schedule = np.random.default_rng(7), get(name)
    found = []
    for p in (2, 3, 4, 6, 8, 12):
        for v in (1, 2, 4) if get(name).virtual_stages.allows(1) else (2, 3, 4):
            for m in runnable(name, p, v, tuple(int(a * p) + b for a, b in counts if p < 12 or a < 8)):
                order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
                for _ in range(samples):
                    times = draw(rng, placement)
                    weight_s = times.backward_s * rng.uniform(0.3, 0.5)
                    split = {"input_grad_s": times.backward_s - weight_s, "weight_grad_s": weight_s}
                    made_s = replay(order, placement, **(times.to_replay() | split)).makespan_s
                    totals = ChunkTotals.of_chunks(*times, weight_s)
                    lower_s, upper_s = schedule.pipeline_time_bounds_s(p, m, v, totals)
                    guess_s = schedule.pipeline_time_s(p, m, v, totals)
                    found.append([float(seconds) / made_s for seconds in (lower_s, guess_s, upper_s)])
    return np.array(found)


@pytest.mark.parametrize("draw", [model_like_chunk_times, uniform_chunk_times, log_normal_chunk_times])
@pytest.mark.parametrize("name", LOOPED)
def test_bounds_are_bounds(name: str, draw: Draw) -> None:
    """Lower and upper bound hold on model-like, wild and absurd chunk times and links, and the guess is between."""
    lower, guess, upper = sample(name, draw, 2, ((0.5, 0), *MULTIPLES, *OTHERS)).T
    assert lower.max() <= 1 + 1e-12
    assert upper.min() >= 1 - 1e-12
    assert (lower <= guess * (1 + 1e-12)).all()
    assert (guess <= upper * (1 + 1e-12)).all()


@pytest.mark.parametrize(
    ("name", "counts", "usual", "low", "high"),
    [
        ("interleaved-1f1b", MULTIPLES, 0.05, -0.14, 0.12),
        ("interleaved-1f1b", OTHERS, 0.09, -0.17, 0.10),
        ("looped-bfs", MULTIPLES, 0.04, -0.11, 0.08),
        ("looped-bfs", OTHERS, 0.04, -0.11, 0.08),
        ("interleaved-zero-bubble", MULTIPLES, 0.06, -0.12, 0.20),
        ("interleaved-zero-bubble", ((0.5, 0),), 0.07, -0.03, 0.14),
        ("gis", MULTIPLES, 0.06, -0.16, 0.06),
        ("gis", OTHERS, 0.05, -0.14, 0.07),
        ("gis-h", MULTIPLES, 0.05, -0.13, 0.12),
        ("gis-h", OTHERS, 0.05, -0.13, 0.08),
    ],
)
def test_guesses_are_as_good_as_their_docstrings_say(
    name: str, counts: tuple[tuple[float, int], ...], usual: float, low: float, high: float
) -> None:
    """On model-like chunks 95 % of the guesses (to a point), and all of them, are as near the replay as stated."""
    off = sample(name, model_like_chunk_times, 6, counts)[:, 1] - 1
    assert np.quantile(np.abs(off), 0.95) < usual
    assert low < off.min()
    assert off.max() < high


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 3, 8), (4, 2, 10), (8, 2, 32)])
def test_totals_of_whole_ranks_stand_for_equal_chunks(name: str, p: int, v: int, m: int) -> None:
    """Plain `StageTotals` bound the replay of ranks that differ, if each rank's own chunks are equal and W is half."""
    rng, schedule = np.random.default_rng((p, v, m)), get(name)
    order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
    for _ in range(10):
        times = Times(rng.uniform(0.5, 2.0, p), rng.uniform(1.0, 4.0, p), rng.uniform(0.0, 0.3, p * v - 1))
        made_s = replay(order, placement, **times.to_replay()).makespan_s
        totals = StageTotals.of(times.forward_s * v, times.backward_s * v, times.handoff_s)
        lower_s, upper_s = schedule.pipeline_time_bounds_s(p, m, v, totals)
        assert lower_s * (1 - 1e-12) <= made_s <= upper_s * (1 + 1e-12)
        assert lower_s <= schedule.pipeline_time_s(p, m, v, totals) <= upper_s


@pytest.mark.parametrize("name", LOOPED)
def test_array_forms_give_what_they_give_one_by_one(name: str) -> None:
    """A table of plans that differ in p, m, v and times: each row is what the plan gives alone."""
    rng, schedule = np.random.default_rng(5), get(name)
    plans = [(p, m, v) for p in (2, 4, 8) for m in (8, 16) for v in (2, 3)]
    each = [model_like_chunk_times(rng, looped_placement(p, v)).totals(looped_placement(p, v)) for p, _, v in plans]
    together = ChunkTotals(**{field: np.array([getattr(totals, field) for totals in each]) for field in vars(each[0])})
    p, m, v = np.array(plans).T
    calls: tuple[Callable[..., Any], ...] = (
        lambda p, m, v, totals: schedule.pipeline_time_s(p, m, v, totals),
        lambda p, m, v, totals: schedule.pipeline_time_bounds_s(p, m, v, totals).lower_s,
        lambda p, m, v, totals: schedule.pipeline_time_bounds_s(p, m, v, totals).upper_s,
        lambda p, m, v, totals: schedule.makespan_s(p, m, v, totals.forward_max_s, totals.backward_max_s, 0.5),
        lambda p, m, v, _: schedule.bubble_fraction(p, m, v),
        lambda p, m, v, _: schedule.in_flight_microbatches(p, m, v, 1),
    )
    for call in calls:
        rows = call(p, m, v, together)
        assert rows.shape == (len(plans),)
        assert rows.tolist() == pytest.approx(
            [float(call(*plan, totals)) for plan, totals in zip(plans, each, strict=True)]
        )


def with_warmup(rank_order: RankOrder, shift: int) -> RankOrder:
    """The same rank with `shift` more forwards ahead of its first backward; all else keeps its sequence."""
    forward = rank_order.kind == Kind.FORWARD
    first = np.isin(rank_order.kind, [Kind.BACKWARD, Kind.INPUT_GRAD])
    warmup = int(forward[: int(np.argmax(first))].sum()) - 1 + shift
    turn = np.where(forward, np.cumsum(forward) - 1 - warmup, np.cumsum(first) - 1)
    return RankOrder(rank_order.actions[np.lexsort((~forward, turn))])


@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zero-bubble", "gis", "gis-h"])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("shift", [-1, 1])
def test_warmup_off_by_one_is_noticed(name: str, rank: int, shift: int) -> None:
    """A rank with one warm-up forward too few or too many breaks a closed form, or all ranks wait for ever."""
    p, m, v = 4, 8, 2
    schedule = get(name)
    order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
    assert str(with_warmup(order[rank], 0)) == str(order[rank])
    changed = (*order[:rank], with_warmup(order[rank], shift), *order[rank + 1 :])
    assert faults(changed, placement, m) or closed_form_faults(schedule, changed, p, m, v)


@pytest.mark.parametrize("name", LOOPED)
def test_a_forgotten_v_is_noticed(name: str) -> None:
    """In flight in chunks instead of whole ranks, or a bubble without v, is not what the replay gives."""
    p, m, v = 4, 8, 2
    schedule = get(name)
    order = schedule.rank_orders(p, m, v)
    in_chunks = dataclasses.replace(
        schedule, in_flight_microbatches=lambda p, m, v, rank: v * schedule.in_flight_microbatches(p, m, v, rank)
    )
    without = dataclasses.replace(schedule, bubble_fraction=lambda p, m, v: schedule.bubble_fraction(p, m, 1))
    assert closed_form_faults(in_chunks, order, p, m, v) == ["in_flight_microbatches"]
    assert closed_form_faults(without, order, p, m, v) == ["bubble_fraction"]


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "message"),
    [
        (
            "interleaved-1f1b",
            4,
            3,
            2,
            "num_microbatches must be at least pipeline_parallel, 4: got 3 "
            "(a micro-batch group N needs p <= N <= m: got p = 4, N = 3, m = 3)",
        ),
        ("interleaved-1f1b", 4, 8, 1, "virtual_stages must be 2, 3, ...: got 1"),
        (
            "interleaved-zero-bubble",
            4,
            9,
            2,
            "num_microbatches must be a multiple of max(1, num_microbatches // pipeline_parallel) = 2: got 9",
        ),
    ],
)
def test_what_cannot_run_is_bad_input(name: str, p: int, m: int, v: int, message: str) -> None:
    """The message says what is allowed and what was given."""
    with pytest.raises(InputError) as caught:
        get(name).rank_orders(p, m, v)
    assert str(caught.value) == f"schedule {name}: {message}"


@pytest.mark.parametrize("name", LOOPED)
def test_formulas_as_text_give_the_same_numbers(name: str) -> None:
    """The written bubble and in-flight formulas, with p, m, v, r and N in them, are the functions' values."""
    schedule = get(name)
    for p, m, v in [(2, 8, 2), (4, 10, 3), (4, 2, 2), (8, 3, 4), (8, 32, 2)]:
        if schedule.problem(p, m, v) is not None:
            continue
        symbols = schedule.formula_symbols(p, m, v) if schedule.formula_symbols else {}
        values = {"p": p, "m": m, "v": v, "r": 1, **symbols}
        pairs = (
            (schedule.bubble_formula, schedule.bubble_fraction(p, m, v)),
            (schedule.in_flight_formula, schedule.in_flight_microbatches(p, m, v, 1)),
        )
        for text, expected in pairs:
            assert evaluate(Formula(text, schedule.source, values).substituted) == pytest.approx(float(expected))


def test_large_orders_are_made_at_once() -> None:
    """p = 64, v = 4, m = 1024: half a million actions (with a split backward 786,432) in less than half a second."""
    for name, actions in (("interleaved-1f1b", 524_288), ("interleaved-zero-bubble", 786_432), ("gis-h", 786_432)):
        begin = time.perf_counter()
        order = get(name).rank_orders(64, 1024, 4)
        assert time.perf_counter() - begin < 0.5
        assert sum(map(len, order)) == actions
