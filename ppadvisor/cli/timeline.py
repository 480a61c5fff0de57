"""`ppadvisor timeline`: who works when, and why not, of a plan or of bare numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ppadvisor.cli.chosen import (
    ChosenPlan,
    given_parameters,
    naming,
    note,
    plan_of_file,
    plan_of_search,
    plan_options,
)
from ppadvisor.cli.options import Quantity, option_name, output_options
from ppadvisor.cli.output import check_places, view_of, write
from ppadvisor.cli.request import MODEL_INPUTS, flag_of
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError
from ppadvisor.units import parse_duration

if TYPE_CHECKING:
    from ppadvisor.engine.timeline import Timeline
    from ppadvisor.search.explain import NothingToExplain

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class Time(NamedTuple):
    """One of the times of bare numbers; 1 or 0 s unless given."""

    flag: str
    field: str
    """Of `PassTimes`."""
    help: str

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


class Figure(NamedTuple):
    """A file to write beside the answer."""

    name: str
    module: str
    help: str


TIMES = (
    Time("--t-f", "forward_s", "Bare numbers: forward of one chunk; seconds, or 20ms (default: 1)."),
    Time("--t-b", "input_grad_s", "Bare numbers: its input gradient (default: 1)."),
    Time("--t-w", "weight_grad_s", "Bare numbers: its weight gradient (default: 1)."),
    Time("--t-comm", "handoff_s", "Bare numbers: one hand-off between stages (default: 0)."),
)
FIGURES = (
    Figure("svg", "ppadvisor.report.timeline_svg", "Write the picture, also for documents."),
    Figure("html", "ppadvisor.report.timeline_html", "Write the picture as one page that tells more on hover."),
    Figure("trace", "ppadvisor.report.timeline_trace", "Write a Chrome trace, for ui.perfetto.dev."),
    Figure("csv", "ppadvisor.report.timeline_ops", "Write the order as torch.distributed.pipelining loads it."),
)
NUMBERS = ("schedule", "pp", "vp", "microbatches")
"""What bare numbers share with a plan."""
OUTPUTS = (*(figure.name for figure in FIGURES), "format", "output")


@dataclass(frozen=True)
class Drawn:
    """What there is to draw, or why there is nothing."""

    timeline: Timeline | NothingToExplain
    about: tuple[str, ...] = ()
    """Lines that say what it is a timeline of."""
    fits: bool = True


def timeline_options(command: CommandT) -> CommandT:
    """The times of bare numbers, and the figures."""
    for figure in reversed(FIGURES):
        kind = click.Path(path_type=Path)
        command = click.option(f"--{figure.name}", figure.name, type=kind, metavar="FILE", help=figure.help)(command)
    for time in reversed(TIMES):
        command = click.option(time.flag, time.name, type=Quantity("time", parse_duration), help=time.help)(command)
    return command


@click.command()
@plan_options
@timeline_options
@output_options
@click.pass_context
def command(context: click.Context, /, file: str | None, format: str, output: Path | None, **values: Any) -> int:
    """Who works when, and why not: of a plan, or of bare numbers.

    The plan is one of a file that `plan --format json` wrote (FILE#2: the second), or the --rank-th that `plan` would
    rank with the same options. Bare numbers are a schedule, p, m and the times of one chunk (a whole stage where v is
    1): a schedule that does not split the backward does input and weight gradient as one.

    \b
    ppadvisor timeline --schedule zb-v --pp 4 --microbatches 8
    ppadvisor timeline plan.json#2 --html timeline.html
    """
    from ppadvisor.report.timeline_view import render_nothing, render_timeline
    from ppadvisor.search.explain import NothingToExplain

    figures = {figure: values[figure.name] for figure in FIGURES if values[figure.name] is not None}
    check_places({f"--{figure.name}": path for figure, path in figures.items()} | {"--output": output})
    drawn = _of_plan(context, file, values) if _asks_for_a_plan(context) else _of_numbers(values)
    if isinstance(drawn.timeline, NothingToExplain):
        write(render_nothing(drawn.timeline, format), output)
        return EXIT_NO_PLAN
    answer = render_timeline(drawn.timeline, format, view_of(output), drawn.about)
    texts = {figure: import_module(figure.module).render(drawn.timeline, drawn.about) for figure in figures}
    for figure, text in texts.items():
        write(text, figures[figure], f"--{figure.name}")
    write(answer, output)
    return EXIT_OK if drawn.fits else EXIT_NO_PLAN


def _asks_for_a_plan(context: click.Context) -> bool:
    """A file, or options that bare numbers do not have. InputError where both are mixed."""
    given = given_parameters(context)
    of_plans = [param for name, param in given.items() if name not in (*NUMBERS, *OUTPUTS, *_time_names(), "job")]
    if "file" in given or not of_plans:
        return "file" in given
    option = option_name(of_plans[0])
    times = [time.flag for time in TIMES if time.name in given]
    if times:
        raise InputError(
            f"{times[0]} and {option} contradict each other: a plan has its own times; give a plan or bare numbers"
        )
    if not any(entry.name in given for entry in MODEL_INPUTS):
        raise InputError(
            f"{option} belongs to a plan, which needs a model and GPUs (see `ppadvisor plan --help`); bare numbers are "
            "--schedule, --pp, --vp, --microbatches and times"
        )
    return True


def _time_names() -> list[str]:
    return [time.name for time in TIMES]


def _of_numbers(values: Mapping[str, Any]) -> Drawn:
    from ppadvisor.engine.timeline import PassTimes, timeline_of_times

    if not any(values[name] for name in NUMBERS):
        raise InputError(
            "give a file that `plan --format json` wrote, the options of `plan`, or --schedule, --pp and --microbatches"
        )
    numbers = {name: _single(values, name) for name in NUMBERS}
    for name in ("schedule", "pp", "microbatches"):
        if numbers[name] is None:
            raise InputError(f"{flag_of(name)} is missing")
    times = {time.field: values[time.name] for time in TIMES if values[time.name] is not None}
    schedule, p, v, m = (numbers[name] for name in NUMBERS)
    return Drawn(timeline_of_times(schedule, p, m, v, PassTimes(**times)))


def _single(values: Mapping[str, Any], name: str) -> Any:
    given = values[name] or (None,)
    if len(given) > 1:
        raise InputError(f"{flag_of(name)}: a timeline is of one value; got {','.join(map(str, given))}")
    return given[0]


def _of_plan(context: click.Context, file: str | None, values: dict[str, Any]) -> Drawn:
    from ppadvisor.search.explain import NothingToExplain

    if file is None:
        chosen = plan_of_search(values, told="drawn")
    else:
        chosen = plan_of_file(context, file, beside=OUTPUTS, told="drawn")
    if chosen.plan is None:
        return Drawn(NothingToExplain(plan=None, note=chosen.why_none))
    with naming(file):
        return _of_chosen(chosen)


def _of_chosen(chosen: ChosenPlan) -> Drawn:
    from ppadvisor.engine.evaluate import estimate_plan
    from ppadvisor.engine.timeline import timeline_of_plan
    from ppadvisor.report.plan_view import about
    from ppadvisor.search.advise import short_plan
    from ppadvisor.search.explain import NothingToExplain, legal_problem

    assert chosen.plan is not None
    problem = legal_problem(chosen.problem, chosen.plan)
    if isinstance(problem, NothingToExplain):
        return Drawn(problem)
    timeline = timeline_of_plan(problem, chosen.plan)
    memory = estimate_plan(problem, chosen.plan, margin=chosen.problem.margin_fraction).memory
    if not memory.fits:
        note(f"in memory the plan {memory.verdict.replace('_', ' ')}")
    lines = (*about(chosen.problem), f"Plan      {short_plan(chosen.plan)}")
    return Drawn(timeline, lines, memory.fits)
