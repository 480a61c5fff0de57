"""Assignments of a script: `A=1`, `A+=1`, `A[2]=1`, `A=(1 2)`, `declare -i A=1+1`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ppadvisor.frameworks.shell.arithmetic import calculate
from ppadvisor.frameworks.shell.conditions import Truth
from ppadvisor.frameworks.shell.expand import as_fields, as_scalar
from ppadvisor.frameworks.shell.tokens import ArrayToken, Text, Token, Word, WordToken
from ppadvisor.frameworks.shell.variables import Piece, Pieces, Value, Variables

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", re.ASCII)
SUBSCRIPT_LATER = re.compile(r"([A-Za-z_]\w*)\[[^\]]*$", re.ASCII)
PLACED = re.compile(r"\[[^\]]*\]=")


@dataclass(frozen=True)
class Assignment:
    """A name and what it becomes, before it does."""

    name: str
    append: bool
    line: int
    words: tuple[Word, ...]
    array: bool = False
    subscript: str = ""
    """`[2]`."""
    ready: Value | None = None
    """What the words are expanded to, where that was done before."""


def assignment_of(token: Token) -> Assignment | None:
    """A token that assigns, None for any other."""
    if isinstance(token, ArrayToken):
        return Assignment(token.name, token.append, token.line, token.words, array=True)
    head = token.word[0] if isinstance(token, WordToken) and token.word else None
    if not isinstance(token, WordToken) or not isinstance(head, Text) or head.quoted:
        return None
    match = ASSIGNMENT.match(head.text)
    if match:
        rest = (Text(head.text[match.end() :], head.line, quoted=False), *token.word[1:])
        return Assignment(match[1], bool(match[3]), token.line, (rest,), subscript=match[2] or "")
    opened = SUBSCRIPT_LATER.fullmatch(head.text)  # A[$i]=x
    if opened and any(isinstance(part, Text) and re.match(r"[^\]]*\]\+?=", part.text) for part in token.word[1:]):
        return Assignment(opened[1], False, token.line, (token.word[1:],), subscript="[?]")
    return None


def expanded(one: Assignment, variables: Variables) -> Assignment:
    """The same assignment, its words expanded."""
    if one.array:
        ready = tuple(pieces for word in one.words for pieces in as_fields(word, variables))
    else:
        ready = (as_scalar(one.words[0], variables),)
    return replace(one, ready=ready)


def assign(
    one: Assignment, variables: Variables, certain: Truth, note: Callable[[int, str], None], *, integer: bool = False
) -> None:
    """Do an assignment; where it is open whether it runs, the variable is unknown afterwards."""
    if certain is False:
        return
    name = variables.meant(one.name)
    if not name:
        note(one.line, f"{one.name} stands for another variable, which is not known here; what is set is not seen")
        return
    if name in variables.readonly:
        note(one.line, f"{name} is read-only: a shell refuses to set it here, and it keeps its value")
        return
    # what is written over is not read
    before = variables.get(name) if one.append or one.subscript else () if one.array else variables.values.get(name)
    new = _new_value(one if one.ready is not None else expanded(one, variables), before or ())
    if certain is None and one.append and before:
        note(one.line, f"what is added to {name} depends on a condition that is not known here; it is left out")
    elif certain is None:
        variables.unknown(name, one.line, "set under a condition that is not known here")
    elif new is None:
        variables.unknown(name, one.line, "an array of which an element is set that is not known here")
    else:
        if integer or name in variables.integers:
            variables.integers |= {name}
            new = _as_numbers(new, before or (), one, variables)
        variables.put(name, new, one.line)


def _new_value(one: Assignment, before: Value) -> Value | None:
    """What the variable becomes, None where an array's order is not known."""
    if one.array and any(isinstance(word[0], Text) and PLACED.match(word[0].text) for word in one.words if word):
        return None
    ready = one.ready or ()
    if one.array:
        return (before if one.append else ()) + ready
    value = ready[0] if ready else ()
    index = 0 if not one.subscript else _index(one.subscript, before)
    if index is None:
        return None
    old: Pieces = before[index] if index < len(before) and one.append else ()
    return (*before[:index], old + value, *before[index + 1 :])


def _index(subscript: str, before: Value) -> int | None:
    """The element that is meant, where it stands in or directly behind what is there."""
    if not re.fullmatch(r"\[\d{1,4}\]", subscript):
        return None
    index = int(subscript[1:-1])
    loose = any(piece.loose for element in before for piece in element)
    return None if loose or index > len(before) or subscript != f"[{index}]" else index


def _as_numbers(new: Value, before: Value, one: Assignment, variables: Variables) -> Value:
    """Of a variable declared as a whole number: the text is an expression; what is added is summed."""
    found: list[Pieces] = []
    for pieces in new:
        added = pieces[len(before[0]) :] if one.append and before and not one.array else pieces
        text = "".join(piece.text for piece in added)
        if one.append and before and not one.array:
            text = f"({''.join(piece.text for piece in before[0])})+({text})"
        known = not any(piece.unknown for piece in pieces)
        value = calculate(text, variables.number_text).value if known else None
        why = f"${one.name} is calculated from what is not known here (line {one.line})"
        found.append((Piece("", one.line, why) if value is None else Piece(str(value), one.line),))
    return tuple(found)
