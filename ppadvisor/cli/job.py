"""A job file: the same keys as the options, in TOML, YAML or JSON. Options on the command line win."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ppadvisor.errors import InputError, unknown_name
from ppadvisor.specs.files import read_mapping

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

NOT_IN_A_JOB = ("job", "format", "output", "help")
"""Where the answer goes is said where the command is called."""


TABLES = ("assume", "price")
"""Repeatable options `NAME=VALUE`: tables of names and values in a job file."""


def job_option(command: CommandT) -> CommandT:
    """`--job FILE`: its values become the defaults of the other options."""
    return click.option(
        "--job",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=read_job,
        help="TOML, YAML or JSON with the same keys; options win.",
    )(command)


def job_parameters(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of a command that a job file may hold, by their names."""
    return {param.name: param for param in command.params if param.name and param.name not in NOT_IN_A_JOB}


def read_job(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Its values as defaults of the command's options. InputError for an unknown key, or a value of another form."""
    if path is None:
        return
    known = job_parameters(ctx.command)
    defaults: dict[str, Any] = {}
    for key, value in read_mapping(path).items():
        name = "assume" if key == "assumptions" else str(key).replace("-", "_")
        if name not in known:
            raise unknown_name("key", str(key), known, where=str(path))
        if name in defaults:
            raise InputError(f"{path}: {key!r} is given twice")
        defaults[name] = _as_option(value, f"{path}: {key}", many=name in TABLES, switch=_is_switch(known[name]))
    ctx.default_map = defaults


def _is_switch(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.is_flag


def _as_option(value: object, where: str, *, many: bool, switch: bool) -> object:
    """The value as it would stand on the command line."""
    if many:
        if not isinstance(value, dict):
            raise InputError(f"{where}: got {value!r}; needs a table of names and numbers")
        return tuple(f"{name}={number}" for name, number in value.items())
    if isinstance(value, bool) and switch:
        return value
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in items):
        raise InputError(f"{where}: got {value!r}; needs a text, a number or a list of them")
    return ",".join(map(str, items))
