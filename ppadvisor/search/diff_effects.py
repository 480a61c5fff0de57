"""What a change does to memory, time and money, in numbers of both sides and a sentence each for time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.search.compare import paired_stages
from ppadvisor.search.compare_words import parts_of_gap, terms_of_gap
from ppadvisor.search.diff_results import Effect, PartChanged, StageChanged
from ppadvisor.search.judge import Subject, estimate_of
from ppadvisor.units import format_bytes_gib, format_fraction, format_seconds

HOUR_S = 3600.0
BILLION = 1e9


@dataclass(frozen=True)
class Side:
    """One of the two configurations."""

    name: str
    subject: Subject
    problem: Problem | None
    estimate: PlanEstimate | None

    @classmethod
    def of(cls, name: str, subject: Subject) -> Side:
        """Estimated, where nothing is missing for it."""
        problem = subject.problem()
        return cls(name, subject, problem, estimate_of(subject, problem))

    @property
    def tokens_per_step(self) -> int:
        training = self.subject.configuration.training
        return training.tokens_per_step if training is not None else 0


def effects(base: Side, head: Side, price_per_gpu_hour: float | None) -> tuple[Effect, ...]:
    """The numbers of both sides; none where neither has an estimate."""
    one, other = _numbers(base, price_per_gpu_hour), _numbers(head, price_per_gpu_hour)
    return tuple(_effect(name, one.get(name), other.get(name)) for name in {**one, **other})


def _numbers(side: Side, price_per_gpu_hour: float | None) -> dict[str, float]:
    """A step costs price x GPUs x its time; between the stages of one rank nothing is handed off."""
    if side.estimate is None or side.problem is None:
        return {}
    memory, time, gpus = side.estimate.memory, side.estimate.time, side.problem.cluster.num_gpus
    found = {
        "step_time_s": time.step_time_s,
        "tokens_per_s": time.tokens_per_s,
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
        "model_flops_utilization": time.model_flops_utilization,
        "bubble_fraction": time.bubble_fraction,
        "peak_bytes": float(memory.peak_bytes),
        "peak_memory_fraction": memory.peak_bytes / memory.capacity_bytes,
        "handoff_bytes": float(time.handoff_bytes) if side.estimate.plan.pipeline_parallel > 1 else 0.0,
    }
    if price_per_gpu_hour is not None:
        found["cost_per_step"] = price_per_gpu_hour * gpus * time.step_time_s / HOUR_S
        found["cost_per_billion_tokens"] = found["cost_per_step"] / side.tokens_per_step * BILLION
    return found


def _effect(name: str, base: float | None, head: float | None) -> Effect:
    if base is None or head is None:
        return Effect(name=name, base=base, head=head, difference=None, change_fraction=None)
    return Effect(
        name=name, base=base, head=head, difference=head - base, change_fraction=head / base - 1 if base else None
    )


def parts(base: PlanEstimate | None, head: PlanEstimate | None) -> tuple[PartChanged, ...]:
    """The parts of a step, what costs HEAD most first; none where a side has no estimate."""
    if base is None or head is None:
        return ()
    found = [
        PartChanged(
            name=name.removesuffix("_s"),
            base_s=before,
            head_s=head.time.terms[name],
            difference_s=head.time.terms[name] - before,
        )
        for name, before in base.time.terms.items()
    ]
    return tuple(sorted(found, key=lambda part: -part.difference_s))


def stages(base: PlanEstimate | None, head: PlanEstimate | None) -> tuple[StageChanged, ...]:
    """Stage by stage, each at its highest moment."""
    return tuple(
        StageChanged(
            stage=number,
            base=one,
            head=other,
            difference_bytes=other.total_bytes - one.total_bytes if one and other else None,
            head_of_capacity_fraction=other.total_bytes / head.memory.capacity_bytes if other and head else None,
        )
        for number, (one, other) in enumerate(paired_stages(base, head))
    )


def summary(base: Side, head: Side) -> tuple[str, ...]:
    """Step time and peak memory in a sentence each, with what makes up most of the gap; then time by the token, where a
    step has others. None without both estimates.
    """
    one, other = base.estimate, head.estimate
    if one is None or other is None:
        return ()
    times, peaks = (one.time.step_time_s, other.time.step_time_s), (one.memory.peak_bytes, other.memory.peak_bytes)
    tokens, bound = (base.tokens_per_step, head.tokens_per_step), (one.memory.binding_stage, other.memory.binding_stage)
    at = f" at stage {bound[0]}" if bound[0] != bound[1] else ""
    found = [
        f"step {format_seconds(times[0])} -> {format_seconds(times[1])}, {by(*times)}"
        f"{_through(parts_of_gap(other, one))}",
        f"peak {format_bytes_gib(peaks[0])}{at} -> {format_bytes_gib(peaks[1])} at stage {bound[1]}, {by(*peaks)}"
        f"{_through(terms_of_gap(other, one))}",
    ]
    if tokens[0] != tokens[1]:
        of_a_token = times[0] / tokens[0], times[1] / tokens[1]
        found.append(f"tokens of a step {tokens[0]:,} -> {tokens[1]:,}: time of a token {by(*of_a_token)}")
    return tuple(found)


def by(before: float, after: float) -> str:
    """`+1.5 %`, `-0.2 %`; of a change that would read as none only its direction."""
    if before == after:
        return "no change"
    sign, share = "+" if after > before else "-", format_fraction(abs(after / before - 1))
    return f"{sign}{share}" if share != format_fraction(0) else f"{sign}<0.1 %"


def _through(what: str) -> str:
    return f": {what}" if what else ""
