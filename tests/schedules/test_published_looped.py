"""Looped schedules against orders recorded from Megatron-Core and torch, and numbers printed by others."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppadvisor.schedules import get
from ppadvisor.schedules.base import Kind, RankOrder, looped_placement
from ppadvisor.schedules.interleaved_1f1b import group_problem, group_size, in_flight_chunks, order_with_group
from ppadvisor.schedules.replay import Replay, replay

PUBLISHED = Path(__file__).parent.parent / "published"
MEGATRON = json.loads((PUBLISHED / "megatron_schedules.json").read_text(encoding="utf-8"))
TORCH = json.loads(gzip.decompress((PUBLISHED / "torch_looped_schedules.json.gz").read_bytes()))
ZERO_BUBBLE = json.loads((PUBLISHED / "zero_bubble_interleaved.json").read_text(encoding="utf-8"))


def cases(records: Sequence[dict[str, Any]]) -> list[Any]:
    """The records, each a test of its own, named by its sizes."""
    names = {"schedule": "", "pipeline_parallel": "p", "num_microbatches": "m", "virtual_stages": "v", "group": "N"}
    return [
        pytest.param(record, id="-".join(f"{short}{record[name]}" for name, short in names.items() if name in record))
        for record in records
    ]


def sizes(record: dict[str, Any]) -> tuple[int, int, int]:
    """p, m, v of a record."""
    return record["pipeline_parallel"], record["num_microbatches"], record["virtual_stages"]


def torch_group(p: int, m: int) -> int:
    """Torch's micro-batches per round: m over the number of rounds, max(1, m // p)."""
    return m // max(1, m // p)


def order_of(record: dict[str, Any]) -> tuple[RankOrder, ...]:
    """Our order of a record of torch: also where only torch runs it, m < p and one chunk interleaved."""
    p, m, v = sizes(record)
    if record["schedule"] != "interleaved-1f1b":
        return get(record["schedule"]).rank_orders(p, m, v)
    return order_with_group(p, m, v, torch_group(p, m))


def as_torch_prints(order: Sequence[RankOrder], p: int) -> list[str]:
    """Stage, kind and micro-batch of each action, a string a rank."""
    return [
        " ".join(f"{action.chunk * p + rank}{action.kind.letter}{action.microbatch}" for action in rank_order)
        for rank, rank_order in enumerate(order)
    ]


def peaks_of_each_chunk(rank_order: RankOrder, v: int) -> list[int]:
    """Forwards of each chunk whose backward has not come, at that chunk's own peak."""
    change = np.where(rank_order.kind == Kind.FORWARD, 1, -1)
    return [int(np.cumsum(change * (rank_order.chunk == chunk)).max()) for chunk in range(v)]


def megatron_replay(record: dict[str, Any]) -> tuple[tuple[RankOrder, ...], Replay]:
    """Our order with a record's group, and its replay with a whole rank's forward 1 and backward 2."""
    p, m, v = sizes(record)
    order = order_with_group(p, m, v, record["group"])
    return order, replay(order, looped_placement(p, v), 1 / v, 2 / v)


@pytest.mark.parametrize("record", cases(MEGATRON["interleaved"]))
def test_interleaved_is_what_megatron_executes(record: dict[str, Any]) -> None:
    """Order op for op, live chunks, makespan and bubble equal those recorded from Megatron-Core, for every group N."""
    _, m, v = sizes(record)
    order, result = megatron_replay(record)
    if "order" in record:
        assert [str(rank_order) for rank_order in order] == record["order"]
    assert result.in_flight_chunks.tolist() == record["peak_in_flight_chunks"]
    assert [peaks_of_each_chunk(rank_order, v) for rank_order in order] == record["peak_of_each_chunk"]
    assert result.makespan_s == pytest.approx(record["makespan"], abs=1e-8)
    assert result.makespan_s / (3 * m) - 1 == pytest.approx(record["bubble_overhead"], abs=1e-8)


@pytest.mark.parametrize("record", cases(MEGATRON["interleaved"]))
def test_interleaved_warmup_is_megatrons(record: dict[str, Any]) -> None:
    """Each rank does as many chunk forwards ahead of its first pair of F and B as num_warmup_microbatches says."""
    _, m, v = sizes(record)
    order, _ = megatron_replay(record)
    ahead = [int(np.argmax(rank_order.kind == Kind.BACKWARD)) for rank_order in order]
    assert ahead == [count + (count < m * v) for count in record["warmup"]]


@pytest.mark.parametrize("record", cases(MEGATRON["interleaved"]))
def test_interleaved_closed_forms_are_megatrons_numbers(record: dict[str, Any]) -> None:
    """Bubble, makespan and live chunks by formula equal the recorded numbers; with our own N where it is the same."""
    p, m, v = sizes(record)
    schedule = get("interleaved-1f1b")
    overhead = record["bubble_overhead"]
    assert float(schedule.bubble_fraction(p, m, v)) == pytest.approx(overhead / (1 + overhead), abs=1e-8)
    assert float(schedule.makespan_s(p, m, v, 1 / v, 2 / v)) == pytest.approx(record["makespan"], abs=1e-8)
    assert in_flight_chunks(p, m, v, np.arange(p), record["group"]).tolist() == record["peak_in_flight_chunks"]
    if record["group"] == group_size(p, m):
        held = schedule.in_flight_microbatches(p, m, v, np.arange(p))
        assert held.tolist() == pytest.approx([chunks / v for chunks in record["peak_in_flight_chunks"]])
        ours = schedule.rank_orders(p, m, v)
        assert [str(rank_order) for rank_order in ours] == [
            str(rank_order) for rank_order in megatron_replay(record)[0]
        ]


@pytest.mark.parametrize("record", cases(MEGATRON["refused"]))
def test_groups_that_megatron_refuses_are_refused(record: dict[str, Any]) -> None:
    """A group outside p..m, or with a rest of 1..p − 1 micro-batches, is not legal, for the reason Megatron gives."""
    p, m, _ = sizes(record)
    problem = group_problem(p, m, record["group"])
    assert problem is not None
    assert ("p <= N <= m" in problem) == record["error"].startswith("ValueError: The number of contiguous")
    assert ("m mod N = 0 or >= p" in problem) == record["error"].startswith("RuntimeError: The remainder of M")


@pytest.mark.parametrize("record", cases(MEGATRON["interleaved"]))
def test_groups_that_megatron_runs_are_legal(record: dict[str, Any]) -> None:
    """Every group that Megatron ran is legal here."""
    p, m, _ = sizes(record)
    assert group_problem(p, m, record["group"]) is None


@pytest.mark.parametrize("record", cases(TORCH["records"]))
def test_looped_orders_are_torchs(record: dict[str, Any]) -> None:
    """Order op for op, makespan and both peaks (freed at W, or at I) equal torch's own, m < p included."""
    p, _, v = sizes(record)
    order = order_of(record)
    assert as_torch_prints(order, p) == record["order"]
    for freed, name in ((0.0, "peak_in_flight_chunks"), (1.0, "peak_freed_at_input_grad")):
        result = replay(
            order, looped_placement(p, v), 1.0, 2.0, input_grad_s=1.0, weight_grad_s=1.0, freed_at_input_grad=freed
        )
        assert result.in_flight_chunks.tolist() == record[name]
        assert result.makespan_s == record["makespan"]


@pytest.mark.parametrize("record", cases(TORCH["records"]))
def test_looped_closed_forms_are_torchs_numbers(record: dict[str, Any]) -> None:
    """Makespan and peak by formula equal what torch's order takes and holds, m < p included."""
    p, m, v = sizes(record)
    schedule = get(record["schedule"])
    assert float(schedule.makespan_s(p, m, v, 1.0, 1.0, 1.0)) == record["makespan"]
    held = schedule.in_flight_microbatches(p, m, v, np.arange(p))
    assert (v * held).tolist() == pytest.approx(record["peak_in_flight_chunks"])
    work = 3 * m * v
    assert float(schedule.bubble_fraction(p, m, v)) == pytest.approx(1 - work / record["makespan"])


@pytest.mark.parametrize("record", cases([r for r in TORCH["records"] if r["schedule"] == "interleaved-1f1b"]))
def test_our_group_is_torchs_where_both_run(record: dict[str, Any]) -> None:
    """N = `group_size` is torch's group for all that torch runs; m < p and one chunk are refused, as by Megatron."""
    p, m, v = sizes(record)
    assert group_size(p, m) == torch_group(p, m)
    assert (get("interleaved-1f1b").problem(p, m, v) is None) == (m >= p and v >= 2)


@pytest.mark.parametrize("record", cases(TORCH["refused"]))
def test_what_torch_refuses(record: dict[str, Any]) -> None:
    """Zero bubble is refused as by torch; interleaved 1F1B runs such m too, with the N that Megatron allows."""
    p, m, v = sizes(record)
    problem = get(record["schedule"]).problem(p, m, v)
    if record["schedule"] == "interleaved-zero-bubble":
        assert problem is not None
        assert problem.startswith("num_microbatches must be a multiple of")
        assert problem.endswith(f"= {max(1, m // p)}: got {m}")
    else:
        assert (problem is None) == (v >= 2)
        assert group_problem(p, m, int(group_size(p, m))) is None


def test_eight_ranks_as_two_simulators_found() -> None:
    """p = 8, m = 32, v = 2, F = I = W = 0.5 a chunk: 106.5, and 11.5 in flight, by replay and by formula."""
    schedule = get("interleaved-1f1b")
    result = replay(schedule.rank_orders(8, 32, 2), schedule.placement(8, 2), 0.5, 1.0)
    assert result.makespan_s == schedule.makespan_s(8, 32, 2, 0.5, 0.5, 0.5) == 106.5
    assert result.in_flight_microbatches.max() == schedule.in_flight_microbatches(8, 32, 2, 0) == 11.5


@pytest.mark.parametrize("record", cases(ZERO_BUBBLE["records"]))
def test_interleaved_bubble_of_the_zero_bubble_paper(record: dict[str, Any]) -> None:
    """With the paper's stage and hand-off times the replay gives its printed 1F1B-I bubble rate within 0.4 points."""
    p, m, v = sizes(record)
    schedule = get("interleaved-1f1b")
    backward_s = record["input_grad_s"] + record["weight_grad_s"]
    result = replay(
        schedule.rank_orders(p, m, v),
        schedule.placement(p, v),
        record["forward_s"] / v,
        backward_s / v,
        handoff_s=record["handoff_s"],
    )
    assert result.bubble_in_span_fraction == pytest.approx(record["bubble_in_span_fraction"], abs=0.004)


@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble"])
def test_every_swap_differs_from_torchs_order(name: str) -> None:
    """A swap of any two neighbours at p = 4, m = 8, v = 2 is not what torch does."""
    record = next(r for r in TORCH["records"] if (r["schedule"], *sizes(r)) == (name, 4, 8, 2))
    order = order_of(record)
    for rank, rank_order in enumerate(order):
        for index in range(len(rank_order) - 1):
            actions = rank_order.actions.copy()
            actions[[index, index + 1]] = actions[[index + 1, index]]
            changed = (*order[:rank], RankOrder(actions), *order[rank + 1 :])
            assert as_torch_prints(changed, 4) != record["order"]
