"""Schedules that fold or double the pipeline against orders recorded from torch, and numbers printed by others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.errors import InputError
from ppadvisor.schedules import get
from ppadvisor.schedules.base import IntArray, RankOrder, Schedule
from ppadvisor.schedules.dualpipe import makespan_sent_at_once_s as dualpipe_sent_at_once_s
from ppadvisor.schedules.dualpipe import published_idle_s
from ppadvisor.schedules.dualpipev import makespan_sent_at_once_s as dualpipev_sent_at_once_s
from ppadvisor.schedules.replay import Replay, replay

PUBLISHED = Path(__file__).parent.parent / "published"
TORCH = json.loads(gzip.decompress((PUBLISHED / "torch_dualpipev.json.gz").read_bytes()))


def without_pairs(order: tuple[RankOrder, ...]) -> tuple[RankOrder, ...]:
    """The same work, nothing held back until the second of a pair is done."""
    return tuple(RankOrder(rank_order.actions) for rank_order in order)


def run(
    schedule: Schedule, p: int, m: int, forward_s: float = 1.0, input_s: float = 1.0, weight_s: float = 1.0
) -> Replay:
    """The replay of equal stages and free links with the default v."""
    placement = schedule.placement(p, schedule.virtual_stages.default)
    order, whole_s = schedule.rank_orders(p, m), input_s + weight_s
    return replay(order, placement, forward_s, whole_s, input_grad_s=input_s, weight_grad_s=weight_s)


def as_torch_prints(order: RankOrder, stages: IntArray) -> str:
    """Stage, kind and micro-batch of each action, pairs in torch's brackets."""
    words = [f"{stages[action.chunk]}{action.kind.letter}{action.microbatch}" for action in order]
    assert order.paired is not None
    for first in reversed(np.flatnonzero(order.paired).tolist()):
        words[first : first + 2] = [f"({words[first]};{words[first + 1]})OVERLAP_F_B"]
    return " ".join(words)


@pytest.mark.parametrize(
    "record", [pytest.param(r, id=f"p{r['pipeline_parallel']}-m{r['num_microbatches']}") for r in TORCH["records"]]
)
def test_dualpipev_is_what_torch_executes(record: dict[str, Any]) -> None:
    """Order op for op, pairs included; peak and makespan as another program found them, with late and early sends."""
    p, m = record["pipeline_parallel"], record["num_microbatches"]
    schedule = get("dualpipev")
    order, placement = schedule.rank_orders(p, m), schedule.placement(p, 2)
    assert [as_torch_prints(order[rank], placement[rank]) for rank in range(p)] == record["order"]
    times: dict[str, Any] = {"input_grad_s": 1.0, "weight_grad_s": 1.0}
    result = replay(order, placement, 1.0, 2.0, **times)
    assert result.makespan_s == record["makespan_as_executed"]
    assert result.in_flight_chunks.tolist() == record["peak_in_flight_chunks"]
    at_once = replay(without_pairs(order), placement, 1.0, 2.0, **times)
    assert at_once.makespan_s == record["makespan_sent_at_once"] == dualpipev_sent_at_once_s(p, m, 2, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "record", [pytest.param(r, id=f"p{r['pipeline_parallel']}-m{r['num_microbatches']}") for r in TORCH["refused"]]
)
def test_dualpipev_refuses_what_torch_refuses(record: dict[str, Any]) -> None:
    """Fewer micro-batches than stages are bad input here and a ValueError there."""
    p, m = record["pipeline_parallel"], record["num_microbatches"]
    assert "at least as many microbatches as stages" in record["error"]
    with pytest.raises(InputError, match=f"num_microbatches must be at least 2 x pipeline_parallel, {2 * p}: got {m}"):
        get("dualpipev").rank_orders(p, m)


@pytest.mark.parametrize("p", [2, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("rounds", [2, 3])
def test_bubble_and_memory_of_deepseeks_table(p: int, rounds: int) -> None:
    """(p/2 − 1)·(F&B + B − 3W) idle and p + 1 stages held; DualPipeV with p/2 ranks the same, in 2·(p/2) + 1 chunks.

    Source: DeepSeek-AI 2024, arXiv 2412.19437, table 2, and the README of the repository DualPipe. F&B = F + B here.
    """
    m = rounds * p
    idle_s = float(published_idle_s(p, 3.0, 2.0, 1.0))
    two_way, cut_in_half = run(get("dualpipe"), p, m), run(get("dualpipev"), p // 2, m)
    assert two_way.makespan_s == 3 * m + idle_s == 3 * m + p - 2
    assert cut_in_half.makespan_s == 6 * m + idle_s
    assert two_way.in_flight_chunks.tolist() == [p + 1] * p
    assert cut_in_half.in_flight_chunks.tolist() == [p + 1] * (p // 2)
    assert (get("dualpipe").parameter_copies, get("dualpipev").parameter_copies) == (2, 1)


@pytest.mark.parametrize(
    "record", [pytest.param(r, id=f"p{r['pipeline_parallel']}-m{r['num_microbatches']}") for r in TORCH["records"]]
)
def test_dualpipe_is_what_torch_executes_of_dualpipev_twice(record: dict[str, Any]) -> None:
    """With twice the ranks and micro-batches: its first half does what torch's ranks do, its second half the mirror.

    Stages are those of the half: from p on they are the way back, which in DualPipe is the other direction's.
    """
    half, each = record["pipeline_parallel"], record["num_microbatches"]
    order = get("dualpipe").rank_orders(2 * half, 2 * each)
    for rank, rank_order in enumerate(order):
        nearer = min(rank, 2 * half - 1 - rank)
        own = int(rank >= half)  # the direction that starts at this end
        actions = rank_order.actions.copy()
        actions[:, 2] -= actions[:, 1] * each
        actions[:, 1] ^= own
        printed = as_torch_prints(RankOrder(actions, rank_order.paired), np.array([nearer, 2 * half - 1 - nearer]))
        assert printed == record["order"][nearer]


def test_deepseeks_pictures_are_66_slots_wide() -> None:
    """DualPipe with 8 ranks and 20 micro-batches, DualPipeV with 4 and 10, as the README draws them: 66 slots of F."""
    assert run(get("dualpipe"), 8, 20).makespan_s == run(get("dualpipev"), 4, 10).makespan_s == 66


@pytest.mark.parametrize("half", [2, 3, 5])
def test_where_the_published_idle_time_holds(half: int) -> None:
    """It equals the replay for W ≤ I = F, is more than the replay's for F < I, less for F > I and for W > I."""
    rng, m = np.random.default_rng(half), 6 * half
    schedule = get("dualpipev")
    for forward_s, input_s, share in rng.uniform(0.1, 1.0, (8, 3)):
        for case, (f, i, w) in {
            "equal": (input_s, input_s, share * input_s),
            "less": (input_s * 0.99 * forward_s, input_s, share * input_s),
            "more": (input_s / forward_s * 1.01, input_s, share * input_s),
            "heavy weights": (input_s, input_s, input_s / share * 1.01),
        }.items():
            idle_s = run(schedule, half, m, f, i, w).makespan_s - 2 * m * (f + i + w)
            printed_s = float(published_idle_s(2 * half, f + i + w, i + w, w))
            if case == "equal":
                assert idle_s == pytest.approx(printed_s, abs=1e-9)
            else:
                assert (idle_s < printed_s) == (case == "less"), case


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_sending_a_pairs_results_together_costs_a_slot_a_hop(p: int) -> None:
    """F = I = W: DualPipeV 6m + 2(p − 1) against 6m + (p − 1), DualPipe half the hops; both readings by replay."""
    m = 4 * p
    for name, hops, early_s in (
        ("dualpipev", p - 1, dualpipev_sent_at_once_s(p, m, 2, 1.0, 1.0, 1.0)),
        ("dualpipe", p // 2 - 1, dualpipe_sent_at_once_s(p, m, 1, 1.0, 1.0, 1.0)),
    ):
        schedule = get(name)
        placement = schedule.placement(p, schedule.virtual_stages.default)
        times: dict[str, Any] = {"input_grad_s": 1.0, "weight_grad_s": 1.0}
        at_once = replay(without_pairs(schedule.rank_orders(p, m)), placement, 1.0, 2.0, **times)
        assert at_once.makespan_s == early_s
        assert run(schedule, p, m).makespan_s == at_once.makespan_s + hops


@pytest.mark.parametrize("p", [2, 4, 6, 8, 12])
def test_chimeras_printed_bubbles(p: int) -> None:
    """(p − 2)/(3m/2 + p − 2) for one unit and B = 2F; (p − 2)/(2m + p − 2) for B = F; p/2 + 1 to p in flight.

    Source: Li & Hoefler 2021, arXiv 2107.06925, section 3 and its comparison of schemes. With B = 2F and more units the
    replay has more: (p − 2)·F between any two, which the paper fills by doubling forwards.
    """
    schedule = get("chimera")
    for units in (1, 2, 4):
        m = units * p
        assert run(schedule, p, m, 1.0, 1.0, 0.0).bubble_fraction == pytest.approx((p - 2) / (2 * m + p - 2))
        result = run(schedule, p, m)
        assert result.makespan_s == 3 * m + 2 * (p - 2) + (units - 1) * (p - 2)
        assert (result.in_flight_chunks.min(), result.in_flight_chunks.max()) == (p / 2 + 1, p)
        if units == 1:
            assert result.bubble_fraction == pytest.approx((p - 2) / (3 * m / 2 + p - 2))


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_more_waves_make_hanayos_bubble_smaller(p: int) -> None:
    """m = p, B = 2F: idle time is 4·(p − 1) chunk forwards whatever v, so that twice the waves leave half of it."""
    schedule = get("hanayo")
    for v in (2, 4, 8):
        result = replay(schedule.rank_orders(p, p, v), schedule.placement(p, v), 1 / v, 2 / v)
        assert result.makespan_s - 3 * p == pytest.approx(4 * (p - 1) / v)
        assert result.bubble_fraction == pytest.approx((2 * p - 2) / (3 * p * v / 2 + 2 * p - 2))
