"""The commands of a script, each with what stands in it.

Source: Bash Reference Manual 5.2, 3.2 (pipelines, lists, compound commands, functions).
"""

from __future__ import annotations

from dataclasses import dataclass

from ppadvisor.frameworks.shell.tokens import ArrayToken, Operator, Word, WordToken


@dataclass(frozen=True)
class Simple:
    """Assignments and words."""

    tokens: tuple[WordToken | ArrayToken, ...]
    line: int


@dataclass(frozen=True)
class Condition:
    """`[[ ... ]]`."""

    items: tuple[WordToken | Operator, ...]
    line: int


@dataclass(frozen=True)
class Calculation:
    """`(( ... ))`."""

    text: str
    word: Word
    line: int


@dataclass(frozen=True)
class Group:
    """`{ ...; }`, or `( ... )` in a shell of its own."""

    body: Commands
    line: int
    subshell: bool


@dataclass(frozen=True)
class If:
    """Conditions with what runs where they hold, and what runs where none does."""

    branches: tuple[tuple[Commands, Commands], ...]
    otherwise: Commands
    line: int


@dataclass(frozen=True)
class Arm:
    """A branch of `case`."""

    patterns: tuple[Word, ...]
    body: Commands
    ending: str
    """`;;`, `;&` (the next body runs too) or `;;&` (the next patterns are tried too)."""


@dataclass(frozen=True)
class Case:
    """`case WORD in ... esac`."""

    word: Word
    arms: tuple[Arm, ...]
    line: int


@dataclass(frozen=True)
class Loop:
    """`for`, `select`, `while`, `until`."""

    kind: str
    body: Commands
    line: int
    name: str = ""
    """Of the variable that `for` and `select` set."""
    condition: Commands = ()
    """Of `while` and `until`."""
    header: Calculation | None = None
    """Of `for ((...))`."""
    words: tuple[WordToken, ...] | None = None
    """Behind `in`; None where there is no `in`, which stands for the arguments."""


@dataclass(frozen=True)
class Function:
    """`name() ...`."""

    name: str
    body: Command
    line: int


Command = Simple | Condition | Calculation | Group | If | Case | Loop | Function


@dataclass(frozen=True)
class Pipeline:
    """Commands joined by `|`."""

    commands: tuple[Command, ...]
    negated: bool
    line: int


@dataclass(frozen=True)
class AndOr:
    """Pipelines joined by `&&` and `||`: (what stands in front, the pipeline)."""

    pipelines: tuple[tuple[str, Pipeline], ...]
    background: bool


Commands = tuple[AndOr, ...]
