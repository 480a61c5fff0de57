"""Which recomputations a trainer can do, and which do something: for the search, for pins and for saved plans alike."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.problem import Problem
from ppadvisor.frameworks.profile import BoolArray
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import IntArray, PlanSpec, PlanTable
from ppadvisor.specs.recomputation import FULL, NONE, SELECTIVE, Recomputation
from ppadvisor.specs.training import TrainingSpec


def searched(problem: Problem) -> tuple[Recomputation, ...]:
    """Those that are tried where none is pinned."""
    return tuple(choice for choice in (NONE, SELECTIVE, FULL) if refusal(problem, choice) is None)


def refusal(problem: Problem, choice: Recomputation) -> str | None:
    """Why the trainer cannot do it, or why it would have no effect on the model; None where it can and has."""
    framework, model = problem.framework, problem.model
    if choice.kind == "selective":
        return _of_modules(problem, choice)
    if choice.kind == "full" and choice != FULL and choice.method not in framework.recompute_methods:
        return f"got {choice.text}; {framework.id} knows full recomputation by {', '.join(framework.recompute_methods)}"
    layers = model.num_layers + model.mtp_num_layers
    if choice.num_layers > layers:
        return f"got {choice.text}, but {model.name} has {layers} layers: full recomputes them all"
    return None


def _of_modules(problem: Problem, choice: Recomputation) -> str | None:
    framework, model = problem.framework, problem.model
    if not framework.recompute_modules:
        return f"got {choice.text}; {framework.id} has no selective recomputation: none or full"
    kinds, _ = model.layer_kinds()
    tensors = (t for kind in kinds for t in framework.saved_tensors(model, problem.training, kind))
    dropped = {module for tensor in tensors for module in tensor.modules}
    for module in choice.modules:
        if module not in framework.recompute_modules:
            allowed = ", ".join(framework.recompute_modules)
            return f"{framework.id} cannot recompute {module} by itself; it can: {allowed}"
        if module not in dropped:
            effective = ", ".join(name for name in framework.recompute_modules if name in dropped)
            return f"{module} has no effect on {model.name}; what has: {effective}"
    return None


def largest_chunk(model: ModelSpec, plans: PlanTable) -> IntArray:
    """Layers of the largest chunk of each split, those of multi-token prediction on the last one."""
    more = model.mtp_num_layers
    return np.array([max(*split, split[-1] + more) for split in plans.splits], dtype=np.int64)


def beyond_chunks(model: ModelSpec, _: TrainingSpec, plans: PlanTable) -> BoolArray:
    """Rows whose number of recomputed layers, or of layers in a group, is above that of any chunk."""
    numbers = np.array([choice.num_layers for choice in plans.recomputations], dtype=np.int64)
    return np.asarray(numbers[plans.recompute] > largest_chunk(model, plans)[plans.split])


def beyond_chunks_message(model: ModelSpec, _: TrainingSpec, plan: PlanSpec) -> str:
    """How many there are."""
    split = plan.layers_per_chunk
    held = max(*split, split[-1] + model.mtp_num_layers)
    return f"recompute {plan.recomputation.text}: the largest chunk holds {held} layers, the rest has no effect"
