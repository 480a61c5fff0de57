"""What two plans side by side come to, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from ppadvisor.engine.draws import NUM_DRAWS
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.units import format_bytes_gib, format_fraction, format_seconds

UNEXPLAINED = 0.2
"""Share of a gap that the parts named may leave open."""
LARGE = 0.5
"""A part that differs by this share of the gap is named even where others make up for it."""
MOST_PARTS = 4
DUST = 1e-3
"""Of the gap: what differs by less is not named."""


def telling(differences: Mapping[str, float]) -> list[tuple[str, float]]:
    """The fewest parts that explain most of a gap, the sum of `differences`: what lowers it first, the larger before.

    Taken by size until at most UNEXPLAINED of the gap is left open and no part of LARGE of it is left out.
    """
    gap = sum(differences.values())
    left, chosen = gap, list[tuple[str, float]]()
    for name, difference in sorted(differences.items(), key=lambda item: -abs(item[1])):
        settled = abs(left) <= UNEXPLAINED * abs(gap) and abs(difference) < LARGE * abs(gap)
        if settled or len(chosen) == MOST_PARTS or abs(difference) <= DUST * abs(gap):
            break
        chosen.append((name, difference))
        left -= difference
    return sorted(chosen, key=lambda item: item[1] > 0)


def summary(a: PlanEstimate, b: PlanEstimate, faster: Literal["a", "b"] | None, b_faster_in: float) -> tuple[str, ...]:
    """Which is faster, by how much and through which parts; how sure that is; what binds."""
    sure = () if faster is None else (_sure(faster, b_faster_in),)
    return _gap(a, b, faster), *sure, _memory(a, b)


def _gap(a: PlanEstimate, b: PlanEstimate, faster: Literal["a", "b"] | None) -> str:
    if faster is None:
        return f"A and B take the same time: {format_seconds(a.time.step_time_s)} a step"
    quick, slow = (a, b) if faster == "a" else (b, a)
    times = quick.time.step_time_s, slow.time.step_time_s
    share = format_fraction(1 - times[0] / times[1])
    return f"{faster.upper()} is {share} faster ({times[0]:.4g} s a step, not {times[1]:.4g} s): " + parts_of_gap(
        quick, slow
    )


def parts_of_gap(one: PlanEstimate, other: PlanEstimate) -> str:
    """The parts of a step that make up most of a gap, as the first plan has less or more of them."""
    parts = telling({name: one.time.terms[name] - other.time.terms[name] for name in one.time.terms})
    return _said(parts, format_seconds)


def _said(parts: list[tuple[str, float]], show: Callable[[float], str]) -> str:
    """`1.1 s less bubble, 0.4 s more tensor parallel`."""
    return ", ".join(
        f"{show(abs(difference))} {'less' if difference < 0 else 'more'} {name.removesuffix('_s').replace('_', ' ')}"
        for name, difference in parts
    )


def _sure(faster: Literal["a", "b"], b_faster_in: float) -> str:
    name, share = ("A", 1 - b_faster_in) if faster == "a" else ("B", b_faster_in)
    share_of = f"{format_fraction(share, 0)} of {NUM_DRAWS} draws over the ranges of the assumptions"
    return f"{name} is the faster one in {share_of}"


def _memory(a: PlanEstimate, b: PlanEstimate) -> str:
    bound = [e.memory.stages[e.memory.binding_stage] for e in (a, b)]
    text = (
        f"memory: A binds at stage {bound[0].stage} with {format_bytes_gib(bound[0].total_bytes)}, "
        f"B at stage {bound[1].stage} with {format_bytes_gib(bound[1].total_bytes)}"
    )
    parts = terms_of_gap(b, a)
    return f"{text}; in B {parts}" if parts else text


def binding_terms(estimate: PlanEstimate) -> dict[str, int]:
    """Memory terms of the stage that binds."""
    return estimate.memory.stages[estimate.memory.binding_stage].terms


def terms_of_gap(one: PlanEstimate, other: PlanEstimate) -> str:
    """The memory terms that make up most of a gap between the stages that bind, as the first has less or more."""
    terms, others = (binding_terms(estimate) for estimate in (one, other))
    return _said(telling({name: float(terms[name] - others[name]) for name in terms}), format_bytes_gib)
