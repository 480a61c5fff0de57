"""What the log of a trainer looks like: one table of lines a framework, in `frameworks/<name>/log.py`.

Patterns name what they capture; a line is looked at only where `marker` stands in it. Lines are searched, not matched
from their beginning: launchers put ranks, and loggers times, before them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Measure = Literal["step_time_s", "tokens_per_s_per_gpu", "samples_per_s"]
"""What a step line tells: the time itself, or a rate that gives it with the plan's batch and GPUs."""

NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"


@dataclass(frozen=True)
class StepLine:
    """A line that tells how long steps take: groups `iteration` (where it is told) and `value`, perhaps `batch`."""

    title: str
    source: str
    marker: str
    pattern: re.Pattern[str]
    measure: Measure
    scale: float = 1.0
    """The unit of `value`, in seconds or per second."""


@dataclass(frozen=True)
class MemoryLine:
    """A line with torch's peaks of one rank: groups `allocated` and `reserved` (one may lack), perhaps `rank`."""

    title: str
    source: str
    marker: str
    pattern: re.Pattern[str]
    unit_bytes: float


@dataclass(frozen=True)
class SizesLine:
    """A line that repeats how the GPUs are divided; its groups are `num_gpus` and fields of a plan."""

    source: str
    marker: str
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class LogFormat:
    """The lines of one trainer that calibration reads."""

    id: str
    title: str
    steps: tuple[StepLine, ...]
    """Best first: where several kinds stand in one log, the first kind is read."""
    memory: tuple[MemoryLine, ...] = ()
    sizes: tuple[SizesLine, ...] = ()
