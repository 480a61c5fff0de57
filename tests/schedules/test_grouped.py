"""GIS and GIS-H: orders recorded from PipeOffload's own program, and closed forms where a last group is not whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.schedules import get
from ppadvisor.schedules.gis_h import group_size
from ppadvisor.schedules.grouped import grouped_order
from ppadvisor.schedules.replay import Replay, replay

FILE = Path(__file__).parent.parent / "published" / "pipeoffload_schedules.json.gz"
RECORDS: list[dict[str, Any]] = json.loads(gzip.decompress(FILE.read_bytes()))["records"]
RECORDED = sorted({(record["schedule"], record["pipeline_parallel"]) for record in RECORDS})


def units(name: str, p: int, m: int, v: int) -> Replay:
    """The replay of our order with F = I = W = 1 a chunk and free links."""
    schedule = get(name)
    order = schedule.rank_orders(p, m, v)
    return replay(order, schedule.placement(p, v), 1.0, input_grad_s=1.0, weight_grad_s=1.0)


@pytest.mark.parametrize(("name", "p"), RECORDED)
def test_orders_are_what_pipeoffload_makes(name: str, p: int) -> None:
    """Order op for op, peak in chunks and length in slots of F = I = W equal those recorded, v 2..4, 6 to 8 m each."""
    for record in RECORDS:
        if (record["schedule"], record["pipeline_parallel"]) != (name, p):
            continue
        m, v = record["num_microbatches"], record["virtual_stages"]
        assert [str(rank_order) for rank_order in get(name).rank_orders(p, m, v)] == record["order"], (m, v)
        made = units(name, p, m, v)
        assert made.in_flight_chunks.max() == record["peak"], (m, v)
        assert made.makespan_s == record.get("makespan", made.makespan_s), (m, v)


def test_recorded_are_both_schedules_with_their_groups() -> None:
    """The records cover p = 2, 4, 8 and odd p, and were made with groups of p and ⌈p/2⌉."""
    assert {p for _, p in RECORDED} >= {2, 3, 4, 5, 8}
    for record in RECORDS:
        p = record["pipeline_parallel"]
        assert record["group"] == {"gis": p, "gis-h": int(group_size(p))}[record["schedule"]]


@pytest.mark.parametrize("p", range(2, 11))
def test_in_flight_is_exact_for_every_last_group(p: int) -> None:
    """Of both schedules on every rank, m from 1 to 3·p + 1, the last group whole or not."""
    for name in ("gis", "gis-h"):
        for v in (2, 3, 5):
            for m in range(1, 3 * p + 2):
                held = get(name).in_flight_microbatches(p, m, v, np.arange(p))
                assert np.allclose(v * held, units(name, p, m, v).in_flight_chunks), (name, m, v)


def test_half_groups_with_a_last_one_that_is_not_whole_are_as_near_as_they_say() -> None:
    """GIS-H with v > 2: never high; the bubble by up to 0.015 low, the makespan by up to 3 % where times differ
    threefold and W ≤ F + I.
    """
    rng, schedule = np.random.default_rng(11), get("gis-h")
    bubbles, spans = list[float](), list[float]()
    for p in range(3, 13):
        for v in (3, 4, 6):
            for m in (m for m in range(1, 2 * p + 2) if m % group_size(p) and m > group_size(p)):
                order, placement = schedule.rank_orders(p, m, v), schedule.placement(p, v)
                made = units("gis-h", p, m, v)
                bubbles.append(float(schedule.bubble_fraction(p, m, v)) - made.bubble_fraction)
                forward_s, input_s, weight_s = rng.uniform(1.0, 3.0, 3)
                weight_s = min(weight_s, forward_s + input_s)
                made = replay(order, placement, forward_s, input_grad_s=input_s, weight_grad_s=weight_s)
                spans.append(float(schedule.makespan_s(p, m, v, forward_s, input_s, weight_s)) / made.makespan_s - 1)
    assert max(bubbles) < 1e-12
    assert min(bubbles) > -0.015
    assert max(spans) < 1e-12
    assert min(spans) > -0.03
    assert np.mean(spans) > -0.003


@pytest.mark.parametrize("p", [4, 8])
def test_half_groups_trade_memory_for_time_as_the_paper_says(p: int) -> None:
    """Half as many micro-batches a group hold (v − 1)·p/2 chunks less, for (v − 1)·p/2 forwards of time."""
    for v in (2, 3, 4):
        whole, half = (units(name, p, 2 * p, v) for name in ("gis", "gis-h"))
        assert (whole.in_flight_chunks - half.in_flight_chunks).tolist() == [(v - 1) * p / 2] * p
        assert half.makespan_s - whole.makespan_s == (v - 1) * p / 2


def test_a_group_smaller_by_one_waits_longer_and_holds_less() -> None:
    """A mistaken group size is not hidden: at p = 4 groups of 4, 3, 2 differ in time and in memory."""
    placement = get("gis").placement(4, 2)
    made = [
        replay(grouped_order(4, 12, 2, group), placement, 1.0, input_grad_s=1.0, weight_grad_s=1.0)
        for group in (4, 3, 2)
    ]
    assert [result.makespan_s for result in made] == [78.0, 79.0, 80.0]
    assert [result.in_flight_chunks.max() for result in made] == [8.0, 7.0, 6.0]
