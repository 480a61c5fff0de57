"""Published recipes: what we would recommend in their place, and which parts of a step differ.

The search is a room of its own, so whoever asks hands it in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, Result, Verdict
from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import Case, case_of
from ppadvisor.evidence.records import Record
from ppadvisor.evidence.validate import Skipped
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

PUBLISHED = ("megatron_bridge", "mbridge_cards")
"""Sources that are recipes: Megatron-Bridge's performance summary over its releases, and its model cards."""

INCOMPLETE = "not a recipe with its result: no GPU, GPU count, global batch, sequence length or step time"

Search = Callable[[Problem, float], Sequence[PlanEstimate]]
"""(problem, margin) -> the plans that fit, the fastest among them."""
Tell = Callable[[PlanEstimate, PlanEstimate], str]
"""(one, other) -> the parts that make up most of the gap, as the first has more or less of them."""


class PlanTold(Result):
    """A plan and what is predicted of it."""

    plan: PlanSpec
    step_time_s: float
    peak_bytes: int
    conservative_bytes: int
    verdict: Verdict


class RecipeRow(Result):
    """One configuration: the recipe that was measured fastest, and our fastest plan for the same problem."""

    id: str
    source: str
    model: str
    gpu: str
    num_gpus: int
    global_batch_size: int
    sequence_length: int
    precision: str
    runs: int
    """Measurements of this configuration, over recipes and releases."""
    measured_step_time_s: float
    capacity_bytes: int
    recipe: PlanTold
    ours: PlanTold | None
    """None where we say that nothing fits."""
    step_time_fraction: float | None
    """Predicted time of our plan / that of the recipe."""
    difference: str | None
    """What our plan has less and more of than the recipe."""
    given_room: PlanTold | None
    """Our fastest plan on GPUs that hold what we predict of the recipe; asked where ours is slower."""
    given_room_fraction: float | None


class Recipes(Result):
    """The answer of `validate --kind recipes`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    kind: Literal["recipes"] = "recipes"
    margin_fraction: float
    rows: tuple[RecipeRow, ...]
    skipped: tuple[Skipped, ...]
    defaults: dict[str, int]
    """What records leave out and what was taken instead -> number of rows."""


@dataclass(frozen=True)
class Recipe:
    """The fastest run of one configuration."""

    case: Case
    runs: int
    measured_s: float


def recipes_of(records: Iterable[Record]) -> tuple[list[Recipe], list[Skipped]]:
    """One recipe a configuration, the fastest measured; records that are none, or are not modelled, with the reason."""
    runs: dict[tuple[object, ...], list[tuple[float, Record]]] = {}
    skipped = []
    for record in records:
        cluster, training, measured_s = record.cluster, record.training, record.measured.step_time_s
        sizes = (cluster.gpu, cluster.num_gpus, training.global_batch_size, training.sequence_length)
        if measured_s is None or None in sizes:
            skipped.append(Skipped(id=record.id, reason=INCOMPLETE))
        else:
            key = (record.model.name, *sizes, training.precision)
            runs.setdefault(key, []).append((measured_s, record))
    found = []
    for of_one in runs.values():
        measured_s, record = min(of_one, key=lambda run: run[0])
        try:
            found.append(Recipe(_with_sequence_parallel(case_of(record)), len(of_one), measured_s))
        except InputError as error:
            skipped.append(Skipped(id=record.id, reason=str(error)))
    return found, skipped


def _with_sequence_parallel(case: Case) -> Case:
    """A recipe with t = 1 says nothing of sequence parallelism; a plan with t > 1 shall have it, as by default."""
    if case.plan.tensor_parallel > 1:
        return case
    training = case.problem.training.changed(sequence_parallel=True)
    return replace(case, problem=replace(case.problem, training=training))


def compare_recipes(
    recipes: Iterable[Recipe], skipped: Iterable[Skipped], search: Search, tell: Tell, *, margin: float
) -> Recipes:
    """A row a recipe."""
    rows, defaults, once = [], Counter[str](), _asked_once(search)
    for recipe in recipes:
        rows.append(_row(recipe, once, tell, margin))
        defaults.update(recipe.case.defaults)
    return Recipes(
        margin_fraction=margin, rows=tuple(rows), skipped=tuple(skipped), defaults=dict(sorted(defaults.items()))
    )


def _asked_once(search: Search) -> Callable[[Problem, float], PlanEstimate | None]:
    """The fastest plan of a search (a simpler one may stand before it), searched once for a problem.

    Names and sources aside: configurations are one problem where their precisions are computed alike.
    """
    known: dict[str, PlanEstimate | None] = {}

    def fastest(problem: Problem, margin: float) -> PlanEstimate | None:
        model = problem.model.as_dict(("name",))
        cluster = problem.cluster.as_dict(("name", "source"))
        key = json.dumps((model, cluster, problem.training.as_dict()))
        if key not in known:
            known[key] = min(search(problem, margin), key=lambda estimate: estimate.time.step_time_s, default=None)
        return known[key]

    return fastest


def _roomy(problem: Problem, recipe: PlanEstimate, margin: float) -> Problem:
    """The problem on GPUs on which the recipe fits by our estimate, as it did."""
    memory, gpu = recipe.memory, problem.cluster.gpu
    needed = max(gpu.memory_bytes, ceil(memory.peak_bytes / margin) + 1, memory.conservative_bytes)
    roomy = gpu.changed(memory_bytes=needed)
    return replace(problem, cluster=problem.cluster.changed(gpu=roomy))


def _row(
    recipe: Recipe, fastest: Callable[[Problem, float], PlanEstimate | None], tell: Tell, margin: float
) -> RecipeRow:
    record, problem = recipe.case.record, recipe.case.problem
    theirs = estimate_plan(problem, recipe.case.plan, margin=margin)
    theirs_s = theirs.time.step_time_s
    ours = fastest(problem, margin)
    slower = ours is None or ours.time.step_time_s > theirs_s
    room = fastest(_roomy(problem, theirs, margin), margin) if slower else None
    return RecipeRow(
        id=record.id,
        source=record.source.key,
        model=record.model.name,
        gpu=record.cluster.gpu or problem.cluster.gpu.name,
        num_gpus=problem.cluster.num_gpus,
        global_batch_size=problem.training.global_batch_size,
        sequence_length=problem.training.sequence_length,
        precision=record.training.precision or problem.training.precision,
        runs=recipe.runs,
        measured_step_time_s=recipe.measured_s,
        capacity_bytes=theirs.memory.capacity_bytes,
        recipe=_told(theirs),
        ours=_told(ours) if ours else None,
        step_time_fraction=ours.time.step_time_s / theirs_s if ours else None,
        difference=tell(ours, theirs) if ours else None,
        given_room=_told(room) if room else None,
        given_room_fraction=room.time.step_time_s / theirs_s if room else None,
    )


def _told(estimate: PlanEstimate) -> PlanTold:
    memory = estimate.memory
    return PlanTold(
        plan=estimate.plan,
        step_time_s=estimate.time.step_time_s,
        peak_bytes=memory.peak_bytes,
        conservative_bytes=memory.conservative_bytes,
        verdict=memory.verdict,
    )
