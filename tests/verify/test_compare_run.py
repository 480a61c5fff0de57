"""A run beside its replay: what agrees, and what is said of what does not. No torch: the ranks' notes are made here."""

from __future__ import annotations

import pytest

from ppadvisor.verify.compare_run import compared
from ppadvisor.verify.job import ActionDone
from ppadvisor.verify.results import RunReport
from ppadvisor.verify.run import replayed
from ppadvisor.verify.work import Work, as_torch_divides, work_of_numbers
from tests.verify.verified import EMPTY_S, Change, done_as_replayed, unchanged

WORK = work_of_numbers("1f1b", 2, 3, None)
"""F = I = W = 1 s: 12 s, of which each rank works 9."""


def report(change: Change = unchanged, work: Work = WORK, tolerance: float = 0.06) -> RunReport:
    """The comparison of a run with these changes."""
    predicted = replayed(work, as_torch_divides(work, work.times))
    done = done_as_replayed(work, change)
    return compared(work, predicted, done, tolerance=tolerance, engine="", unit_s=1.0, time_scale=None, notes=())


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("zb-v", 2), ("dualpipev", 2), ("hanayo", 2), ("zb-h1", 1)])
def test_what_keeps_to_the_replay_agrees(name: str, v: int) -> None:
    """Whatever the schedule, with pairs and a split backward too: no difference in any term or rank."""
    answer = report(work=work_of_numbers(name, 4, 8, v))
    assert answer.agrees
    assert not answer.disagreements
    assert [term.difference_fraction for term in answer.terms] == pytest.approx([0, 0], abs=1e-9)
    assert all(row.num_differences == 0 for row in answer.rows)
    assert [row.end_s for row in answer.rows] == pytest.approx([row.predicted_end_s for row in answer.rows])
    assert (answer.engine_cost.inside_s, answer.engine_cost.between_s) == pytest.approx((0, 0), abs=1e-9)


def test_the_numbers_of_1f1b() -> None:
    """(m + p − 1)·(F + B) = 12 s, a bubble of (p − 1)/(m + p − 1) = 1/4, 6 actions a rank, the first rank the last."""
    answer = report()
    assert [term.measured for term in answer.terms] == pytest.approx([12, 1 / 4])
    assert [row.num_operations for row in answer.rows] == [6, 6]
    assert [row.work_s for row in answer.rows] == pytest.approx([9, 9])
    assert [row.end_s for row in answer.rows] == pytest.approx([12, 10])
    assert answer.engine_cost.empty_action_s == pytest.approx(EMPTY_S / 6)


def test_an_engine_between_the_actions() -> None:
    """All starts 1 % late, the work as told: the step is 1 % longer, of which nothing is inside of actions."""

    def late(_rank: int, action: ActionDone) -> ActionDone:
        length_s = action.end_s - action.start_s
        return action._replace(start_s=action.end_s * 1.01 - length_s, end_s=action.end_s * 1.01)

    answer = report(late)
    assert answer.agrees
    assert answer.terms[0].difference_fraction == pytest.approx(0.01)
    assert (answer.engine_cost.inside_s, answer.engine_cost.between_s) == pytest.approx((0, 0.12))


def test_an_engine_inside_of_the_actions() -> None:
    """All times 2 % longer, the work as told: 0.24 s of 12, all inside; the work's share falls by as much."""

    def longer(_rank: int, action: ActionDone) -> ActionDone:
        return action._replace(start_s=action.start_s * 1.02, end_s=action.end_s * 1.02)

    answer = report(longer)
    assert answer.agrees
    assert (answer.engine_cost.inside_s, answer.engine_cost.between_s) == pytest.approx((0.24, 0), abs=1e-9)
    assert answer.terms[1].difference_fraction == pytest.approx(0.02)
    assert answer.terms[1].measured == pytest.approx(1 - 0.75 / 1.02)


def test_too_slow() -> None:
    """All times 7 % longer: step, bubble and the rank that ends last are over 6 %, and each is named."""

    def longer(_rank: int, action: ActionDone) -> ActionDone:
        return action._replace(start_s=action.start_s * 1.07, end_s=action.end_s * 1.07)

    answer = report(longer)
    assert not answer.agrees
    assert [text.partition(":")[0] for text in answer.disagreements] == [
        "step time",
        "bubble, as the share of work",
        "rank 0",
    ]
    assert report(longer, tolerance=0.08).agrees


def test_too_fast() -> None:
    """Half a percent faster than the order allows is no agreement either: it cannot have been this order."""

    def shorter(_rank: int, action: ActionDone) -> ActionDone:
        return action._replace(start_s=action.start_s * 0.995, end_s=action.end_s * 0.995)

    assert not report(shorter).agrees


def test_a_rank_whose_work_takes_longer_is_named() -> None:
    """Work of rank 1 counted 10 % longer: the step is as long, the share of work higher, and the rank is told."""

    def slow(rank: int, action: ActionDone) -> ActionDone:
        return action._replace(worked_s=action.worked_s * (1.1 if rank == 1 else 1.0))

    of_all, of_rank = report(slow).disagreements
    assert of_all.startswith("bubble, as the share of work: -4.8 %")
    assert of_rank == "rank 1: work +7.5 %, end +0.0 % of a step later, allowed 0 to +6 %"


def test_another_order_is_named() -> None:
    """Two micro-batches of rank 1 exchanged at the same times: its order differs, and nothing else."""

    def exchanged(rank: int, action: ActionDone) -> ActionDone:
        word = {"1F0": "1F1", "1F1": "1F0"}.get(action.word, action.word) if rank == 1 else action.word
        return action._replace(word=word)

    answer = report(exchanged)
    assert answer.disagreements == ("rank 1, order: 2 places of 6 differ",)
    assert [row.agrees for row in answer.rows] == [True, False]
