"""What is verified: the work of a plan and of bare numbers, and what torch cannot be told."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.schedules.base import RankOrder
from ppadvisor.verify.run import replayed, runs_itself, verify_run
from ppadvisor.verify.sleeping import Sleeper
from ppadvisor.verify.torch_engine import UnverifiableError
from ppadvisor.verify.work import Times, as_torch_divides, work_of_numbers, work_of_plan
from tests.problems import plan, problem


def test_a_plan_has_the_times_of_its_stages() -> None:
    """The replay of a plan's work is the plan's own, links left out: uneven stages, head and embedding with them."""
    of, chosen = problem(num_gpus=4, global_batch_size=8), plan([7, 6, 6, 5], schedule="1f1b", num_microbatches=8)
    work = work_of_plan(of, chosen)
    assert replayed(work, work.times).makespan_s == pytest.approx(pipeline_of(of, chosen).makespan_s(links=False)[0])
    few = work_of_plan(of, chosen, 4)
    assert few.num_microbatches == 4
    assert sum(map(len, few.orders)) == 4 * 4 * 2
    assert (few.times.forward_s == work.times.forward_s).all()


def test_torch_does_the_first_stage_at_once() -> None:
    """With a split backward stage 0, chunk 0 of rank 0 here, has all of it at W; without one nothing changes."""
    times = Times(*(np.full((2, 2), seconds) for seconds in (1.0, 2.0, 3.0)))
    split = as_torch_divides(work_of_numbers("zb-v", 2, 4, 2), times)
    assert split.input_grad_s.tolist() == [[0, 2], [2, 2]]
    assert split.weight_grad_s.tolist() == [[5, 3], [3, 3]]
    assert as_torch_divides(work_of_numbers("1f1b", 2, 4, 1), Times(*(np.ones((2, 1)),) * 3)).input_grad_s.all()


@pytest.mark.parametrize(
    ("name", "p", "why"),
    [
        ("none", 1, "p is 1"),
        ("dualpipe", 4, "keeps 2 copies"),
        ("chimera", 4, "keeps 2 copies"),
        ("1f1b-vocab-1", 4, "no operations S, T"),
        ("1f1b-vocab-2", 4, "no operations S, U"),
    ],
)
def test_what_torch_cannot_be_told(name: str, p: int, why: str) -> None:
    """One process, two copies of a stage, or a head spread over the ranks: exit code 2 with the reason."""
    with pytest.raises(UnverifiableError, match=why) as refused:
        work_of_numbers(name, p, 8, None)
    assert refused.value.exit_code == 2


def test_a_schedule_of_ours_is_not_torchs_own() -> None:
    """What torch has no name for is loaded as a list; this needs no torch."""
    assert not runs_itself(work_of_numbers("hanayo", 4, 8, 2))


@pytest.mark.parametrize(
    ("numbers", "options", "why"),
    [
        (("1f1b", 9, 16, None), {}, "at most 8, got p 9"),
        (("1f1b", 2, 4, None), {"unit": 0.0}, "must sleep for some time"),
        (("1f1b", 8, 512, None), {"unit": 10.0}, "fewer --microbatches"),
    ],
)
def test_what_is_not_run(
    monkeypatch: pytest.MonkeyPatch, numbers: tuple[str, int, int, None], options: dict[str, float], why: str
) -> None:
    """Too many processes, no work, more than an hour: refused before anything is started."""
    monkeypatch.setattr("ppadvisor.verify.torch_engine.installed_version", lambda: "2.13.0")
    monkeypatch.setattr("ppadvisor.verify.run.runs_itself", lambda _: False)
    with pytest.raises(Exception, match=why) as refused:
        verify_run(work_of_numbers(*numbers), **options)  # type: ignore[arg-type] # of all options one type
    assert getattr(refused.value, "exit_code", None) == 2


def test_torchs_own_schedule_runs_where_it_does_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does if torch's order is ours; not if it is another, or if torch refuses the numbers."""
    work = work_of_numbers("1f1b", 2, 3, None)
    monkeypatch.setattr("ppadvisor.verify.run.executed_words", lambda *_: work.words)
    assert runs_itself(work)
    monkeypatch.setattr("ppadvisor.verify.run.executed_words", lambda *_: work.words[::-1])
    assert not runs_itself(work)

    def refuses(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr("ppadvisor.verify.run.executed_words", refuses)
    assert not runs_itself(work)


def test_losses_out_of_turn_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's engine takes the n-th loss for that of micro-batch n: an order that has them otherwise is refused."""
    monkeypatch.setattr("ppadvisor.verify.run.require_torch", lambda: None)
    work = work_of_numbers("gpipe", 2, 2, None)
    turned = (work.orders[0], RankOrder.parse("F0.1 F0.0 B0.0 B0.1"))
    with pytest.raises(UnverifiableError, match="out of turn"):
        verify_run(replace(work, orders=turned))


def test_a_long_run_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 steps of (m + p − 1)·3 = 33 s are 99 s, and it is said before anything is started."""
    monkeypatch.setattr("ppadvisor.verify.run.require_torch", lambda: None)
    monkeypatch.setattr("ppadvisor.verify.run.runs_itself", lambda _: True)
    monkeypatch.setattr("ppadvisor.verify.run.RankProcesses", None)
    said = list[str]()
    with pytest.raises(TypeError, match="not callable"):
        verify_run(work_of_numbers("1f1b", 4, 8, None), unit=1.0, say=said.append)
    assert said == ["3 steps of 33.0 s take 99.0 s; fewer --microbatches take less"]


def test_sleep_is_never_too_short() -> None:
    """20 ms are at least 20 ms and counted as they were; without work nothing is slept."""
    sleeper = Sleeper()
    sleeper.work(10.0)
    assert sleeper.worked_s == 0
    sleeper.works = True
    start_s = time.monotonic()
    sleeper.work(0.02)
    assert 0.02 <= sleeper.worked_s <= time.monotonic() - start_s
