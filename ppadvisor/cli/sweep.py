"""`ppadvisor sweep`: the best plan at each point of a grid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppadvisor.cli.answer import answer_options, read_assumptions
from ppadvisor.cli.job import job_option
from ppadvisor.cli.options import output_options
from ppadvisor.cli.output import view_of, with_progress, write
from ppadvisor.cli.request import INPUTS, SWITCHES, Input, flag_of, given_values, request_options
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError, unknown_name

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.search.pins import Pins
    from ppadvisor.search.sweep import AxisValue, Point, SweepReport, SweepRow
    from ppadvisor.specs.assumptions import Assumptions

Values = dict[str, Any]


@click.command()
@job_option
@request_options(axes=True)
@answer_options
@output_options
def command(format: str, output: Path | None, margin: float, assume: tuple[str, ...], **values: Any) -> int:
    """The best plan at each point of a grid, or the reason why none fits.

    Every option takes a comma list; the product of the lists are the points. What is not pinned is searched at
    each point: pin --tp, --micro-batch and --recompute to compare like with like. Where --global-batch is not
    given, it follows m: d b m, with --micro-batch, --microbatches and d pinned (--dp, or --pp, --tp and --cp).

    Exit code 3 where no point has a plan that fits.

    \b
    ppadvisor sweep --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 4k --pp 8 --tp 8 \\
        --micro-batch 1 --recompute none --microbatches 8,16,32,64,128,256 --schedule gpipe,1f1b
    """
    from ppadvisor.report.sweep_view import render_sweep

    report = _sweep(given_values(values), margin, read_assumptions(assume))
    view = view_of(output)
    write(render_sweep(report, format, width=view.width, color=view.color), output)
    return EXIT_OK if any(row.fits for row in report.rows) else EXIT_NO_PLAN


def _sweep(given: Values, margin: float, assumed: dict[str, float]) -> SweepReport:
    """Ask every point. InputError for what is wrong with all of them."""
    from ppadvisor.cli.specs import choose_framework
    from ppadvisor.search.sweep import SweepReport, sweep_rows
    from ppadvisor.specs.assumptions import Assumptions

    assumptions = Assumptions().changed(assumed)
    _check_names(given)
    # one trainer for all points, so that schedules are compared and not trainers
    given.setdefault("framework", (choose_framework(given),))
    lists = {entry: tuple(dict.fromkeys(given[entry.name])) for entry in INPUTS if entry.name in given}
    axes = {entry: values for entry, values in lists.items() if len(values) > 1}
    fixed = {entry: values[0] for entry, values in lists.items() if len(values) == 1}
    switches = {switch.name: given[switch.name] for switch in SWITCHES if switch.name in given}
    named_axes = dict(_axis(entry, values) for entry, values in axes.items())
    points = _points(axes, _options(fixed) | switches, assumptions)
    rows = tuple(sweep_rows(with_progress(points, "points", prod(map(len, axes.values()))), margin=margin))
    _refuse_if_none_could_be_asked(rows)
    return SweepReport(
        margin_fraction=margin,
        assumptions=assumed,
        fixed=_answer_values(fixed) | switches,
        axes=named_axes,
        rows=rows,
    )


def _check_names(given: Values) -> None:
    """A name that nobody knows is wrong whatever the point: InputError before the first one is asked."""
    from ppadvisor import frameworks, schedules
    from ppadvisor.specs.load import load_cluster, load_gpu, load_model
    from ppadvisor.specs.recomputation import parse_recomputation
    from ppadvisor.specs.training import OPTIMIZERS

    loaders: dict[str, Callable[[str], object]] = {"model": load_model, "gpu": load_gpu, "cluster": load_cluster}
    for option, load in loaders.items():
        for name in given.get(option, ()):
            load(name)
    for choice in given.get("recompute", ()):
        parse_recomputation(choice, flag_of("recompute"))
    known: dict[str, Collection[str]] = {
        "framework": frameworks.FRAMEWORKS,
        "optimizer": OPTIMIZERS,
        "schedule": schedules.SCHEDULES,
    }
    for option, names in known.items():
        for name in given.get(option, ()):
            if name not in names:
                raise unknown_name(option, name, names, where=flag_of(option))


def _points(axes: Mapping[Input, Sequence[Any]], shared: Values, assumptions: Assumptions) -> Iterator[Point]:
    """The product of the axes in the order of the option table, the last one running fastest."""
    from ppadvisor.search.sweep import Point

    for combination in product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        yield Point(_answer_values(chosen), partial(_ask, shared | _options(chosen), assumptions))


def _ask(values: Values, assumptions: Assumptions) -> tuple[Problem, Pins]:
    from ppadvisor.cli.specs import read_request
    from ppadvisor.search.api import make_problem

    request = read_request(values)
    return make_problem(request.model, request.cluster, request.training, assumptions), request.pins


def _options(chosen: Mapping[Input, Any]) -> Values:
    """One value of each input as the options of `plan` hold it: a pin is a list."""
    return {entry.name: (value,) if entry.pin else value for entry, value in chosen.items()}


def _answer_values(chosen: Mapping[Input, Any]) -> dict[str, AxisValue]:
    """The same under the names of the answers."""
    return dict(_named(entry, value) for entry, value in chosen.items())


def _named(entry: Input, value: Any) -> tuple[str, Any]:
    if entry.name != "global_batch":
        return entry.quantity, value
    unit, amount = value
    return entry.quantity if unit == "sequences" else "tokens_per_step", amount


def _axis(entry: Input, values: Sequence[Any]) -> tuple[str, tuple[AxisValue, ...]]:
    names, amounts = zip(*(_named(entry, value) for value in values), strict=True)
    if len(set(names)) > 1:
        raise InputError(f"{entry.flag}: give either all values in sequences or all in tokens")
    return names[0], amounts


def _refuse_if_none_could_be_asked(rows: Sequence[SweepRow]) -> None:
    from ppadvisor.search.sweep import CONTRADICTION

    if all(row.reason_code == CONTRADICTION for row in rows):
        alike = len({row.reason for row in rows}) == 1
        raise InputError(f"{'' if alike else 'every point contradicts itself; the first: '}{rows[0].reason}")
