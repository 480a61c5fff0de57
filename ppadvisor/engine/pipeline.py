"""One plan's pipeline in full: its order of work, what each rank holds in flight, its replay with the stage times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.communication import handoffs
from ppadvisor.engine.inputs import FloatArray, PlanInputs, layout_of
from ppadvisor.engine.memory_activations import waiting_head_per_microbatch, waiting_per_chunk
from ppadvisor.engine.partition import stage_ranks
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import layer_input_bytes, saved_per_chunk
from ppadvisor.engine.stash import Held, Stash, share_in_work, stash_of
from ppadvisor.engine.step_time import StageTimes, pipeline_s, stage_times, totals_of
from ppadvisor.engine.tables import table_of
from ppadvisor.schedules.base import RankOrder, Schedule
from ppadvisor.schedules.replay import Replay, replay
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

    def replayed(self, *, links: bool) -> Replay | None:
        """The order of work run against the stage times; without links the hand-offs are free."""
        return self._with_links if links else self._replay(links=False)

    @cached_property
    def _with_links(self) -> Replay | None:
        return self._replay(links=True)

    @property
    def bubble_in_span_fraction(self) -> float | None:
        """Idle share inside the ranks' own spans, as the Zero Bubble paper counts; None where nothing was replayed."""
        result = None if self.schedule.asynchronous else self.replayed(links=True)
        return None if result is None else result.bubble_in_span_fraction

    def _replay(self, *, links: bool) -> Replay | None:
        times = self.times
        if self.orders is None:
            return None
        return replay(
            self.orders,
            self.schedule.placement(self.plan.pipeline_parallel, self.plan.virtual_stages),
            forward_s=times.forward[0],
            backward_s=times.backward[0],
            input_grad_s=(times.backward - times.weight_grad)[0],
            weight_grad_s=times.weight_grad[0],
            handoff_s=boundary_times(self.inputs, self.plan) if links else 0.0,
        )

    def quick_makespan_s(self) -> float:
        """`makespan_s` from replays of a few rounds of p micro-batches, continued at the rate of the last round.

        Exact for equal ranks; else within about a part in a thousand, as steady states of several rounds are averaged.
        """
        p, m = self.plan.pipeline_parallel, self.plan.num_microbatches
        if m <= (QUICK_ROUNDS + 2) * p or self.schedule.asynchronous:
            return self.of_microbatches(m).makespan_s(links=True)[0]
        few, more = QUICK_ROUNDS * p + m % p, (QUICK_ROUNDS + 1) * p + m % p
        short, longer = (self.of_microbatches(number).makespan_s(links=True)[0] for number in (few, more))
        return longer + (longer - short) * ((m - more) // p)

    def of_microbatches(self, number: int) -> Pipeline:
        """The same pipeline with another number of micro-batches, its stage times unchanged."""
        plan = self.plan.model_copy(update={"num_microbatches": number})
        return replace(self, plan=plan, orders=_orders(self.inputs, plan, self.times))

    def makespan_s(self, *, links: bool) -> tuple[float, FloatArray]:
        """(seconds from first start to last end, idle fraction of each rank).

        Of an asynchronous schedule the steady state counts, by the schedule's closed form, as for very many actions.
        """
        result = None if self.schedule.asynchronous else self.replayed(links=links)
        if result is not None:
            return result.makespan_s, 1.0 - result.busy_s / result.makespan_s
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
    orders = _orders(timed.inputs, plan, timed.times)
    return replace(timed, inputs=replace(timed.inputs, stash=_stash(timed, orders)), orders=orders)


def held_bytes(inputs: PlanInputs) -> Held:
    """Bytes of a micro-batch of each chunk of the table's one plan, (stages, chunks)."""
    stages, framework = inputs.stages, inputs.problem.framework
    head = waiting_head_per_microbatch(inputs)[:, None, None] * stages.chunk_head
    receives = (stages.chunk_embedding < 1) & (stages.chunk_takes_over < 1) & framework.keeps_input_gradients
    sent = layer_input_bytes(inputs)[:, None, None] * receives
    # a rank without layers still holds something for each micro-batch: ties go to the first most
    return Held(saved_per_chunk(inputs)[0] + 1.0, (waiting_per_chunk(inputs) + head)[0] + 1.0, sent[0])


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
    stash = stash_of(orders, one, in_work, inputs.stages.chunk_head[0])
    return Stash(*(held.each(lambda values: values[None]) for held in (stash.at_peak, stash.at_loss)))


def _orders(inputs: PlanInputs, plan: PlanSpec, times: StageTimes) -> Sequence[RankOrder]:
    schedule = schedules.get(plan.schedule)
    size = (plan.pipeline_parallel, plan.num_microbatches, plan.virtual_stages)
    plain = schedule.rank_orders(*size)  # also refuses what the schedule cannot run
    if schedule.order_for_times is None:
        return plain
    input_grad = (times.backward - times.weight_grad)[0].sum(axis=1)
    forward, weight_grad = times.forward[0].sum(axis=1), times.weight_grad[0].sum(axis=1)
    return schedule.order_for_times(*size, forward, input_grad, weight_grad, boundary_times(inputs, plan))


def boundary_times(inputs: PlanInputs, plan: PlanSpec) -> FloatArray:
    """One-way hand-off over each boundary between stages, in model order, (stages - 1,) seconds."""
    handoff, node = handoffs(inputs), inputs.problem.cluster.gpus_per_node
    placement = layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement
    width = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    ranks = np.array(stage_ranks(placement))
    first, second = ranks[:-1] * width, ranks[1:] * width
    # neighbours as wide as a node never share one
    crosses = (first // node != second // node) | (width >= node)
    return np.asarray(np.where(first == second, 0.0, np.where(crosses, handoff.inter_s[0], handoff.intra_s[0])))
