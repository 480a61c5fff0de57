"""What is verified: an order of work, the stages of each rank and their times, of a plan or of bare numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.pipeline import Pipeline, pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.timeline import check_size
from ppadvisor.frameworks.torchtitan.operations import operations, untold
from ppadvisor.schedules.base import FloatArray, IntArray, Kind, RankOrder, Schedule
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.verify.torch_engine import UnverifiableError


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of each kind of action of one micro-batch, (ranks, chunks). A whole backward is I and W."""

    forward_s: FloatArray
    input_grad_s: FloatArray
    weight_grad_s: FloatArray

    def scaled(self, scale: float) -> Times:
        return Times(self.forward_s * scale, self.input_grad_s * scale, self.weight_grad_s * scale)


@dataclass(frozen=True, eq=False)
class Work:
    """One schedule with its numbers."""

    schedule: Schedule
    pipeline_parallel: int
    num_microbatches: int
    virtual_stages: int
    orders: Sequence[RankOrder]
    times: Times
    """Of bare numbers 1 s each."""
    plan: PlanSpec | None = None

    @property
    def placement(self) -> IntArray:
        """The stage that each chunk of each rank holds."""
        return self.schedule.placement(self.pipeline_parallel, self.virtual_stages)

    @property
    def words(self) -> list[list[str]]:
        """The order of each rank in torch's words."""
        return [operations(order, stages) for order, stages in zip(self.orders, self.placement, strict=True)]

    @property
    def splits_backward(self) -> bool:
        """Some backward is done in two parts."""
        return any((order.kind == Kind.INPUT_GRAD).any() for order in self.orders)


def work_of_numbers(schedule_id: str, p: int, m: int, v: int | None) -> Work:
    """A schedule of equal stages. Errors for what it, or torch, cannot run, or is too large."""
    schedule = schedules.get(schedule_id)
    chunks = schedule.virtual_stages.default if v is None else v
    _check(schedule, p, m, chunks)
    equal = np.ones((p, chunks))
    orders = schedule.rank_orders(p, m, chunks)
    return _told(Work(schedule, p, m, chunks, orders, Times(equal, equal, equal)))


def work_of_plan(problem: Problem, plan: PlanSpec, microbatches: int | None = None) -> Work:
    """A plan with the times of its stages, of fewer or more micro-batches where they are given."""
    schedule, p, v = schedules.get(plan.schedule), plan.pipeline_parallel, plan.virtual_stages
    m = microbatches or plan.num_microbatches
    _check(schedule, p, m, v)
    pipeline = pipeline_of(problem, plan)
    if m != plan.num_microbatches or pipeline.orders is None:
        pipeline = pipeline.of_microbatches(m)
    return _told(replace(work_of_pipeline(pipeline), plan=plan))


def work_of_pipeline(pipeline: Pipeline) -> Work:
    """A pipeline whose order of work is known."""
    assert pipeline.orders is not None
    plan, times = pipeline.plan, pipeline.times
    split = Times(times.forward[0], times.input_grad[0], times.weight_step[0])
    sizes = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    return Work(pipeline.schedule, *sizes, pipeline.orders, split, plan)


def _check(schedule: Schedule, p: int, m: int, v: int) -> None:
    if p == 1:
        raise UnverifiableError("there is no pipeline to verify: p is 1")
    check_size(schedule, p, m, v)


def _told(work: Work) -> Work:
    """The work, if torch can be told it."""
    kinds = sorted({kind for order in work.orders for kind in order.kind.tolist()})
    problem = untold(work.schedule, kinds)
    if problem:
        raise UnverifiableError(problem)
    return work


def as_torch_divides(work: Work, times: Times) -> Times:
    """The times by which torch's engine does the first stage: with a split backward all of it is done at W.

    Source: torch 2.13, pipelining/stage.py, `backward_one_chunk`: nobody needs the first stage's input gradient.
    """
    if not work.splits_backward:
        return times
    first = work.placement == 0
    both = times.input_grad_s + times.weight_grad_s
    return replace(
        times,
        input_grad_s=np.where(first, 0.0, times.input_grad_s),
        weight_grad_s=np.where(first, both, times.weight_grad_s),
    )
