"""Whole-number arithmetic of a script, `$((GPUS * NODES))`, `((PP *= 2))`, by our own few rules.

Source: Bash Reference Manual 5.2, 6.5 (operators and their order, octal and hexadecimal numbers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LARGEST = 10**15
MAX_TOKENS = 100
MAX_SHIFT = 60
TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]{1,12}|\d{1,16})(?![\w#.])|(?P<name>[A-Za-z_]\w*)(?!\[)"
    r"|(?P<sign>\*\*|(?:<<|>>|[-+*/%&|^])=|<<|>>|[<>=!]=|&&|\|\||\+\+|--|[-+*/%<>!~&|^?:=(),]))",
    re.ASCII,
)
ASSIGNED = re.compile(
    r"(?<!\w)([A-Za-z_]\w*+)(?:\[[^\[\]]{0,100}\])?\s*+(?:(?:<<|>>|[-+*/%&|^])?=(?!=)|\+\+|--)", re.ASCII
)
STEPPED = re.compile(r"(?:\+\+|--)\s*+([A-Za-z_]\w*+)", re.ASCII)
ASSIGNING = ("=", *(f"{sign}=" for sign in ("<<", ">>", *"-+*/%&|^")))
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"))
RANK = {sign: rank for rank, level in enumerate((*LEVELS, ("*", "/", "%"), ("**",)), start=3) for sign in level}
"""Of what stands between two values; `,` has 0, `=` 1 and `? :` 2."""

PLAIN: Mapping[str, Callable[[int, int], int]] = {
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
}


@dataclass(frozen=True)
class Calculated:
    """What an expression gives, and what it assigns."""

    value: int | None
    """None where it cannot be said."""
    assigned: Mapping[str, int | None] = field(default_factory=dict)


def calculate(text: str, values: Callable[[str], str | None]) -> Calculated:
    """Evaluate an expression; `values` gives the text of a variable, None where it is not known.

    >>> calculate("NODES = 3, GPUS * (NODES + 1)", {"GPUS": "8", "NODES": "2"}.get)
    Calculated(value=32, assigned={'NODES': 3})
    """
    try:
        expression = _Expression(_tokens(text), values)
        value = expression.whole()
        return Calculated(value, dict(expression.assigned))
    except (ArithmeticError, IndexError):
        return not_calculated(text)


def not_calculated(text: str) -> Calculated:
    """An expression that cannot be evaluated: what it assigns is not known."""
    names = {match[1]: None for pattern in (ASSIGNED, STEPPED) for match in pattern.finditer(text)}
    return Calculated(None, names)


def whole_number(text: str) -> int | None:
    """A number as arithmetic takes it: 010 is 8, 0x10 is 16, nothing is 0; None for anything else.

    >>> whole_number("010"), whole_number("08")
    (8, None)
    """
    match = re.fullmatch(r"\s*([-+]?)(0[xX][0-9a-fA-F]{1,12}|\d{1,16})\s*", text, re.ASCII)
    if not match:
        return 0 if not text.strip() else None
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" and len(digits) > 1 else 10
    try:
        return int(digits, base) * (-1 if match[1] == "-" else 1)
    except ValueError:
        return None


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match or len(found) > MAX_TOKENS:
            raise ArithmeticError("no expression that is known here")
        at = match.end()
        found.append(match[0].strip())
    return found


class _Expression:
    """A walk over the tokens, by rank of the operators."""

    def __init__(self, tokens: list[str], values: Callable[[str], str | None]) -> None:
        self.tokens, self.values, self.at = tokens, values, 0
        self.assigned: dict[str, int] = {}

    def whole(self) -> int:
        """The value of all tokens."""
        if not self.tokens:
            return 0
        value = self.ranked(0, live=True)
        if self.at < len(self.tokens):
            raise ArithmeticError("something is left over")
        return value

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self.tokens[self.at]
        if wanted and token != wanted:
            raise ArithmeticError(f"{wanted} is missing")
        self.at += 1
        return token

    def ranked(self, least: int, *, live: bool) -> int:
        """A value and all operators behind it of at least this rank; not `live`: nothing is assigned."""
        left = self._operand(least, live)
        while (rank := {",": 0, "?": 2}.get(self._next(), RANK.get(self._next(), -1))) >= least:
            sign = self._take()
            if sign == "?":
                first = self.ranked(1, live=live and left != 0)
                self._take(":")
                left = [self.ranked(2, live=live and left == 0), first][left != 0]
                continue
            runs = live and not (sign == "&&" and left == 0) and not (sign == "||" and left != 0)
            right = self.ranked(rank if sign == "**" else rank + 1, live=runs)
            left = right if sign == "," else _applied(sign, left, right) if runs or sign in ("&&", "||") else 0
        return left

    def _operand(self, least: int, live: bool) -> int:
        token = self._take()
        if token == "(":
            value = self.ranked(0, live=live)
            self._take(")")
            return value
        if token in ("-", "+", "!", "~"):
            value = self._operand(99, live)
            return {"-": -value, "+": value, "!": int(value == 0), "~": ~value}[token]
        if token in ("++", "--"):
            return self._assign(self._take(), "+=" if token == "++" else "-=", 1, live)
        if token[0].isdigit():
            number = whole_number(token)
            if number is None:
                raise ArithmeticError(f"{token} is no number")
            return number
        return self._named(token, least, live)

    def _named(self, name: str, least: int, live: bool) -> int:
        if self._next() in ASSIGNING and least <= 1:
            sign = self._take()
            return self._assign(name, sign, self.ranked(1, live=live), live)
        value = self._value(name)
        if self._next() in ("++", "--"):
            self._assign(name, "+=" if self._take() == "++" else "-=", 1, live)
        return value

    def _value(self, name: str) -> int:
        if name in self.assigned:
            return self.assigned[name]
        text = self.values(name)
        number = None if text is None else whole_number(text)
        if number is None:
            raise ArithmeticError(f"{name} is not known")
        return number

    def _assign(self, name: str, sign: str, right: int, live: bool) -> int:
        if not name.isidentifier():
            raise ArithmeticError(f"{name!r} is no variable")
        value = right if sign == "=" else _applied(sign[:-1], self._value(name), right)
        if live:
            self.assigned[name] = value
        return value


def _applied(sign: str, left: int, right: int) -> int:
    """A shell divides towards zero."""
    if sign in PLAIN:
        value = PLAIN[sign](left, right)
    elif sign in ("/", "%"):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        value = quotient if sign == "/" else left - quotient * right
    elif not 0 <= right <= MAX_SHIFT:
        raise ArithmeticError(f"{sign} {right} has no value here")
    else:
        value = {"**": left**right, "<<": left << right, ">>": left >> right}[sign]
    if abs(value) > LARGEST:
        raise ArithmeticError(f"{sign!r} has no value here")
    return value
