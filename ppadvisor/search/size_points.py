"""One number of GPUs of one candidate: its best plan, what the run then takes, and what binds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.flops import attention_core_flops_per_token, megatron_flops_per_token
from ppadvisor.engine.parameters import count_parameters
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import plan_of
from ppadvisor.errors import InputError
from ppadvisor.search.advise import ENOUGH_MICROBATCHES, hints, miss_note, short_plan
from ppadvisor.search.api import DEFAULT_TOP
from ppadvisor.search.goodput import HOUR_S, Losses, goodput
from ppadvisor.search.noise import stability
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import MEMORY_REASONS, Ranked, nearest_row, rank
from ppadvisor.search.shortlist import best_estimates
from ppadvisor.search.size_results import Cause, NoPlan

DAY_S = 24 * HOUR_S

ALL_LOST = 0.01
"""With less than this share of the time left for training a run is not worth a row."""

SLACK = 0.99
"""Of the bound on the step time: Megatron's count of FLOPs has a few norms of MLA among the products."""

CONTRADICTION, NO_PROGRESS = "contradiction", "no_progress"
"""Reason codes: the inputs contradict each other at this number of GPUs; failures leave no time to train."""

CAUSES: dict[Cause, tuple[str, ...]] = {
    "memory": ("recompute_s",),
    "bubble": ("bubble_s", "imbalance_s"),
    "network": (
        *("tensor_parallel_s", "context_parallel_s", "expert_parallel_s"),
        *("handoff_s", "data_parallel_s"),
    ),
    "optimizer_and_overhead": ("optimizer_s", "overhead_s"),
}
"""Cause -> the parts of a step that it takes; what is left, compute, is the kernels' own."""

Ask = Callable[[int], tuple[Problem, Pins]]
"""Makes the question for so many GPUs; InputError where the values contradict each other."""


@dataclass(frozen=True)
class Found:
    """The best plan of one number of GPUs, and what the whole run takes with it."""

    num_gpus: int
    estimate: PlanEstimate
    goodput_fraction: float
    checkpoint_interval_s: float | None
    days: float
    days_low: float
    days_high: float
    hints: tuple[str, ...]

    @property
    def gpu_hours(self) -> float:
        return self.num_gpus * self.days * 24


@dataclass(frozen=True)
class Run:
    """The whole training run, as far as all points share it."""

    tokens: int
    losses: Losses
    margin: float


def days_of_run(*, tokens: float, tokens_per_s: float, goodput_fraction: float) -> float:
    """Days of a training run: tokens / tokens per second / 86400 / goodput.

    >>> days_of_run(tokens=15e12, tokens_per_s=4e6, goodput_fraction=1.0)  # 3.75e6 s
    43.40277777777778
    """
    return tokens / tokens_per_s / DAY_S / goodput_fraction


def least_days(problem: Problem, run: Run) -> float:
    """Days below which no plan can stay: the matrix products alone, at the assumed share of the peak, on all GPUs."""
    linear = linear_flops_per_token(problem)
    rate = problem.cluster.num_gpus * problem.peak_flops_per_s * problem.assumptions.gemm_efficiency.value
    share = goodput(run.losses, problem.cluster.num_gpus).fraction
    return days_of_run(tokens=run.tokens, tokens_per_s=rate / linear, goodput_fraction=max(share, ALL_LOST))


def linear_flops_per_token(problem: Problem) -> float:
    """FLOPs of one token in matrix products with weights, forward and backward: what no plan can do without.

    Megatron's count less the attention core, whose FLOPs hang on mask, window and kernel.
    """
    model, sequence = problem.model, problem.training.sequence_length
    whole = megatron_flops_per_token(model, sequence, model.vocab_size)
    return SLACK * (whole - attention_core_flops_per_token(model, sequence))


def fewest_by_states(problem: Problem, margin: float) -> float:
    """GPUs below which nothing fits: weights and optimizer states alone, divided over all of them."""
    training, optimizer = problem.training, problem.optimizer
    states = count_parameters(problem.model) * (training.weight_bytes + optimizer.moments_bytes)
    return states / (margin * problem.cluster.gpu.memory_bytes)


def evaluate_count(ask: Ask, candidate: int, num_gpus: int, run: Run) -> Found | NoPlan:
    """The best plan, as `plan` finds it, and what the run takes; or why there is none."""
    try:
        problem, pins = ask(num_gpus)
        ranked = rank(problem, pins, margin=run.margin)
    except InputError as error:
        return _no_plan(candidate, num_gpus, CONTRADICTION, str(error))
    best = best_estimates(ranked, DEFAULT_TOP, margin=run.margin)
    if not best:
        return _no_plan(candidate, num_gpus, *_why_none(ranked, run.margin))
    kept = goodput(run.losses, num_gpus)
    if kept.fraction < ALL_LOST:
        mtbf = run.losses.mtbf_s(num_gpus)
        return _no_plan(candidate, num_gpus, NO_PROGRESS, f"a failure every {mtbf:,.0f} s leaves no time to train")
    drawn = stability(problem, best[:1])
    first = best[0]

    def days(step_s: float) -> float:
        rate = problem.training.tokens_per_step / step_s
        return days_of_run(tokens=run.tokens, tokens_per_s=rate, goodput_fraction=kept.fraction)

    return Found(
        num_gpus=num_gpus,
        estimate=first,
        goodput_fraction=kept.fraction,
        checkpoint_interval_s=kept.checkpoint_interval_s,
        days=days_of_run(tokens=run.tokens, tokens_per_s=first.time.tokens_per_s, goodput_fraction=kept.fraction),
        days_low=days(float(drawn.low_s[0])),
        days_high=days(float(drawn.high_s[0])),
        hints=hints(ranked, pins, first, sort="step_time_s"),
    )


def _why_none(ranked: Ranked, margin: float) -> tuple[str, str]:
    """(code, message): by how much the legal plan nearest to fitting misses, else the rule that most plans break."""
    row = nearest_row(ranked)
    if row is None:
        rejection = max(ranked.examples, key=lambda example: ranked.rejected[example.code])
        return rejection.code, rejection.message
    estimate = estimate_plan(ranked.problem, plan_of(ranked.plans, row), margin=margin)
    stage = estimate.memory.binding_stage
    verdict = estimate.memory.verdict
    # a plan that fits by the array forms and not by the exact count is counted as the latter has it
    code = MEMORY_REASONS.get(verdict, "memory")
    return code, f"{short_plan(estimate.plan)}: stage {stage} {miss_note(estimate.memory)}"


def _no_plan(candidate: int, num_gpus: int, code: str, reason: str) -> NoPlan:
    return NoPlan(candidate=candidate, num_gpus=num_gpus, reason_code=code, reason=" ".join(reason.split()))


def what_binds(estimate: PlanEstimate) -> tuple[Cause, float]:
    """What takes most of the step beside the kernels, and its share of the step."""
    time, plan = estimate.time, estimate.plan
    taken = {cause: sum(time.terms[part] for part in parts) for cause, parts in CAUSES.items()}
    cause = max(taken, key=lambda name: taken[name])
    share = taken[cause] / time.step_time_s
    if cause == "bubble" and plan.num_microbatches < ENOUGH_MICROBATCHES * plan.pipeline_parallel:
        return "bubble_at_small_m", share
    return cause, share
