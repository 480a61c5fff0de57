"""Ranges as they stand in a list of values: `64:4096:x2` doubles, `8:64:+8` counts up; both ends belong to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from ppadvisor.errors import InputError

MOST_VALUES = 10_000
"""Of one range: what is longer is a slip of the keyboard."""

EXAMPLES = "64:4096:x2 (64, 128, ..., 4096) or 8:64:+8 (8, 16, ..., 64), the first no larger than the last"
_FACTOR = re.compile(r"x([0-9]{1,9})")

Value = Any
"""What a parser of quantities returns: a number, or (unit, number) where it says which unit was meant."""


def is_range(text: str) -> bool:
    """Whether an item of a list is a range; a quantity has no colon of its own."""
    return ":" in text


def parse_range(text: str, parse: Callable[[str, str], Value], what: str) -> tuple[Value, ...]:
    """The values of `FIRST:LAST:xFACTOR` or `FIRST:LAST:+STEP`, ascending. InputError for any other form.

    `parse` reads a single quantity. The last value is the largest that does not pass LAST.

    >>> from ppadvisor.units import parse_sequence_length
    >>> parse_range("8k:64k:x2", parse_sequence_length, "--seq-len")
    (8192, 16384, 32768, 65536)
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 3 or not all(parts):
        raise _refused(text, what, "is no range")
    first, last = (parse(part, what) for part in parts[:2])
    if _unit(first) != _unit(last):
        raise _refused(text, what, "begins and ends in different units")
    if _number(first) > _number(last):
        raise _refused(text, what, "begins above its end")
    following = _following(text, parts[2], first, parse, what)
    return tuple(_like(first, number) for number in _counted(text, what, following, first, last))


def _following(
    text: str, step: str, first: Value, parse: Callable[[str, str], Value], what: str
) -> Callable[[float, int], float]:
    """(first number, index) -> the number at this index."""
    factor = _FACTOR.fullmatch(step)
    if factor and int(factor[1]) > 1:
        times = int(factor[1])
        if not _number(first):
            raise _refused(text, what, "stands still")
        return lambda start, index: start * times**index
    if not step.startswith("+"):
        raise _refused(text, what, f"has the step {step!r}: neither x and a whole number above 1, nor + and an amount")
    amount = parse(step[1:], what)
    if _unit(amount) != _unit(first):
        raise _refused(text, what, "has a step in another unit")
    if not _number(amount):
        raise _refused(text, what, "stands still")
    return lambda start, index: start + _number(amount) * index


def _counted(text: str, what: str, following: Callable[[float, int], float], first: Value, last: Value) -> list[float]:
    numbers = (following(_number(first), index) for index in range(MOST_VALUES + 1))
    # the sum of steps may miss the end by a rounding error: 0.1 + 2 x 0.1 is above 0.3
    found = list(takewhile(lambda number: number <= _number(last) * (1 + 1e-12), numbers))
    if len(found) > MOST_VALUES:
        raise _refused(text, what, f"has more than {MOST_VALUES:,} values")
    return found


def _unit(value: Value) -> str:
    return value[0] if isinstance(value, tuple) else ""


def _number(value: Value) -> float:
    number: float = value[1] if isinstance(value, tuple) else value
    return number


def _like(first: Value, number: float) -> Value:
    return (first[0], number) if isinstance(first, tuple) else number


def _refused(text: str, what: str, problem: str) -> InputError:
    return InputError(f"{what}: {text!r} {problem}; allowed: {EXAMPLES}")
