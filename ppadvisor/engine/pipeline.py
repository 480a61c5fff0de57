"""One plan's pipeline in full: its order of work, what each rank holds in flight, its replay with the stage times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.communication import handoffs
from ppadvisor.engine.inputs import FloatArray, PlanInputs, layout_of
from ppadvisor.engine.memory_waiting import held_bytes
from ppadvisor.engine.partition import stage_ranks
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.split_work import work_of
from ppadvisor.engine.stash import Held, Stash, share_in_work, stash_of
from ppadvisor.engine.step_time import StageTimes, pipeline_s, stage_times, totals_of
from ppadvisor.engine.tables import plan_of, table_of
from ppadvisor.schedules.base import IntArray, Kind, RankOrder, Schedule
from ppadvisor.schedules.many_runs import makespans_s
from ppadvisor.schedules.replay import Graph, Replay, Run, build_graph, replay, timed_run
from ppadvisor.schedules.steady import seconds_a_round
from ppadvisor.specs.plan import PlanSpec

QUICK_ROUNDS = 3
"""Rounds of p micro-batches after which a pipeline is taken to be steady."""

STEADY_ROUNDS = (8, 24)
"""Rounds of p micro-batches after which it is looked whether a pipeline has become periodic."""

MOST_ACTIONS = 500_000
"""Actions that are replayed at most (about half a second); beyond, fill and drain hardly count and array forms do."""


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
        starts, ends = run.of_ranks(start), run.of_ranks(start + run.durations)
        longest = max(float(last[-1] - first[0]) for first, last in zip(starts, ends, strict=True))
        return Span(float((start + run.durations).max()), longest, run.busy_s())

    def continued(self, seconds: float, times: float) -> Span:
        """Of so many times the micro-batches, which take so many seconds more."""
        return Span(self.makespan_s + seconds, self.longest_s + seconds, self.busy_s * times)

    @property
    def bubble_in_span_fraction(self) -> float:
        """As `Replay.bubble_in_span_fraction`."""
        return max(1.0 - float(self.busy_s.sum()) / (len(self.busy_s) * self.longest_s), 0.0)


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

    @property
    def bubble_in_span_fraction(self) -> float | None:
        """Idle share inside the ranks' own spans, as the Zero Bubble paper counts; None where nothing was replayed."""
        result = None if self.schedule.asynchronous or self.orders is None else self._span_with_links
        return None if result is None else result.bubble_in_span_fraction

    @cached_property
    def _span_with_links(self) -> Span:
        return self._span(links=True)

    def _span(self, *, links: bool) -> Span:
        """What a replay takes: of many micro-batches a few rounds, continued where they have become periodic."""
        p, m = self.plan.pipeline_parallel, self.plan.num_microbatches
        for rounds in STEADY_ROUNDS:
            few = rounds * p + m % p
            # one rank never waits, exactly, and continuing would leave a rounding error of it
            if p == 1 or m < 2 * few or self.schedule.order_for_times is not None:
                break
            if few not in self._shorter:
                self._shorter[few] = self.of_microbatches(few)
            short = self._shorter[few]
            run = short.run(links=links)
            start = run.starts_s()
            round_s = seconds_a_round(short.orders or (), run.of_ranks(start), p)
            if round_s is not None:
                return Span.of(run, start).continued((m - few) // p * round_s, m / few)
        run = self.run(links=links)
        return Span.of(run, run.starts_s())

    @cached_property
    def _shorter(self) -> dict[int, Pipeline]:
        """The same with fewer micro-batches, as it was looked at with links or without."""
        return {}

    @cached_property
    def _graph(self) -> Graph:
        """Of an order of work that there is."""
        return build_graph(self.orders or (), self.placement)

    def run(self, *, links: bool) -> Run:
        """The order of work with its times, not yet run."""
        boundary_s = boundary_times(self.inputs, self.plan) if links else np.zeros(1)
        return _run_of(self._graph, self.placement, self.times, boundary_s)

    def _replay(self, *, links: bool) -> Replay | None:
        times = self.times
        if self.orders is None:
            return None
        return replay(
            self.orders,
            self.placement,
            forward_s=times.forward[0],
            backward_s=times.backward[0],
            input_grad_s=(times.backward - times.weight_grad)[0],
            weight_grad_s=times.weight_grad[0],
            handoff_s=boundary_times(self.inputs, self.plan) if links else 0.0,
        )

    def of_microbatches(self, number: int) -> Pipeline:
        """The same pipeline with another number of micro-batches, its stage times unchanged."""
        plan = self.plan.model_copy(update={"num_microbatches": number})
        return replace(self, plan=plan, orders=_orders(plan, self.times, boundary_times(self.inputs, plan)))

    def makespan_s(self, *, links: bool) -> tuple[float, FloatArray]:
        """(seconds from first start to last end, idle fraction of each rank).

        Of an asynchronous schedule the steady state counts, by the schedule's closed form, as for very many actions.
        """
        if self.orders is not None and not self.schedule.asynchronous:
            result = self._span_with_links if links else self._span(links=False)
            return result.makespan_s, np.maximum(1.0 - result.busy_s / result.makespan_s, 0.0)
        makespan = float(pipeline_s(self.inputs, totals_of(self.inputs, self.times, links=links))[0])
        busy = sum(self.times.work.values(), np.zeros(1))[0] * self.plan.num_microbatches / self.inputs.copies[0]
        return makespan, np.asarray(1.0 - busy / makespan)


def timed_pipeline(problem: Problem, plan: PlanSpec) -> Pipeline:
    """The pipeline of one plan with its times alone: in flight by the closed forms, its order of work not yet made."""
    inputs = PlanInputs.of(problem, table_of(plan), every_stage=True)
    return Pipeline(plan, inputs, stage_times(inputs), None)


def pipeline_of(problem: Problem, plan: PlanSpec) -> Pipeline:
    """The pipeline of one plan; an order that depends on the times is made for them."""
    timed = timed_pipeline(problem, plan)
    if plan.pipeline_parallel * plan.virtual_stages * plan.num_microbatches > MOST_ACTIONS // 2:
        return timed
    orders = _orders(plan, timed.times, boundary_times(timed.inputs, plan))
    return replace(timed, inputs=replace(timed.inputs, stash=_stash(timed, orders)), orders=orders)


def _stash(timed: Pipeline, orders: Sequence[RankOrder]) -> Stash:
    """What each chunk holds at the heaviest moments, (1, stages, chunks)."""
    inputs = timed.inputs
    if timed.schedule.asynchronous:
        # a step begins with what the last one left: the order, which begins empty, may hold less
        none = np.zeros_like(inputs.chunk_in_flight)
        steady = Held(inputs.chunk_in_flight, none, none)
        return Stash(steady, steady)
    one = held_bytes(inputs)
    in_work = share_in_work(inputs.stages.chunk_layers.sum(axis=3)[0], one.alive, one.waiting)
    stash = stash_of(orders, one, in_work, inputs.stages.chunk_head[0], work_of(inputs))
    at_peak, at_loss = (held.each(lambda values: values[None]) for held in (stash.at_peak, stash.at_loss))
    under_way = stash.under_way.each(lambda values: values[None]) if stash.under_way else None
    return Stash(at_peak, at_loss, under_way)


@dataclass(frozen=True)
class TimedPlans:
    """A table of plans that have as many ranks and chunks, with their times, to be replayed in short."""

    inputs: PlanInputs
    """Every rank."""
    times: StageTimes

    def quick_runs(self, graphs: dict[tuple[str, int, int, int], Graph]) -> Iterator[list[Run]]:
        """Of each plan what to replay: all micro-batches or two numbers of them; nothing where a closed form counts.

        `graphs`: those made before.
        """
        handoff = handoffs(self.inputs)
        for row in range(len(self.inputs.plans)):
            plan = plan_of(self.inputs.plans, row)
            numbers = _quick_look(plan)
            boundary_s = _boundary_times(self.inputs, plan, handoff.intra_s[row], handoff.inter_s[row])
            yield [self._run(row, plan, number, boundary_s, graphs) for number in numbers]

    def _run(
        self,
        row: int,
        plan: PlanSpec,
        number: int,
        boundary_s: FloatArray,
        graphs: dict[tuple[str, int, int, int], Graph],
    ) -> Run:
        schedule = schedules.get(plan.schedule)
        placement = schedule.placement(plan.pipeline_parallel, plan.virtual_stages)
        key = plan.schedule, plan.pipeline_parallel, number, plan.virtual_stages
        graph = graphs.get(key)
        forward, backward, weight_grad = (values[row : row + 1] for values in self._seconds)
        one = StageTimes(forward, backward, weight_grad, {})
        if graph is None:
            of_number = plan.model_copy(update={"num_microbatches": number})
            graph = build_graph(_orders(of_number, one, boundary_s), placement)
            if schedule.order_for_times is None:
                graphs[key] = graph
        return _run_of(graph, placement, one, boundary_s)

    @property
    def _seconds(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.times.forward, self.times.backward, self.times.weight_grad


def _run_of(graph: Graph, placement: IntArray, times: StageTimes, boundary_s: FloatArray) -> Run:
    """A graph with the times of one plan, and of each boundary or of all."""
    forward, backward, weight_grad = times.forward[0], times.backward[0], times.weight_grad[0]
    of_kinds = forward, backward, backward - weight_grad, weight_grad, 0.0, 0.0, 0.0
    seconds = boundary_s if len(boundary_s) != 1 else boundary_s[0]
    return timed_run(graph, placement, dict(zip(Kind, of_kinds, strict=True)), seconds, seconds)


def quick_makespans_s(tables: Sequence[TimedPlans]) -> list[FloatArray]:
    """`Pipeline.makespan_s` of each plan from replays of a few rounds of p micro-batches, continued at the last's rate.

    Exact for equal ranks; else within about a part in a thousand, as steady states of several rounds are averaged.
    """
    graphs: dict[tuple[str, int, int, int], Graph] = {}
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
    if m <= (QUICK_ROUNDS + 2) * p:
        return (m,)
    return QUICK_ROUNDS * p + m % p, (QUICK_ROUNDS + 1) * p + m % p


@lru_cache(maxsize=8)
def _plain_orders(schedule_id: str, p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """The order of a schedule that does not hang on the times; plans that are looked at often share one."""
    return schedules.get(schedule_id).rank_orders(p, m, v)


def _orders(plan: PlanSpec, times: StageTimes, boundary_s: FloatArray) -> Sequence[RankOrder]:
    schedule = schedules.get(plan.schedule)
    size = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    if schedule.order_for_times is None:
        return _plain_orders(plan.schedule, *size)
    schedule.refuse(*size)
    input_grad = (times.backward - times.weight_grad)[0].sum(axis=1)
    forward, weight_grad = times.forward[0].sum(axis=1), times.weight_grad[0].sum(axis=1)
    return schedule.order_for_times(*size, forward, input_grad, weight_grad, boundary_s)


def boundary_times(inputs: PlanInputs, plan: PlanSpec) -> FloatArray:
    """One-way hand-off over each boundary between stages, in model order, (stages - 1,) seconds."""
    handoff = handoffs(inputs)
    return _boundary_times(inputs, plan, handoff.intra_s[0], handoff.inter_s[0])


def _boundary_times(inputs: PlanInputs, plan: PlanSpec, intra_s: float, inter_s: float) -> FloatArray:
    """The same with what a hand-off takes inside a node and between nodes."""
    node = inputs.problem.cluster.gpus_per_node
    placement = layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement
    width = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    ranks = np.array(stage_ranks(placement))
    first, second = ranks[:-1] * width, ranks[1:] * width
    # neighbours as wide as a node never share one
    crosses = (first // node != second // node) | (width >= node)
    return np.asarray(np.where(first == second, 0.0, np.where(crosses, inter_s, intra_s)))
