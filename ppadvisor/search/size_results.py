"""What `size` answers, typed; dumped as it is, it is its JSON."""

from __future__ import annotations

from typing import Literal

from ppadvisor.engine.results import Result, Verdict
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

Question = Literal["fewest_that_fit", "fewest_that_meet", "fewest_at_slow_end", "cheapest", "fastest"]
"""`meet` is by the middle estimate; at the slow end the targets hold with `days_high` too."""

Cause = Literal["memory", "bubble", "bubble_at_small_m", "network", "optimizer_and_overhead"]
"""What takes GPU time beside the model's own kernels: recomputation for want of memory; idle stages, where m is below
4 p for want of micro-batches (a larger batch would bring them); waiting for links; what follows the pipeline."""

Difference = Literal["gpu", "memory", "network", "several"]


class SizeTargets(Result):
    """What is wanted. `tokens` are those of the whole training run."""

    tokens: int
    days: float | None
    budget: float | None


class SizeLosses(Result):
    """What failures take, as the user stated it; nothing where they are 0."""

    failures_per_gpu_hour: float
    checkpoint_time_s: float
    restart_time_s: float


class SizePoint(Result):
    """One number of GPUs of one candidate with its best plan."""

    candidate: int
    """Index into `candidates`."""
    num_gpus: int
    fits: bool
    meets_targets: bool
    pareto: bool
    """No other point has as few GPUs, days and (where both have a price) cost, and fewer of one."""
    answers: tuple[Question, ...]
    days: float
    """tokens / tokens_per_s / 86400 / goodput_fraction."""
    days_low: float
    """The same with the 5 % quantile of the step time over the ranges of the assumptions, as `plan` shows it."""
    days_high: float
    """The same with the 95 % quantile."""
    gpu_hours: float
    cost: float | None
    goodput_fraction: float
    checkpoint_interval_s: float | None
    step_time_s: float
    tokens_per_s: float
    scaling_efficiency: float
    """Tokens per second and GPU over those of the fewest GPUs of this candidate that fit, before failures."""
    model_flops_utilization: float
    bubble_fraction: float
    peak_bytes: int
    headroom_bytes: int
    verdict: Verdict
    plan: PlanSpec
    binds: Cause
    """Of the causes that take time beside the kernels the largest, and its share of the step."""
    binds_fraction: float
    time_terms: dict[str, float]
    hints: tuple[str, ...]


class NoPlan(Result):
    """A number of GPUs of a candidate for which no plan fits."""

    candidate: int
    num_gpus: int
    reason_code: str
    reason: str


class BreakEven(Result):
    """Up to which price one candidate is worth it beside another."""

    candidate: int
    against: int
    differs_in: Difference
    price_ratio: float
    """Cost is equal where its GPU-hour costs this many times that of the other: the other's fewest GPU-hours over its
    own, each among the points that meet the date."""
    given_ratio: float | None
    """Of the prices that were given."""


class SizeCandidate(Result):
    """One kind of GPU on one network."""

    name: str
    cluster: ClusterSpec
    """Of a full node: the points have more GPUs."""
    price_per_gpu_hour: float | None
    counts: tuple[int, ...]
    """Numbers of GPUs that were searched, ascending."""
    ruled_out: tuple[int, ...]
    """Those that were not: too little memory for weights and optimizer states, no more than a candidate with the same
    GPUs needs to fit, or matrix products that alone, at the assumed efficiency, miss the date or the budget."""
    fewest_that_fit: int | None
    fewest_that_meet: int | None
    least_gpu_hours: float | None
    """Among the points that meet the date."""


class SizeReport(Result):
    """The answer of `size`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    model: ModelSpec
    total_parameters: int
    active_parameters: int
    training: TrainingSpec
    targets: SizeTargets
    losses: SizeLosses
    margin_fraction: float
    assumptions: dict[str, float]
    """Those that the user replaced."""
    pins: dict[str, list[int] | list[str]]
    candidates: tuple[SizeCandidate, ...]
    points: tuple[SizePoint, ...]
    """By candidate, then by GPUs: those with a plan that fits."""
    no_plan: tuple[NoPlan, ...]
    answers: dict[Question, int | None]
    """Index into `points`; a question without its targets or prices is not there."""
    break_even: tuple[BreakEven, ...]
    nearest: str | None
    """Where no point meets the targets: what comes nearest, and what it would take."""
