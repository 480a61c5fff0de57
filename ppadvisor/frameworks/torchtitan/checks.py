"""What a check of torchtitan's is here: a function from a job to what is wrong, with its place in the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppadvisor.frameworks.configuration import Broken, Outcome
from ppadvisor.frameworks.torchtitan.job import Job


@dataclass(frozen=True)
class Check:
    """One rule."""

    rule: str
    names: tuple[str, ...]
    """The options to change, the likeliest first; the first that the file gives is where it stands."""
    source: str
    """Place in torchtitan's source, or in torch's where it says so."""
    problem: Callable[[Job], str | None]
    """What is wrong, None where nothing is or where the numbers do not follow."""
    outcome: Outcome = Outcome.REJECTED

    def broken(self, job: Job) -> Broken | None:
        """The rule with options and line where the job breaks it."""
        message = self.problem(job)
        if not message:
            return None
        lines = (job.line(name) for name in self.names)
        line = next((line for line in lines if line is not None), None)
        return Broken(self.rule, self.outcome, message, self.names, line, self.source)
