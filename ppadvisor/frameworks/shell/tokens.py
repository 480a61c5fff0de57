"""What a shell script consists of: words with their quoted and expanded parts, arrays, operators; each with its line.

Source: POSIX.1-2024, volume 3, 2.2 (quoting), 2.3 (tokens), 2.6 (expansions); arrays, [[ ]] and (( )) are bash's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """Characters that stand for themselves."""

    text: str
    line: int
    quoted: bool


@dataclass(frozen=True)
class Parameter:
    """`$NAME`, `${NAME:-word}`, `${NAME[@]}`, `${NAME[2]}`, `${#NAME[@]}`."""

    name: str
    line: int
    quoted: bool
    every: str = ""
    """`@` or `*`: all elements of an array."""
    operator: str = ""
    """`-`, `=`, `+`, `?`, each also behind a colon."""
    argument: Word = ()
    index: int = 0
    """Which element of an array."""
    counted: bool = False
    """Whether the number of elements is meant."""


@dataclass(frozen=True)
class Arithmetic:
    """`$(( ... ))`: the text, and the word that it is after expansion."""

    text: str
    line: int
    quoted: bool
    word: Word = ()


@dataclass(frozen=True)
class Unknown:
    """What only a shell could say: a command's output, a cut or replaced value."""

    text: str
    line: int
    quoted: bool


Part = Text | Parameter | Arithmetic | Unknown
Word = tuple[Part, ...]


@dataclass(frozen=True)
class WordToken:
    """A word."""

    word: Word
    line: int

    @property
    def plain(self) -> str | None:
        """The word where nothing in it is quoted or expanded: only then it can be a keyword."""
        if all(isinstance(part, Text) and not part.quoted for part in self.word):
            return "".join(part.text for part in self.word if isinstance(part, Text))
        return None


@dataclass(frozen=True)
class ArrayToken:
    """`NAME=( ... )` or `NAME+=( ... )`."""

    name: str
    append: bool
    words: tuple[Word, ...]
    line: int


@dataclass(frozen=True)
class Operator:
    """A separator: newline, `;`, `&&`, `||`, `|`, `&`, `(`, `)`, `;;`; in `[[ ]]` also `<` and `>`."""

    text: str
    line: int


@dataclass(frozen=True)
class ConditionToken:
    """`[[ ... ]]`."""

    items: tuple[WordToken | Operator, ...]
    line: int


@dataclass(frozen=True)
class ArithmeticToken:
    """`(( ... ))`."""

    text: str
    word: Word
    line: int


Token = WordToken | ArrayToken | Operator | ConditionToken | ArithmeticToken
