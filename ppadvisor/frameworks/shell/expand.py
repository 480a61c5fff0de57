"""What words become: variables of the file put in, split into fields; what only a shell could know stays unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ppadvisor.frameworks.shell.arithmetic import calculate, not_calculated
from ppadvisor.frameworks.shell.tokens import Arithmetic, Parameter, Part, Text, Word
from ppadvisor.frameworks.shell.variables import IFS, Field, Piece, Pieces, Value, Variables, as_field

BRACES = re.compile(r"\{([^{}]*)\}")
SPECIAL = {"?": "how the last command ended", "$": "a process", "!": "a process", "-": "options of the shell"}


def as_scalar(word: Word, variables: Variables) -> Pieces:
    """The value of an assignment: nothing is split, the elements of an array are joined."""
    pieces: list[Piece] = []
    for part in word:
        joined_by_ifs = isinstance(part, Parameter) and part.every == "*"
        for index, element in enumerate(_elements(part, variables)):
            joint = _joint(part, variables) if index and joined_by_ifs else Piece(" ", part.line)
            pieces += ([joint] if index else []) + list(element)
    variables.count(pieces)
    return tuple(pieces)


def as_fields(word: Word, variables: Variables) -> list[Pieces]:
    """The fields that a word of a command becomes: none, one or many."""
    if _has_braces(word):
        return [(Piece("", word[0].line, "{a,b} is not expanded", loose=True),)]
    fields = _gathered(_in_fields(word, variables))
    for pieces in fields:
        variables.count(pieces)
    return fields


def as_text(word: Word, variables: Variables) -> Field:
    """A word as one field, where nothing is split."""
    return as_field(as_scalar(word, variables))


def split_again(element: Pieces) -> list[Field]:
    """The fields of a value where it stands without quotes."""
    return [as_field(pieces) for pieces in _gathered(_split(element))]


def _has_braces(word: Word) -> bool:
    """Whether braces without quotes make several words of one: `{1,2}`, `{1..3}`."""
    unquoted = "".join(part.text if isinstance(part, Text) and not part.quoted else "x" for part in word)
    return any("," in inner or ".." in inner for inner in BRACES.findall(unquoted))


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
        if isinstance(part, Parameter) and not part.counted and _has_fields(part, variables):
            yield from _in_default(part, variables)
        else:
            yield from _of_part(part, variables)


def _has_fields(part: Parameter, variables: Variables) -> bool:
    """Whether the word behind `:-` stands for the parameter, and may be several fields."""
    several = any(isinstance(inner, Parameter) for inner in part.argument)
    return (not part.quoted or several) and _takes_argument(part, _held(part, variables))


def _of_part(part: Part, variables: Variables) -> Iterator[tuple[Piece | None, bool]]:
    joined = isinstance(part, Parameter) and part.quoted and part.every == "*"
    elements = _elements(part, variables)
    if isinstance(part, Parameter) and part.every == "@" and part.operator[-1:] == "+" and elements == ((),):
        return  # no element, no word
    for index, element in enumerate(elements or ((),) if joined else elements):
        if index:
            yield (_joint(part, variables), False) if joined else (None, True)
        if part.quoted or isinstance(part, Text):
            yield from ((piece, False) for piece in element or (Piece("", part.line),))
        else:
            yield from _split(element, variables.separators)


def _in_default(parameter: Parameter, variables: Variables) -> Iterator[tuple[Piece | None, bool]]:
    """The word behind `:-` where it may be several fields: split, but for what stands in quotes."""
    value = _elements(parameter, variables)
    if parameter.operator[-1:] != "+" and _is_empty(value) and parameter.name not in variables.values:
        variables.assume_unset([parameter.name], parameter.line)
    nothing = True
    for part in parameter.argument:
        if isinstance(part, Text) and not part.quoted:
            found = _split((Piece(part.text, part.line),), variables.separators)
        else:
            found = _in_fields((part,), variables)
        for piece, starts in found:
            nothing = False
            yield (_assumed(piece, parameter) if piece else None), starts
    if nothing and parameter.quoted:
        yield Piece("", parameter.line), False


def _joint(part: Part, variables: Variables) -> Piece:
    """What stands between the elements of `"${A[*]}"`."""
    separators = variables.separators
    if separators is None:
        return Piece("", part.line, "IFS, which joins them, is not known")
    return Piece(separators[:1], part.line)


def _split(element: Pieces, separators: str | None = IFS) -> Iterator[tuple[Piece | None, bool]]:
    """(a piece, whether a new field starts in front of it); (None, True) is a blank at the end."""
    for piece in element:
        if piece.unknown:
            yield replace(piece, loose=True), False
            continue
        if separators != IFS and (separators is None or set(IFS + separators) & set(piece.text)):
            yield replace(piece, text="", unknown="split at IFS, which the script changes", loose=True), False
            continue
        starts = piece.text[:1] in IFS and piece.text != ""
        for text in re.finditer(r"[^ \t\n]+", piece.text):
            line = piece.line + piece.text.count("\n", 0, text.start())
            yield replace(piece, text=text[0], line=line), starts
            starts = True
        if piece.text[-1:] in IFS and piece.text:
            yield None, True


def _elements(part: Part, variables: Variables) -> Value:
    """What a part of a word stands for: one element, or those of an array."""
    if isinstance(part, Text):
        return ((Piece(part.text, part.line),),)
    if isinstance(part, Arithmetic):
        return (_calculated(part, variables),)
    if isinstance(part, Parameter):
        return _parameter(part, variables)
    return ((Piece("", part.line, f"{part.text} is not executed"),),)


def _calculated(part: Arithmetic, variables: Variables) -> Pieces:
    value = calculated(part.text, part.word, part.line, variables)
    if value is None:
        return (Piece("", part.line, f"$(({part.text.strip()})) cannot be calculated here"),)
    return (Piece(str(value), part.line, assumed=as_text(part.word, variables).assumed),)


def calculated(text: str, word: Word, line: int, variables: Variables) -> int | None:
    """The value of an expression, None where it is not known; what it assigns is assigned."""
    expanded = as_text(word, variables)
    result = not_calculated(text) if expanded.unknown else calculate(expanded.text, variables.number_text)
    for name, value in result.assigned.items():
        if name in variables.readonly:
            continue
        if value is None or not variables.certain:
            variables.unknown(name, line, "set by an expression that is not calculated here")
        else:
            variables.put(name, ((Piece(str(value), line),),), line)
    return result.value


def _held(part: Parameter, variables: Variables) -> Value | None:
    """What a parameter holds, whatever its operator; None where it is not set."""
    value = variables.get(part.name)
    return value if value is None or part.every else _element(part, value)


def _takes_argument(part: Parameter, value: Value | None) -> bool:
    """Whether the word behind `:-` or `:+` is taken."""
    empty = value is None or (part.every != "" and value == ())
    missing = empty or (part.operator.startswith(":") and _is_empty(value))
    kind = part.operator[-1:]
    if kind == "+":
        return not missing and not _unknown(value)
    return kind in ("-", "=") and missing


def _parameter(part: Parameter, variables: Variables) -> Value:
    if part.counted:
        return (_number_of(part, variables.get(part.name)),)
    value = _held(part, variables)
    if _takes_argument(part, value):
        default = tuple(_assumed(piece, part) for piece in as_scalar(part.argument, variables))
        if part.operator[-1:] == "=" and variables.certain:
            variables.put(part.name, (default,), part.line)
        elif part.operator[-1:] == "=":
            variables.unknown(part.name, part.line, "set where it is not known whether that runs")
        return (default,)
    if part.operator[-1:] == "?" and (value is None or (part.operator == ":?" and _is_empty(value))):
        variables.required.setdefault(part.name, part.line)
        return ((_unset(part),),)
    if part.operator[-1:] == "+" and not _unknown(value):
        if value is None:
            variables.assume_unset([part.name], part.line)
        return ((),)
    return ((_unset(part),),) if value is None else value


def _assumed(piece: Piece, part: Parameter) -> Piece:
    """A piece of the word behind `:-`, which stands for a variable that is not set."""
    if part.operator[-1:] == "+" or part.name in piece.assumed:
        return piece
    return replace(piece, assumed=(*piece.assumed, part.name))


def _element(part: Parameter, value: Value) -> Value | None:
    """The element that is meant; None where the array has none of that index."""
    if any(piece.loose for element in value[: part.index] for piece in element):
        return ((Piece("", part.line, f"${{{part.name}[{part.index}]}} is behind what may be several elements"),),)
    if part.index == 0 and not value:
        return None
    return value[part.index : part.index + 1] or None


def _number_of(part: Parameter, value: Value | None) -> Pieces:
    if value is None or _unknown(value):
        return (Piece("", part.line, f"the number of elements of {part.name} is not known"),)
    return (Piece(str(len(value)), part.line),)


def _is_empty(value: Value | None) -> bool:
    return not any(piece.text or piece.unknown for element in value or () for piece in element)


def _unknown(value: Value | None) -> bool:
    return any(piece.unknown for element in value or () for piece in element)


def _unset(part: Parameter) -> Piece:
    name = part.name
    if name in "@*#" or name.isdigit():
        return Piece("", part.line, f"${name} is an argument of the script")
    if name in SPECIAL:
        return Piece("", part.line, f"${name} is {SPECIAL[name]}")
    return Piece("", part.line, f"${name} is not set in the file", name)
