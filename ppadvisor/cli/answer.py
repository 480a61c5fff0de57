"""From option values to the answer of a search; what `plan`, `explain` and `sweep` do alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ppadvisor.cli.options import Quantity
from ppadvisor.errors import InputError
from ppadvisor.units import parse_fraction

if TYPE_CHECKING:
    from ppadvisor.search.results import PlanReport

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def answer_options(command: CommandT) -> CommandT:
    """`--margin` and `--assume`."""
    command = click.option(
        "--assume",
        multiple=True,
        metavar="NAME=VALUE",
        help="Replace an assumption (they are listed in the JSON output and by `explain`). Repeatable.",
    )(command)
    return click.option(
        "--margin",
        type=Quantity("fraction", parse_fraction),
        default=0.9,
        show_default=True,
        help="Share of GPU memory that the middle estimate may use.",
    )(command)


def read_assumptions(given: tuple[str, ...]) -> dict[str, float]:
    """`NAME=VALUE` texts as a mapping. InputError for another form, a value that is no number, a repeat."""
    values: dict[str, float] = {}
    for text in given:
        name, equals, number = text.partition("=")
        if not equals:
            raise InputError(f"--assume: got {text!r}; needs NAME=VALUE")
        if name in values:
            raise InputError(f"--assume: {name!r} is given twice")
        try:
            values[name] = float(number)
        except ValueError:
            raise InputError(f"--assume {name}: got {number!r}, needs a number") from None
    return values


def ask(values: Mapping[str, Any], *, top: int | None, sort: str) -> PlanReport:
    """Run the search that the options mean."""
    # what only a search needs is imported when there is one: `--help` does not pay for it
    from ppadvisor.cli.specs import read_request
    from ppadvisor.search.api import DEFAULT_TOP, plan
    from ppadvisor.specs.assumptions import Assumptions

    request = read_request(values)
    return plan(
        request.model,
        request.cluster,
        request.training,
        pins=request.pins,
        top=top or DEFAULT_TOP,
        sort=sort,
        margin=values["margin"],
        assumptions=Assumptions().changed(read_assumptions(values["assume"])),
    )
