"""Two plans for one question side by side: where the time goes that makes one faster, and what each holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.parameters import count_active_parameters, count_parameters
from ppadvisor.engine.results import PlanEstimate, Result, StageMemory
from ppadvisor.errors import InputError
from ppadvisor.search.compare_words import summary
from ppadvisor.search.explain import MemoryExplained, NothingToExplain, legal_problem
from ppadvisor.search.noise import faster_in
from ppadvisor.search.ranking import same_as_printed
from ppadvisor.search.results import AssumptionUsed, ProblemEcho
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

DESCRIPTIONS = ("name", "source", "memory_source", "inter_node_source", "provenance", "declared_parameters", "unit")
"""Fields of a problem that no number depends on."""
MOST_NAMED = 3
"""Differences of two problems that are named of each of their parts."""


class PartCompared(Result):
    """One part of a step, the mean over the ranks."""

    name: str
    a_s: float
    b_s: float
    difference_s: float
    """B less A."""


class TermCompared(Result):
    """One memory term of the stages that bind, each at its highest moment."""

    name: str
    a_bytes: int
    b_bytes: int
    difference_bytes: int
    """B less A."""


class StageHeld(Result):
    """What one stage of one of the plans holds at its highest moment."""

    num_layers: int
    in_flight_microbatches: float
    moment: str
    total_bytes: int


class StageCompared(Result):
    """The stages of this number; None where a plan has fewer."""

    stage: int
    a: StageHeld | None
    b: StageHeld | None


class PlanCompared(Result):
    """One of the two plans as a whole."""

    plan: PlanSpec
    memory: MemoryExplained
    step_time_s: float
    tokens_per_s: float
    model_flops_utilization: float
    bubble_fraction: float
    replayed: bool
    """The order of work was run action by action; False where an array form stands in."""


class Comparison(Result):
    """The answer of `explain A B`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    model: ModelSpec
    total_parameters: int
    active_parameters: int
    cluster: ClusterSpec
    training: TrainingSpec
    a: PlanCompared
    b: PlanCompared
    faster: Literal["a", "b"] | None
    """None where both times read the same."""
    faster_by_fraction: float
    """What the faster plan saves of the other's step."""
    b_faster_in_fraction: float
    """Share of the draws over the ranges of the assumptions in which B is the faster one."""
    summary: tuple[str, ...]
    parts: tuple[PartCompared, ...]
    """What saves the faster plan most comes first, what costs it most last."""
    stages: tuple[StageCompared, ...]
    binding_terms: tuple[TermCompared, ...]
    """The largest difference first."""
    assumptions: tuple[AssumptionUsed, ...]


def compare(asked: tuple[ProblemEcho, ProblemEcho], plans: tuple[PlanSpec, PlanSpec]) -> Comparison | NothingToExplain:
    """Both plans estimated again and held against each other; `asked` must be one question (`check_same_question`)."""
    problems, estimates = [], []
    for name, problem_asked, plan in zip("AB", asked, plans, strict=True):
        problem = legal_problem(problem_asked, plan)
        if isinstance(problem, NothingToExplain):
            return problem.changed(note=f"{name}: {problem.note}")
        problems.append(problem)
        estimates.append(estimate_plan(problem, plan, margin=problem_asked.margin_fraction))
    a, b = estimates
    return _comparison(asked[0], a, b, faster_in(problems[0], b, a))


def check_same_question(asked: tuple[ProblemEcho, ProblemEcho]) -> None:
    """InputError that names what differs where the two problems are not one question."""
    a, b = ({**one.as_dict(), "assumptions": _assumed(one)} for one in asked)
    different = [text for part in ("model", "cluster", "training", "assumptions") for text in _named(part, a, b)]
    if different:
        raise InputError(f"the two plans answer different questions: {'; '.join(different)}")


def _assumed(asked: ProblemEcho) -> dict[str, Any]:
    return {used.name: used.as_dict() for used in asked.assumptions}


def _named(part: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """What differs in one part of two problems: the names, where they have two, else the first few fields."""
    fields = dict(differences(part, a[part], b[part]))
    if not fields:
        return []
    names = a[part].get("name"), b[part].get("name")
    if isinstance(names[0], str) and names[0] != names[1]:
        return [f"{part} {names[0]} and {names[1]}"]
    shown = [f"{name} {values[0]} and {values[1]}" for name, values in fields.items()]
    more = len(shown) - MOST_NAMED
    return [*shown[:MOST_NAMED], *([f"and {more} more of {part}"] if more > 0 else [])]


def differences(where: str, a: Any, b: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """(dotted name, both values) of all that differs, descriptions aside; `where` is the name of what is looked at."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            if key not in DESCRIPTIONS:
                yield from differences(f"{where}.{key}", a.get(key), b.get(key))
    elif a != b:
        yield where, (a, b)


def _comparison(asked: ProblemEcho, a: PlanEstimate, b: PlanEstimate, b_faster_in: float) -> Comparison:
    times = a.time.step_time_s, b.time.step_time_s
    equal = same_as_printed(*times)
    faster: Literal["a", "b"] | None = None if equal else "b" if times[1] < times[0] else "a"
    return Comparison(
        model=asked.model,
        total_parameters=count_parameters(asked.model),
        active_parameters=count_active_parameters(asked.model),
        cluster=asked.cluster,
        training=asked.training,
        a=_whole(a),
        b=_whole(b),
        faster=faster,
        faster_by_fraction=1 - min(times) / max(times),
        b_faster_in_fraction=b_faster_in,
        summary=summary(a, b, faster, b_faster_in),
        parts=_parts(a, b, sign=-1 if faster == "a" else 1),
        stages=_stages(a, b),
        binding_terms=_binding_terms(a, b),
        assumptions=asked.assumptions,
    )


def _whole(estimate: PlanEstimate) -> PlanCompared:
    time = estimate.time
    return PlanCompared(
        plan=estimate.plan,
        memory=MemoryExplained(**estimate.memory.some(MemoryExplained.names())),
        step_time_s=time.step_time_s,
        tokens_per_s=time.tokens_per_s,
        model_flops_utilization=time.model_flops_utilization,
        bubble_fraction=time.bubble_fraction,
        replayed=time.replayed,
    )


def _parts(a: PlanEstimate, b: PlanEstimate, *, sign: int) -> tuple[PartCompared, ...]:
    """The parts of a step, by what the faster plan saves: `sign` is -1 where that is A."""
    parts = [
        PartCompared(
            name=name.removesuffix("_s"),
            a_s=a.time.terms[name],
            b_s=b.time.terms[name],
            difference_s=b.time.terms[name] - a.time.terms[name],
        )
        for name in a.time.terms
    ]
    return tuple(sorted(parts, key=lambda part: sign * part.difference_s))


def _stages(a: PlanEstimate, b: PlanEstimate) -> tuple[StageCompared, ...]:
    return tuple(StageCompared(stage=number, a=one, b=other) for number, (one, other) in enumerate(paired_stages(a, b)))


def paired_stages(
    a: PlanEstimate | None, b: PlanEstimate | None
) -> Iterator[tuple[StageHeld | None, StageHeld | None]]:
    """Stage by stage what both hold, None where one has fewer stages or is not known."""
    of_a, of_b = ([_held(stage) for stage in one.memory.stages] if one else [] for one in (a, b))
    return zip_longest(of_a, of_b)


def _held(stage: StageMemory) -> StageHeld:
    return StageHeld(**stage.some(StageHeld.names()))


def _binding_terms(a: PlanEstimate, b: PlanEstimate) -> tuple[TermCompared, ...]:
    of_a, of_b = (e.memory.stages[e.memory.binding_stage].terms for e in (a, b))
    terms = [
        TermCompared(name=name, a_bytes=of_a[name], b_bytes=of_b[name], difference_bytes=of_b[name] - of_a[name])
        for name in of_a
    ]
    return tuple(sorted(terms, key=lambda term: -abs(term.difference_bytes)))
