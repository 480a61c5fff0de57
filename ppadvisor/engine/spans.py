"""How long the pipelines of plans take: their orders of work with their times, replayed together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.step_time import StageTimes
from ppadvisor.schedules.base import IntArray, Kind, RankOrder
from ppadvisor.schedules.many_runs import starts_s
from ppadvisor.schedules.replay import Graph, Run, build_graph, wire_table, work_tables
from ppadvisor.schedules.steady import seconds_a_round
from ppadvisor.specs.plan import PlanSpec

STEADY_ROUNDS = (5, 12)
"""Rounds of p micro-batches after which it is looked whether a pipeline has become periodic. Of 178 pipelines of shown
plans 141 were after 5, the fewest that can tell, 11 more after 6 to 12, and 2 more after 24."""

Graphs = dict[tuple[str, int, int, int], Graph]
"""Of a schedule, p, m and v: graphs that were made before and do not hang on the times."""


@dataclass(frozen=True)
class Span:
    """What a replay takes, without its actions."""

    makespan_s: float
    longest_s: float
    """The longest time from a rank's first start to its last end."""
    busy_s: FloatArray
    """(ranks,)"""

    @staticmethod
    def of(run: Run, start: FloatArray) -> Span:
        """Of a run and the starts of its rows."""
        longest, makespan = run.spans_s(start)
        return Span(makespan, longest, run.busy_s())

    def continued(self, seconds: float, times: float) -> Span:
        """Of so many times the micro-batches, which take so many seconds more."""
        return Span(self.makespan_s + seconds, self.longest_s + seconds, self.busy_s * times)

    @property
    def bubble_in_span_fraction(self) -> float:
        """As `Replay.bubble_in_span_fraction`."""
        return max(1.0 - float(self.busy_s.sum()) / (len(self.busy_s) * self.longest_s), 0.0)

    @property
    def idle_fraction(self) -> FloatArray:
        """Of each rank, of the whole makespan; (ranks,)."""
        return np.maximum(1.0 - self.busy_s / self.makespan_s, 0.0)


@dataclass(frozen=True)
class TimedOrder:
    """One plan's order of work with the seconds of its chunks and boundaries."""

    plan: PlanSpec
    times: StageTimes
    """Of one row."""
    boundary_s: FloatArray
    """(stages − 1,), or one number for all."""
    orders: Sequence[RankOrder]

    @property
    def placement(self) -> IntArray:
        """(ranks, chunks): the stage that each holds."""
        return schedules.get(self.plan.schedule).placement(self.plan.pipeline_parallel, self.plan.virtual_stages)

    def of_microbatches(self, number: int) -> TimedOrder:
        """The same with another number of micro-batches."""
        if number == self.plan.num_microbatches:
            return self
        plan = self.plan.changed(num_microbatches=number)
        return replace(self, plan=plan, orders=orders_of(plan, self.times, self.boundary_s))

    def without_links(self) -> TimedOrder:
        """The same with free hand-offs."""
        return replace(self, boundary_s=np.zeros(1))

    def run(self, graphs: Graphs) -> Run:
        """The order with its times, not yet run."""
        graph = graph_of(self.plan, self.orders, graphs)
        (of_work,) = work_seconds(self.times)
        return Run(graph, self.placement.shape, of_work, wire_seconds(self.placement, self.boundary_s))

    @property
    def looks(self) -> list[int]:
        """Numbers of micro-batches to replay, one after the other, until the pipeline is periodic: the last is all."""
        p, m = self.plan.pipeline_parallel, self.plan.num_microbatches
        # one rank never waits, exactly, and continuing would leave a rounding error of it
        if p == 1 or schedules.get(self.plan.schedule).order_for_times is not None:
            return [m]
        few = (rounds * p + m % p for rounds in STEADY_ROUNDS)
        return [*(number for number in few if m >= 2 * number), m]


def spans_of(timed: Sequence[TimedOrder]) -> list[Span]:
    """What the replay of each takes: of many micro-batches a few rounds, continued where they have become periodic."""
    found: dict[int, Span] = {}
    graphs: Graphs = {}
    looks = [one.looks for one in timed]
    turn = 0
    while len(found) < len(timed):
        open_ = [index for index in range(len(timed)) if index not in found]
        shorter = [timed[index].of_microbatches(looks[index][turn]) for index in open_]
        runs = [one.run(graphs) for one in shorter]
        for index, one, run, start in zip(open_, shorter, runs, starts_s(runs), strict=True):
            span = _continued(timed[index].plan, one, run, start)
            if span is not None:
                found[index] = span
        turn += 1
    return [found[index] for index in range(len(timed))]


def _continued(plan: PlanSpec, one: TimedOrder, run: Run, start: FloatArray) -> Span | None:
    """The span of a plan from a replay of its first micro-batches; None where that is not yet periodic."""
    m, few, p = plan.num_microbatches, one.plan.num_microbatches, plan.pipeline_parallel
    if few == m:
        return Span.of(run, start)
    round_s = seconds_a_round(one.orders, run.of_ranks(start), p)
    return None if round_s is None else Span.of(run, start).continued((m - few) // p * round_s, m / few)


def graph_of(plan: PlanSpec, orders: Sequence[RankOrder], graphs: Graphs) -> Graph:
    """The graph of a plan's order, or one of `graphs`, which keeps it where it does not hang on the times."""
    p, m, v = plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages
    known = graphs.get((plan.schedule, p, m, v))
    if known is not None:
        return known
    schedule = schedules.get(plan.schedule)
    graph = build_graph(orders, schedule.placement(p, v))
    if schedule.order_for_times is None:
        graphs[plan.schedule, p, m, v] = graph
    return graph


def work_seconds(times: StageTimes) -> FloatArray:
    """`Run.of_work` of each plan."""
    whole = {Kind.FORWARD: times.forward, Kind.BACKWARD: times.backward}
    return work_tables(whole | {Kind.INPUT_GRAD: times.input_grad, Kind.WEIGHT_GRAD: times.weight_step})


def wire_seconds(placement: IntArray, boundary_s: FloatArray) -> FloatArray:
    """`Run.of_wire` of a plan, from the hand-off over each boundary or over all of them."""
    seconds = boundary_s if len(boundary_s) != 1 else boundary_s[0]
    return wire_table(int(placement.max()) + 1, seconds, seconds)


def _plain_orders(schedule_id: str, p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """The order of a schedule that does not hang on the times; plans that are looked at often share one."""
    return schedules.get(schedule_id).rank_orders(p, m, v)


SHORT_ORDER = 4096
"""Forwards of an order that takes 100 kB at most: many are kept, of longer ones few."""
_short_orders, _long_orders = lru_cache(maxsize=256)(_plain_orders), lru_cache(maxsize=8)(_plain_orders)


def orders_of(plan: PlanSpec, times: StageTimes, boundary_s: FloatArray) -> Sequence[RankOrder]:
    """The order of each rank of a plan; one that depends on the times is made for them."""
    schedule = schedules.get(plan.schedule)
    size = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    if schedule.order_for_times is None:
        return (_short_orders if math.prod(size) <= SHORT_ORDER else _long_orders)(plan.schedule, *size)
    schedule.refuse(*size)
    actions = times.forward, times.input_grad, times.weight_step
    forward, input_grad, weight_grad = (seconds[0].sum(axis=1) for seconds in actions)
    return schedule.order_for_times(*size, forward, input_grad, weight_grad, boundary_s)
