"""The plan that `explain` and `timeline` are about: one of a file, or one of a search with the options of `plan`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ppadvisor.cli.answer import answer_options, ask
from ppadvisor.cli.job import job_option
from ppadvisor.cli.options import OneOf, Quantity, option_name
from ppadvisor.cli.request import request_options
from ppadvisor.errors import InputError, printable
from ppadvisor.units import parse_count

if TYPE_CHECKING:
    from ppadvisor.search.results import PlanReport, ProblemEcho
    from ppadvisor.specs.plan import PlanSpec

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(frozen=True)
class ChosenPlan:
    """A plan with the problem that it answers."""

    problem: ProblemEcho
    plan: PlanSpec | None
    why_none: str = ""
    """Where there is no plan: the reason."""


def plan_options(command: CommandT) -> CommandT:
    """`[FILE[#RANK]]`, and what `plan` takes with `--rank`: the plan of a search."""
    options = (
        click.argument("file", required=False, metavar="[FILE[#RANK]]"),
        job_option,
        request_options(axes=False),
        answer_options,
        click.option(
            "--sort",
            type=OneOf("sort key", ("step_time_s", "peak_bytes", "bubble_fraction")),
            default="step_time_s",
            show_default=True,
            help="What the first plan of the search is best at.",
        ),
        click.option("--rank", type=Quantity("count", parse_count), help="Which plan of the search (default: 1)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def given_parameters(context: click.Context) -> dict[str, click.Parameter]:
    """The parameters that the user gave, here or in a job file, by their names."""
    sources = ((param, context.get_parameter_source(param.name or "")) for param in context.command.params)
    return {param.name or "": param for param, source in sources if source not in (None, ParameterSource.DEFAULT)}


def plan_of_file(context: click.Context, reference: str, *, beside: Sequence[str], told: str) -> ChosenPlan:
    """The plan of `FILE#2`; `beside` are the options that may stand beside it, `told` what happens to the plan."""
    from ppadvisor.cli.plan_file import read_saved_plan
    from ppadvisor.specs.version import MODEL_VERSION

    for name, param in given_parameters(context).items():
        if name not in ("file", *beside):
            raise InputError(
                f"{option_name(param)} has no effect beside a file, which holds problem and plan; give one"
            )
    saved = read_saved_plan(reference)
    if saved.model_version != MODEL_VERSION:
        note(
            f"{reference} was written by model version {saved.model_version}, this is {MODEL_VERSION}: "
            "the numbers are estimated again and may differ"
        )
    if saved.nearest_miss:
        note(f"no plan of {reference} fits; its nearest miss is {told}")
    return ChosenPlan(saved.problem, saved.plan, f"{reference} holds no legal plan")


def plan_of_search(values: dict[str, Any], *, told: str) -> ChosenPlan:
    """The plan that `plan` would rank `--rank`-th; where none fits and none was asked for by rank, the nearest miss."""
    from ppadvisor.search.api import DEFAULT_TOP

    rank = values["rank"]
    # no fewer than `plan` shows: the replay of those decides their order
    report = ask(values, top=max(rank or 1, DEFAULT_TOP), sort=values["sort"])
    plan = _ranked(report, rank)
    if plan is None:
        reason = report.rejection_examples[0].message if report.rejection_examples else "no combination is left"
        return ChosenPlan(report.problem, None, f"no plan is legal: {reason}")
    if not report.plans:
        note(f"no plan fits; the nearest miss is {told}")
    return ChosenPlan(report.problem, plan)


def _ranked(report: PlanReport, rank: int | None) -> PlanSpec | None:
    if not report.plans and rank is None:
        return report.nearest_miss.estimate.plan if report.nearest_miss else None
    if (rank or 1) > len(report.plans):
        raise InputError(f"--rank: got {rank}, but {len(report.plans) or 'no'} plans fit")
    return report.plans[(rank or 1) - 1].plan


@contextmanager
def naming(file: str | None) -> Iterator[None]:
    """What is wrong with a plan of a file is said with the file's name."""
    try:
        yield
    except InputError as error:
        if file is None:
            raise
        raise InputError(f"{file}: {error}") from None


def note(text: str) -> None:
    """A line on stderr beside the answer."""
    print(f"ppadvisor: note: {printable(text)}", file=sys.stderr)
