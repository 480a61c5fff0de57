"""Runs of real layers without processes: what ranks would measure that keep exactly to their prediction."""

from __future__ import annotations

from typing import Any

from ppadvisor.frameworks.torchtitan.operations import operations
from ppadvisor.schedules.base import RankOrder
from ppadvisor.verify.launched import Machine
from ppadvisor.verify.results import LayersReport
from ppadvisor.verify.run_layers import compared
from ppadvisor.verify.run_measured import RankRan, StepRan
from ppadvisor.verify.run_predicted import Expected, expected_of
from ppadvisor.verify.scaled import Subject
from ppadvisor.verify.work import work_of_pipeline

TOLERANCE = 0.2


def ran_as_expected(expected: Expected, machine: Machine, slower: float = 1.0) -> list[RankRan]:
    """A step of each rank at the predicted times, what the host takes counted into the pipeline; every action 1 ms."""
    work, ranks = work_of_pipeline(expected.pipeline), []
    for rank, one in enumerate(expected.ranks):
        words = operations(RankOrder(work.orders[rank].actions), work.placement[rank])
        pipeline_s = (expected.pipeline_s + expected.overhead_s) * slower
        step = StepRan(pipeline_s, expected.optimizer_s * slower, tuple((word, 1e-3) for word in words))
        sizes = (round(one.allocated_bytes), round(one.reserved_bytes)) if machine.is_gpu else (None, None)
        ranks.append(RankRan(machine, (step,), *sizes))
    return ranks


def report_of(subject: Subject, machine: Machine, *, slower: float = 1.0, **changed: Any) -> LayersReport:
    """The report on such a run; `changed` are fields of what rank 0 says."""
    expected = expected_of(subject)
    ranks = ran_as_expected(expected, machine, slower)
    ranks[0] = RankRan(**{**vars(ranks[0]), **changed})
    work = work_of_pipeline(expected.pipeline)
    return compared(subject, expected, work, ranks, tolerance=TOLERANCE, engine="1F1B")
