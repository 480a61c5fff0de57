"""A script read from top to bottom: assignments are kept, conditions decided where the file decides, calls collected.

The file is read as if it ran in an environment that sets nothing but what `--define` says. Where a condition, a loop or
a function leaves open whether a line runs, what it assigns is unknown afterwards and what it calls is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ppadvisor.frameworks.shell.expand import split_again
from ppadvisor.frameworks.shell.variables import Field, Piece, Variables

MOST_NAMES = 12
"""In one note."""
PRINTING = ("echo", "printf", ":", "true", "logger", "cat", "tee")
"""Commands that print their words or their files, and start nothing."""


@dataclass(frozen=True)
class Note:
    """Something of the file that was not taken into account, or was taken for granted (`assumed`)."""

    line: int
    text: str
    kind: str = "not_understood"


@dataclass(frozen=True)
class Call:
    """A command with its words and what the environment holds for it."""

    words: tuple[Field, ...]
    line: int
    certain: bool
    """False where a condition, a loop or a function that is not known decides whether it runs."""
    environment: Mapping[str, str]
    unreached: str = ""
    """Why it never runs: the script ends in front of it."""
    launcher: tuple[Field, ...] = ()
    """What stands in front of the shell that it runs in: `srun -n 8` of `srun -n 8 bash -c "..."`."""
    uncalled: str = ""
    """The function that it stands in, where nothing in the file calls that."""

    @property
    def prints(self) -> bool:
        """Whether its words are printed, not run."""
        return self.words[0].text in PRINTING


@dataclass
class Script:
    """What was found in a script."""

    variables: Variables
    calls: list[Call] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    ended: str = ""
    """Where and why it surely ends in front of its last line."""

    def text_of(self, name: str) -> list[Field]:
        """A variable as the words it makes where it stands without quotes."""
        return [field for element in self.variables.values.get(name, ()) for field in split_again(element)]

    def add_note(self, line: int, text: str) -> None:
        """Keep a note, once."""
        note = Note(line, text)
        if note not in self.notes:
            self.notes.append(note)

    def assumed(self, words: Iterable[Field]) -> tuple[Note, ...]:
        """One note for all variables that were taken as not set: by conditions, and by the defaults in these words."""
        required = tuple(
            Note(line, f"not set in the file, and the script ends without it: {name}; --define {name}=VALUE sets it")
            for name, line in self.variables.required.items()
        )
        names = dict(self.variables.defaulted)
        for word in words:
            for name in word.assumed:
                names.setdefault(name, word.line)
        if not names:
            return required
        shown = ", ".join(list(names)[:MOST_NAMES]) + (f", ... ({len(names)})" if len(names) > MOST_NAMES else "")
        text = f"not set in the file, and taken as not set: {shown}; --define NAME=VALUE sets one"
        return (*required, Note(min(names.values()), text, "assumed"))


def read_script(text: str, file: str, defined: Mapping[str, str] | None = None) -> Script:
    """Read a script; `defined` are variables of its environment. InputError for what cannot be read."""
    from ppadvisor.frameworks.shell.interpreter import Interpreter
    from ppadvisor.frameworks.shell.lexer import tokenize
    from ppadvisor.frameworks.shell.parser import parse_commands

    variables = Variables(file)
    for name, value in (defined or {}).items():
        variables.values[name] = ((Piece(value, 1),),)
    variables.given = tuple(defined or {})
    variables.defined = set(variables.given)
    variables.exported = frozenset(variables.given)
    script = Script(variables)
    Interpreter(script).run_script(parse_commands(tokenize(text, file), file))
    return script
