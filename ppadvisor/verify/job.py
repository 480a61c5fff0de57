"""What the processes of `verify --run` are told, and what each answers: files in a folder that they share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

EMPTY_STEPS = 4
"""Steps without work at first: one in which the ranks get to know each other, then those that time the engine alone."""


class StageSeconds(BaseModel):
    """How long one stage works for one micro-batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forward_s: float
    input_grad_s: float
    weight_grad_s: float


class Job(BaseModel):
    """One pipeline, rank by rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: str | None
    """Id of the schedule that torch makes itself; None: it loads the order from the folder."""
    num_stages: int
    num_microbatches: int
    stages_of_ranks: tuple[tuple[int, ...], ...]
    stages: tuple[StageSeconds, ...]
    steps: int

    @property
    def ranks(self) -> int:
        return len(self.stages_of_ranks)


class ActionDone(NamedTuple):
    """One action of one rank; times on the clock that all processes of a machine share."""

    word: str
    """In torch's words: stage, kind, micro-batch."""
    start_s: float
    """When what it needs was there."""
    end_s: float
    worked_s: float
    """Of that, in which the stage worked; the rest is the engine."""

    def shifted(self, by_s: float) -> ActionDone:
        return self._replace(start_s=self.start_s + by_s, end_s=self.end_s + by_s)


class StepDone(BaseModel):
    """One step of one rank."""

    begin_s: float
    end_s: float
    actions: tuple[ActionDone, ...]


class RankDone(BaseModel):
    """All steps of one rank."""

    empty: tuple[StepDone, ...]
    """Those without work, the first left out."""
    steps: tuple[StepDone, ...]
    realtime: bool
    """Whether the system let it run before everything else."""


class Folder(NamedTuple):
    """The files."""

    path: Path

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def order(self) -> Path:
        return self.path / "order.csv"

    @property
    def meeting(self) -> Path:
        """Where the ranks find each other: a file and not a port, which could be taken."""
        return self.path / "meeting"

    @property
    def progress(self) -> Path:
        """A byte for each step that rank 0 has done."""
        return self.path / "progress"

    def said(self, rank: int) -> Path:
        """What the rank said on stderr."""
        return self.path / f"{rank}.stderr"

    def done(self, rank: int) -> Path:
        return self.path / f"{rank}.json"
