"""A saved plan as `check` and `diff` look at one: a configuration whose framework is asked by our own rules."""

from __future__ import annotations

from ppadvisor.engine.tables import table_of
from ppadvisor.frameworks.configuration import Broken, Configuration, Outcome
from ppadvisor.search.constraints import CONSTRAINTS, legal_plans
from ppadvisor.search.explain import check_sizes, problem_of
from ppadvisor.search.levers import FIELDS
from ppadvisor.search.results import ProblemEcho
from ppadvisor.specs.plan import PlanSpec

OTHERS = ("recompute", "layers_per_stage", "sequence_parallel")
"""Fields that a change may name beside those of a plan."""


def configuration_of(asked: ProblemEcho, plan: PlanSpec, file: str) -> Configuration:
    """The plan as a configuration. InputError where plan and problem cannot belong together."""
    problem = problem_of(asked)
    check_sizes(problem, plan)
    rules = (*problem.framework.rules, *CONSTRAINTS)
    _, __, refused = legal_plans(problem, table_of(plan))
    broken = (
        Broken(one.code, Outcome.REJECTED, one.message, flags=(), line=None, source=problem.framework.source)
        for one in refused
    )
    return Configuration(
        framework=problem.framework.id,
        file=file,
        num_gpus=problem.cluster.num_gpus,
        judged=tuple(dict.fromkeys(rule.code for rule in rules)),
        broken=tuple(broken),
        remarks=(),
        model=problem.model,
        training=problem.training,
        plan=plan,
        places={name: (name, None) for name in (*FIELDS, *OTHERS)},
    )
