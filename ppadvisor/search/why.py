"""Why the first is first, and how sure that is: sentences made from the numbers."""

from __future__ import annotations

from ppadvisor.engine.draws import NUM_DRAWS
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.search.advise import short_plan
from ppadvisor.search.noise import Stability
from ppadvisor.search.ranking import same_as_printed
from ppadvisor.search.results import Baseline
from ppadvisor.units import format_bytes_gib, format_fraction, format_seconds


def why_first(
    plans: list[PlanEstimate], baselines: dict[str, Baseline], sure: Stability | None, *, sort: str, num_fitting: int
) -> tuple[str, ...]:
    """At most five lines on the first plan: against the second, how sure, its time, its memory, against the baselines.

    `sure` is what the draws say, where plans were sorted by step time and there are several.
    """
    if not plans:
        return ()
    first = plans[0]
    second = _against_second(first, plans[1], sort) if len(plans) > 1 else _alone(first, num_fitting)
    lines = [second, *([_how_sure(sure)] if sure else []), _where_time_goes(first), _what_binds(first)]
    against = [text for name in baselines for text in [_against_baseline(first, name, baselines[name])] if text]
    if against:
        lines.append("; ".join(against))
    return tuple(lines)


def _alone(first: PlanEstimate, num_fitting: int) -> str:
    step = format_seconds(first.time.step_time_s)
    if num_fitting == 1:
        return f"the only plan that fits: {step} a step"
    return (
        f"{step} a step; the other {num_fitting - 1:,} that fit differ only in split, virtual stages or recomputation"
    )


def _against_second(first: PlanEstimate, second: PlanEstimate, sort: str) -> str:
    """What puts the first plan before the second, in the words of the sort key."""
    if sort == "peak_bytes":
        ours, theirs = (format_bytes_gib(estimate.memory.peak_bytes) for estimate in (first, second))
        return f"least memory: {ours} against {theirs} of {short_plan(second.plan)}"
    if sort == "bubble_fraction":
        ours, theirs = (format_fraction(estimate.time.bubble_fraction) for estimate in (first, second))
        return f"smallest bubble: {ours} against {theirs} of {short_plan(second.plan)}"
    gap = second.time.step_time_s / first.time.step_time_s - 1
    if gap < 0 and not same_as_printed(first.time.step_time_s, second.time.step_time_s):
        # search.noise.simplest_first put it there: the second is the fastest
        return f"simplest within the noise: fewer moving parts than {short_plan(second.plan)}, {_ahead(first, second)}"
    parts = {k: second.time.terms[k] - first.time.terms[k] for k in first.time.terms}
    saved = max(parts, key=lambda name: parts[name])
    reason = f", mostly {_words(saved)} ({format_seconds(parts[saved])} less)" if gap > 0 and parts[saved] > 0 else ""
    return f"fastest that fits: {format_fraction(max(gap, 0.0))} ahead of {short_plan(second.plan)}{reason}"


def _ahead(first: PlanEstimate, second: PlanEstimate) -> str:
    return f"which is only {format_fraction(1 - second.time.step_time_s / first.time.step_time_s)} faster"


def _how_sure(sure: Stability) -> str:
    """`first in 94 % of 200 draws ...; the rival is #2`."""
    draws = f"{NUM_DRAWS} draws over the ranges of the assumptions"
    if sure.rival is None:
        return f"first in all of {draws}"
    rival = f"the rival is #{sure.rival + 1}, first in {format_fraction(sure.rival_in_fraction, 0)}"
    return f"first in {format_fraction(sure.first_in_fraction, 0)} of {draws}; {rival}"


def _words(term: str) -> str:
    return term.removesuffix("_s").replace("_", " ")


def _where_time_goes(first: PlanEstimate) -> str:
    step = first.time.step_time_s
    largest = sorted(first.time.terms.items(), key=lambda item: -item[1])[:4]
    shares = ", ".join(f"{_words(name)} {format_fraction(value / step)}" for name, value in largest if value > 0)
    return f"of {format_seconds(step)} a step: {shares}"


def _what_binds(first: PlanEstimate) -> str:
    memory = first.memory
    stage = memory.stages[memory.binding_stage]
    name, size = max(stage.terms.items(), key=lambda item: item[1])
    return (
        f"memory: stage {stage.stage} binds with {format_bytes_gib(memory.peak_bytes)} of "
        f"{format_bytes_gib(memory.capacity_bytes)}, most of it {_words(name)} ({format_bytes_gib(size)})"
    )


def _against_baseline(first: PlanEstimate, name: str, baseline: Baseline) -> str | None:
    estimate = baseline.estimate
    title = _words(name)
    if estimate is None or estimate.plan == first.plan:
        return None
    if not estimate.memory.fits:
        return f"{title}: {baseline.note}"
    times = estimate.time.step_time_s / first.time.step_time_s
    return f"{title} takes {times:.2f} times as long"
