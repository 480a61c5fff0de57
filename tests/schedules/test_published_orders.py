"""Orders of work recorded from the trainers themselves, and numbers printed by others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.schedules import get
from ppadvisor.schedules.replay import replay
from tests.schedules.oracle import default_order

PUBLISHED = Path(__file__).parent.parent / "published"


def records(name: str) -> list[Any]:
    """The records of a file, each a test of its own, named by its sizes."""
    content = json.loads((PUBLISHED / name).read_text(encoding="utf-8"))["records"]
    return [
        pytest.param(
            record, id=f"{record.get('schedule', '1f1b')}-p{record['pipeline_parallel']}-m{record['num_microbatches']}"
        )
        for record in content
    ]


@pytest.mark.parametrize("record", records("megatron_schedules.json"))
def test_1f1b_is_what_megatron_executes(record: dict[str, Any]) -> None:
    """Order op for op, peak in flight and makespan equal those recorded from Megatron-Core's 1F1B, m < p included."""
    p, m = record["pipeline_parallel"], record["num_microbatches"]
    order, placement = default_order(get("1f1b"), p, m)
    result = replay(order, placement, 1.0, 2.0)
    if "order" in record:
        assert [str(rank_order) for rank_order in order] == record["order"]
    assert result.in_flight_microbatches.tolist() == record["peak_in_flight"]
    assert result.makespan_s == record["makespan"]


@pytest.mark.parametrize("record", records("megatron_schedules.json"))
def test_1f1b_warmup_is_megatrons(record: dict[str, Any]) -> None:
    """Each rank does as many forwards ahead of its first pair of F and B as Megatron's num_warmup_microbatches."""
    m = record["num_microbatches"]
    order, _ = default_order(get("1f1b"), record["pipeline_parallel"], m)
    ahead = [[action.kind.letter for action in rank_order].index("B") for rank_order in order]
    pairs_left = [m > count for count in record["warmup"]]
    assert ahead == [count + left for count, left in zip(record["warmup"], pairs_left, strict=True)]


@pytest.mark.parametrize("record", records("torch_schedules.json"))
def test_orders_are_what_torch_executes(record: dict[str, Any]) -> None:
    """Order op for op, peak in flight and makespan of GPipe and 1F1B equal those traced from torch's own execution."""
    p, m = record["pipeline_parallel"], record["num_microbatches"]
    order, placement = default_order(get(record["schedule"]), p, m)
    result = replay(order, placement, 1.0, 2.0)
    as_torch_prints = [
        " ".join(f"{rank}{action.kind.letter}{action.microbatch}" for action in rank_order)
        for rank, rank_order in enumerate(order)
    ]
    assert as_torch_prints == record["order"]
    assert result.in_flight_chunks.tolist() == record["peak_in_flight"]
    assert result.makespan_s == record["makespan"]


def test_every_swap_differs_from_the_recorded_order() -> None:
    """A swap of any two neighbours of 1F1B at p = 4, m = 8, the harmless ones too, is not what torch executed."""
    recorded = next(record.values[0] for record in records("torch_schedules.json") if record.id == "1f1b-p4-m8")[
        "order"
    ]
    order, _ = default_order(get("1f1b"), 4, 8)
    for rank, rank_order in enumerate(order):
        for index in range(len(rank_order) - 1):
            words = [f"{rank}{action.kind.letter}{action.microbatch}" for action in rank_order]
            words[index], words[index + 1] = words[index + 1], words[index]
            assert " ".join(words) != recorded[rank]


@pytest.mark.parametrize("record", records("zero_bubble_1f1b.json"))
def test_1f1b_bubble_of_the_zero_bubble_paper(record: dict[str, Any]) -> None:
    """With the paper's stage and hand-off times the replay gives its printed 1F1B bubble rate, links and all."""
    p, m = record["pipeline_parallel"], record["num_microbatches"]
    backward_s = record["input_grad_s"] + record["weight_grad_s"]
    order, placement = default_order(get("1f1b"), p, m)
    result = replay(order, placement, record["forward_s"], backward_s, handoff_s=record["handoff_s"])
    assert result.bubble_in_span_fraction == pytest.approx(record["bubble_in_span_fraction"], abs=2e-4)


@pytest.mark.parametrize(("m", "expected"), [(8, 7 / 15), (32, 7 / 39), (64, 7 / 71)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_of_the_eight_stage_example(name: str, m: int, expected: float) -> None:
    """7/15, 7/39, 7/71: the worked example at p = 8 of the article that this program starts from, by replay."""
    result = replay(*default_order(get(name), 8, m), 1.0, 2.0)
    assert result.bubble_fraction == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("p", range(2, 17))
def test_naive_utilization_is_one_pth(p: int) -> None:
    """With the whole batch as one, 1/p of the ranks' time is work (same article: 12.5 % at p = 8), by replay."""
    result = replay(*default_order(get("naive"), p, 1), 1.0, 2.0)
    assert 1 - result.bubble_fraction == pytest.approx(1 / p, abs=1e-12)


@pytest.mark.parametrize(("name", "peak"), [("gpipe", [32] * 8), ("1f1b", [8, 7, 6, 5, 4, 3, 2, 1])])
def test_makespan_and_peak_of_two_simulators(name: str, peak: list[int]) -> None:
    """p = 8, m = 32, F = I = W = 1: 117, and 8 (1F1B) or 32 in flight, as Primus' simulator and torch's order say."""
    result = replay(*default_order(get(name), 8, 32), 1.0, 2.0)
    assert result.makespan_s == 117.0
    assert result.in_flight_microbatches.tolist() == peak
