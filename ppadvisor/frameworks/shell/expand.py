"""What words become: variables of the file put in, split into fields; what only a shell could know stays unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ppadvisor.errors import InputError
from ppadvisor.frameworks.shell.arithmetic import evaluate
from ppadvisor.frameworks.shell.tokens import Arithmetic, Parameter, Part, Text, Word

MAX_CHARACTERS = 500_000
"""Of all that variables are expanded to; a line that doubles itself a few times reaches any memory."""


NOT_SET = "is not set in the file"


@dataclass(frozen=True)
class Piece:
    """Text with the line it was written on."""

    text: str
    line: int
    unknown: str = ""
    """Why there is no text."""


Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class Field:
    """One word of a command as it would be called."""

    text: str
    line: int
    """Where it was written: in an array or a variable, the line there."""
    unknown: str = ""
    """Why the text is not known (it then says what is known of it)."""


@dataclass
class Variables:
    """The variables of a script: a scalar is one element, an array any number."""

    file: str
    values: dict[str, tuple[Pieces, ...]] = field(default_factory=dict)
    used: int = 0

    def scalar(self, name: str) -> str | None:
        """The text of a variable, None where it is not set or not known."""
        elements = self.values.get(name)
        if not elements or any(piece.unknown for piece in elements[0]):
            return None
        return "".join(piece.text for piece in elements[0])

    def count(self, pieces: Sequence[Piece]) -> None:
        """InputError where all that was expanded so far is more than any script needs."""
        self.used += sum(len(piece.text) + 10 for piece in pieces)
        if self.used > MAX_CHARACTERS:
            line = pieces[0].line if pieces else 1
            raise InputError(f"{self.file}:{line}: variables expand to more than {MAX_CHARACTERS:,} characters")


def as_scalar(word: Word, variables: Variables) -> Pieces:
    """The value of an assignment: nothing is split, the elements of an array stand side by side."""
    pieces: list[Piece] = []
    for part in word:
        for index, element in enumerate(_elements(part, variables)):
            pieces += ([Piece(" ", part.line)] if index else []) + list(element)
    variables.count(pieces)
    return tuple(pieces)


def as_fields(word: Word, variables: Variables) -> list[Pieces]:
    """The fields that a word of a command becomes: none, one or many."""
    fields = _gathered(_in_fields(word, variables))
    for pieces in fields:
        variables.count(pieces)
    return fields


def split_again(element: Pieces) -> list[Field]:
    """The fields of a value where it stands without quotes."""
    return [as_field(pieces) for pieces in _gathered(_split(element, quoted=False))]


def _gathered(pieces: Iterable[tuple[Piece | None, bool]]) -> list[Pieces]:
    """Pieces up to the next start of a field are one field."""
    fields: list[list[Piece]] = []
    open_field = False
    for piece, starts in pieces:
        open_field = open_field and not starts
        if piece is not None:
            if not open_field:
                fields.append([])
            fields[-1].append(piece)
            open_field = True
    return [tuple(field) for field in fields]


def _in_fields(word: Word, variables: Variables) -> Iterator[tuple[Piece | None, bool]]:
    """(a piece, whether a new field starts in front of it); (None, True) ends one."""
    for part in word:
        quoted = part.quoted or isinstance(part, Text)
        for index, element in enumerate(_elements(part, variables)):
            if index:
                yield None, True
            yield from _split(element, quoted=quoted)


def as_field(pieces: Pieces) -> Field:
    """A field as one text."""
    reasons = [piece.unknown for piece in pieces if piece.unknown]
    written = [piece for piece in pieces if piece.text or piece.unknown]
    line = (written or pieces)[0].line
    return Field("".join(piece.text for piece in pieces), line, reasons[0] if reasons else "")


def _split(element: Pieces, *, quoted: bool) -> Iterator[tuple[Piece | None, bool]]:
    """(a piece, whether a new field starts in front of it); (None, True) is a blank at the end."""
    for piece in element:
        if quoted or piece.unknown:
            yield piece, False
            continue
        starts = piece.text[:1].isspace()
        for text in re.finditer(r"\S+", piece.text):
            line = piece.line + piece.text.count("\n", 0, text.start())
            yield replace(piece, text=text[0], line=line), starts
            starts = True
        if piece.text[-1:].isspace():
            yield None, True


def _elements(part: Part, variables: Variables) -> tuple[Pieces, ...]:
    """What a part of a word stands for: one element, or those of an array."""
    if isinstance(part, Text):
        return ((Piece(part.text, part.line),),)
    if isinstance(part, Arithmetic):
        return (_calculated(part, variables),)
    if isinstance(part, Parameter):
        return _parameter(part, variables)
    return ((Piece("", part.line, f"{part.text} is not executed"),),)


def _calculated(part: Arithmetic, variables: Variables) -> Pieces:
    names = {name: variables.scalar(name) for name in re.findall(r"[A-Za-z_]\w*", part.text)}
    known: Mapping[str, str] = {name: value for name, value in names.items() if value is not None}
    result = evaluate(part.text, known)
    if result is None:
        return (Piece("", part.line, f"$(({part.text.strip()})) cannot be calculated here"),)
    return (Piece(str(result), part.line),)


def _parameter(part: Parameter, variables: Variables) -> tuple[Pieces, ...]:
    value = variables.values.get(part.name)
    if value is not None and not part.every:
        value = value[:1] or ((),)
    known_empty = value is not None and not any(piece.text or piece.unknown for element in value for piece in element)
    missing = value is None or (known_empty and part.operator.startswith(":"))
    kind = part.operator[-1:]
    if kind == "+":
        return () if missing else (as_scalar(part.argument, variables),)
    if missing and kind in ("-", "="):
        default = as_scalar(part.argument, variables)
        if kind == "=":
            variables.values[part.name] = (default,)
        return (default,)
    if value is None:
        return ((Piece("", part.line, _why_unset(part.name)),),)
    return value


def _why_unset(name: str) -> str:
    if name in "@*" or name.isdigit():
        return f"${name} is an argument of the script"
    return f"${name} {NOT_SET}"
