"""Schedules that fold or double the pipeline: times of any proportion, bounds, planted faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from ppadvisor.errors import InputError
from ppadvisor.schedules import get
from ppadvisor.schedules.base import IntArray, RankOrder, Schedule, StageTotals
from ppadvisor.schedules.patterns import two_way_placement, wave_placement
from ppadvisor.schedules.replay import replay
from tests.schedules.oracle import Times, faults, uniform_chunk_times
from tests.schedules.test_orders import closed_form_faults

FOLDED = ("dualpipe", "dualpipev", "chimera", "hanayo")
Draw = Callable[[np.random.Generator, IntArray], Times]


def runnable(name: str, ranks: tuple[int, ...], rounds: tuple[int, ...]) -> list[tuple[Schedule, int, int, int]]:
    """(schedule, p, m, v) of what it runs with m = p times these, and with 1, 2 and 3 micro-batches."""
    schedule = get(name)
    sizes = [(p, m) for p in ranks for m in sorted({1, 2, 3, *(p * times for times in rounds)})]
    chunks = (2, 4, 6) if name == "hanayo" else (schedule.virtual_stages.default,)
    return [(schedule, p, m, v) for p, m in sizes for v in chunks if schedule.problem(p, m, v) is None]


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("p", range(1, 13))
def test_makespan_is_exact_for_times_of_any_proportion(name: str, p: int) -> None:
    """F, I and W that differ up to a hundredfold: `makespan_s` equals the replay, hanayo's with 1 to 3 waves."""
    rng = np.random.default_rng(p)
    for schedule, _, m, v in runnable(name, (p,), (1, 2, 3, 5)):
        order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
        for forward_s, input_s, weight_s in np.exp(rng.uniform(-2.3, 2.3, (6, 3))):
            whole_s = input_s + weight_s
            result = replay(order, placement, forward_s, whole_s, input_grad_s=input_s, weight_grad_s=weight_s)
            declared = schedule.makespan_s(p, m, v, forward_s, input_s, weight_s)
            assert result.makespan_s == pytest.approx(float(declared), rel=1e-12)


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("v", [4, 6])
def test_hanayo_closed_forms_hold_for_more_waves(p: int, v: int) -> None:
    """Bubble, makespan and in flight equal the replay with 2 and 3 waves."""
    for schedule, _, m, _ in runnable("hanayo", (p,), (1, 2, 4)):
        order = schedule.rank_orders(p, m, v)
        assert faults(order, schedule.placement(p, v), m) == []
        assert closed_form_faults(schedule, order, p, m, v) == []


def test_chimera_of_four_ranks_by_hand() -> None:
    """p = m = 4: each pipeline's F of micro-batch k in slot s + 2k and B in slot 7 − s + 2k, drawn on paper."""
    assert [str(rank_order) for rank_order in get("chimera").rank_orders(4, 4)] == [
        "F0.0 F0.1 F1.2 B1.2 F1.3 B1.3 B0.0 B0.1",
        "F0.0 F1.2 F0.1 F1.3 B1.2 B0.0 B1.3 B0.1",
        "F1.2 F0.0 F1.3 F0.1 B0.0 B1.2 B0.1 B1.3",
        "F1.2 F1.3 F0.0 B0.0 F0.1 B0.1 B1.2 B1.3",
    ]


def test_placements() -> None:
    """A V and a W go back over the ranks, two copies lie against each other."""
    assert wave_placement(3, 2).tolist() == [[0, 5], [1, 4], [2, 3]]
    assert wave_placement(2, 4).tolist() == [[0, 3, 4, 7], [1, 2, 5, 6]]
    assert two_way_placement(4, 1).tolist() == [[0, 3], [1, 2], [2, 1], [3, 0]]


def model_like(rng: np.random.Generator, placement: IntArray) -> Times:
    """Equal stages; the embedding up to 15 % and the head up to 60 % of a whole rank.

    In three cases of ten a stage is up to 50 % heavier. Links up to 2 % of a rank's forward, and up to 50 % more behind
    every 1st to 8th (node borders).
    """
    stages, ranks = int(placement.max()) + 1, len(placement)
    forward = np.full(stages, ranks / stages)
    forward[0] += rng.uniform(0.0, 0.15)
    if rng.random() < 0.3:
        forward[rng.integers(stages)] *= rng.uniform(1.0, 1.5)
    backward, head = 2 * forward, rng.uniform(0.0, 0.6)
    forward[-1] += head
    backward[-1] += 1.2 * head
    handoff = np.full(stages - 1, rng.uniform(0.0, 0.02))
    every = int(rng.integers(1, 9))
    handoff[every - 1 :: every] += rng.uniform(0.0, 0.5)
    across = uniform_chunk_times(rng, placement).handoff_s > 0
    return Times(forward[placement], backward[placement], handoff * across)


def log_normal(rng: np.random.Generator, placement: IntArray) -> Times:
    """Times that differ by factors of hundreds, to look for a bound that breaks."""
    stages = int(placement.max()) + 1
    across = uniform_chunk_times(rng, placement).handoff_s > 0
    forward, backward = (np.exp(rng.normal(mean, 1.2, stages))[placement] for mean in (0.0, 0.5))
    return Times(forward, backward, np.exp(rng.normal(-1, 2, stages - 1)) * across)


def ratios(name: str, draw: Draw, form: str) -> np.ndarray:
    """The array form over the replayed makespan, for 3 random times at each of m = p, 2p, 3p, 4p, 8p."""
    rng, found = np.random.default_rng(7), []
    for schedule, p, m, v in runnable(name, (2, 4, 6, 8, 12), (1, 2, 3, 4, 8)):
        if m < p:
            continue
        order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
        for _ in range(3):
            times = draw(rng, placement)
            makespan_s = replay(order, placement, **times.to_replay()).makespan_s
            found.append(np.asarray(getattr(schedule, form)(p, m, v, times.totals(placement))) / makespan_s)
    return np.array(found)


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("draw", [model_like, uniform_chunk_times, log_normal])
def test_bounds_are_bounds(name: str, draw: Draw) -> None:
    """Lower and upper bound hold on model-like, wild and absurd stage times and links."""
    found = ratios(name, draw, "pipeline_time_bounds_s")
    assert found[:, 0].max() <= 1 + 1e-12
    assert found[:, 1].min() >= 1 - 1e-12


@pytest.mark.parametrize(
    ("name", "usual", "worst"),
    [("chimera", 0.04, 0.08), ("dualpipe", 0.07, 0.11), ("dualpipev", 0.06, 0.12), ("hanayo", 0.10, 0.25)],
)
def test_guess_is_as_good_as_its_docstring_says(name: str, usual: float, worst: float) -> None:
    """On model-like stages 95 % of the guesses and all of them are about as near the replay as their docstring says."""
    off = np.abs(ratios(name, model_like, "pipeline_time_s") - 1)
    assert np.quantile(off, 0.95) < usual
    assert off.max() < worst


@pytest.mark.parametrize("name", FOLDED)
def test_guess_of_equal_stages_is_the_makespan(name: str) -> None:
    """Equal stages and free links leave nothing to guess, also from totals that know no chunks."""
    for schedule, p, m, v in runnable(name, (2, 4, 8), (2, 4)):
        if m < p:
            continue
        times = Times(np.full((p, v), 1 / v), np.full((p, v), 2 / v), np.zeros(p * v - 1))
        placement = np.arange(p * v).reshape(p, v)
        split = 0.5 if schedule.splits_backward else 0.0
        declared = float(schedule.makespan_s(p, m, v, 1 / v, 2 / v * (1 - split), 2 / v * split))
        plain = StageTotals.of(times.forward_s.sum(axis=1), times.backward_s.sum(axis=1))
        for totals in (times.totals(placement), plain):
            assert float(schedule.pipeline_time_s(p, m, v, totals)) == pytest.approx(declared, rel=1e-12)


def test_swapping_two_actions_of_chimera_is_noticed() -> None:
    """Each swap of neighbours at p = 4, m = 8 is a fault, breaks a closed form, or is one of six harmless ones.

    These lie where one unit ends and the next begins, in the time that B > F leaves idle there. That swaps of DualPipe
    are noticed is shown by the recorded orders, in `test_published_folded`.
    """
    p, m, schedule = 4, 8, get("chimera")
    order, placement = schedule.rank_orders(p, m), schedule.placement(p, 1)
    unnoticed = []
    for rank in range(p):
        for index in range(len(order[rank]) - 1):
            actions = order[rank].actions.copy()
            actions[[index, index + 1]] = actions[[index + 1, index]]
            changed = (*order[:rank], RankOrder(actions), *order[rank + 1 :])
            if not faults(changed, placement, m) and not closed_form_faults(schedule, changed, p, m):
                unnoticed.append(f"{rank}: {order[rank][index]} {order[rank][index + 1]}")
    ends = ["0: B0.0 F0.4", "0: B0.1 F0.5", "0: F0.5 F1.6", "3: B1.2 F1.6", "3: B1.3 F1.7", "3: F1.7 F0.4"]
    assert unnoticed == ends


@pytest.mark.parametrize("name", FOLDED)
def test_planted_faults_are_noticed(name: str) -> None:
    """Work left out, done twice or by the other copy, a forgotten 1/v and a wrong warm-up are each caught at p = 4."""
    p, m, schedule = 4, 8, get(name)
    v = schedule.virtual_stages.default
    order, placement = schedule.rank_orders(p, m), schedule.placement(p, v)
    first = order[0].actions
    other_chunk = first.copy()
    other_chunk[0, 1] ^= 1
    for actions in (first[1:], np.concatenate([first, first[-1:]]), other_chunk):
        assert faults((RankOrder(actions), *order[1:]), placement, m)
    assert faults((RankOrder(first[::-1]), *order[1:]), placement, m) == ["deadlock"]
    whole_rank = dataclasses.replace(
        schedule, in_flight_microbatches=lambda *a: 2 * schedule.in_flight_microbatches(*a)
    )
    assert closed_form_faults(whole_rank, order, p, m) == ["in_flight_microbatches"]
    longer = dataclasses.replace(schedule, makespan_s=lambda p, m, v, *s: schedule.makespan_s(p, m + 1, v, *s))
    assert closed_form_faults(longer, order, p, m) == ["makespan_s"]


@pytest.mark.parametrize(
    ("name", "p", "m", "message"),
    [
        ("dualpipe", 3, 8, "pipeline_parallel must be even: got 3"),
        ("dualpipe", 4, 9, "num_microbatches must be even and at least 2 x pipeline_parallel, 8: got 9"),
        ("dualpipe", 4, 6, "num_microbatches must be even and at least 2 x pipeline_parallel, 8: got 6"),
        ("chimera", 3, 6, "pipeline_parallel must be even: got 3"),
        ("chimera", 4, 3, "num_microbatches must be even, half of them for each direction: got 3"),
        ("chimera", 4, 6, "num_microbatches must be at most 4 or a multiple of it: got 6"),
        ("hanayo", 4, 6, "num_microbatches must be at most 4 or a multiple of it: got 6"),
    ],
)
def test_what_cannot_be_run_is_named(name: str, p: int, m: int, message: str) -> None:
    """Odd ranks, unequal halves and parts of units are answered with what is allowed and what was given."""
    with pytest.raises(InputError) as caught:
        get(name).rank_orders(p, m)
    assert str(caught.value) == f"schedule {name}: {message}"
