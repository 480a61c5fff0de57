"""The question in one call: a model, a cluster, a training run; back comes the ranked answer."""

from __future__ import annotations

from dataclasses import fields

from ppadvisor import frameworks
from ppadvisor.engine.parameters import count_active_parameters, count_parameters
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.errors import InputError, RefusedError, unknown_name
from ppadvisor.search import advise
from ppadvisor.search.balance import against_even
from ppadvisor.search.by_schedule import best_of_each_schedule
from ppadvisor.search.nearest import nearest_miss
from ppadvisor.search.noise import Stability, stability
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import Ranked, rank
from ppadvisor.search.results import AssumptionUsed, PlanReport, ProblemEcho, RankedPlan, RankedTime
from ppadvisor.search.shortlist import best_estimates
from ppadvisor.search.why import why_first
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.load import assumptions_of
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.training import OPTIMIZERS, TrainingSpec

DEFAULT_MARGIN = 0.9
DEFAULT_TOP = 10


def make_problem(
    model: ModelSpec, cluster: ClusterSpec, training: TrainingSpec, assumptions: Assumptions | None = None
) -> Problem:
    """Bring the parts together and check what concerns several of them. InputError names the field."""
    if training.optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", training.optimizer, OPTIMIZERS)
    framework = frameworks.get(training.framework)
    if training.fp8_weights and not framework.fp8_weights:
        raise InputError(f"fp8_weights: {framework.id} does not keep weights in fp8 alone; allowed: false")
    assumed = assumptions_of(cluster, training, framework.stack, assumptions)
    problem = Problem(model, cluster, training, framework, assumed)
    _ = problem.peak_flops_per_s  # refuses a precision that the GPU does not have
    limit = model.max_position_embeddings
    if limit is not None and training.sequence_length > limit:
        raise InputError(
            f"sequence_length: got {training.sequence_length}, but {model.name} has {limit} learned positions"
        )
    return problem


def check_run(problem: Problem) -> None:
    """RefusedError where the framework cannot train this model in this way, whatever the plan."""
    refused = problem.framework.refusal(problem.model, problem.training)
    if refused:
        raise RefusedError(f"{problem.framework.id}: {refused}")


def plan(
    model: ModelSpec,
    cluster: ClusterSpec,
    training: TrainingSpec,
    *,
    pins: Pins | None = None,
    top: int = DEFAULT_TOP,
    sort: str = "step_time_s",
    margin: float = DEFAULT_MARGIN,
    assumptions: Assumptions | None = None,
) -> PlanReport:
    """Rank every plan for training `model` on `cluster`.

    `pins` fixes what shall not be searched; `margin` is the share of GPU memory that the middle estimate may use.
    `report.plans` is empty where nothing fits, and `report.nearest_miss` then says what is missing.
    InputError for input that cannot be meant; RefusedError as `check_run`.

    >>> from ppadvisor import TrainingSpec, load_cluster, load_model, plan
    >>> report = plan(
    ...     load_model("llama-3.1-70b"), load_cluster("dgx-h100-superpod", num_gpus=64),
    ...     TrainingSpec(sequence_length=8192, global_batch_size=1024),
    ... )
    >>> report.plans[0].memory.fits
    True
    """
    problem, pins = make_problem(model, cluster, training, assumptions), pins or Pins()
    check_run(problem)
    ranked = rank(problem, pins, margin=margin, sort=sort)
    # the second is looked at even where one is shown: it says what puts the first in front
    leading = best_estimates(ranked, max(top, 2), margin=margin, sort=sort)
    best = leading[:top]
    drawn = stability(problem, leading) if leading else None
    sure = drawn if sort == "step_time_s" and len(leading) > 1 else None
    baselines = advise.baselines(problem, pins, margin=margin)
    return PlanReport(
        problem=echo(problem, pins, ranked, margin),
        plans=with_bands(best, drawn),
        split_settings=tuple(problem.framework.split_settings(model, estimate.plan) for estimate in best),
        even_split=against_even(problem, best[0], margin=margin) if best else None,
        first_in_fraction=sure.first_in_fraction if sure else None,
        rival_rank=sure.rival + 1 if sure and sure.rival else None,
        num_fitting=len(ranked.order),
        why=why_first(leading, baselines, sure, sort=sort, num_fitting=len(ranked.order)),
        hints=advise.hints(ranked, pins, best[0] if best else None, sort=sort),
        schedules=best_of_each_schedule(ranked, best, margin=margin),
        baselines=baselines,
        rejected=dict(sorted(ranked.rejected.items())),
        rejection_examples=tuple(ranked.examples),
        nearest_miss=None if best else nearest_miss(ranked, pins, margin=margin),
    )


def with_bands(best: list[PlanEstimate], drawn: Stability | None) -> tuple[RankedPlan, ...]:
    """The plans with the bands of their step times."""
    if drawn is None:
        return ()
    bands = zip(best, drawn.low_s.tolist(), drawn.high_s.tolist(), strict=False)
    return tuple(
        RankedPlan(
            plan=estimate.plan,
            memory=estimate.memory,
            time=RankedTime(**vars(estimate.time), step_time_low_s=low, step_time_high_s=high),
        )
        for estimate, low, high in bands
    )


def echo(problem: Problem, pins: Pins, ranked: Ranked, margin: float) -> ProblemEcho:
    """The problem as it was understood, with the space searched and the assumptions made."""
    assumed = problem.assumptions
    return ProblemEcho(
        model=problem.model,
        total_parameters=count_parameters(problem.model),
        active_parameters=count_active_parameters(problem.model),
        cluster=problem.cluster,
        training=problem.training,
        tokens_per_step=problem.training.tokens_per_step,
        framework=problem.framework.id,
        margin_fraction=margin,
        pins=pins.listed(),
        searched=ranked.space.searched,
        num_combinations=ranked.space.num_combinations,
        assumptions=tuple(AssumptionUsed(name=f.name, **vars(getattr(assumed, f.name))) for f in fields(assumed)),
    )
