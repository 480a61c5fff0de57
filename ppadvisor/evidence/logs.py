"""A trainer's log, read line by line: how long steps took, what each rank held, and what is left out as warm-up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ppadvisor import frameworks
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.frameworks.logs import LogFormat, Measure, MemoryLine, StepLine

WARM_UP_ITERATIONS = 10
"""The first iterations of a log are slow: allocator, kernel selection, communicators."""
FEWEST_LINES = 3
"""Where fewer lines than these were left without the first iterations, only the first line is left out."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
DAY = re.compile(r"\b(\d{4}-\d{2}-\d{2})[ T]\d{2}:\d{2}")
MAX_LINE = 100_000
"""Characters; no log has longer lines, and what has is no log."""


@dataclass(frozen=True)
class Step:
    """One step line."""

    iteration: int
    value: float
    resolution: float
    """Half of the last digit that was printed over the value."""
    batch: int | None


@dataclass(frozen=True)
class Peaks:
    """torch's peaks of one rank, bytes."""

    rank: int | None
    """None where the line does not say which rank printed it."""
    allocated_bytes: float | None
    reserved_bytes: float | None

    @property
    def size(self) -> float:
        """By which the highest of several lines is told."""
        return max(self.allocated_bytes or 0.0, self.reserved_bytes or 0.0)


@dataclass(frozen=True)
class RunLog:
    """What a log tells."""

    name: str
    format: LogFormat
    line: StepLine | None
    """None where it has memory lines only, as the logs of single ranks may."""
    steps: tuple[Step, ...]
    peaks: tuple[Peaks, ...]
    sizes: dict[str, int]
    day: str | None
    """That the last step line bears."""


@dataclass
class _Found:
    """The lines of one format, while a log is read."""

    format: LogFormat
    steps: dict[StepLine, list[Step]] = field(default_factory=dict)
    peaks: dict[int | None, Peaks] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    day: str | None = None

    def take(self, text: str) -> None:
        """Keep what a line tells."""
        for line in self.format.steps:
            if line.marker in text and (match := line.pattern.search(text)):
                steps = self.steps.setdefault(line, [])
                step = _step(match, line, default=len(steps) + 1)
                if steps and steps[-1].iteration == step.iteration:
                    steps.pop()  # a progress bar drawn again, or another rank's line
                steps.append(step)
                day = DAY.search(text)
                self.day = day[1] if day else self.day
        for memory in self.format.memory:
            if memory.marker in text and (match := memory.pattern.search(text)):
                self._hold(_peaks(match, memory))
        for sizes in self.format.sizes:
            if sizes.marker in text and (match := sizes.pattern.search(text)):
                self.sizes = {name: int(size) for name, size in match.groupdict().items() if size}

    def _hold(self, peaks: Peaks) -> None:
        if peaks.size >= self.peaks.get(peaks.rank, peaks).size:
            self.peaks[peaks.rank] = peaks


def _step(match: re.Match[str], line: StepLine, default: int) -> Step:
    named = match.groupdict()
    text = match["value"].replace(",", "")
    value = float(text)
    digits = len(text.partition("e")[0].partition(".")[2])
    relative = 0.5 * 10.0**-digits / float(text.partition("e")[0]) if value else 0.0
    batch = named.get("batch")
    return Step(int(named.get("iteration") or default), value * line.scale, relative, int(batch) if batch else None)


def _peaks(match: re.Match[str], line: MemoryLine) -> Peaks:
    named = match.groupdict()
    allocated, reserved = (
        None if named.get(name) is None else float(named[name]) * line.unit_bytes for name in ("allocated", "reserved")
    )
    rank = named.get("rank")
    return Peaks(None if rank is None else int(rank), allocated, reserved)


def read_log(path: Path, framework: str | None = None) -> RunLog:
    """A log of the framework given, else of the one that its lines tell. InputError where it tells nothing."""
    formats = frameworks.log_formats()
    if framework is not None and framework not in frameworks.LOGS:
        raise unknown_name("log of framework", framework, frameworks.LOGS, where="--framework")
    found = [_Found(format) for format in formats]
    empty = True
    for text in _lines(path):
        empty = False
        for one in found:
            one.take(text)
    told = [one for one in found if one.steps] or [one for one in found if one.peaks]
    wanted = [one for one in told if framework in (None, one.format.id)]
    if not wanted:
        raise InputError(f"{path}: {_nothing(empty, told, framework)}")
    return _run(path, wanted[0])


def _nothing(empty: bool, told: Sequence[_Found], framework: str | None) -> str:
    """Why a log tells nothing."""
    if empty:
        return "is empty, or holds no whole line"
    names = " or ".join(format.title for format in frameworks.log_formats() if framework in (None, format.id))
    hint = f"; it has lines of {told[0].format.title} (--framework {told[0].format.id})" if told else ""
    return f"holds no step line of {names}{hint}"


def _run(path: Path, found: _Found) -> RunLog:
    line = next((line for line in found.format.steps if line in found.steps), None)
    steps = tuple(step for step in found.steps[line] if step.value > 0) if line else ()
    return RunLog(path.name, found.format, line, steps, tuple(found.peaks.values()), found.sizes, found.day)


def _lines(path: Path) -> Iterator[str]:
    """Whole lines without colours: one that no newline ends was cut. InputError for what is no text file."""
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory, needs a log file")
        with path.open("r", encoding="utf-8", errors="replace") as file:  # splits progress bars at \r too
            while text := file.readline(MAX_LINE):
                if "\0" in text:
                    raise InputError(f"{path}: not a text file")
                if text.endswith("\n"):
                    yield COLOURS.sub("", text) if "\x1b" in text else text
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True)
class Steady:
    """The step time of a run after its warm-up."""

    step_time_s: float
    spread_fraction: float
    """Of single lines about the median: 1.4826 times the median absolute deviation, over the median."""
    uncertainty_fraction: float
    """Of the median: one standard deviation, with what rounding hides."""
    num_lines: int
    first_iteration: int
    last_iteration: int
    left_out: tuple[str, ...]


def steady_step_time(run: RunLog, *, sequence_length: int, global_batch_size: int, num_gpus: int) -> Steady:
    """Median step time of the lines behind the warm-up. InputError where none is left.

    The median's standard error is 1.2533 sigma / sqrt(n) (of a normal sample, Kenney and Keeping 1962, 14.10).
    """
    kept, left_out = _of_batch(run, global_batch_size)
    kept, warm_up = _without_warm_up(kept)
    if not kept:
        raise InputError(f"{run.name}: has one step line, which is its warm-up; needs at least two")
    tokens = sequence_length * global_batch_size
    per_rate: dict[Measure, float] = {
        "tokens_per_s_per_gpu": tokens / num_gpus,
        "samples_per_s": float(global_batch_size),
    }
    values = np.array([step.value for step in kept])
    assert run.line is not None  # _of_batch refuses a log without step lines
    times = per_rate[run.line.measure] / values if run.line.measure in per_rate else values
    median = float(np.median(times))
    spread = float(1.4826 * np.median(np.abs(times - median)) / median)
    rounding = max(step.resolution for step in kept) / np.sqrt(3.0)
    return Steady(
        step_time_s=median,
        spread_fraction=spread,
        uncertainty_fraction=float(np.hypot(1.2533 * spread / np.sqrt(len(times)), rounding)),
        num_lines=len(kept),
        first_iteration=kept[0].iteration,
        last_iteration=kept[-1].iteration,
        left_out=(*warm_up, *left_out),
    )


def _of_batch(run: RunLog, batch: int) -> tuple[Sequence[Step], tuple[str, ...]]:
    """The lines with the plan's batch: a run may begin with smaller ones."""
    if not run.steps:
        raise InputError(f"{run.name}: holds no step line")
    kept = [step for step in run.steps if step.batch in (None, batch)]
    others = Counter(step.batch for step in run.steps if step.batch not in (None, batch))
    if not kept:
        got = ", ".join(str(other) for other in others)
        raise InputError(f"{run.name}: its global batch is {got}, the plan's is {batch}")
    number = sum(others.values())
    return kept, (f"{_counted(number)} of another global batch",) if number else ()


def _without_warm_up(steps: Sequence[Step]) -> tuple[Sequence[Step], tuple[str, ...]]:
    """The lines behind the first iterations, or behind the first line where few are left."""
    until = steps[0].iteration + WARM_UP_ITERATIONS - 1
    later = [step for step in steps[1:] if step.iteration > until]
    if len(later) < FEWEST_LINES:
        later, until = list(steps[1:]), steps[0].iteration
    number = len(steps) - len(later)
    return later, (f"{_counted(number)} of warm-up (iterations to {until})",)


def _counted(number: int) -> str:
    return f"{number:,} line{'s' if number > 1 else ''}"


def check_sizes(run: RunLog, wanted: dict[str, int]) -> None:
    """InputError where the log tells of another division of the GPUs than the plan."""
    for name, size in run.sizes.items():
        if wanted.get(name, size) != size:
            raise InputError(f"{run.name}: was written with {name} {size}, the plan has {wanted[name]}")
