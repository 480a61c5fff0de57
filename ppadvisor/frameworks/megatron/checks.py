"""What a check of Megatron's is here: a function from a run to what is wrong, with its place in Megatron's source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppadvisor.frameworks.configuration import Broken, Outcome
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.run import Run


@dataclass(frozen=True)
class Check:
    """One rule."""

    rule: str
    dests: tuple[str, ...]
    """The options to change, the likeliest first; the first that the file gives is where it stands."""
    source: str
    """Lines of arguments.py, or of another file where it is named."""
    problem: Callable[[Run], str | None]
    """What is wrong, None where nothing is or where the numbers do not follow."""
    outcome: Outcome = Outcome.REJECTED

    def broken(self, run: Run) -> Broken | None:
        """The rule with flags and line where the run breaks it."""
        message = self.problem(run)
        if not message:
            return None
        given = [dest for dest in self.dests if dest in run.arguments.given]
        line = run.arguments.line(given[0]) if given else None
        flags = tuple(flag_of(dest) for dest in self.dests)
        source = f"arguments.py:{self.source}" if self.source[0].isdigit() else self.source
        return Broken(self.rule, self.outcome, message, flags, line, source)
