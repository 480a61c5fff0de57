"""What is verified: an order of work and the stages of each rank, of a plan or of bare numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppadvisor import schedules
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.timeline import check_size
from ppadvisor.frameworks.torchtitan.operations import operations, untold
from ppadvisor.schedules.base import IntArray, RankOrder, Schedule
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.verify.torch_engine import UnverifiableError


@dataclass(frozen=True, eq=False)
class Work:
    """One schedule with its numbers."""

    schedule: Schedule
    pipeline_parallel: int
    num_microbatches: int
    virtual_stages: int
    orders: Sequence[RankOrder]
    plan: PlanSpec | None = None

    @property
    def placement(self) -> IntArray:
        """The stage that each chunk of each rank holds."""
        return self.schedule.placement(self.pipeline_parallel, self.virtual_stages)

    @property
    def words(self) -> list[list[str]]:
        """The order of each rank in torch's words."""
        return [operations(order, stages) for order, stages in zip(self.orders, self.placement, strict=True)]


def work_of_numbers(schedule_id: str, p: int, m: int, v: int | None, plan: PlanSpec | None = None) -> Work:
    """The schedule's own order, that for equal stages. Errors for what it, or torch, cannot run, or is too large."""
    schedule = schedules.get(schedule_id)
    chunks = schedule.virtual_stages.default if v is None else v
    if p == 1:
        raise UnverifiableError("there is no pipeline to verify: p is 1")
    check_size(schedule, p, m, chunks)
    return checked(Work(schedule, p, m, chunks, schedule.rank_orders(p, m, chunks), plan))


def work_of_plan(problem: Problem, plan: PlanSpec) -> Work:
    """`work_of_numbers` of a plan, whatever its order was made for (zb-1p and zb-2p: for its times)."""
    size = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    return work_of_numbers(plan.schedule, *size, plan=plan)


def checked(work: Work) -> Work:
    """The work, if torch can be told it."""
    kinds = {kind for order in work.orders for kind in set(order.kind.tolist())}
    problem = untold(work.schedule, kinds)
    if problem:
        raise UnverifiableError(problem)
    return work
