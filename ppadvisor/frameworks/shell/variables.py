"""The variables of a script while it is read, and what is known of each: its text, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ppadvisor.errors import InputError, nearest

MAX_CHARACTERS = 500_000
"""Of all that variables are expanded to; a line that doubles itself a few times reaches any memory."""
BY_THE_SHELL = (
    *("BASH", "BASHOPTS", "BASHPID", "BASH_SOURCE", "BASH_VERSINFO", "BASH_VERSION", "DIRSTACK"),
    *("EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HOME", "HOSTNAME"),
    *("HOSTTYPE", "LANG", "LINENO", "LOGNAME", "MACHTYPE", "OLDPWD", "OPTERR", "OPTIND", "OSTYPE"),
    *("PATH", "PIPESTATUS", "PPID", "PS4", "PWD", "RANDOM", "SECONDS", "SHELL", "SHELLOPTS"),
    *("SHLVL", "SRANDOM", "TERM", "UID", "USER"),
)
"""Variables that are set wherever a shell runs (Bash Reference Manual 5.2, 5.2), or by every login."""
MAX_REFERENCES = 10
"""Names that stand for names."""
IFS = " \t\n"
"""What a shell splits at unless it is told otherwise."""


@dataclass(frozen=True)
class Piece:
    """Text with the line it was written on."""

    text: str
    line: int
    unknown: str = ""
    """Why there is no text."""
    unset: str = ""
    """Where there is none because a variable is not set in the file: its name."""
    loose: bool = False
    """Whether what is not known stands without quotes, and may be no word or many."""
    assumed: tuple[str, ...] = ()
    """Variables whose default this is, since the file does not set them."""


Pieces = tuple[Piece, ...]
Value = tuple[Pieces, ...]
"""Of a variable: one element, of an array any number."""


@dataclass(frozen=True)
class Field:
    """One word of a command as it would be called."""

    text: str
    line: int
    """Where it was written: in an array or a variable, the line there."""
    unknown: str = ""
    """Why the text is not known (it then says what is known of it)."""
    unset: tuple[str, ...] = ()
    """Where nothing but variables that the file does not set is not known: their names."""
    loose: bool = False
    """Whether it may be no word or many."""
    assumed: tuple[str, ...] = ()
    """Variables whose default is in it, since the file does not set them."""


@dataclass(frozen=True)
class Shell:
    """What a subshell gets a copy of."""

    values: dict[str, Value]
    exported: frozenset[str]
    integers: frozenset[str]
    readonly: frozenset[str]
    references: dict[str, str]
    positional: Value | None
    shifted: int
    defined: frozenset[str]


@dataclass
class Variables:
    """The variables of a script."""

    file: str
    values: dict[str, Value] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()
    """Whose text is calculated when it is assigned (`declare -i`)."""
    readonly: frozenset[str] = frozenset()
    references: dict[str, str] = field(default_factory=dict)
    """Names that stand for another (`declare -n`); nothing where it is not known for which."""
    given: tuple[str, ...] = ()
    """Defined by the user."""
    defined: set[str] = field(default_factory=set)
    """By the user, and not assigned by the script so far."""
    overwritten: dict[str, int] = field(default_factory=dict)
    """Defined by the user -> the line on which the script assigns it."""
    read: set[str] = field(default_factory=set)
    """Every name that was asked for while it was defined by the user, or not set."""
    defaulted: dict[str, int] = field(default_factory=dict)
    """Taken as not set by a condition, or by a default that leaves nothing -> the line."""
    required: dict[str, int] = field(default_factory=dict)
    """Not set where the script ends without them (`${NAME:?}`) -> the line."""
    positional: Value | None = None
    """$1, $2, ...; None for those that the script is called with."""
    shifted: int = 0
    """The line on which it became open which argument $1 is."""
    used: int = 0
    caseless: bool | None = False
    """Whether comparing looks at upper and lower case alike (`shopt -s nocasematch`); None where nobody knows."""
    certain: bool = True
    """Whether what is read at the moment surely runs."""

    def get(self, name: str) -> Value | None:
        """The value of a variable, None where it is not set."""
        if name in "@*#" or name.isdigit():
            return self._positional(name)
        if name in self.references:
            name = self.meant(name)
            if not name:
                return ((Piece("", 0, "a name that stands for another (-n) which is not known here"),),)
        if name in self.defined or name not in self.values:
            self.read.add(name)
        if name in BY_THE_SHELL and name not in self.values:
            return ((Piece("", 0, f"${name} is set by the shell or the login"),),)
        return self.values.get(name)

    def _positional(self, name: str) -> Value | None:
        if self.shifted:
            return ((Piece("", self.shifted, f"which argument ${name} is, is not known behind line {self.shifted}"),),)
        if self.positional is None:
            self.read.add(name)
            return self.values.get(name)
        if name == "0":
            return self.values.get(name)
        before = self.positional[: int(name)] if name.isdigit() else self.positional
        if name not in ("@", "*") and any(piece.loose for element in before for piece in element):
            return ((Piece("", 0, f"${name} is not known: an argument in front of it may be several"),),)
        if name == "#":
            return ((Piece(str(len(self.positional)), 0),),)
        return self.positional if not name.isdigit() else self.positional[int(name) - 1 : int(name)] or ((),)

    def put(self, name: str, value: Value, line: int = 0) -> None:
        """Set a variable."""
        name = self.meant(name) if name in self.references else name
        if not name:
            return  # told where it is set
        if name in self.defined:
            self.defined.discard(name)
            self.overwritten.setdefault(name, line)
        self.values[name] = value

    def meant(self, name: str) -> str:
        """The variable that a name stands for, which may be itself; nothing where that is not known."""
        for _ in range(MAX_REFERENCES):
            if name not in self.references:
                return name
            name = self.references[name]
        return ""

    def unknown(self, name: str, line: int, why: str) -> None:
        """Set a variable to what nobody knows."""
        self.put(name, ((Piece("", line, f"${name} is {why} (line {line})"),),), line)

    def drop(self, name: str, line: int = 0) -> None:
        """Unset a variable."""
        name = self.meant(name)
        if name in self.values:
            self.put(name, (), line)
            del self.values[name]
        self.integers -= {name}

    def scalar(self, name: str) -> str | None:
        """The text of a variable, None where it is not set or not known."""
        return _text(self.get(name))

    def peek(self, name: str) -> str | None:
        """The same, where asking has no effect on what the script does."""
        return _text(self.values.get(name))

    def number_text(self, name: str) -> str | None:
        """The text of a variable in arithmetic, where one that is empty counts as 0."""
        return "" if self.values.get(name) == () else self.scalar(name)

    def assume_unset(self, names: Sequence[str], line: int) -> None:
        """Keep what was taken as not set, for a note."""
        for name in names:
            self.defaulted.setdefault(name, line)

    @property
    def separators(self) -> str | None:
        """The characters that words are split at; None where nobody knows."""
        return IFS if self.values.get("IFS") is None else self.peek("IFS")

    def count(self, pieces: Sequence[Piece]) -> None:
        """InputError where all that was expanded so far is more than any script needs."""
        self.used += sum(len(piece.text) + 10 for piece in pieces)
        if self.used > MAX_CHARACTERS:
            line = pieces[0].line if pieces else 1
            raise InputError(f"{self.file}:{line}: variables expand to more than {MAX_CHARACTERS:,} characters")

    def count_names(self, number: int) -> None:
        """InputError where variables are copied more often than any script needs."""
        self.used += number
        if self.used > MAX_CHARACTERS:
            raise InputError(f"{self.file}: too many variables for so many commands")

    def saved(self) -> Shell:
        """A copy, for a subshell."""
        self.count_names(len(self.values))
        return Shell(
            dict(self.values),
            self.exported,
            self.integers,
            self.readonly,
            dict(self.references),
            self.positional,
            self.shifted,
            frozenset(self.defined),
        )

    def restore(self, shell: Shell) -> None:
        """Forget what a subshell did."""
        self.values = dict(shell.values)
        self.exported, self.integers, self.readonly = shell.exported, shell.integers, shell.readonly
        self.references = dict(shell.references)
        self.positional, self.shifted, self.defined = shell.positional, shell.shifted, set(shell.defined)

    def unread(self, also_read: Sequence[str] = ()) -> dict[str, str]:
        """What the user defines without effect, and why; `also_read` are names that the trainer looks at."""
        found: dict[str, str] = {}
        for name in self.given:
            if name in self.read or (name in also_read and name in self.values):
                continue
            if name in self.overwritten:
                found[name] = f"{self.file}:{self.overwritten[name]} sets {name} itself, before it is read"
                continue
            asked = {one.lower(): one for one in sorted(self.read) if re.fullmatch(r"\w+", one)}
            close = nearest(name, asked)
            found[name] = f"{self.file} never reads {name}" + (f"; did you mean {asked[close]}?" if close else "")
        return found


def _text(value: Value | None) -> str | None:
    if not value or any(piece.unknown for piece in value[0]):
        return None
    return "".join(piece.text for piece in value[0])


def as_field(pieces: Pieces) -> Field:
    """A field as one text."""
    unknown = [piece for piece in pieces if piece.unknown]
    written = [piece for piece in pieces if piece.text or piece.unknown]
    line = (written or pieces)[0].line if pieces else 0
    unset = tuple(piece.unset for piece in unknown) if all(piece.unset for piece in unknown) else ()
    reason = next((piece.unknown for piece in unknown if not piece.unset), unknown[0].unknown if unknown else "")
    text = "".join(piece.text for piece in pieces)
    assumed = tuple(dict.fromkeys(name for piece in pieces for name in piece.assumed))
    return Field(text, line, reason, unset, any(piece.loose for piece in unknown), assumed)


def as_piece(word: Field) -> Piece:
    """A word as an argument of a function, or of the script."""
    return Piece(word.text, word.line, word.unknown, word.unset[0] if word.unset else "", word.loose, word.assumed)
