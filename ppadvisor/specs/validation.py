"""From raw values to a specification: the first problem becomes one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from ppadvisor.errors import InputError, nearest
from ppadvisor.specs.base import Spec

SpecT = TypeVar("SpecT", bound=Spec)


def validate(kind: type[SpecT], data: Mapping[str, Any], where: str) -> SpecT:
    """Build a specification; the first problem becomes one InputError naming place, field, value and rule."""
    try:
        return kind.model_validate(dict(data))
    except ValidationError as error:
        raise InputError(describe_problem(error, where, known=tuple(kind.model_fields))) from None


def describe_problem(error: ValidationError, where: str, known: tuple[str, ...] = ()) -> str:
    """One line for the first problem that pydantic found; a misspelt key before the one it leaves missing."""
    problems = error.errors(include_url=False)
    first = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        hint = nearest(str(first["loc"][-1]), known)
        tail = f"; did you mean {hint!r}?" if hint else f"; known: {', '.join(known)}"
        return f"{where}: unknown key {field!r}{tail}"
    if first["type"] == "missing":
        return f"{where}: {field} is missing"
    place = f"{where}: {field}" if field else where
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{place}: got {_short(first['input'])}; {message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
