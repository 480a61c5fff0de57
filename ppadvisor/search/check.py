"""A trainer's configuration judged: its rules, its memory and time, and how far it is from the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Configuration
from ppadvisor.search.check_results import CheckReport, PlanChange
from ppadvisor.search.gates import Gate
from ppadvisor.search.judge import Subject, estimate_of, judgement
from ppadvisor.search.levers import best_move, with_sequence_parallel
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.search.shortlist import best_estimates
from ppadvisor.specs.plan import PlanSpec

WORDS = {
    "pipeline_parallel": "p",
    "tensor_parallel": "t",
    "context_parallel": "c",
    "expert_parallel": "e",
    "expert_tensor_parallel": "etp",
    "virtual_stages": "v",
    "micro_batch_size": "b",
    "optimizer_sharding": "ZeRO",
    "schedule": "schedule",
}


@dataclass(frozen=True)
class Judged:
    """What an estimate says of a configuration."""

    estimate: PlanEstimate | None = None
    best: PlanEstimate | None = None
    best_needs: tuple[str, ...] = ()
    change: PlanChange | None = None

    @property
    def regret(self) -> float | None:
        """Of a plan that fits; what the search does not beat has none."""
        if self.estimate is None or self.best is None or not self.estimate.memory.fits:
            return None
        return max(0.0, self.estimate.time.step_time_s / self.best.time.step_time_s - 1)


def check(subject: Subject, *, gates: Sequence[Gate] = ()) -> CheckReport:
    """Judge a configuration on its machines; without any only its rules.

    InputError where a gate asks for what is not there, and for what `plan` refuses.
    """
    problem = subject.problem()
    if gates and problem is None and subject.configuration.legal:
        raise InputError(f"--gate needs an estimate: {subject.missing()}")
    judged = Judged() if problem is None else _judged(subject, problem)
    return CheckReport(
        **vars(judgement(subject, judged.estimate)),
        best=judged.best,
        best_needs=judged.best_needs,
        regret_fraction=judged.regret,
        change=judged.change,
        gates=tuple(gate.result(judged.estimate, judged.regret) for gate in gates),
    )


def _judged(subject: Subject, problem: Problem) -> Judged:
    configuration, margin = subject.configuration, subject.margin
    estimate = estimate_of(subject, problem)
    fixed = Pins().with_values(**configuration.fixed)
    best = _best(problem, estimate, margin, fixed)
    adds = best is not None and best is not estimate and best.plan.tensor_parallel > 1
    needs = (configuration.places["sequence_parallel"][0],) if adds and not problem.training.sequence_parallel else ()
    change = None
    if estimate is not None and estimate is not best:
        change = _change(configuration, problem, estimate, margin)
    return Judged(estimate, best, needs, change)


def _change(configuration: Configuration, problem: Problem, estimate: PlanEstimate, margin: float) -> PlanChange | None:
    move = best_move(problem, estimate, margin=margin, fixed=tuple(configuration.fixed))
    if move is None:
        return None
    after = move.estimate
    places = [configuration.places[name] for name in move.fields if name in configuration.places]
    stages = {"layers_per_stage", "pipeline_parallel", "virtual_stages"} & {*move.fields}
    options_of = configuration.settings or problem.framework.split_settings
    settings = options_of(problem.model, after.plan) if stages else {}
    return PlanChange(
        change=_in_words(estimate.plan, after.plan, move.fields),
        flags=tuple(flag for flag, _ in places),
        line=next((line for _, line in places if line is not None), None),
        settings={configuration.names.get(flag, flag): value for flag, value in settings.items()},
        plan=after.plan,
        step_time_s=after.time.step_time_s,
        peak_bytes=after.memory.peak_bytes,
        gain_fraction=1 - after.time.step_time_s / estimate.time.step_time_s if estimate.memory.fits else None,
    )


def _best(problem: Problem, estimate: PlanEstimate | None, margin: float, fixed: Pins) -> PlanEstimate | None:
    """The best plan of a search, or that of the file where the search knows no better one."""
    try:
        found = best_estimates(rank(with_sequence_parallel(problem), fixed, margin=margin), 1, margin=margin)
    except InputError:
        found = []
    best = found[0] if found else None
    if estimate is None or not estimate.memory.fits:
        return best
    return estimate if best is None or estimate.time.step_time_s <= best.time.step_time_s else best


def _in_words(before: PlanSpec, after: PlanSpec, fields: Sequence[str]) -> str:
    """`b 1 -> 2, recompute full -> none`."""
    parts = []
    for name in fields:
        if name == "recompute":
            parts.append(f"recompute {before.recomputation.text} -> {after.recomputation.text}")
        elif name == "sequence_parallel":
            parts.append("sequence parallelism")
        elif name == "layers_per_stage":
            parts.append("other layers on the same stages")
        else:
            parts.append(f"{WORDS[name]} {getattr(before, name)} -> {getattr(after, name)}")
    return ", ".join(parts)
