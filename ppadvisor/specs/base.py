"""What specifications and answers share: they are frozen structs of named fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Struct:
    """A frozen record of fields that are given by name, declared as those of a dataclass; it holds nothing beside them.

    Its methods are written once, here: a dataclass makes them anew for each class, which takes half a millisecond, and
    a question needs dozens. Pydantic reads structs from files and writes their JSON Schema, and is imported only then:
    with its models it takes 75 ms.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        fields = self.__dataclass_fields__
        if not values.keys() <= fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(values.keys() - fields.keys()))}")
        vars(self).update({name: values[name] if name in values else _default(fields[name]) for name in fields})

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from ppadvisor.specs.forms import form_of

        return handler.generate_schema(form_of(cls))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields, in their order."""
        return tuple(cls.__dataclass_fields__)

    def as_dict(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The fields, but for some, as what JSON is made of: structs as mappings and tuples as lists, at any depth."""
        return {name: _as_plain(value) for name, value in vars(self).items() if name not in without}

    def some(self, names: Collection[str]) -> dict[str, Any]:
        """Some of the fields with their values."""
        return {name: getattr(self, name) for name in names}

    def changed(self, **changes: Any) -> Self:
        """The same with other values, which nobody looks at: they come from the program itself."""
        struct = object.__new__(type(self))
        Struct.__init__(struct, **(vars(self) | changes))
        return struct

    @classmethod
    def trusted(cls, **values: Any) -> Self:
        """Of values that are known to be what the fields take: nothing but what concerns several of them is checked.

        ValueError where that is broken.
        """
        struct = cls.__new__(cls)
        Struct.__init__(struct, **values)
        struct.check()
        return struct

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a file says, with the fields that follow from others."""
        return values

    def check(self) -> None:
        """ValueError where fields contradict each other."""


class Spec(Struct):
    """What the user (or a preset) says. Built by its name it is strictly validated: kinds, bounds, finite numbers."""

    def __init__(self, **values: Any) -> None:
        from ppadvisor.specs.forms import form_of

        vars(self).update(vars(form_of(type(self)).model_validate(values)))


def _default(of_field: dataclasses.Field[Any]) -> Any:
    if of_field.default_factory is not MISSING:
        return of_field.default_factory()
    if of_field.default is MISSING:
        raise TypeError(f"{of_field.name} is missing")
    return of_field.default


def _as_plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return value.as_dict()
    if isinstance(value, dict):
        return {name: _as_plain(inner) for name, inner in value.items()}
    return [_as_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def check_count(name: str, count: int, most: int) -> None:
    """ValueError for a number that is not within 1 to `most`, as pydantic says it."""
    if count <= 0:
        raise ValueError(f"{name}: got {count}; input should be greater than 0")
    if count > most:
        raise ValueError(f"{name}: got {count}; input should be less than or equal to {most}")
