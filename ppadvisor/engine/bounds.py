"""What a search knows of plans before it evaluates them: bytes below which no peak lies, seconds that no step beats.

Both are parts of the sums that `evaluate` makes, of a plan's sizes and of what its first rank holds; what is left out
is never below zero.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.inputs import FloatArray, PlanInputs, Sizes, layouts_of
from ppadvisor.engine.memory_states import gradients_bytes, optimizer_states_bytes, weights_bytes
from ppadvisor.engine.partition import Stages, stages_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import layer_saved
from ppadvisor.engine.step_time import plain_pass
from ppadvisor.specs.plan import IntArray, PlanTable, distinct_values
from ppadvisor.specs.recomputation import NONE, Recomputation


def least_bytes(problem: Problem, plans: PlanTable, of_plans: Sizes) -> FloatArray:
    """Bytes that the peak of each plan is not below, (plans,); `of_plans` are their sizes.

    Of the first rank: weights, gradients and optimizer states of its layers, and what these save of the micro-batches
    that it has in flight.
    """
    sizes, size = of_plans
    layouts, layout = layouts_of(plans)
    layers = stages_of(problem.model, layouts, every_stage=False).layers[:, 0]
    states = _states_per_layer(sizes)
    saved = np.concatenate([_least_saved(sizes, choice) for choice in plans.recomputations])
    in_flight, choice = first_in_flight(plans, sizes.plans, size), plans.recompute * len(sizes.plans) + size
    total = np.zeros(len(plans))
    for kind in range(len(sizes.kinds)):
        of_layer = saved[:, kind][choice]
        of_layer *= in_flight
        of_layer += states[:, kind][size]
        of_layer *= layers[:, kind][layout]
        total += of_layer
    return total


def _states_per_layer(sizes: PlanInputs) -> FloatArray:
    """Bytes of weights, gradients and optimizer states of one layer of each kind, (sizes, kinds)."""
    number, kinds = len(sizes.plans), len(sizes.kinds)
    one, none = np.ones((number, kinds)), np.zeros((number, kinds, 1))
    layers = np.broadcast_to(np.eye(kinds)[:, None], (number, kinds, 1, kinds))
    ends, places = np.zeros(number), one.astype(np.int64)
    stages = Stages(places - 1, places, one[:, :, None], layers, none, none, none, none, ends, ends)
    inputs = replace(sizes, stages=stages)
    return np.asarray(
        sum(term(inputs)["optimizer_step"] for term in (weights_bytes, gradients_bytes, optimizer_states_bytes))
    )


def _least_saved(sizes: PlanInputs, choice: Recomputation) -> FloatArray:
    """What a layer of each kind saves of a micro-batch at least, (sizes, kinds)."""
    saved = layer_saved(sizes, choice)
    if choice.method == "block":
        return np.asarray(np.minimum(saved, layer_saved(sizes, NONE)))
    return np.asarray(saved / choice.num_layers) if choice.kind == "full" and choice.num_layers else saved


def first_in_flight(plans: PlanTable, sizes: PlanTable, size: IntArray) -> FloatArray:
    """Micro-batches that the first rank has in flight at its peak, (plans,): each schedule is asked for each p, m, v.

    `sizes` are distinct ones of the plans, `size` which of them each plan has.
    """
    columns = (sizes.pipeline_parallel, sizes.num_microbatches)
    (p, p_of), (m, m_of) = (np.unique(column, return_inverse=True) for column in columns)
    v, v_of = distinct_values(plans.virtual_stages)
    table = np.zeros((len(plans.schedule_names), len(v), len(p), len(m)))
    for index, name in enumerate(plans.schedule_names):
        schedule = schedules.get(name)
        held = schedule.in_flight_microbatches(p[:, None], m, v[:, None, None], 0)
        table[index] = np.maximum(0.0, held) / schedule.parameter_copies
    of_size = p_of * len(m) + m_of
    return np.asarray(table.reshape(-1)[(plans.schedule * len(v) + v_of) * (len(p) * len(m)) + of_size[size]])


def least_steps_s(problem: Problem, of_plans: Sizes) -> FloatArray:
    """Seconds that the step of each plan is not below, (plans,): the work of all layers, spread evenly over the ranks.

    Nothing recomputed, no bubble, no hand-off, no embedding and no head. `of_plans` are the sizes of the plans.
    """
    sizes, size = of_plans
    kinds, kind_of_layer = problem.model.layer_kinds()
    number = np.bincount(kind_of_layer, minlength=len(kinds))
    layers_s = np.zeros(len(sizes.plans))
    for kind, layers in zip(kinds, number.tolist(), strict=True):
        one = plain_pass(sizes, kind)
        layers_s += layers * (one.forward + one.backward)
    return np.asarray((layers_s * sizes.plans.num_microbatches / sizes.plans.pipeline_parallel)[size])
