"""`ppadvisor report`: the answer of `plan` as one HTML page for a meeting."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppadvisor.cli.answer import answer_options, ask
from ppadvisor.cli.chosen import given_parameters, naming
from ppadvisor.cli.job import job_option, job_parameters, read_job
from ppadvisor.cli.options import OneOf, Quantity, option_name
from ppadvisor.cli.output import check_places, write
from ppadvisor.cli.request import request_options
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError
from ppadvisor.units import parse_count

if TYPE_CHECKING:
    from ppadvisor.report.plan_page import Meeting
    from ppadvisor.search.results import PlanReport

WORDS = "ppadvisor.words"
"""Key of the words of the command line, as they were typed, in the context."""
PAGE = "report.html"
"""Name of the page in the command that makes it again: the page does not hang on where it was written."""


class Report(click.Command):
    """A command that keeps its words as they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual; click itself keeps the values only, without their units."""
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class Asked:
    """The answer that the page shows."""

    report: PlanReport
    rank: int
    """From 1."""
    command: str


def _read_file(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """A job file gives the other options their defaults, as --job does; a plan file stays what it is."""
    from ppadvisor.cli.plan_file import holds_plans

    if name is None or holds_plans(name):
        return name
    if ctx.default_map:
        raise InputError(f"a job is given twice, as --job and as {name}; give one")
    read_job(ctx, param, Path(name))
    return None


@click.command(cls=Report)
@job_option
@click.argument("file", required=False, metavar="[JOB|PLAN[#RANK]]", is_eager=True, callback=_read_file)
@request_options(axes=False)
@answer_options
@click.option(
    "--sort",
    type=OneOf("sort key", ("step_time_s", "peak_bytes", "bubble_fraction")),
    default="step_time_s",
    show_default=True,
    help="What the first plan is best at.",
)
@click.option("--top", type=Quantity("count", parse_count), help="Plans in the table (default: 10).")
@click.option("--rank", type=Quantity("count", parse_count), help="Which plan is shown in full (default: 1).")
@click.option(
    "--html", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The page; it is replaced whole."
)
@click.pass_context
def command(context: click.Context, /, file: str | None, html: Path, **values: Any) -> int:
    """The answer of `plan` as one HTML page for a meeting, which needs nothing else.

    Of a job file, of a file that `plan --format json` wrote (FILE#2: its second plan in full), or of the options of
    `plan`: ranked plans, memory of each stage, timeline, what-ifs, assumptions with their sources, and the command that
    makes the page again.

    Exit code 3 where no plan fits; the page then shows the nearest miss.

    \b
    ppadvisor report job.toml --html report.html
    ppadvisor report plan.json#2 --html report.html
    """
    from ppadvisor.report.plan_page import render_page

    check_places({"--html": html})
    asked = _of_search(context, values) if file is None else _of_file(context, file)
    with naming(file):
        page = render_page(_meeting(asked))
    write(page, html, "--html")
    return EXIT_OK if asked.report.plans else EXIT_NO_PLAN


def _of_search(context: click.Context, values: dict[str, Any]) -> Asked:
    """The answer of the search that the options mean."""
    from ppadvisor.search.api import DEFAULT_TOP

    rank = values["rank"] or 1
    report = ask(values, top=values["top"] or max(rank, DEFAULT_TOP), sort=values["sort"])
    if rank > max(len(report.plans), 1):
        raise InputError(f"--rank: got {rank}, but the table has {len(report.plans) or 'no'} plans")
    return Asked(report, rank, shlex.join(["ppadvisor", "report", *_options(context), "--html", PAGE]))


def _options(context: click.Context) -> Iterator[str]:
    """What was asked, here and in a job file, as options in the order of the table, each value as it was written."""
    typed, _, __ = context.command.make_parser(context).parse_args(list(context.meta[WORDS]))
    values = dict(context.default_map or {}) | typed
    for name, param in job_parameters(context.command).items():
        if name not in values or name in ("file", "html") or not isinstance(param, click.Option):
            continue
        value = values[name]
        if isinstance(value, bool):
            yield param.opts[0] if value else param.secondary_opts[0]
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            yield from (option_name(param), str(one))


def _of_file(context: click.Context, reference: str) -> Asked:
    """The answer that a file holds."""
    from ppadvisor.cli.plan_file import read_saved_report
    from ppadvisor.specs.version import MODEL_VERSION

    for name, param in given_parameters(context).items():
        if name not in ("file", "html"):
            raise InputError(
                f"{option_name(param)} has no effect beside a file, which holds problem and plans; give one"
            )
    report, rank, path = read_saved_report(reference)
    if report.model_version != MODEL_VERSION:
        raise InputError(
            f"{path} was written by model version {report.model_version}, this is {MODEL_VERSION}, whose numbers may "
            "differ; write it again with `ppadvisor plan --format json`"
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    made = shlex.join(["ppadvisor", "report", reference, "--html", PAGE])
    return Asked(report, rank, f"{made}\n# SHA-256 of {path}: {digest}")


def _meeting(asked: Asked) -> Meeting:
    """What the page needs beside the answer."""
    import ppadvisor
    from ppadvisor.report.plan_page import Meeting
    from ppadvisor.search.drawable import drawable_timeline
    from ppadvisor.search.explain import NothingToExplain, cluster_numbers, legal_problem, problem_of

    report = asked.report
    problem = problem_of(report.problem)
    meeting = Meeting(
        report, asked.rank, None, cluster_numbers(problem), command=asked.command, version=ppadvisor.__version__
    )
    if meeting.estimate is None:
        return meeting
    legal = legal_problem(report.problem, meeting.estimate.plan)
    if isinstance(legal, NothingToExplain):
        raise InputError(legal.note)
    return replace(meeting, drawn=drawable_timeline(legal, meeting.estimate.plan))
