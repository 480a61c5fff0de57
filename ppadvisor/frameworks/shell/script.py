"""A script read from top to bottom: assignments are kept, conditions decided where the file decides, calls collected.

The file is read as if it ran in an environment that sets nothing but what `--define` says. Where a condition, a loop or
a function leaves open whether a line runs, what it assigns is unknown afterwards and what it calls is marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.blocks import Blocks
from ppadvisor.frameworks.shell.conditions import Truth, both, negated, test
from ppadvisor.frameworks.shell.expand import (
    NOT_SET,
    Field,
    Piece,
    Pieces,
    Variables,
    as_field,
    as_fields,
    as_scalar,
    split_again,
)
from ppadvisor.frameworks.shell.lexer import tokenize
from ppadvisor.frameworks.shell.tokens import ArrayToken, Operator, Text, Token, Word, WordToken

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
MAX_BLOCKS = 100
"""Open if, case, loops, functions and groups; scripts have three or four."""
DECLARING = ("export", "declare", "local", "readonly", "typeset")
BEFORE_A_COMMAND = ("exec", "eval", "time", "nohup", "env", "sudo")


@dataclass(frozen=True)
class Note:
    """Something of the file that was not taken into account."""

    line: int
    text: str


@dataclass(frozen=True)
class Call:
    """A command with its words and what the environment holds for it."""

    words: tuple[Field, ...]
    line: int
    certain: bool
    """False where a condition, a loop or a function that is not known decides whether it runs."""
    environment: Mapping[str, str]


@dataclass
class Script:
    """What was found in a script."""

    variables: Variables
    calls: list[Call] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def text_of(self, name: str) -> list[Field]:
        """A variable as the words it makes where it stands without quotes."""
        return [field for element in self.variables.values.get(name, ()) for field in split_again(element)]


Statement = tuple[list[Token], str]
"""Tokens of a simple command and the operator in front of it."""


def read_script(text: str, file: str, defined: Mapping[str, str] | None = None) -> Script:
    """Read a script; `defined` are variables of its environment. InputError for what cannot be read."""
    script = Script(Variables(file))
    for name, value in (defined or {}).items():
        script.variables.values[name] = ((Piece(value, 1),),)
    reader = _Reader(script)
    for tokens, joined_by in _statements(tokenize(text, file)):
        reader.statement(tokens, joined_by)
    return script


def _statements(tokens: list[Token]) -> Iterator[Statement]:
    current: list[Token] = []
    joined_by = "\n"
    for token in tokens:
        if isinstance(token, Operator):
            if current or token.text in ("(", ")", ";;", ";&", ";;&"):
                yield current, joined_by
            # a line may go on behind && and ||
            goes_on = token.text == "\n" and not current and joined_by in ("&&", "||")
            joined_by = joined_by if goes_on else token.text
            if token.text in ("(", ")", ";;", ";&", ";;&"):
                yield [token], token.text
            current = []
        else:
            current.append(token)
    if current:
        yield current, joined_by


class _Reader:
    """Runs statements against the variables, without running anything."""

    def __init__(self, script: Script) -> None:
        self.script, self.variables = script, script.variables
        self.blocks = Blocks()
        self.result: Truth = True
        self.exported: set[str] = set(self.variables.values)

    def statement(self, tokens: list[Token], joined_by: str) -> None:
        """One simple command, or a keyword and what follows it."""
        if not tokens:
            return
        if isinstance(tokens[0], Operator):
            self.blocks.operator(tokens[0].text)
            return
        self.blocks.joined(joined_by, self.result)
        first = tokens[0]
        tokens = self.blocks.keyword(tokens, self._fields)
        if len(self.blocks.open) > MAX_BLOCKS:
            raise InputError(f"{self.variables.file}:{first.line}: more than {MAX_BLOCKS} blocks in each other")
        for name in self.blocks.loop_names():
            self._unknown(name, tokens[0].line if tokens else 0, "set by a loop")
        if not tokens or self.blocks.skipping():
            return
        self.result = self._run(tokens, self.blocks.gate())
        self.blocks.condition(joined_by, self.result)

    def _fields(self, word: Word) -> Field:
        """A word as one field, for the head of a `case`."""
        pieces = as_scalar(word, self.variables)
        return as_field(pieces) if pieces else Field("", 0)

    def _run(self, tokens: list[Token], certain: Truth) -> Truth:
        """The truth of what ran."""
        if certain is False:
            return None
        first = tokens[0]
        declares = isinstance(first, WordToken) and first.plain in DECLARING
        assigned: list[str] = []
        rest = tokens[1:] if declares else tokens
        while rest and self._assigned_by(rest[0], assigned, certain):
            rest = rest[1:]
        if declares:
            for token in rest:
                self._assigned_by(token, assigned, certain)
            self.exported |= set(assigned)
            return True
        if not rest:
            return True
        return self._call(rest, certain, assigned)

    def _call(self, tokens: list[Token], certain: Truth, assigned: list[str]) -> Truth:
        in_test = isinstance(tokens[0], WordToken) and tokens[0].plain in ("[", "test")
        words = [
            as_field(pieces)
            for token in tokens
            if isinstance(token, WordToken)
            for pieces in as_fields(token.word, self.variables)
            # without quotes a variable that is not set is no word at all, not an empty one
            if not (in_test and len(pieces) == 1 and pieces[0].unknown.endswith(NOT_SET))
        ]
        negates = False
        while words and words[0].text in ("!", *BEFORE_A_COMMAND):
            negates ^= words[0].text == "!"
            words = words[1:]
        if not words:
            return None
        if words[0].text in ("[", "[[", "test"):
            return negated(test(words)) if negates else test(words)
        if words[0].text in ("unset", "source", "."):
            return self._builtin(words)
        names = sorted(self.exported | set(assigned))
        environment = {name: value for name in names for value in [self.variables.scalar(name)] if value is not None}
        self.script.calls.append(Call(tuple(words), tokens[0].line, certain is True, environment))
        return None

    def _builtin(self, words: list[Field]) -> Truth:
        """`unset` and `source`."""
        if words[0].text == "unset":
            for word in words[1:]:
                self.variables.values.pop(word.text, None)
            return True
        target = words[1].text if len(words) > 1 and not words[1].unknown else "a file"
        self.script.notes.append(Note(words[0].line, f"{target} is not read ({words[0].text})"))
        return None

    def _assigned_by(self, token: Token, assigned: list[str], certain: Truth) -> bool:
        """Whether the token is an assignment, then done."""
        if isinstance(token, ArrayToken):
            elements = tuple(pieces for word in token.words for pieces in as_fields(word, self.variables))
            before = self.variables.values.get(token.name, ()) if token.append else ()
            self._assign(token.name, before, before + elements, token.line, certain)
            assigned.append(token.name)
            return True
        head = token.word[0] if isinstance(token, WordToken) and token.word else None
        match = ASSIGNMENT.match(head.text) if isinstance(head, Text) and not head.quoted else None
        if not isinstance(token, WordToken) or not isinstance(head, Text) or not match:
            return False
        value = as_scalar((Text(head.text[match.end() :], head.line, quoted=False), *token.word[1:]), self.variables)
        before = self.variables.values.get(match[1], ()) if match[2] else ()
        new: tuple[Pieces, ...] = ((before[0] if before else ()) + value,)
        self._assign(match[1], before, new, token.line, certain)
        assigned.append(match[1])
        return True

    def _assign(
        self, name: str, before: tuple[Pieces, ...], new: tuple[Pieces, ...], line: int, certain: Truth
    ) -> None:
        if both(self.blocks.running(), certain) is True:
            self.variables.values[name] = new
        elif before:
            text = f"what is added to {name} depends on a condition that is not known here; it is left out"
            self.script.notes.append(Note(line, text))
        else:
            self._unknown(name, line, "set under a condition that is not known here")

    def _unknown(self, name: str, line: int, why: str) -> None:
        reason = f"${name} is {why} (line {line})"
        self.variables.values[name] = ((Piece("", line, reason),),)
