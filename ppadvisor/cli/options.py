"""Options that several commands share, and the types that read their values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ppadvisor.cli.ranges import is_range, parse_range
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.report.formats import FORMATS

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def option_name(param: click.Parameter | None) -> str:
    """What to call a parameter in a message: `--pp`, or an argument's name."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name if param else "value"


class Quantity(click.ParamType[Any]):
    """A value that a parser of `ppadvisor.units` reads: parse(text, what) -> value."""

    def __init__(self, name: str, parse: Callable[[str, str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value; what is no text is a default and stays."""
        return self.parse(value, option_name(param)) if isinstance(value, str) else value


class OneOf(click.ParamType[Any]):
    """A name out of a few; an unknown one is answered with the nearest."""

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.name = what
        self.names = tuple(names)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """The names, as the help shows them: in braces where one has to be given."""
        names = "|".join(self.names)
        return f"{{{names}}}" if param.required else f"[{names}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, as it was given."""
        if value not in self.names:
            raise unknown_name(self.name, value, self.names, where=option_name(param))
        return str(value)


class CommaList(click.ParamType[Any]):
    """Values of another type between commas, as a tuple: `8,32,64`; of quantities also ranges: `8:64:x2`."""

    def __init__(self, item: click.ParamType[Any]) -> None:
        self.item = item
        self.name = f"{item.name}[,...]"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """One item and that there may be more."""
        return f"{self.item.name.upper()}[,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Each item parsed; an empty one is an InputError."""
        if not isinstance(value, str):
            return tuple(value)
        items = [item.strip() for item in value.split(",")]
        if not all(items):
            raise InputError(f"{option_name(param)}: {value!r} has an empty item; allowed: values between commas")
        return tuple(value for item in items for value in self._values(item, param, ctx))

    def _values(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(self.item, Quantity) and is_range(text):
            return parse_range(text, self.item.parse, option_name(param))
        return (self.item.convert(text, param, ctx),)


def output_options(command: CommandT) -> CommandT:
    """`--format` and `--output`, passed on as `format` and `output`."""
    return output_options_of(FORMATS)(command)


def output_options_of(
    formats: Collection[str], *, help: str = "Form of the answer.", target: str = "FILE"
) -> Callable[[CommandT], CommandT]:
    """The same with other formats, the first of which is the default."""

    def decorate(command: CommandT) -> CommandT:
        command = click.option(
            "--output",
            type=click.Path(path_type=Path),
            metavar=target,
            help=f"Write to {target}; it is replaced whole.",
        )(command)
        kind = OneOf("format", tuple(formats))
        first = next(iter(formats))
        return click.option("--format", type=kind, default=first, show_default=True, help=help)(command)

    return decorate
