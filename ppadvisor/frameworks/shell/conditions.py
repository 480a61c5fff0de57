"""Conditions of a script: true, false, or not known. None stands for not known."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from ppadvisor.frameworks.shell.arithmetic import calculate
from ppadvisor.frameworks.shell.expand import as_scalar, as_text
from ppadvisor.frameworks.shell.tokens import Operator, Word, WordToken
from ppadvisor.frameworks.shell.variables import Field, Piece, Variables, as_field

Truth = bool | None

COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
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


def test(words: Sequence[Field], variables: Variables) -> Truth:
    """`[ ... ]` or `test ...`; a variable that the file does not set counts as empty, and is told."""
    inner = list(words[1:])
    if words[0].text == "[":
        if not inner or inner[-1].text != "]":
            return None
        inner = inner[:-1]
    inverted = len(inner) > 1 and inner[0].text == "!"
    inner = inner[1:] if inverted else inner
    known = not any(word.unknown and not word.unset for word in inner)
    truth = _decided([word.text for word in inner]) if known else None
    return _told(negated(truth) if inverted else truth, inner, variables)


def _told(truth: Truth, words: Sequence[Field], variables: Variables) -> Truth:
    """The truth; what it took as not set is kept for a note."""
    if truth is not None:
        for word in words:
            variables.assume_unset(word.unset, word.line)
    return truth


def _decided(texts: list[str]) -> Truth:
    if len(texts) < 2:
        return texts != [] and texts[0] != ""
    if len(texts) == 2:
        return {"-z": texts[1] == "", "-n": texts[1] != ""}.get(texts[0])
    if len(texts) > 3:
        return None
    left, sign, right = texts
    if sign in ("=", "==", "!="):
        return (left == right) == (sign != "!=")
    numbers = [int(text) for text in (left, right) if re.fullmatch(r"\s*[-+]?[0-9]{1,15}\s*", text)]
    return COMPARED[sign](*numbers) if sign in COMPARED and len(numbers) == 2 else None


def condition(items: Sequence[WordToken | Operator], variables: Variables) -> Truth:
    """`[[ ... ]]`: && before ||, ! and brackets; None for what is not understood."""
    walk = _Walk(items, variables)
    truth = walk.alternatives()
    return truth if walk.at == len(items) else None


class _Walk:
    """The items of a condition, by rank."""

    def __init__(self, items: Sequence[WordToken | Operator], variables: Variables) -> None:
        self.items, self.variables, self.at = items, variables, 0

    def _operator(self) -> str:
        item = self.items[self.at] if self.at < len(self.items) else None
        return item.text if isinstance(item, Operator) else ""

    def alternatives(self) -> Truth:
        truth = self._all()
        while self._operator() == "||":
            self.at += 1
            truth = either(truth, self._all())
        return truth

    def _all(self) -> Truth:
        truth = self._one()
        while self._operator() == "&&":
            self.at += 1
            truth = both(truth, self._one())
        return truth

    def _one(self) -> Truth:
        inverted = False
        while self.at < len(self.items) and getattr(self.items[self.at], "plain", None) == "!":
            inverted = not inverted
            self.at += 1
        if self._operator() == "(":
            start = self.at
            self.at = self._closing()
            truth = condition(self.items[start + 1 : self.at - 1], self.variables) if self.at - start > 2 else None
        else:
            truth = self._leaf()
        return negated(truth) if inverted else truth

    def _closing(self) -> int:
        """The item behind the bracket that closes this one."""
        depth = 0
        for at in range(self.at, len(self.items)):
            item = self.items[at]
            depth += {"(": 1, ")": -1}.get(item.text, 0) if isinstance(item, Operator) else 0
            if depth == 0:
                return at + 1
        return len(self.items)

    def _leaf(self) -> Truth:
        start = self.at
        while self.at < len(self.items) and self._operator() not in ("&&", "||"):
            self.at += 1
        words = [item.word for item in self.items[start : self.at] if isinstance(item, WordToken)]
        if len(words) != self.at - start or not 1 <= len(words) <= 3:
            return None
        if len(words) < 3:
            return self._of_a_word(words)
        sign = as_text(words[1], self.variables).text
        left = as_text(words[0], self.variables)
        if sign in COMPARED:
            return self._compared(left, sign, as_text(words[2], self.variables))
        if sign not in ("=", "==", "!="):
            return None
        pattern = as_pattern(words[2], self.variables)
        truth = matches(pattern, left, self.variables.caseless)
        return _told(negated(truth) if sign == "!=" else truth, (left, pattern), self.variables)

    def _of_a_word(self, words: Sequence[Word]) -> Truth:
        fields = [as_text(word, self.variables) for word in words]
        if any(field.unknown and not field.unset for field in fields):
            return None
        return _told(_decided([field.text for field in fields]), fields, self.variables)

    def _compared(self, left: Field, sign: str, right: Field) -> Truth:
        if any(field.unknown and not field.unset for field in (left, right)):
            return None
        numbers = [calculate(field.text, self.variables.number_text).value for field in (left, right)]
        first, second = numbers
        truth = None if first is None or second is None else COMPARED[sign](first, second)
        return _told(truth, (left, right), self.variables)


def as_pattern(word: Word, variables: Variables) -> Field:
    """A word as a pattern: what has quotes stands for itself."""
    pieces: list[Piece] = []
    for part in word:
        for piece in as_scalar((part,), variables):
            text = piece.text
            if part.quoted:
                text = re.sub(r"[*?\[]", r"[\g<0>]", text)
            elif "\\" in text or "[:" in text:
                piece = Piece("", piece.line, "a pattern that is not known here")
                text = ""
            pieces.append(Piece(text.replace("[^", "[!"), piece.line, piece.unknown, piece.unset))
    return as_field(tuple(pieces))


def matches(pattern: Field, value: Field, caseless: Truth = False) -> Truth:
    """Whether a pattern fits a value; one that is not set counts as empty."""
    if pattern.text == "*" and not pattern.unknown:
        return True
    unknown = any(field.unknown and not field.unset for field in (pattern, value))
    if unknown or max(len(pattern.text), len(value.text)) > MAX_PATTERN:
        return None
    exact = fnmatchcase(value.text, pattern.text)
    if caseless is False or "[" in pattern.text:
        return exact if caseless is False else None
    alike = fnmatchcase(value.text.lower(), pattern.text.lower())
    return alike if caseless or alike == exact else None
