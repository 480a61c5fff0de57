"""What `check` answers, typed; dumped as it is, it is its JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ppadvisor.engine.results import PlanEstimate, Result
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION

if TYPE_CHECKING:
    from ppadvisor.specs.kinds import Shown


class BrokenRule(Result):
    """A rule that the configuration breaks."""

    rule: str
    outcome: Literal["rejected", "fails", "wrong"]
    """rejected at start-up; fails at the first step; runs, and trains something else than was asked for."""
    message: Shown
    flags: tuple[Shown, ...]
    """Options to change, the likeliest first."""
    file: str
    line: int | None
    """Where the value stands; None where it is a default."""
    source: str
    """The place in the trainer's own code."""


NoticeKind = Literal["not_modelled", "not_understood", "no_effect", "slow", "assumed", "missing"]


class Notice(Result):
    """Something to know that breaks no rule."""

    kind: NoticeKind
    message: Shown
    flags: tuple[Shown, ...]
    file: str
    line: int | None


class GateResult(Result):
    """A threshold and what was measured against it."""

    gate: str
    """As the user wrote it."""
    metric: str
    operator: str
    limit: float
    measured: float | None
    """None where there is nothing to measure."""
    passed: bool


class PlanChange(Result):
    """The fewest options that change the plan for the better, each set tried by a search."""

    change: str
    flags: tuple[str, ...]
    """Options of the trainer to change."""
    line: int | None
    """Where the first of them stands in the file."""
    settings: dict[str, str]
    """Options that build the changed plan's stages, where those change."""
    plan: PlanSpec
    step_time_s: float
    peak_bytes: int
    gain_fraction: float | None
    """Share of the step time that it saves; None where the plan of the file does not fit."""


class Judgement(Result):
    """A configuration under its trainer's rules and, where machines are known, in numbers."""

    file: str
    plan_rank: int | None
    """Of a file of saved plans the one that was asked for, from 1; None: the first, or no such file."""
    framework: str
    framework_version: str
    accepted_by_framework: bool
    """What the trainer's own start-up check answers."""
    legal: bool
    """Accepted, and it will run and train what was asked for."""
    rules: tuple[BrokenRule, ...]
    rules_judged: tuple[str, ...]
    """Names of the rules that were looked at, the broken ones too."""
    notices: tuple[Notice, ...]
    num_gpus: int | None
    model: ModelSpec | None
    cluster: ClusterSpec | None
    training: TrainingSpec | None
    plan: PlanSpec | None
    """None where the options make no plan."""
    fits: bool | None
    """None where nothing can be estimated."""
    estimate: PlanEstimate | None

    @property
    def subject(self) -> str:
        """The file, and which of its plans."""
        return self.file if self.plan_rank is None else f"{self.file}#{self.plan_rank}"

    @property
    def runs(self) -> bool:
        """Whether it starts, trains something and is not known to run out of memory."""
        return self.fits is not False and all(rule.outcome == "wrong" for rule in self.rules)


class Answer(Result):
    """What every document begins with."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION


class CheckReport(Judgement, Answer):
    """The answer of `check`."""

    best: PlanEstimate | None
    """The best plan with the same model, GPUs and batch; None where none fits or nothing can be estimated."""
    best_needs: tuple[str, ...]
    """Options beside the plan's that the best one needs and the file lacks."""
    regret_fraction: float | None
    """Step time over that of the best plan, less one; 0 where no better one is known."""
    change: PlanChange | None
    gates: tuple[GateResult, ...]

    @property
    def gates_passed(self) -> bool:
        """Whether no threshold is broken."""
        return all(gate.passed for gate in self.gates)
