"""Simple commands: assignments, words that are called, functions of the script, `eval`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.assignments import Assignment, assign, assignment_of
from ppadvisor.frameworks.shell.builtins import BUILTINS
from ppadvisor.frameworks.shell.children import JOBS, Child, child_of, hands_on
from ppadvisor.frameworks.shell.commands import Command, Commands, Simple
from ppadvisor.frameworks.shell.conditions import Truth, both, test
from ppadvisor.frameworks.shell.declarations import DECLARING, declare, expanded_tokens
from ppadvisor.frameworks.shell.evaluated import commands_of, plain_words, with_names
from ppadvisor.frameworks.shell.expand import as_fields
from ppadvisor.frameworks.shell.machine import Machine
from ppadvisor.frameworks.shell.prefixes import without_prefixes
from ppadvisor.frameworks.shell.script import Call
from ppadvisor.frameworks.shell.tokens import ArrayToken, Unknown, WordToken
from ppadvisor.frameworks.shell.variables import Field, Piece, Pieces, as_field, as_piece

NAMES = re.compile(r"[A-Za-z_]\w*(\+?=.*)?", re.S | re.ASCII)
"""Words that a command of the shell could set a variable by."""


class Calls(Machine, ABC):
    """Runs simple commands; `runs` says of each whether it does: True, or None where that is open."""

    @abstractmethod
    def run(self, commands: Commands, runs: Truth) -> Truth:
        """Commands one behind the other."""

    @abstractmethod
    def command(self, command: Command, runs: Truth) -> Truth:
        """Any command."""

    def simple(self, command: Simple, runs: Truth) -> Truth:
        tokens = list(command.tokens)
        prefix: list[Assignment] = []
        while tokens and (one := assignment_of(tokens[0])):
            prefix.append(one)
            tokens = tokens[1:]
        first = tokens[0] if tokens else None
        if isinstance(first, WordToken) and first.plain in DECLARING:
            return declare(self, first.plain, expanded_tokens(tokens[1:], self.variables), runs)
        pieces = [found for token in tokens for found in self._fields(token)]
        words = [as_field(one) for one in pieces]
        if not words or all(word.loose for word in words):
            # where the words come to nothing, what stands in front of them stays
            self.assign_all(prefix, runs if not words else None)
        if not words:
            executed = any(isinstance(part, Unknown) for one in prefix for word in one.words for part in word)
            return None if executed or tokens else True
        if isinstance(first, WordToken) and first.plain in ("[", "test"):
            return self._test(words, pieces)
        with self.temporarily([] if all(word.loose for word in words) else prefix, runs):
            return self._called(words, pieces, command.line, runs)

    def _fields(self, token: WordToken | ArrayToken) -> list[Pieces]:
        return as_fields(token.word, self.variables) if isinstance(token, WordToken) else []

    def _test(self, words: list[Field], pieces: list[Pieces]) -> Truth:
        """Without quotes a variable that is not set is no word at all, not an empty one."""
        kept = [word for word, one in zip(words, pieces, strict=True) if not (len(one) == 1 and _vanishes(one[0]))]
        truth = test(kept, self.variables)
        if truth is not None:
            gone = [name for word in words if word not in kept for name in word.unset]
            self.variables.assume_unset(gone, words[0].line)
        return truth

    def _called(self, words: list[Field], pieces: list[Pieces], line: int, runs: Truth) -> Truth:
        words, before, environment = without_prefixes(words)
        if not words or before.asks:
            return None
        inner = self._own(words)
        name = "" if before.outside or inner[0].unknown else inner[0].text
        if self._is_own(name, functions=not before.inside):
            self.variables.assume_unset([one for word in words[: -len(inner)] for one in word.unset], line)
            return self._own_called(name, inner, pieces[-len(inner) :], line, runs, functions=not before.inside)
        child = child_of(words)
        if child is not None:
            inherits = not before.cleared and hands_on(words[: child.at])
            self._child(child, words, pieces[-len(words) :], runs, inherits, environment)
        else:
            if words[0].text in JOBS:
                self.note(line, f"what {words[0].text} starts is not read, and calls in it are not seen")
            held = {name: value for name, value in environment.items() if value} if before.cleared else {}
            self.record(words, line, runs, held if before.cleared else {**self.environment(), **environment})
        if before.replaces:
            self.end(line, "exec", runs)
        return {"true": True, ":": True, "false": False}.get(name)

    def _own(self, words: list[Field]) -> list[Field]:
        """The words without those in front that are none, since their variables are not set."""
        while len(words) > 1 and words[0].unset and words[0].loose and not words[0].text:
            words = words[1:]
        return words

    def _child(
        self, child: Child, words: list[Field], pieces: list[Pieces], runs: Truth, inherits: bool, added: dict[str, str]
    ) -> None:
        """The text of `bash -c` in a shell of its own, where all of it is known; told otherwise."""
        line, shell, launcher = words[child.at].line, words[child.at].text, words[: child.at]
        text = None if child.text is None else words[child.text]
        plain = None if child.text is None else plain_words(pieces[child.text : child.text + 1])
        named = None if child.text is None else with_names(pieces[child.text])
        if text is None or (named is None and text.unknown and plain is None):
            what = f"runs is not known here ({text.unknown}); it" if text else "reads from its input"
            self.note(line, f"what {shell} {what} is not read, and calls in it are not seen")
            return
        if not inherits and launcher:
            self.note(line, f"which variables {launcher[0].text} hands on is not known here; none is taken")
        behind = [as_piece(word) for word in words[(child.text or 0) + 1 :]] or [Piece(shell, line)]
        with self.child(inherits, added, child.flags, launcher), self.once_more(line):
            self.variables.values["0"] = ((behind[0],),)
            self.variables.positional, self.variables.shifted = tuple((piece,) for piece in behind[1:]), 0
            if plain is None:
                told, unknown = named or (text.text, {})
                self.variables.values |= {name: ((piece,),) for name, piece in unknown.items()}
                self.variables.exported |= unknown.keys()
                self.run(commands_of(told, self.variables.file, text.line), runs)
            elif plain:
                self._called(plain, [(as_piece(word),) for word in plain], line, runs)

    def _is_own(self, name: str, *, functions: bool) -> bool:
        """Whether this is a command of the shell or the script that may change its variables."""
        return (functions and name in self.functions) or name in BUILTINS or name in ("eval", *DECLARING)

    def _own_called(
        self, name: str, words: list[Field], pieces: list[Pieces], line: int, runs: Truth, *, functions: bool
    ) -> Truth:
        if functions and name in self.functions:
            return self._function_called(name, words, runs)
        if name in BUILTINS:
            return BUILTINS[name](self, words, runs)
        if name == "eval":
            return self._eval(words, pieces, line, runs)
        return declare(self, name, words[1:], runs)

    def _function_called(self, name: str, words: Sequence[Field], runs: Truth) -> Truth:
        function, sure = self.functions[name]
        self.called.add(name)
        line = words[0].line
        if name in self.active:
            raise InputError(f"{self.variables.file}:{line}: the function {name} calls itself, which is not followed")
        before, alive = (self.variables.positional, self.variables.shifted), self.alive
        self.variables.positional = tuple((as_piece(word),) for word in words[1:])
        self.variables.shifted, self.alive = 0, True
        self.active.append(name)
        self.local.append({})
        truth = self.command(function.body, both(runs, sure))
        truth = truth if self.alive is True else None
        self.forget_local(self.local.pop())
        self.active.pop()
        (self.variables.positional, self.variables.shifted), self.alive = before, alive
        return truth

    def _eval(self, words: Sequence[Field], pieces: Sequence[Pieces], line: int, runs: Truth) -> Truth:
        """The words read again as a command; where they hold nothing but words, each keeps its line."""
        plain = plain_words(pieces[1:])
        if plain is not None:
            return self._called(plain, [(as_piece(word),) for word in plain], line, runs) if plain else True
        if any(word.unknown for word in words[1:]):
            self.note(line, "eval of what is not known here; what it sets or calls is not seen")
            return None
        with self.once_more(line):
            return self.run(commands_of(" ".join(word.text for word in words[1:]), self.variables.file, line), runs)

    def record(self, words: Sequence[Field], line: int, runs: Truth, environment: dict[str, str]) -> None:
        """Keep a command that would be called."""
        if self.silent:
            return
        if words[0].text.startswith("-") and not words[0].unknown:
            text = f"{words[0].text[:40]} stands where a command begins: the line in front of it does not go on"
            self.note(words[0].line, text)
        if words[0].unknown and (self.children or any(NAMES.fullmatch(word.text) for word in words[1:])):
            what = "calls" if self.children else "sets"
            self.note(line, f"the command is not known ({words[0].unknown}); what it {what} is not seen")
        unreached = "" if self.uncalled else self.ended
        self.script.calls.append(
            Call(tuple(words), line, runs is True, environment, unreached, self.launcher, self.uncalled)
        )

    def assign_all(self, prefix: Sequence[Assignment], runs: Truth) -> None:
        """Do assignments that stand alone."""
        for one in prefix:
            assign(one, self.variables, runs, self.note)
            if "allexport" in self.flags:
                self.variables.exported |= {one.name}

    @contextmanager
    def temporarily(self, prefix: Sequence[Assignment], runs: Truth) -> Iterator[None]:
        """Assignments that hold for one command alone."""
        variables = self.variables
        names = [variables.meant(one.name) for one in prefix]
        before = {name: variables.values.get(name) for name in names if name}
        exported, defined = variables.exported, set(variables.defined)
        for one in prefix:
            assign(one, variables, runs, self.note)
        variables.exported |= set(before)
        yield
        for name, value in before.items():
            if value is None:
                variables.drop(name)
            else:
                variables.put(name, value)
        if prefix:
            variables.exported, variables.defined = exported, defined


def _vanishes(piece: Piece) -> bool:
    return bool(piece.unset) and piece.loose
