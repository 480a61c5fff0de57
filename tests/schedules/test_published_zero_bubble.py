"""Schedules with a split backward against orders recorded from torch, and numbers that others printed or compute."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.schedules import get
from ppadvisor.schedules.base import RankOrder, looped_placement
from ppadvisor.schedules.patterns import wave_placement
from ppadvisor.schedules.replay import Replay, replay
from ppadvisor.schedules.zero_bubble_auto import search_order
from tests.schedules.oracle import default_order

PUBLISHED = Path(__file__).parent.parent / "published"
TORCH = json.loads(gzip.decompress((PUBLISHED / "torch_zero_bubble_v.json.gz").read_bytes()))["records"]
LOOPED = json.loads(gzip.decompress((PUBLISHED / "torch_looped_schedules.json.gz").read_bytes()))["records"]
ONE_CHUNK = [r for r in LOOPED if r["schedule"] == "interleaved-zero-bubble" and r["virtual_stages"] == 1]
PAPER = json.loads((PUBLISHED / "zero_bubble_split.json").read_text(encoding="utf-8"))["records"]
MEMORY = json.loads((PUBLISHED / "controllable_memory.json").read_text(encoding="utf-8"))


def cases(records: Sequence[dict[str, Any]]) -> list[Any]:
    """The records, each a test of its own, named by its sizes."""
    names = {"schedule": "", "pipeline_parallel": "p", "num_microbatches": "m", "times": "t"}
    return [
        pytest.param(record, id="-".join(f"{short}{record[name]}" for name, short in names.items() if name in record))
        for record in records
    ]


def sizes(record: dict[str, Any]) -> tuple[int, int]:
    """p and m of a record."""
    return record["pipeline_parallel"], record["num_microbatches"]


def as_torch_prints(order: Sequence[RankOrder], v: int) -> list[str]:
    """Stage, kind and micro-batch of each action, a string a rank; two chunks in a V."""
    stages = wave_placement(len(order), v)
    return [
        " ".join(f"{stages[rank, action.chunk]}{action.kind.letter}{action.microbatch}" for action in rank_order)
        for rank, rank_order in enumerate(order)
    ]


def unit_replay(name: str, p: int, m: int, freed: float = 0.0) -> Replay:
    """A schedule's own order with F = I = W = 1 a chunk."""
    order, placement = default_order(get(name), p, m)
    return replay(order, placement, 1.0, input_grad_s=1.0, weight_grad_s=1.0, freed_at_input_grad=freed)


@pytest.mark.parametrize("record", cases(TORCH))
def test_zb_v_is_what_torch_executes(record: dict[str, Any]) -> None:
    """Order op for op, makespan, in-span bubble and both peaks (freed at W, or at I) are torch's; few m included."""
    p, m = sizes(record)
    order, _ = default_order(get("zb-v"), p, m)
    assert as_torch_prints(order, 2) == record["order"]
    result = unit_replay("zb-v", p, m)
    assert result.makespan_s == record["makespan"]
    assert result.bubble_in_span_fraction == pytest.approx(record["bubble_in_span_fraction"], abs=5e-7)
    assert result.in_flight_chunks.tolist() == record["peak_in_flight_chunks"]
    freed = unit_replay("zb-v", p, m, freed=1.0)
    assert freed.in_flight_chunks.tolist() == record["peak_freed_at_input_grad"]


@pytest.mark.parametrize("record", cases(TORCH))
def test_zb_v_closed_forms_are_torchs_numbers(record: dict[str, Any]) -> None:
    """Makespan, bubble and peak by formula are what torch's order takes and holds."""
    p, m = sizes(record)
    schedule = get("zb-v")
    assert float(schedule.makespan_s(p, m, 2, 1.0, 1.0, 1.0)) == record["makespan"]
    assert float(schedule.bubble_fraction(p, m, 2)) == pytest.approx(1 - 6 * m / record["makespan"], abs=1e-12)
    held = 2 * schedule.in_flight_microbatches(p, m, 2, np.arange(p))
    assert held.tolist() == record["peak_in_flight_chunks"]


@pytest.mark.parametrize("record", cases(ONE_CHUNK))
def test_zb_h1_is_torchs_zero_bubble_with_one_chunk(record: dict[str, Any]) -> None:
    """Order op for op, makespan and peak of ZB-H1 are those of torch's InterleavedZeroBubble with v = 1."""
    p, m = sizes(record)
    order, _ = default_order(get("zb-h1"), p, m)
    result = unit_replay("zb-h1", p, m)
    assert as_torch_prints(order, 1) == record["order"]
    assert result.makespan_s == record["makespan"]
    assert result.in_flight_chunks.tolist() == record["peak_in_flight_chunks"]


@pytest.mark.parametrize("name", ["zb-v", "zb-h1"])
def test_every_swap_differs_from_torchs_order(name: str) -> None:
    """A swap of any two neighbours at p = 4, m = 8 is not what torch does."""
    record = next(record for record in (TORCH if name == "zb-v" else ONE_CHUNK) if sizes(record) == (4, 8))
    schedule = get(name)
    order, _ = default_order(schedule, 4, 8)
    for rank, rank_order in enumerate(order):
        for index in range(len(rank_order) - 1):
            actions = rank_order.actions.copy()
            actions[[index, index + 1]] = actions[[index + 1, index]]
            changed = (*order[:rank], RankOrder(actions), *order[rank + 1 :])
            assert as_torch_prints(changed, schedule.virtual_stages.default) != record["order"]


def paper_replay(record: dict[str, Any], order: tuple[RankOrder, ...], freed: float = 0.0) -> Replay:
    """The replay of an order with a record's times."""
    return replay(
        order,
        looped_placement(len(order), 1),
        record["forward_s"],
        input_grad_s=record["input_grad_s"],
        weight_grad_s=record["weight_grad_s"],
        handoff_s=record["handoff_s"],
        freed_at_input_grad=freed,
    )


@pytest.mark.parametrize("record", cases([record for record in PAPER if record["schedule"] in ("zb-h1", "zb-h2")]))
def test_handcrafted_bubbles_of_the_zero_bubble_paper(record: dict[str, Any]) -> None:
    """With the paper's stage and hand-off times the replay gives its printed bubble rates of ZB-H1 and ZB-H2."""
    order, _ = default_order(get(record["schedule"]), *sizes(record))
    found = paper_replay(record, order).bubble_in_span_fraction
    assert found == pytest.approx(record["bubble_in_span_fraction"], abs=2e-4)


@pytest.mark.parametrize("record", cases([record for record in PAPER if record["schedule"] in ("zb-1p", "zb-2p")]))
def test_searched_bubbles_of_the_zero_bubble_paper(record: dict[str, Any]) -> None:
    """In the paper's memory (p or 2p micro-batches, 32 h of 34 h + 5 a s kept after I) the search does as well."""
    p, m = sizes(record)
    heads, sequence, hidden = record["num_attention_heads"], record["sequence_length"], record["hidden_size"]
    freed = 1 - 32 / (34 + 5 * heads * sequence / hidden)
    times = (record["forward_s"], record["input_grad_s"], record["weight_grad_s"], record["handoff_s"])
    make = get(record["schedule"]).order_for_times
    assert make is not None
    result = paper_replay(record, make(p, m, 1, *times, freed), freed)
    assert result.bubble_in_span_fraction <= record["bubble_in_span_fraction"] + 2e-4
    assert result.in_flight_microbatches.max() <= (p if record["schedule"] == "zb-1p" else 2 * p) + 1e-6


def test_two_micro_batches_a_rank_are_not_enough_if_torch_keeps_them() -> None:
    """Why the paper's ZB-2p needs to let go at I: with everything kept until W the search leaves 2.2 % to 6 % more."""
    for record in PAPER:
        if record["schedule"] == "zb-2p":
            times = (record["forward_s"], record["input_grad_s"], record["weight_grad_s"], record["handoff_s"])
            p, m = sizes(record)
            found = paper_replay(record, search_order(p, m, *times, memory_limit=2 * p)).bubble_in_span_fraction
            assert 0.02 < found - record["bubble_in_span_fraction"] < 0.08


@pytest.mark.parametrize("name", MEMORY["simulator"])
def test_eight_ranks_as_two_simulators_found(name: str) -> None:
    """p = 8, m = 32, a stage's F = I = W = 1: makespan and peak are those of Primus' simulator, V-Min's time less."""
    makespan, peak = MEMORY["simulator"][name]
    schedule = get(name)
    v = schedule.virtual_stages.default
    order, placement = default_order(schedule, 8, 32)
    result = replay(order, placement, 1 / v, 2 / v, input_grad_s=1 / v, weight_grad_s=1 / v)
    assert result.makespan_s <= makespan
    assert result.makespan_s == (107.5 if name == "v-min" else makespan)
    assert result.in_flight_microbatches.max() == peak


@pytest.mark.parametrize(("name", "chunks"), [("v-min", "8"), ("v-half", "10"), ("zb-v", "16")])
def test_in_span_bubble_of_the_authors_search(name: str, chunks: str) -> None:
    """p = 8, m = 32: with the same memory the longest span is no longer than what the authors' own search finds."""
    result = unit_replay(name, 8, 32)
    span = max(float(end[-1] - start[0]) for start, end in zip(result.start_s, result.end_s, strict=True))
    assert span - 192 == MEMORY["search"][chunks]
    assert result.in_flight_chunks.max() == int(chunks)


@pytest.mark.parametrize("record", cases(MEMORY["greedy"]))
def test_v_half_and_v_min_are_no_worse_than_the_authors_program(record: dict[str, Any]) -> None:
    """The same memory as zbv_greedy.py, p 1..16, and never more idle slots; V-Min has up to four less."""
    p, m = sizes(record)
    result = unit_replay(record["schedule"], p, m)
    assert result.in_flight_chunks.max() == record["peak_in_flight_chunks"]
    assert result.makespan_s - 6 * m <= record["idle"]
    assert result.makespan_s - 6 * m >= record["idle"] - 4


@pytest.mark.parametrize("record", cases(MEMORY["other_times"]))
def test_other_times_take_no_longer_than_with_the_authors_order(record: dict[str, Any]) -> None:
    """F, I and W apart, links too: V-Min is never slower than zbv_greedy.py's order, V-Half at most 0.9 %."""
    p, m = sizes(record)
    forward_s, input_s, weight_s, link_s = record["times"]
    order, placement = default_order(get(record["schedule"]), p, m)
    result = replay(order, placement, forward_s, input_grad_s=input_s, weight_grad_s=weight_s, handoff_s=link_s)
    allowed = 1.009 if record["schedule"] == "v-half" else 1.0
    assert result.makespan_s <= record["makespan"] * allowed + 1e-5
