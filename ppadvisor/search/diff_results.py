"""What `diff` answers, typed; dumped as it is, it is its JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ppadvisor.engine.results import Result
from ppadvisor.search.check_results import Answer, Judgement
from ppadvisor.search.compare import StageHeld

if TYPE_CHECKING:
    from ppadvisor.specs.kinds import JsonValue, Shown

Metric = Literal["step_time_s", "time_per_token_s", "peak_bytes"]
Part = Literal["plan", "training", "model", "cluster", "margin", "assumptions"]


class FieldChanged(Result):
    """A value that memory or time depend on."""

    part: Part
    field: str
    base: JsonValue
    """None where BASE has no such field."""
    head: JsonValue
    option: str | None
    """Option of HEAD that says it; None where none of those that changed does."""
    line: int | None
    """Where that stands in HEAD."""


class OptionChanged(Result):
    """An option of the file, as the file says it."""

    option: Shown
    base: Shown | None
    """None where it is not given."""
    head: Shown | None
    base_line: int | None
    head_line: int | None
    effect: Literal["modelled", "not_modelled", "other"]
    """modelled: decides a field of plan, training run or model; not_modelled: changes memory or time, and no estimate
    sees it; other: nothing is known of an effect on either."""
    field: str | None
    """The field that it decides."""


class Effect(Result):
    """A number of both sides."""

    name: str
    base: float | None
    """None where BASE has no estimate."""
    head: float | None
    difference: float | None
    """HEAD less BASE."""
    change_fraction: float | None
    """HEAD over BASE, less one."""


class PartChanged(Result):
    """One part of a step, the mean over the ranks."""

    name: str
    base_s: float
    head_s: float
    difference_s: float


class StageChanged(Result):
    """The stages of this number; None where a side has fewer."""

    stage: int
    base: StageHeld | None
    head: StageHeld | None
    difference_bytes: int | None
    head_of_capacity_fraction: float | None
    """Share of the memory of HEAD's GPU."""


class Regression(Result):
    """What is worse in HEAD by more than was allowed."""

    metric: Metric
    """Where a step has other tokens in HEAD than in BASE, time is held against time by the token."""
    base: float
    head: float
    worse_fraction: float
    tolerance_fraction: float
    option: str | None
    """The changed option that the likeliest cause is."""
    line: int | None
    """Where it stands in HEAD."""


class DiffReport(Answer):
    """The answer of `diff`."""

    base: Judgement
    head: Judgement
    changes: tuple[FieldChanged, ...]
    """Plan, training run, model, machines, margin, assumptions, in this order."""
    options: tuple[OptionChanged, ...]
    """In the order of HEAD's lines, then what HEAD lacks."""
    summary: tuple[str, ...]
    effects: tuple[Effect, ...]
    parts: tuple[PartChanged, ...]
    """Empty where a side has no estimate; what costs HEAD most comes first."""
    stages: tuple[StageChanged, ...]
    """Each at its highest moment; empty where no side has an estimate."""
    head_slower_in_fraction: float | None
    """Share of the draws over the ranges of the assumptions in which HEAD is slower; None for different questions."""
    price_per_gpu_hour: float | None
    tolerance_fraction: float | None
    not_comparable: str | None
    """Why no regression can be judged; None where it can, or nobody asked."""
    regressions: tuple[Regression, ...]
