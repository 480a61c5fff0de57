"""What a search answers, typed; dumped as it is, it is the JSON of `plan`."""

from __future__ import annotations

from ppadvisor.engine.results import PlanEstimate, PlanTime, Rejection, Result
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION


class AssumptionUsed(Result):
    """One number that the estimate rests on and nobody can know before the run."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    source: str
    provenance: str


class ProblemEcho(Result):
    """What was asked, as it was understood."""

    model: ModelSpec
    total_parameters: int
    active_parameters: int
    """Parameters a token meets: of routed experts only the chosen ones."""
    cluster: ClusterSpec
    training: TrainingSpec
    tokens_per_step: int
    framework: str
    margin_fraction: float
    pins: dict[str, list[int] | list[str]]
    searched: dict[str, list[int] | list[str]]
    """Values of each quantity among the plans that were evaluated."""
    num_combinations: int
    assumptions: tuple[AssumptionUsed, ...]


class Baseline(Result):
    """A way of training that everyone should be compared with; `estimate` may not fit, or not exist."""

    estimate: PlanEstimate | None
    note: str


class EvenSplit(Result):
    """The first plan with its layers spread as evenly as they go, and what its own split saves against that."""

    layers_per_stage: tuple[int, ...]
    layers_per_chunk: tuple[int, ...]
    step_time_s: float
    peak_bytes: int
    fits: bool
    step_time_saved_fraction: float
    """1 - step time / that of the even split."""
    peak_saved_bytes: int
    """Negative where the plan's own split needs more."""


class ScheduleBest(Result):
    """The best plan of one schedule among those evaluated."""

    schedule: str
    estimate: PlanEstimate | None
    """None where the schedule has no legal plan here."""
    note: str
    """`fits`, or by how much it does not, or why it cannot run."""
    run_by: tuple[str, ...]
    """Frameworks that run the schedule."""


class Change(Result):
    """One single change that makes something fit."""

    change: str
    step_time_s: float
    peak_bytes: int
    plan: str


class NearestMiss(Result):
    """Where nothing fits: the plan that comes closest."""

    estimate: PlanEstimate
    short_by_bytes: int
    message: str
    changes: tuple[Change, ...]


class RankedTime(PlanTime):
    """Time of one optimizer step, and how far it may be off."""

    step_time_low_s: float
    """The 5 % quantile of the draws: every assumption over its range, and 1 % by which runs of one plan differ."""
    step_time_high_s: float
    """The 95 % quantile."""


class RankedPlan(PlanEstimate):
    """A plan of the ranking."""

    time: RankedTime


class PlanReport(Result):
    """The answer of `plan`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    problem: ProblemEcho
    plans: tuple[RankedPlan, ...]
    """Ranked, best first: only plans that fit with the margin. A simpler one may stand before the fastest (`why`)."""
    split_settings: tuple[dict[str, str], ...]
    """Of each plan, the options of its trainer that build its stages; a flag without a value has an empty one."""
    even_split: EvenSplit | None
    """None where the first plan is that, or its trainer builds no other."""
    first_in_fraction: float | None
    """Share of the draws in which the first plan is the fastest of those looked at: the ones shown, and of one alone
    the second too. None where no plan fits, one alone does, or plans were sorted by something else."""
    rival_rank: int | None
    """Rank of the plan that is the fastest most often in the other draws, from 1; None where there are none."""
    num_fitting: int
    why: tuple[str, ...]
    hints: tuple[str, ...]
    schedules: tuple[ScheduleBest, ...]
    """Every schedule that was searched with its best plan, fastest first."""
    baselines: dict[str, Baseline]
    rejected: dict[str, int]
    rejection_examples: tuple[Rejection, ...]
    nearest_miss: NearestMiss | None
