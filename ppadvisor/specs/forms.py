"""The structs as pydantic knows them. Only who validates, or prints a schema, imports this: pydantic takes its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, create_model, model_validator

from ppadvisor.specs import kinds
from ppadvisor.specs.base import Spec, Struct


class Form(BaseModel):
    """The fields of a struct as pydantic knows them; what it validates comes out as the struct."""

    made_of: ClassVar[type[Struct]]

    @model_validator(mode="wrap")
    @classmethod
    def _as_struct(cls, data: Any, read: ModelWrapValidatorHandler[Form]) -> Any:
        if isinstance(data, cls.made_of):
            return data
        form = read(cls.made_of.completed(data) if isinstance(data, Mapping) else data)
        return cls.made_of.trusted(**dict(form))


class SpecForm(Form):
    """Of what the user says."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AnswerForm(Form):
    """Of an answer."""

    # what is printed is printed whole: the schema of an answer requires the fields with defaults too
    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


_FORMS: dict[type[Struct], type[Form]] = {}


def form_of(kind: type[Struct]) -> type[Form]:
    """The form of a struct, made once: its annotations are text until here."""
    if kind in _FORMS:
        return _FORMS[kind]
    hints = get_type_hints(kind, localns={name: getattr(kinds, name) for name in kinds.__all__}, include_extras=True)
    fields: dict[str, Any] = {name: (hints[name], _default(kind, name)) for name in kind.names()}
    base: type[Form] = SpecForm if issubclass(kind, Spec) else AnswerForm
    form = create_model(kind.__name__, __base__=base, __doc__=kind.__doc__, __module__=kind.__module__, **fields)
    form.made_of = kind
    _FORMS[kind] = form
    return form


def _default(kind: type[Struct], name: str) -> Any:
    of_field = kind.__dataclass_fields__[name]
    if of_field.default_factory is not MISSING:
        return Field(default_factory=of_field.default_factory)
    return ... if of_field.default is MISSING else of_field.default
