"""Whole-number arithmetic of a script, `$((GPUS * NODES))`, by our own few rules."""

from __future__ import annotations

import re
from collections.abc import Mapping

LARGEST = 10**15
MAX_TOKENS = 200
TOKEN = re.compile(r"\s*(?:\$?\{?([A-Za-z_]\w*)\}?|(\d{1,15})|([-+*/%()]))")


def evaluate(text: str, values: Mapping[str, str]) -> int | None:
    """The value of + - * / % and brackets over numbers and known names; None for anything else.

    >>> evaluate("$GPUS_PER_NODE * (NODES + 1)", {"GPUS_PER_NODE": "8", "NODES": "3"})
    32
    """
    tokens = _tokens(text, values)
    if tokens is None:
        return None
    try:
        return _postfix_value(_postfix(tokens))
    except (ArithmeticError, IndexError):
        return None


def _tokens(text: str, values: Mapping[str, str]) -> list[int | str] | None:
    found: list[int | str] = []
    at, text = 0, text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match or len(found) > MAX_TOKENS:
            return None
        at = match.end()
        number = values.get(match[1], "") if match[1] else match[2]
        if number is None:
            found.append(match[3])
        elif re.fullmatch(r"-?\d{1,15}", number):
            found.append(int(number))
        else:
            return None
    return found


def _postfix(tokens: list[int | str]) -> list[int | str]:
    """Operands before their operators: the shunting-yard algorithm (Dijkstra 1961), without recursion."""
    rank = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}
    output: list[int | str] = []
    waiting: list[str] = []
    for token in tokens:
        if isinstance(token, int):
            output.append(token)
        elif token == "(":
            waiting.append(token)
        elif token == ")":
            while waiting[-1] != "(":
                output.append(waiting.pop())
            waiting.pop()
        else:
            while waiting and waiting[-1] != "(" and rank[waiting[-1]] >= rank[token]:
                output.append(waiting.pop())
            waiting.append(token)
    return output + list(reversed(waiting))


def _postfix_value(tokens: list[int | str]) -> int | None:
    stack: list[int] = []
    for token in tokens:
        if isinstance(token, int):
            stack.append(token)
            continue
        right, left = stack.pop(), stack.pop()
        stack.append(_applied(token, left, right))
    return stack[0] if len(stack) == 1 and abs(stack[0]) <= LARGEST else None


def _applied(operator: str, left: int, right: int) -> int:
    """A shell divides towards zero."""
    if operator in "/%":
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    value = {"+": left + right, "-": left - right, "*": left * right}.get(operator)
    if value is None or abs(value) > LARGEST:
        raise ArithmeticError(f"{operator!r} has no value here")
    return value
