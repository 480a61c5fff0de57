from __future__ import annotations

from collections.abc import Iterator

import pytest

from ppadvisor.engine.evaluate import evaluate
from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.search.api import plan
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.search.sweep import Point, SweepRow, sweep_rows
from ppadvisor.specs.assumptions import Assumptions
from tests.problems import cluster, model, problem


def ask(of: Problem, pins: Pins | None = None, *, margin: float = 0.9, **values: str | int) -> SweepRow:
    """The row of one point."""
    (row,) = sweep_rows([Point(values, lambda: (of, pins or Pins()))], margin=margin)
    return row


def test_a_point_is_the_first_plan_of_a_search() -> None:
    """A row holds the plan that `plan` ranks first, with the numbers that `plan` shows for it."""
    of = problem()
    best = plan(of.model, of.cluster, of.training).plans[0]
    row = ask(of, num_gpus=16)
    assert row.fits
    assert row.model_extra == {"num_gpus": 16}
    assert row.global_batch_size == 64
    for name, value in (vars(best.plan) | vars(best.memory) | vars(best.time)).items():
        if name in SweepRow.model_fields:
            assert getattr(row, name) == value, name
    assert (row.reason_code, row.reason) == (None, None)


def test_a_contradiction_is_a_row() -> None:
    """Where the values of a point contradict each other, the row keeps them and says why; the next point is asked."""

    def contradict() -> tuple[Problem, Pins]:
        raise InputError("12 GPUs\n in nodes of 8")

    points = [
        Point({"num_gpus": 12}, contradict),
        Point({"pipeline_parallel": 13}, lambda: (problem(), Pins(pipeline_parallel=(13,)))),
        Point({"pipeline_parallel": 2}, lambda: (problem(), Pins(pipeline_parallel=(2,)))),
    ]
    first, second, third = sweep_rows(points, margin=0.9)
    assert (first.fits, first.reason_code, first.reason) == (False, "contradiction", "12 GPUs in nodes of 8")
    assert first.model_dump(exclude_none=True).keys() == {"num_gpus", "fits", "reason_code", "reason"}
    assert (second.pipeline_parallel, second.verdict, second.reason_code) == (13, None, "contradiction")
    assert second.reason == "pipeline_parallel: got 13, but gpt has 12 layers: at most one stage a layer"
    assert third.fits


def test_a_rule_that_every_plan_breaks_is_the_reason() -> None:
    """8 heads over 3 tensor-parallel ranks: no plan is legal, and the row names the rule."""
    row = ask(problem(num_gpus=6), Pins(tensor_parallel=(3,)), tensor_parallel=3)
    assert (row.fits, row.verdict, row.reason_code) == (False, None, "attention_heads")
    assert row.reason == "8 attention heads are not divisible by tensor parallel 3"
    assert (row.tensor_parallel, row.peak_bytes) == (3, None)


def test_where_none_fits_the_row_shows_the_smallest_peak() -> None:
    """On a GPU of 1 GiB nothing fits; the row is the legal plan with the least memory, and tells what is missing."""
    of = problem(machines=cluster(16, memory_bytes=2**30))
    row = ask(of)
    smallest = evaluate(of, rank(of, Pins(), margin=0.9).plans, margin=0.9).peak_bytes.min()
    assert (row.fits, row.verdict, row.reason_code) == (False, "does_not_fit", "memory")
    assert row.peak_bytes == pytest.approx(smallest, abs=row.pipeline_parallel or 0)
    assert row.headroom_bytes == int(0.9 * 2**30) - (row.peak_bytes or 0)
    assert row.reason == f"stage {row.binding_stage} does not fit by {-(row.headroom_bytes or 0) / 2**30:.1f} GiB"
    assert row.bubble_fraction is not None


def test_borderline_is_a_reason_of_its_own() -> None:
    """A plan above the margin whose conservative estimate is within the memory is borderline, and does not fit."""
    row = ask(problem(), margin=0.001)
    assert (row.fits, row.verdict, row.reason_code) == (False, "borderline", "memory_borderline")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 1), (2, 4), (4, 4), (4, 32), (6, 16), (12, 64)])
def test_the_bubble_of_equal_stages(schedule: str, p: int, m: int) -> None:
    """With equal stages and free links both schedules idle (p − 1)/(m + p − 1) (GPipe, Huang et al. 2019, section 2.3).

    Free links: no latency, 10^9 GB/s. Equal stages: beside layers of the size of a 70B model's, a vocabulary of 8
    leaves nearly nothing to embedding and head: less than 0.2 % of a stage, and the bubble may be that much larger.
    """
    of = problem(
        model(vocab_size=8, hidden_size=8192, ffn_hidden_size=32768, num_attention_heads=64, num_query_groups=64),
        machines=cluster(p, gpus_per_node=p, intra_node_bandwidth_bytes_per_s=1e18, memory_bytes=2**50),
        assume=Assumptions().changed({"handoff_latency_s": 0.0, "hbm_efficiency": 1.0}),
        global_batch_size=m,
    )
    pins = Pins(pipeline_parallel=(p,), num_microbatches=(m,), schedule=(schedule,), recompute=("full",))
    row = ask(of, pins)
    assert row.layers_per_stage == (12 // p,) * p
    assert row.bubble_fraction == pytest.approx((p - 1) / (m + p - 1), abs=2e-3)


def test_rows_come_one_by_one() -> None:
    """A row is there before the next point is asked for: what was done is not lost to what goes wrong later."""

    def points() -> Iterator[Point]:
        yield Point({}, lambda: (problem(), Pins()))
        raise KeyboardInterrupt

    rows = sweep_rows(points(), margin=0.9)
    assert next(rows).fits
    with pytest.raises(KeyboardInterrupt):
        next(rows)
