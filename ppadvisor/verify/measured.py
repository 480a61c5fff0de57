"""What the processes of a run wrote down, put together: steps, their ranks, mean times of each kind of action."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppadvisor.schedules.base import KIND_LETTERS, FloatArray, IntArray, Kind
from ppadvisor.verify.job import ActionDone, RankDone, StepDone


@dataclass(frozen=True)
class MeasuredStep:
    """One step of all ranks; times from its start, which is that of the first rank."""

    step_s: float
    """Until the last rank has returned."""
    ranks: tuple[tuple[ActionDone, ...], ...]

    @property
    def work_s(self) -> list[float]:
        """Of each rank."""
        return [sum(action.worked_s for action in actions) for actions in self.ranks]

    @property
    def words(self) -> list[list[str]]:
        """What each rank did, in torch's words; of a pair both."""
        return [[action.word for action in actions] for actions in self.ranks]

    def mean_times(self, placement: IntArray) -> dict[Kind, FloatArray]:
        """Kind -> how long it took in the mean, (ranks, chunks); 0 where it does not occur."""
        chunk_of = {int(stage): (int(rank), int(chunk)) for (rank, chunk), stage in np.ndenumerate(placement)}
        total = np.zeros((len(Kind), *placement.shape))
        count = np.zeros_like(total)
        for action in (action for actions in self.ranks for action in actions):
            letter = next(letter for letter in action.word if letter.isalpha())
            where = (KIND_LETTERS.index(letter), *chunk_of[int(action.word.partition(letter)[0])])
            total[where] += action.end_s - action.start_s
            count[where] += 1
        return dict(zip(Kind, total / np.maximum(count, 1), strict=True))


def step_of(ranks: Sequence[StepDone]) -> MeasuredStep:
    """One step, put together from what each rank wrote down."""
    begin_s = min(rank.begin_s for rank in ranks)
    actions = tuple(tuple(action.shifted(-begin_s) for action in rank.actions) for rank in ranks)
    return MeasuredStep(max(rank.end_s for rank in ranks) - begin_s, actions)


def steps_of(done: Sequence[RankDone]) -> list[MeasuredStep]:
    """The measured steps."""
    return [step_of(ranks) for ranks in zip(*(rank.steps for rank in done), strict=True)]


def empty_step_s(done: Sequence[RankDone]) -> float:
    """The median step without work."""
    return statistics.median(step_of(ranks).step_s for ranks in zip(*(rank.empty for rank in done), strict=True))


def median_step(steps: Sequence[MeasuredStep]) -> MeasuredStep:
    """The one in the middle by time; of two the shorter."""
    return sorted(steps, key=lambda step: step.step_s)[(len(steps) - 1) // 2]
