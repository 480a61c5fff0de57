"""From raw values to a struct: the first problem becomes one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ppadvisor.errors import InputError, nearest
from ppadvisor.specs.base import Struct

if TYPE_CHECKING:
    from pydantic import ValidationError

StructT = TypeVar("StructT", bound=Struct)


AS_IN_A_FILE = {
    **dict.fromkeys(("tuple_type", "list_type"), "input should be a valid array"),
    **dict.fromkeys(("dict_type", "model_type"), "input should be an object"),
}
"""What pydantic calls by the names of Python's types."""


def trust(kind: type[StructT], data: Mapping[str, Any], where: str) -> StructT:
    """Build a struct of what was looked at when it was read: options, a preset of ours. InputError as `validate`."""
    try:
        return kind.trusted(**data)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def validate(kind: type[StructT], data: Mapping[str, Any], where: str) -> StructT:
    """Build a struct of what a file says; the first problem becomes one InputError naming place, field, value, rule."""
    from pydantic import ValidationError

    from ppadvisor.specs.forms import form_of

    try:
        return cast(StructT, form_of(kind).model_validate(dict(data)))
    except ValidationError as error:
        raise InputError(describe_problem(error, where, known=kind.names())) from None


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
    message = AS_IN_A_FILE.get(first["type"]) or first["msg"][0].lower() + first["msg"][1:]
    return f"{place}: got {_short(first['input'])}; {message}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
