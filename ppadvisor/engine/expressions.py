"""Formulas as text: written once in symbols, then with the numbers in their place, in arithmetic that programs read."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SYMBOL = re.compile(r"[A-Za-z_]\w*")

_FUNCTIONS: dict[str, Callable[..., float]] = {"max": max, "min": min}
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Formula:
    """A formula, what its symbols stand for here, and where it comes from."""

    formula: str
    source: str
    values: Mapping[str, float]
    """Of the symbols; more than the formula uses is allowed."""
    alive: bool = True
    """False where the quantity does not exist for this plan, stage or moment: then it is 0 whatever the symbols."""

    @property
    def symbols(self) -> dict[str, float]:
        """The symbols that the formula uses, in order of appearance, with their values."""
        names = [name for name in SYMBOL.findall(self.formula) if name not in _FUNCTIONS]
        return {name: self.values[name] for name in names} if self.alive else {}

    @property
    def substituted(self) -> str:
        """The formula with a number in place of each symbol."""
        if not self.alive:
            return "0"
        symbols = self.symbols
        return SYMBOL.sub(lambda found: number(symbols[found[0]]) if found[0] in symbols else found[0], self.formula)


def number(value: float) -> str:
    """A number as it stands in a formula: whole ones without a point, every digit of the others.

    >>> number(131072.0), number(0.07)
    ('131072', '0.07')
    """
    text = str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return f"({text})" if value < 0 else text


def evaluate(text: str) -> float:
    """The value of arithmetic in numbers: + - * / ( ) min max. ValueError for anything else.

    >>> evaluate("min(32, 8-2) * 2 / 3")
    4.0
    """
    return _value(ast.parse(text.strip(), mode="eval").body)


def ratio(text: str) -> str | None:
    """`7/39` for `(8-1)/(32+8-1)`: both sides of a division worked out; None where they are not whole numbers.

    >>> ratio("(8-1)/(32+8-1)")
    '7/39'
    """
    node = ast.parse(text, mode="eval").body
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return None
    above, below = _value(node.left), _value(node.right)
    return f"{above:.0f}/{below:.0f}" if float(above).is_integer() and float(below).is_integer() else None


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        return _FUNCTIONS[node.func.id](*(_value(argument) for argument in node.args))
    raise ValueError(f"not arithmetic in numbers: {ast.unparse(node)}")
