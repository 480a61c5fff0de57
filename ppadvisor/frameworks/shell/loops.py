"""Loops: run round by round where every round is known, else read once with what they set unknown.

Source: Bash Reference Manual 5.2, 3.2.5.1.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from ppadvisor.frameworks.shell.arithmetic import calculate, not_calculated
from ppadvisor.frameworks.shell.calls import Calls
from ppadvisor.frameworks.shell.commands import Calculation, Condition, Loop, Simple
from ppadvisor.frameworks.shell.conditions import Truth
from ppadvisor.frameworks.shell.expand import as_fields, as_text
from ppadvisor.frameworks.shell.machine import MAX_STEPS
from ppadvisor.frameworks.shell.tokens import Parameter, WordToken
from ppadvisor.frameworks.shell.variables import Piece, Pieces

MAX_ROUNDS = 1_000
"""Of all loops of a script that are run round by round."""
JUMPS = ("break", "continue", "eval")
COUNTING = ("[", "test")
"""Conditions that loops with a counter have; `while true` waits for something else."""
EVERY = (WordToken((Parameter("@", 0, quoted=True, every="@"),), 0),)
"""What `for x` without `in` goes through."""


class Loops(Calls, ABC):
    """Runs loops."""

    def loop(self, loop: Loop, runs: Truth) -> Truth:
        """Round by round as far as it is known; what may follow is read once, with all it sets unknown."""
        if runs is True and self.alive is True and not self.jumping and not self._jumps_in(loop):
            self.last = True
            if self._known_rounds(loop):
                return self.last
        if loop.condition and self._never(loop):
            self.run(loop.condition, runs)
            return True
        return self._unknown_rounds(loop)

    def _jumps_in(self, loop: Loop) -> bool:
        """Whether a loop is left, or a round of it, by a command; looked up once."""
        if id(loop) not in self.looked_at:
            self.looked_at[id(loop)] = (loop, jumps(loop))
        return self.looked_at[id(loop)][1]

    def _known_rounds(self, loop: Loop) -> bool:
        """Run a loop; False where a round came that is not known."""
        if loop.header is not None:
            return self._by_arithmetic(loop, loop.header)
        if loop.condition:
            return self._by_condition(loop)
        words = [pieces for token in (EVERY if loop.words is None else loop.words) for pieces in self._expanded(token)]
        if loop.kind != "for" or self.rounds + len(words) > MAX_ROUNDS or not all(map(_is_plain, words)):
            return False
        fixed = loop.name in self.variables.references or loop.name in self.variables.readonly
        for pieces, _ in zip(words, self._rounds(), strict=False):
            if fixed:
                return False
            self.variables.put(loop.name, (pieces,), loop.line)
            self.last = self.run(loop.body, True)
        return self._goes_on()

    def _expanded(self, token: WordToken) -> list[Pieces]:
        return as_fields(token.word, self.variables)

    def _by_condition(self, loop: Loop) -> bool:
        if not _counts(loop):
            return False
        for _ in self._rounds():
            truth = self._holds(loop)
            if truth is None:
                return False
            if truth is (loop.kind == "until"):
                return True
            self.last = self.run(loop.body, True)
            if self.ended or self.left or self.alive is not True:
                return True
        return False

    def _holds(self, loop: Loop) -> Truth:
        with self.testing():
            return self.run(loop.condition, True)

    def _by_arithmetic(self, loop: Loop, header: Calculation) -> bool:
        if header.text.count(";") != 2 or self._part(header, 0) is None:
            return False
        for _ in self._rounds():
            value = self._part(header, 1)
            if value is None:
                return False
            if value == 0:
                return True
            self.last = self.run(loop.body, True)
            if self.ended or self.left or self.alive is not True:
                return True
            if self._part(header, 2) is None:
                return False
        return False

    def _rounds(self) -> Iterator[None]:
        while self._goes_on():
            self.rounds += 1
            yield

    def _goes_on(self) -> bool:
        """Whether there was no more to run than any script needs."""
        return self.rounds < MAX_ROUNDS and self.steps < MAX_STEPS // 2

    def _part(self, header: Calculation, at: int) -> int | None:
        """The value of one of the three expressions, after what it assigns; an empty one holds."""
        expanded = as_text(header.word, self.variables)
        parts = expanded.text.split(";")
        if expanded.unknown or len(parts) != 3:
            return None
        if not parts[at].strip():
            return 1
        result = calculate(parts[at], self.variables.number_text)
        if self.variables.readonly & result.assigned.keys():
            return None
        for name, value in result.assigned.items():
            known = ((Piece(str(value), header.line),),)
            self.variables.put(name, known, header.line)
        return result.value

    def _unknown_rounds(self, loop: Loop) -> Truth:
        # what the body sets is not known in its next round, so it is read once for that alone
        for first in (False,) if self.silent else (True, False):
            self.silent += first
            for name in [loop.name] if loop.name else []:
                self.variables.unknown(name, loop.line, "set by a loop")
            for name in not_calculated(loop.header.text).assigned if loop.header else ():
                self.variables.unknown(name, loop.line, "set by a loop")
            with self.testing():
                self.run(loop.condition, None)
            self.run(loop.body, None)
            self.silent -= first
        return None

    def _never(self, loop: Loop) -> bool:
        """Whether the condition of a loop does not hold when it is first asked."""
        self.silent += 1
        with self.subshell(), self.testing():
            truth = self.run(loop.condition, True)
        self.silent -= 1
        return truth is (loop.kind == "until")


def _is_plain(pieces: Pieces) -> bool:
    """Whether a word is known, and stands for no names of files."""
    return not any(piece.unknown or set(piece.text) & set("*?[") for piece in pieces)


def _counts(loop: Loop) -> bool:
    """Whether a loop asks for a number or a text, once in each round."""
    pipelines = [pipeline for one in loop.condition for _, pipeline in one.pipelines]
    if len(pipelines) != 1 or len(pipelines[0].commands) != 1:
        return False
    command = pipelines[0].commands[0]
    if isinstance(command, Simple):
        first = command.tokens[0] if command.tokens else None
        return isinstance(first, WordToken) and first.plain in COUNTING
    return isinstance(command, Condition | Calculation)


def jumps(part: object) -> bool:
    """Whether `break` or `continue` stands anywhere in these commands, or may be put together there."""
    if isinstance(part, Simple):
        return any(isinstance(token, WordToken) and token.plain in JUMPS for token in part.tokens)
    if isinstance(part, Sequence) and not isinstance(part, str):
        return any(map(jumps, part))
    return is_dataclass(part) and any(jumps(getattr(part, one.name)) for one in fields(part))
