"""Conditions of a script: true, false, or not known. None stands for not known."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ppadvisor.frameworks.shell.expand import NOT_SET, Field

Truth = bool | None

BINARY = {
    "=": lambda a, b: fnmatchcase(a, b),
    "==": lambda a, b: fnmatchcase(a, b),
    "!=": lambda a, b: not fnmatchcase(a, b),
    "-eq": lambda a, b: int(a) == int(b),
    "-ne": lambda a, b: int(a) != int(b),
    "-gt": lambda a, b: int(a) > int(b),
    "-ge": lambda a, b: int(a) >= int(b),
    "-lt": lambda a, b: int(a) < int(b),
    "-le": lambda a, b: int(a) <= int(b),
}
MAX_PATTERN = 200
"""Longer patterns are not matched: matching takes time that grows with stars."""


def both(a: Truth, b: Truth) -> Truth:
    """a and b."""
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    """a or b."""
    return negated(both(negated(a), negated(b)))


def negated(a: Truth) -> Truth:
    """not a."""
    return None if a is None else not a


def test(words: Sequence[Field]) -> Truth:
    """`[ ... ]`, `[[ ... ]]` or `test ...`; a variable that the file does not set counts as empty."""
    closing = {"[": "]", "[[": "]]", "test": ""}[words[0].text]
    inner = list(words[1:])
    if closing:
        if not inner or inner[-1].text != closing:
            return None
        inner = inner[:-1]
    if inner and inner[0].text == "!":
        return negated(_plain(inner[1:]))
    return _plain(inner)


def _plain(words: list[Field]) -> Truth:
    if any(word.unknown and not word.unknown.endswith(NOT_SET) for word in words):
        return None
    texts = [word.text for word in words]
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") == (texts[0] == "-z")
    if len(texts) == 3 and texts[1] in BINARY and max(map(len, texts)) <= MAX_PATTERN:
        try:
            return bool(BINARY[texts[1]](texts[0], texts[2]))
        except ValueError:
            return None
    if len(texts) == 1:
        return texts[0] != ""
    return None


def matches(pattern: Field, value: Field) -> Truth:
    """Whether a `case` pattern fits."""
    if pattern.text == "*" and not pattern.unknown:
        return True
    if pattern.unknown or value.unknown or max(len(pattern.text), len(value.text)) > MAX_PATTERN:
        return None
    return fnmatchcase(value.text, pattern.text)
