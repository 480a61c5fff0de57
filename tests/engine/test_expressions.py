"""Formulas as text: the numbers take the symbols' places, and what is printed can be worked out again."""

from __future__ import annotations

import pytest

from ppadvisor.engine.expressions import Formula, evaluate, number, ratio


def test_numbers_take_the_places_of_symbols() -> None:
    """Each symbol becomes its number, functions stay, and unused values do not matter."""
    formula = Formula("min(m, p-r) * S1 / t", "a source", {"m": 32, "p": 8.0, "r": 2, "S1": 0.5, "t": 4, "h": 1})
    assert formula.substituted == "min(32, 8-2) * 0.5 / 4"
    assert evaluate(formula.substituted) == 0.75
    assert list(formula.symbols) == ["m", "p", "r", "S1", "t"]


def test_what_does_not_exist_is_zero() -> None:
    """A quantity that is not there is 0, and asks for no values of its symbols."""
    formula = Formula("2 * G", "a source", {}, alive=False)
    assert formula.substituted == "0"
    assert formula.symbols == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [(131072.0, "131072"), (0.1, "0.1"), (2e-05, "2e-05"), (-3.0, "(-3)"), (0.1 + 0.2, repr(0.1 + 0.2))],
)
def test_no_digit_is_lost(value: float, text: str) -> None:
    """A number in a formula is the very double: whole ones plainly, negative ones in brackets."""
    assert number(value) == text
    assert evaluate(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("(8-1)/(32+8-1)", "7/39"), ("0", None), ("(2-1)/2", "1/2"), ("1 + 2/3", None), ("1/0.5", None)]
)
def test_a_division_of_whole_numbers_has_a_ratio(text: str, value: str | None) -> None:
    """Only a division of two whole numbers is worked out as a ratio, and it is not reduced."""
    assert ratio(text) == value


@pytest.mark.parametrize("text", ["x + 1", "__import__('os')", "2 ** 8", "'a' * 3", "abs(1)", "[1][0]"])
def test_only_arithmetic_is_evaluated(text: str) -> None:
    """Anything but numbers, + - * / and min, max is refused."""
    with pytest.raises(ValueError, match="not arithmetic"):
        evaluate(text)
