"""One plan explained: it is checked, estimated again and taken apart; dumped as it is, it is the JSON of `explain`."""

from __future__ import annotations

import math
from dataclasses import replace

from ppadvisor import schedules
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.explain import explain_estimate
from ppadvisor.engine.explained import (
    BubbleExplained,
    LayerExplained,
    StageExplained,
    SymbolUsed,
    TimeTerm,
    Volume,
    Worked,
)
from ppadvisor.engine.parameters import count_active_parameters, count_parameters
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate, Result, Verdict
from ppadvisor.engine.tables import table_of
from ppadvisor.errors import InputError
from ppadvisor.search.api import make_problem
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.recomputations import refusal
from ppadvisor.search.results import AssumptionUsed, ProblemEcho
from ppadvisor.specs.assumptions import Assumption, Assumptions
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

LINKS = ("gpus_per_node", "intra_node_bandwidth_bytes_per_s", "inter_node_bandwidth_bytes_per_s")


class MemoryExplained(Result):
    """How the plan stands against the memory of a GPU."""

    peak_bytes: int
    conservative_bytes: int
    """The peak with the memory assumptions at the heavy end of their ranges."""
    capacity_bytes: int
    limit_bytes: int
    """Capacity times the margin."""
    headroom_bytes: int
    fits: bool
    verdict: Verdict
    binding_stage: int


class TimeExplained(Result):
    """A step and its parts."""

    step_time_s: float
    pipeline_s: float
    replayed: bool
    """The order of work was run action by action; False where an array form stands in."""
    tokens_per_s: float
    terms: tuple[TimeTerm, ...]
    """They add up to `step_time_s`."""


class ClusterNumber(Result):
    """A number of the cluster and where it comes from."""

    name: str
    value: float
    source: str


class PlanExplanation(Result):
    """The answer of `explain`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    model: ModelSpec
    total_parameters: int
    active_parameters: int
    cluster: ClusterSpec
    training: TrainingSpec
    margin_fraction: float
    plan: PlanSpec
    memory: MemoryExplained
    bubble: BubbleExplained
    model_flops_utilization: Worked
    time: TimeExplained
    stages: tuple[StageExplained, ...]
    layers: tuple[LayerExplained, ...]
    """One layer of each kind."""
    traffic: tuple[Volume, ...]
    """Bytes that one rank sends for one micro-batch: between stages, and for tensor parallelism."""
    symbols: tuple[SymbolUsed, ...]
    cluster_numbers: tuple[ClusterNumber, ...]
    assumptions: tuple[AssumptionUsed, ...]


class NothingToExplain(Result):
    """The answer of `explain` where the plan, or every plan, is illegal."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    plan: PlanSpec | None
    note: str


ExplainAnswer = PlanExplanation | NothingToExplain


def explain(asked: ProblemEcho, plan: PlanSpec) -> ExplainAnswer:
    """Take one plan for a problem apart. InputError where plan and problem cannot belong together."""
    problem = legal_problem(asked, plan)
    if isinstance(problem, NothingToExplain):
        return problem
    estimate = estimate_plan(problem, plan, margin=asked.margin_fraction)
    return _explanation(problem, estimate, asked)


def legal_problem(asked: ProblemEcho, plan: PlanSpec) -> Problem | NothingToExplain:
    """The problem, or why the plan is not legal for it. InputError where the two cannot belong together."""
    problem = problem_of(asked)
    check_sizes(problem, plan)
    _, __, refused = legal_plans(problem, table_of(plan))
    if refused:
        return NothingToExplain(plan=plan, note=f"the plan is not legal: {refused[0].message}")
    return problem


def problem_of(asked: ProblemEcho) -> Problem:
    """The problem that an answer repeats. InputError where it was changed into one that cannot be."""
    if not 0 < asked.margin_fraction <= 1:
        raise InputError(f"margin_fraction: got {asked.margin_fraction:g}, needs a share above 0 and at most 1")
    return make_problem(asked.model, asked.cluster, asked.training, assumptions_in(asked))


def assumptions_in(asked: ProblemEcho) -> Assumptions:
    """The assumptions with their ranges and sources as the answer had them."""
    # for its errors: an unknown name, a value out of reach
    Assumptions().changed({used.name: used.value for used in asked.assumptions})
    for used in asked.assumptions:
        if not (math.isfinite(used.low) and math.isfinite(used.high) and used.low <= used.value <= used.high):
            raise InputError(f"assumption {used.name}: {used.value:g} is not within {used.low:g} to {used.high:g}")
    given = {used.name: Assumption(**used.as_dict(("name",))) for used in asked.assumptions}
    return replace(Assumptions(), **given)


def check_sizes(problem: Problem, plan: PlanSpec) -> None:
    """InputError for sizes that do not belong to this model, cluster, batch or trainer."""
    split, framework = plan.layers_per_stage, problem.framework
    ranks = plan.pipeline_parallel * plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    sequences = plan.data_parallel * plan.micro_batch_size * plan.num_microbatches
    schedules.get(plan.schedule)
    checks = (
        ("p t c d", ranks, problem.cluster.num_gpus, "GPUs"),
        ("d b m", sequences, problem.training.global_batch_size, "sequences of a step"),
        ("layers_per_stage has", len(split), plan.pipeline_parallel, "stages"),
        ("layers_per_stage adds up to", sum(split), problem.model.num_layers, "layers"),
    )
    for what, got, needed, of in checks:
        if got != needed:
            raise InputError(f"plan: {what} {got}, needs {needed} ({of})")
    if plan.schedule not in framework.schedules or plan.optimizer_sharding not in framework.optimizer_sharding:
        raise InputError(
            f"plan: {framework.id} does not run schedule {plan.schedule} with ZeRO {plan.optimizer_sharding}; allowed: "
            f"{', '.join(framework.schedules)} and ZeRO {', '.join(map(str, framework.optimizer_sharding))}"
        )
    refused = refusal(problem, plan.recomputation)
    if refused:
        raise InputError(f"plan: recompute: {refused}")


def _explanation(problem: Problem, estimate: PlanEstimate, asked: ProblemEcho) -> PlanExplanation:
    parts = explain_estimate(problem, estimate)
    memory, time = estimate.memory, estimate.time
    return PlanExplanation(
        model=problem.model,
        total_parameters=count_parameters(problem.model),
        active_parameters=count_active_parameters(problem.model),
        cluster=problem.cluster,
        training=problem.training,
        margin_fraction=asked.margin_fraction,
        plan=estimate.plan,
        memory=MemoryExplained(**memory.some(MemoryExplained.names())),
        bubble=parts.bubble,
        model_flops_utilization=parts.utilization,
        time=TimeExplained(
            step_time_s=time.step_time_s,
            pipeline_s=time.pipeline_s,
            replayed=time.replayed,
            tokens_per_s=time.tokens_per_s,
            terms=parts.time,
        ),
        stages=parts.stages,
        layers=parts.layers,
        traffic=parts.traffic,
        symbols=parts.symbols,
        cluster_numbers=cluster_numbers(problem),
        assumptions=asked.assumptions,
    )


def cluster_numbers(problem: Problem) -> tuple[ClusterNumber, ...]:
    """The numbers of GPU and links that the estimate rests on."""
    cluster, gpu, precision = problem.cluster, problem.cluster.gpu, problem.training.precision
    of_gpu = {
        "memory_bytes": (gpu.memory_bytes, gpu.memory_source),
        f"peak_flops_per_s.{precision}": (problem.peak_flops_per_s, gpu.source),
        "hbm_bandwidth_bytes_per_s": (gpu.hbm_bandwidth_bytes_per_s, gpu.source),
    }
    numbers = [
        ClusterNumber(name=f"gpu.{name}", value=float(value), source=cluster.provenance.get(f"gpu.{name}", source))
        for name, (value, source) in of_gpu.items()
    ]
    links = [
        ClusterNumber(
            name=name, value=float(getattr(cluster, name)), source=cluster.provenance.get(name, cluster.source)
        )
        for name in LINKS
    ]
    return (*numbers, *links)
