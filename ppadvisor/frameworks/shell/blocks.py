"""Which lines of a script run: the nesting of if, case, loops, functions and groups, each true, false or not known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ppadvisor.frameworks.shell.conditions import Truth, both, either, matches, negated
from ppadvisor.frameworks.shell.expand import Field
from ppadvisor.frameworks.shell.tokens import Token, Word, WordToken

LOOPS = ("for", "while", "until", "select")
HEADS = ("condition", "pattern", "loop head")
"""Phases in which a statement decides what runs."""


@dataclass
class Block:
    """One open if, case, loop, function or group."""

    kind: str
    phase: str
    running: Truth = True
    done: Truth = False
    """Whether a branch in front of this one ran."""
    truth: Truth = None
    """Of the condition, as far as it was read."""
    value: Field = field(default_factory=lambda: Field("", 0))
    """What a `case` looks at."""


class Blocks:
    """The open blocks, outermost first."""

    def __init__(self) -> None:
        self.open: list[Block] = []
        self.function = False
        self.names: list[str] = []
        self.pending: Truth = True

    def running(self) -> Truth:
        """Whether a statement here runs."""
        result: Truth = True
        for block in self.open:
            result = both(result, block.running)
        return result

    def skipping(self) -> bool:
        """Whether it does not."""
        return self.running() is False

    def loop_names(self) -> list[str]:
        """Variables that a loop has just begun to set."""
        names, self.names = self.names, []
        return names

    def joined(self, joined_by: str, before: Truth) -> None:
        """Take whether the next statement runs as far as && and || say."""
        self.pending = before if joined_by == "&&" else negated(before) if joined_by == "||" else True

    def gate(self) -> Truth:
        """Whether a statement runs as far as && and || say, and the blocks around."""
        return both(self.running(), self.pending)

    def condition(self, joined_by: str, result: Truth) -> None:
        """Take the result of a statement into the condition that is being read."""
        if self.open and self.open[-1].phase == "condition":
            block = self.open[-1]
            join = {"&&": both, "||": either}.get(joined_by)
            block.truth = join(block.truth, result) if join else result

    def operator(self, text: str) -> None:
        """Brackets and the ends of case branches; other brackets only group."""
        block = self.open[-1] if self.open else None
        if text == ")" and block and block.phase == "pattern":
            block.phase, block.running = "body", both(negated(block.done), block.truth)
            block.done = either(block.done, block.truth)
        elif text.startswith(";") and block and block.kind == "case":
            block.phase, block.truth, block.running = "pattern", False, True
        elif text == "(":
            self.function = True  # of `name ( )`; a subshell's bracket is forgotten with the next word

    def keyword(self, tokens: list[Token], expand: Callable[[Word], Field]) -> list[Token]:
        """Take keywords off the front; what is left is a statement, or nothing."""
        while tokens:
            first = tokens[0]
            name = first.plain if isinstance(first, WordToken) else None
            if self.open and self.open[-1].phase == "pattern" and name != "esac":
                self._pattern(tokens, expand)
                return []
            if name == "case" or name in LOOPS or name == "function":
                self._opens(name, tokens, expand)
                return [] if name in ("case", "for", "select", "function") else tokens[1:]
            if name is None or not self._structure(name):
                break
            tokens = tokens[1:]
        self.function = self.function and not tokens
        return tokens

    def _opens(self, name: str, tokens: list[Token], expand: Callable[[Word], Field]) -> None:
        words = [token for token in tokens[1:] if isinstance(token, WordToken)]
        if name == "function":
            self.function = True
        elif name == "case":
            value = expand(words[0].word) if words else Field("", 0)
            self.open.append(Block("case", "pattern", truth=False, value=value))
        else:
            self.open.append(Block("loop", "loop head"))
            if name in ("for", "select") and words and words[0].plain:
                self.names.append(words[0].plain)

    def _pattern(self, tokens: list[Token], expand: Callable[[Word], Field]) -> None:
        block = self.open[-1]
        for token in tokens:
            if isinstance(token, WordToken):
                block.truth = either(block.truth, matches(expand(token.word), block.value))

    def _structure(self, name: str) -> bool:
        """Whether the word is a keyword, then done."""
        if name == "if":
            self.open.append(Block("if", "condition"))
        elif name == "{":
            self.open.append(Block("group", "body", running=None if self.function else self.pending))
            self.function, self.pending = False, True
        elif name in ("fi", "done", "esac", "}"):
            if self.open:
                self.open.pop()
        elif name in ("then", "elif", "else", "do"):
            self._branch(name)
        else:
            return False
        return True

    def _branch(self, name: str) -> None:
        if not self.open:
            return
        block = self.open[-1]
        if name == "do":
            block.phase, block.running = "body", None
        elif name == "then":
            block.phase, block.running = "body", both(negated(block.done), block.truth)
            block.done = either(block.done, block.truth)
        elif name == "elif":
            block.phase, block.running, block.truth = "condition", negated(block.done), None
        else:
            block.running = negated(block.done)
