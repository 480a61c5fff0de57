"""A configuration on its machines: the trainer's rules and, where nothing is missing, memory and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from ppadvisor import frameworks
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import table_of
from ppadvisor.errors import InputError, printable
from ppadvisor.frameworks.configuration import Configuration
from ppadvisor.search.api import DEFAULT_MARGIN, make_problem
from ppadvisor.search.check_results import BrokenRule, Judgement, Notice, NoticeKind
from ppadvisor.search.constraints import legal_plans
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.plan import PlanSpec


@dataclass(frozen=True)
class Subject:
    """A configuration with what it is judged on."""

    configuration: Configuration
    cluster: ClusterSpec | None
    """None where only the trainer's rules are asked about."""
    margin: float = DEFAULT_MARGIN
    assumptions: Assumptions = field(default_factory=Assumptions)
    plan_rank: int | None = None
    """Of a file of saved plans the one that was asked for."""

    def problem(self) -> Problem | None:
        """The problem that the configuration poses, None where a part is missing or its trainer would refuse it too."""
        configuration = self.configuration
        model, training = configuration.model, configuration.training
        if model is None or training is None or self.cluster is None:
            return None
        try:
            return make_problem(model, self.cluster, training, self.assumptions)
        except InputError:
            if not configuration.accepted:
                return None  # said in the broken rules
            raise

    def missing(self) -> str:
        """What an estimate lacks, for the one who asked for it."""
        found = [remark.message for remark in self.configuration.remarks if remark.kind == "missing"]
        return found[0] if found else "give --gpu or --cluster"


def estimate_of(subject: Subject, problem: Problem | None) -> PlanEstimate | None:
    """Memory and time; None where the formulas do not hold: of what breaks a rule of sizes there is no estimate."""
    plan = subject.configuration.plan
    if problem is None or plan is None or not _runs(problem, plan):
        return None
    return estimate_plan(problem, plan, margin=subject.margin)


def _runs(problem: Problem, plan: PlanSpec) -> bool:
    plans, _, _ = legal_plans(problem, table_of(plan))
    return len(plans) == 1


def judgement(subject: Subject, estimate: PlanEstimate | None) -> Judgement:
    """What is said of a configuration, whoever asks."""
    configuration = subject.configuration
    return Judgement(
        file=configuration.file,
        plan_rank=subject.plan_rank,
        framework=configuration.framework,
        framework_version=frameworks.version(configuration.framework),
        accepted_by_framework=configuration.accepted,
        legal=configuration.legal,
        rules=_rules(configuration),
        rules_judged=configuration.judged,
        notices=(*_notices(configuration), *_why_no_estimate(subject, estimate)),
        num_gpus=configuration.num_gpus,
        model=configuration.model,
        cluster=subject.cluster,
        training=configuration.training,
        plan=configuration.plan,
        fits=None if estimate is None else estimate.memory.fits,
        estimate=estimate,
    )


def _rules(configuration: Configuration) -> tuple[BrokenRule, ...]:
    return tuple(
        BrokenRule(
            rule=broken.rule,
            outcome=broken.outcome.value,
            message=printable(broken.message),
            flags=tuple(map(printable, broken.flags)),
            file=configuration.file,
            line=broken.line,
            source=broken.source,
        )
        for broken in configuration.broken
    )


def _notices(configuration: Configuration) -> tuple[Notice, ...]:
    return tuple(
        Notice(
            kind=cast(NoticeKind, one.kind),
            message=printable(one.message),
            flags=tuple(map(printable, one.flags)),
            file=configuration.file,
            line=one.line,
        )
        for one in configuration.remarks
    )


def _why_no_estimate(subject: Subject, estimate: PlanEstimate | None) -> tuple[Notice, ...]:
    """What keeps the formulas from a plan that breaks no rule of its trainer."""
    configuration = subject.configuration
    plan, problem = configuration.plan, subject.problem()
    if problem is None or plan is None or estimate is not None or not configuration.legal:
        return ()
    barred = legal_plans(problem, table_of(plan))[2]
    text = f"{barred[0].message}: nothing is estimated" if barred else "nothing is estimated"
    return (Notice(kind="not_modelled", message=printable(text), flags=(), file=configuration.file, line=None),)
