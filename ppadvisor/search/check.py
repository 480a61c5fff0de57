"""A trainer's configuration judged: its rules, its memory and time, and how far it is from the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppadvisor import frameworks
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import table_of
from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Configuration
from ppadvisor.search.api import DEFAULT_MARGIN, make_problem
from ppadvisor.search.check_results import BrokenRule, CheckReport, Notice, PlanChange
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.gates import Gate
from ppadvisor.search.levers import best_move, with_sequence_parallel
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.search.shortlist import best_estimates
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec
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


def check(
    configuration: Configuration,
    cluster: ClusterSpec | None,
    *,
    gates: Sequence[Gate] = (),
    margin: float = DEFAULT_MARGIN,
    assumptions: Assumptions | None = None,
    plan_rank: int | None = None,
) -> CheckReport:
    """Judge a configuration on a cluster; without one only its rules.

    InputError where a gate asks for what is not there, and for what `plan` refuses.
    """
    problem = _problem(configuration, cluster, assumptions)
    if gates and problem is None and configuration.legal:
        missing = [remark.message for remark in configuration.remarks if remark.kind == "missing"]
        raise InputError(f"--gate needs an estimate: {missing[0] if missing else 'give --gpu or --cluster'}")
    judged = Judged() if problem is None else _judged(configuration, problem, margin)
    estimate = judged.estimate
    return CheckReport(
        file=configuration.file,
        plan_rank=plan_rank,
        framework=configuration.framework,
        framework_version=frameworks.get(configuration.framework).source,
        accepted_by_framework=configuration.accepted,
        legal=configuration.legal,
        rules=_rules(configuration),
        rules_judged=configuration.judged,
        notices=_notices(configuration),
        num_gpus=configuration.num_gpus,
        model=configuration.model,
        cluster=cluster,
        training=configuration.training,
        plan=configuration.plan,
        fits=None if estimate is None else estimate.memory.fits,
        estimate=estimate,
        best=judged.best,
        best_needs=judged.best_needs,
        regret_fraction=judged.regret,
        change=judged.change,
        gates=tuple(gate.result(estimate, judged.regret) for gate in gates),
    )


def _rules(configuration: Configuration) -> tuple[BrokenRule, ...]:
    return tuple(
        BrokenRule.model_validate(
            {**vars(broken), "outcome": broken.outcome.value, "file": configuration.file}, strict=False
        )
        for broken in configuration.broken
    )


def _notices(configuration: Configuration) -> tuple[Notice, ...]:
    return tuple(Notice.model_validate({**vars(one), "file": configuration.file}) for one in configuration.remarks)


def _problem(
    configuration: Configuration, cluster: ClusterSpec | None, assumptions: Assumptions | None
) -> Problem | None:
    """The problem that the configuration poses, None where a part is missing or Megatron would refuse it too."""
    model, training = configuration.model, configuration.training
    if model is None or training is None or cluster is None:
        return None
    try:
        return make_problem(model, cluster, training, assumptions)
    except InputError:
        if not configuration.accepted:
            return None  # said in the broken rules
        raise


def _judged(configuration: Configuration, problem: Problem, margin: float) -> Judged:
    plan = configuration.plan
    estimate = None
    if plan is not None and _runs(problem, plan):
        estimate = estimate_plan(problem, plan, margin=margin)
    best = _best(problem, estimate, margin)
    adds = best is not None and best is not estimate and best.plan.tensor_parallel > 1
    needs = (configuration.places["sequence_parallel"][0],) if adds and not problem.training.sequence_parallel else ()
    change = None
    if estimate is not None and estimate is not best:
        change = _change(configuration, problem, estimate, margin)
    return Judged(estimate, best, needs, change)


def _change(configuration: Configuration, problem: Problem, estimate: PlanEstimate, margin: float) -> PlanChange | None:
    move = best_move(problem, estimate, margin=margin)
    if move is None:
        return None
    after, places = move.estimate, [configuration.places[name] for name in move.fields]
    stages = {"layers_per_stage", "pipeline_parallel", "virtual_stages"} & {*move.fields}
    return PlanChange(
        change=_in_words(estimate.plan, after.plan, move.fields),
        flags=tuple(flag for flag, _ in places),
        line=next((line for _, line in places if line is not None), None),
        settings=problem.framework.split_settings(problem.model, after.plan) if stages else {},
        plan=after.plan,
        step_time_s=after.time.step_time_s,
        peak_bytes=after.memory.peak_bytes,
        gain_fraction=1 - after.time.step_time_s / estimate.time.step_time_s if estimate.memory.fits else None,
    )


def _runs(problem: Problem, plan: PlanSpec) -> bool:
    """Whether the formulas hold for the plan: what breaks a rule of sizes has no estimate."""
    plans, _, _ = legal_plans(problem, table_of(plan))
    return len(plans) == 1


def _best(problem: Problem, estimate: PlanEstimate | None, margin: float) -> PlanEstimate | None:
    """The best plan of a search, or that of the file where the search knows no better one."""
    try:
        found = best_estimates(rank(with_sequence_parallel(problem), Pins(), margin=margin), 1, margin=margin)
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
