"""What the plans of a search share: few sizes and few layouts, for which most is worked out once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs, layouts_of, most_in_flight
from ppadvisor.engine.once import of_rows, remembered
from ppadvisor.engine.partition import stages_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.stages import Stages
from ppadvisor.specs.plan import IntArray, PlanTable, distinct_first, distinct_rows, distinct_values

LAYER_SIZES = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "micro_batch_size",
    "optimizer_sharding",
)
"""On which a single layer hangs, beside whether its parameters have copies."""


@dataclass(frozen=True)
class Distinct:
    """The distinct sizes and layouts of some plans, and which of them each plan has.

    What hangs on these alone is worked out once, for all tables of plans that have them.
    """

    sizes: PlanInputs
    """Without stages."""
    size: IntArray
    layouts: PlanInputs
    """A plan of each layout, with its stages."""
    layout: IntArray

    def take(self, rows: IntArray | NDArray[np.bool_] | slice) -> Distinct:
        """Those of some plans only."""
        return replace(self, size=self.size[rows], layout=self.layout[rows])

    def followed_by(self, other: Distinct) -> Distinct:
        """These plans and others of the same sizes and layouts behind them."""
        pairs = (self.size, other.size), (self.layout, other.layout)
        size, layout = (np.concatenate(pair) for pair in pairs)
        return replace(self, size=size, layout=layout)

    def inputs(self, plans: PlanTable, stages: Stages) -> PlanInputs:
        """These plans with stages of their layouts."""
        return PlanInputs(self.sizes.problem, plans, stages.take(self.layout), distinct=self)

    def in_flight(self, groups: int) -> FloatArray:
        """Micro-batches in flight at the peak of the first groups of ranks of each plan, (plans, groups)."""
        ms, _ = distinct_microbatches(self.sizes)
        return of_rows(in_flight_at_each(self.layouts, ms)[:, :groups], self._at_each)

    def in_flight_of(self, group: IntArray) -> FloatArray:
        """The same of one group of each layout, (plans,)."""
        ms, _ = distinct_microbatches(self.sizes)
        each = np.arange(len(group) * len(ms))
        return np.asarray(in_flight_at_each(self.layouts, ms)[each, np.repeat(group, len(ms))][self._at_each])

    @cached_property
    def _at_each(self) -> IntArray:
        """Which row of `in_flight_at_each` each plan has."""
        ms, which = distinct_microbatches(self.sizes)
        return np.asarray(self.layout * len(ms) + which[self.size])


def distinct_of(problem: Problem, plans: PlanTable, size: IntArray | None = None) -> Distinct:
    """What the plans of a table share; `size`: a number of each plan that those of equal sizes share, where known."""
    size, first = distinct_first(plans.distinct_sizes()[1] if size is None else size)
    nothing = np.zeros((0, 0), dtype=np.int64)
    none = Stages(nothing, nothing, *(np.zeros((0,) * axes) for axes in (3, 4, 3, 3, 3, 3, 1, 1)))
    layouts, layout = layouts_of(plans)
    one = np.zeros(len(layouts), dtype=np.int64)
    one[layout] = np.arange(len(plans))
    stages = stages_of(problem.model, layouts, every_stage=False)
    sizes = plans.take(first)
    copies = (sizes.data_parallel * sizes.context_parallel > 1).astype(np.int64)
    of_layer, row = distinct_rows([*(getattr(sizes, name) for name in LAYER_SIZES), copies])
    layers = PlanInputs(problem, sizes.take(of_layer), none)
    of_sizes = PlanInputs(problem, sizes, none, of_layers=(layers, row))
    return Distinct(of_sizes, size, PlanInputs(problem, plans.take(one), stages), layout)


@remembered
def distinct_microbatches(sizes: PlanInputs) -> tuple[tuple[int, ...], IntArray]:
    """The distinct m of some sizes, and which of them each has."""
    ms, which = distinct_values(sizes.plans.num_microbatches)
    return tuple(ms.tolist()), which


@remembered
def in_flight_at_each(layouts: PlanInputs, ms: tuple[int, ...]) -> FloatArray:
    """Micro-batches in flight at the peak of each group of ranks of each layout with each m, (layouts x ms, stages)."""
    stages, plans = layouts.stages, layouts.plans
    held = np.zeros((stages.count.shape[1], len(plans), len(ms)))
    for schedule, rows in layouts.by_schedule:
        p, v = (column[rows][None, :, None] for column in (plans.pipeline_parallel, plans.virtual_stages))
        first, last = (ranks.T[:, rows, None] for ranks in (stages.first_stage, stages.last_stage))
        held[:, rows] = most_in_flight(schedule, p, np.array(ms), v, first, last)
    return held.reshape(len(held), -1).T
