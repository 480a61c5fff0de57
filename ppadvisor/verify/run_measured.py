"""What the ranks of a run of real layers have measured, put together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ppadvisor.verify.launched import Machine


class StepRan(NamedTuple):
    """One step of one rank."""

    pipeline_s: float
    """All micro-batches forward and back, from the common begin."""
    optimizer_s: float
    actions: tuple[tuple[str, float], ...]
    """Each action in torch's words, in the order in which they were done, and how long the device took for it."""

    @property
    def step_s(self) -> float:
        return self.pipeline_s + self.optimizer_s


@dataclass(frozen=True)
class RankRan:
    """All counted steps of one rank."""

    machine: Machine
    steps: tuple[StepRan, ...]
    allocated_bytes: int | None
    """torch's peaks of the counted steps; None on a CPU, which torch does not count."""
    reserved_bytes: int | None


def per_microbatch_s(steps: Iterable[StepRan], kinds: str) -> float:
    """The mean time of a rank's actions of these kinds for one micro-batch, all its stages together."""
    total: dict[str, list[float]] = {}
    for step in steps:
        for word, seconds in step.actions:
            stage, kind = split_word(word)
            if kind in kinds:
                total.setdefault(f"{stage}{kind}", []).append(seconds)
    return sum((statistics.fmean(times) for times in total.values()), 0.0)


def split_word(word: str) -> tuple[str, str]:
    """The stage and the kind of an action.

    >>> split_word("12F3")
    ('12', 'F')
    """
    kind = next(letter for letter in word if letter.isalpha())
    return word.partition(kind)[0], kind


def slowest(ranks: Sequence[RankRan], what: str) -> list[float]:
    """Of each step the longest `pipeline_s`, `optimizer_s` or `step_s` of any rank."""
    return [max(getattr(one, what) for one in steps) for steps in zip(*(rank.steps for rank in ranks), strict=True)]
