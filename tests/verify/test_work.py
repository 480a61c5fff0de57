"""What is verified: the work of a plan and of bare numbers, and what torch cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.verify.run import replayed, runs_itself, verify_run
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
