"""The pipelines of plans in full: order of work, what each rank holds in flight, the replay with the stage times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.communication import handoffs
from ppadvisor.engine.inputs import FloatArray, PlanInputs, layout_of
from ppadvisor.engine.memory_waiting import held_bytes
from ppadvisor.engine.partition import stage_ranks
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.spans import Graphs, TimedOrder, graph_of, orders_of, spans_of, wire_seconds, work_seconds
from ppadvisor.engine.split_work import work_of
from ppadvisor.engine.stash import Held, Stash, Steps, share_in_work, stash_of
from ppadvisor.engine.step_time import StageTimes, pipeline_s, stage_times, totals_of
from ppadvisor.engine.tables import plan_of, table_of
from ppadvisor.schedules.base import IntArray, RankOrder, Schedule
from ppadvisor.schedules.many_runs import makespans_s
from ppadvisor.schedules.replay import Graph, Replay, Run, replay
from ppadvisor.specs.plan import PlanSpec

QUICK_ROUNDS = 3
"""Rounds of p micro-batches after which a pipeline is taken to be steady."""

MOST_ACTIONS = 500_000
"""Actions that are replayed at most (about half a second); beyond, fill and drain hardly count and array forms do."""


@dataclass(frozen=True)
class Pipeline:
    """A plan with every rank, its stage times and its order of work."""

    plan: PlanSpec
    inputs: PlanInputs
    """One row, every rank, in flight as the order of work has it."""
    times: StageTimes
    orders: Sequence[RankOrder] | None
    """None where it would be longer than MOST_ACTIONS: then the array forms stand in for the replay."""

    @property
    def schedule(self) -> Schedule:
        return schedules.get(self.plan.schedule)

    @property
    def placement(self) -> IntArray:
        """(ranks, chunks): the stage that each holds."""
        return self.schedule.placement(self.plan.pipeline_parallel, self.plan.virtual_stages)

    def replayed(self, *, links: bool) -> Replay | None:
        """The order of work run against the stage times; without links the hand-offs are free."""
        return self._with_links if links else self._replay(links=False)

    @cached_property
    def _with_links(self) -> Replay | None:
        return self._replay(links=True)

    @cached_property
    def boundary_s(self) -> FloatArray:
        """One-way hand-off over each boundary between stages, in model order, (stages - 1,) seconds."""
        handoff = handoffs(self.inputs)
        return boundary_times(self.inputs.problem, self.plan, handoff.intra_s[0], handoff.inter_s[0])

    def timed_order(self, *, links: bool = True) -> TimedOrder | None:
        """The order of work with its times; without links the hand-offs are free. None where nothing is replayed."""
        if self.orders is None:
            return None
        timed = TimedOrder(self.plan, self.times, self.boundary_s, self.orders)
        return timed if links else timed.without_links()

    def _replay(self, *, links: bool) -> Replay | None:
        times = self.times
        if self.orders is None:
            return None
        return replay(
            self.orders,
            self.placement,
            forward_s=times.forward[0],
            backward_s=times.backward[0],
            input_grad_s=times.input_grad[0],
            weight_grad_s=times.weight_step[0],
            handoff_s=self.boundary_s if links else 0.0,
        )

    def of_microbatches(self, number: int) -> Pipeline:
        """The same pipeline with another number of micro-batches, its stage times unchanged."""
        plan = self.plan.changed(num_microbatches=number)
        return replace(self, plan=plan, orders=orders_of(plan, self.times, self.boundary_s))

    def makespan_s(self, *, links: bool) -> tuple[float, FloatArray]:
        """(seconds from first start to last end, idle fraction of each rank).

        Of an asynchronous schedule the steady state counts, by the schedule's closed form, as for very many actions.
        """
        timed = None if self.schedule.asynchronous else self.timed_order(links=links)
        if timed is None:
            return self.closed_form_s(links=links)
        (span,) = spans_of([timed])
        return span.makespan_s, span.idle_fraction

    def closed_form_s(self, *, links: bool) -> tuple[float, FloatArray]:
        """The same by the schedule's array form."""
        makespan = float(pipeline_s(self.inputs, totals_of(self.inputs, self.times, links=links))[0])
        return makespan, np.asarray(1.0 - working_s(self.inputs, self.times, 0) / makespan)


def working_s(inputs: PlanInputs, times: StageTimes, row: int) -> FloatArray:
    """Seconds of a step that each rank of a plan works, by its stage times; (ranks,)."""
    work = sum((seconds[row] for seconds in times.work.values()), np.zeros(1))
    return np.asarray(work * inputs.plans.num_microbatches[row] / inputs.copies[row])


def timed_pipeline(problem: Problem, plan: PlanSpec) -> Pipeline:
    """The pipeline of one plan with its times alone: in flight by the closed forms, its order of work not yet made."""
    inputs = PlanInputs.of(problem, table_of(plan), every_stage=True)
    return Pipeline(plan, inputs, stage_times(inputs), None)


def pipeline_of(problem: Problem, plan: PlanSpec) -> Pipeline:
    """The pipeline of one plan; an order that depends on the times is made for them."""
    ((_, pipelines),) = pipelines_of(problem, (plan,))
    return pipelines.one(0)


@dataclass(frozen=True)
class Pipelines:
    """Plans with as many ranks and chunks each, and their orders of work. Arrays have a row for each."""

    plans: tuple[PlanSpec, ...]
    inputs: PlanInputs
    """Every rank, in flight as the order of work has it."""
    times: StageTimes
    boundary_s: tuple[FloatArray, ...]
    """One-way hand-offs over the boundaries of each plan."""
    orders: tuple[Sequence[RankOrder], ...] | None
    """None where they would be longer than MOST_ACTIONS."""

    def one(self, row: int) -> Pipeline:
        """The pipeline of one plan."""
        inputs = self.inputs if len(self.plans) == 1 else self.inputs.row(row)
        return Pipeline(self.plans[row], inputs, self.times.row(row), None if self.orders is None else self.orders[row])

    def timed_order(self, row: int) -> TimedOrder | None:
        """The order of work of one plan with its times; None where a closed form stands in for the replay."""
        plan = self.plans[row]
        if self.orders is None or schedules.get(plan.schedule).asynchronous:
            return None
        return TimedOrder(plan, self.times.row(row), self.boundary_s[row], self.orders[row])


def pipelines_of(problem: Problem, plans: Sequence[PlanSpec]) -> list[tuple[list[int], Pipelines]]:
    """(which of the plans, their pipelines): those of one shape together."""
    shapes: dict[tuple[int, int, bool], list[int]] = {}
    for index, plan in enumerate(plans):
        placement = layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement
        replayed = plan.pipeline_parallel * plan.virtual_stages * plan.num_microbatches <= MOST_ACTIONS // 2
        shapes.setdefault((len(placement), len(placement[0]), replayed), []).append(index)
    return [
        (rows, _pipelines(problem, tuple(plans[row] for row in rows), replayed))
        for (_, _, replayed), rows in shapes.items()
    ]


def _pipelines(problem: Problem, plans: tuple[PlanSpec, ...], replayed: bool) -> Pipelines:
    inputs = PlanInputs.of(problem, table_of(*plans), every_stage=True)
    times, handoff = stage_times(inputs), handoffs(inputs)
    links = zip(plans, handoff.intra_s, handoff.inter_s, strict=True)
    boundary_s = tuple(boundary_times(problem, plan, intra_s, inter_s) for plan, intra_s, inter_s in links)
    if not replayed:
        return Pipelines(plans, inputs, times, boundary_s, None)
    orders = tuple(orders_of(plan, times.row(row), boundary_s[row]) for row, plan in enumerate(plans))
    return Pipelines(plans, replace(inputs, stash=_stash(inputs, orders)), times, boundary_s, orders)


def _stash(inputs: PlanInputs, orders: Sequence[Sequence[RankOrder]]) -> Stash:
    """What each chunk holds at the heaviest moments, (plans, stages, chunks)."""
    one = held_bytes(inputs)
    in_work = share_in_work(inputs.stages.chunk_layers.sum(axis=3), one.alive, one.waiting)
    work, stashes = work_of(inputs), []
    counted: dict[tuple[int, int], Stash] = {}
    for row, order in enumerate(orders):
        schedule = schedules.get(inputs.plans.schedule_names[inputs.plans.schedule[row]])
        number = int(inputs.plans.schedule[row]), int(inputs.plans.num_microbatches[row])
        if schedule.asynchronous:
            # a step begins with what the last one left: the order, which begins empty, may hold less
            none = np.zeros_like(inputs.chunk_in_flight[row])
            steady = Held(inputs.chunk_in_flight[row], none, none)
            stashes.append(Stash(steady, steady, Steps(none, none, none) if work else None))
        elif number in counted:
            stashes.append(counted[number])
        else:
            own = None if work is None else work.row(row)
            stashes.append(stash_of(order, one.row(row), in_work[row], inputs.stages.chunk_head[row], own))
            if in_work.shape[2] == 1 and not schedule.splits_backward:
                # only forwards of one chunk are alive: the most of them are the heaviest, whatever one weighs
                counted[number] = stashes[-1]
    return Stash.stacked(stashes)


@dataclass(frozen=True)
class TimedPlans:
    """A table of plans that have as many ranks and chunks, with their times, to be replayed in short."""

    inputs: PlanInputs
    """Every rank."""
    times: StageTimes

    def quick_runs(self, graphs: Graphs) -> Iterator[list[Run]]:
        """Of each plan what to replay: all micro-batches or two numbers of them; nothing where a closed form counts.

        `graphs`: those made before.
        """
        handoff, of_work = handoffs(self.inputs), work_seconds(self.times)
        for row in range(len(self.inputs.plans)):
            plan = plan_of(self.inputs.plans, row)
            boundary_s = boundary_times(self.inputs.problem, plan, handoff.intra_s[row], handoff.inter_s[row])
            placement = schedules.get(plan.schedule).placement(plan.pipeline_parallel, plan.virtual_stages)
            of_wire = wire_seconds(placement, boundary_s)
            yield [
                Run(self._graph(row, plan, number, boundary_s, graphs), placement.shape, of_work[row], of_wire)
                for number in _quick_look(plan)
            ]

    def _graph(self, row: int, plan: PlanSpec, number: int, boundary_s: FloatArray, graphs: Graphs) -> Graph:
        """Of so many micro-batches. One that is known needs no order of work."""
        key = plan.schedule, plan.pipeline_parallel, number, plan.virtual_stages
        if key in graphs:
            return graphs[key]
        of_number = plan.changed(num_microbatches=number)
        return graph_of(of_number, orders_of(of_number, self.times.row(row), boundary_s), graphs)


def quick_makespans_s(tables: Sequence[TimedPlans]) -> list[FloatArray]:
    """`Pipeline.makespan_s` of each plan from replays of a few rounds of p micro-batches, continued at the last's rate.

    Exact for equal ranks; else within about a part in a thousand, as steady states of several rounds are averaged.
    """
    graphs: Graphs = {}
    runs = [list(table.quick_runs(graphs)) for table in tables]
    seconds = iter(makespans_s([run for of_table in runs for of_plan in of_table for run in of_plan]))
    result = []
    for table, of_table in zip(tables, runs, strict=True):
        sizes = zip(*(column.tolist() for column in table.inputs.plans.pipeline_sizes[:2]), of_table, strict=True)
        found = [_continued_s(p, m, [next(seconds) for _ in of_plan]) for p, m, of_plan in sizes]
        closed = pipeline_s(table.inputs, totals_of(table.inputs, table.times, links=True)) if None in found else found
        result.append(np.array([closed[i] if s is None else s for i, s in enumerate(found)], dtype=np.float64))
    return result


def _continued_s(p: int, m: int, seconds: list[float]) -> float | None:
    """The makespan from that of all micro-batches, or from those of two numbers of them; None where there is none."""
    if len(seconds) < 2:
        return seconds[0] if seconds else None
    rounds = (m - (QUICK_ROUNDS + 1) * p - m % p) // p
    return seconds[1] + (seconds[1] - seconds[0]) * rounds


def _quick_look(plan: PlanSpec) -> tuple[int, ...]:
    """The numbers of micro-batches to replay: all, or two of a few rounds each; none where the closed form counts."""
    p, m = plan.pipeline_parallel, plan.num_microbatches
    if schedules.get(plan.schedule).asynchronous:
        return ()
    few, more = QUICK_ROUNDS * p + m % p, (QUICK_ROUNDS + 1) * p + m % p
    return (m,) if m <= few + more else (few, more)


def boundary_times(problem: Problem, plan: PlanSpec, intra_s: float, inter_s: float) -> FloatArray:
    """One-way hand-off over each boundary between stages, in model order, (stages - 1,) seconds.

    From what a hand-off takes inside a node and between nodes.
    """
    node = problem.cluster.gpus_per_node
    placement = layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement
    width = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    ranks = np.array(stage_ranks(placement))
    first, second = ranks[:-1] * width, ranks[1:] * width
    # neighbours as wide as a node never share one
    crosses = (first // node != second // node) | (width >= node)
    return np.asarray(np.where(first == second, 0.0, np.where(crosses, inter_s, intra_s)))
