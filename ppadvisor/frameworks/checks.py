"""A check of a trainer: a function from a run to what is wrong, with its place in the trainer's source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from ppadvisor.frameworks.configuration import Broken, Outcome


class Said(Protocol):
    """A run as its checks are told of it."""

    CHECKS_IN: ClassVar[str]
    """File of the trainer that is meant where a check's source has lines alone."""

    def line(self, name: str) -> int | None:
        """Where an option stands, None where it is a default."""

    def option(self, name: str) -> str:
        """An option as the user writes it."""


RunT = TypeVar("RunT", bound=Said)


class Told(NamedTuple):
    """What is wrong, where it is about some options of a check alone."""

    message: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Check(Generic[RunT]):
    """One rule."""

    rule: str
    names: tuple[str, ...]
    """The options to change, the likeliest first; the first that the file gives is where it stands."""
    source: str
    """Place in the trainer's source."""
    problem: Callable[[RunT], str | Told | None]
    """What is wrong, None where nothing is or where the numbers do not follow."""
    outcome: Outcome = Outcome.REJECTED

    def broken(self, run: RunT) -> Broken | None:
        """The rule with options and line where the run breaks it."""
        found = self.problem(run)
        if not found:
            return None
        message, names = found if isinstance(found, Told) else (found, self.names)
        line = next((line for name in names if (line := run.line(name)) is not None), None)
        source = f"{run.CHECKS_IN}:{self.source}" if self.source[0].isdigit() else self.source
        return Broken(self.rule, self.outcome, message, tuple(map(run.option, names)), line, source)
