"""`ppadvisor sweep`: the best plan at each point of a grid."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ppadvisor.cli.answer import answer_options, read_assumptions
from ppadvisor.cli.chosen import note
from ppadvisor.cli.errors import EXIT_INTERRUPTED
from ppadvisor.cli.job import job_option
from ppadvisor.cli.options import CommaList, Quantity, output_options_of
from ppadvisor.cli.output import check_places, view_of, with_progress, write
from ppadvisor.cli.request import given_values, request_options
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError
from ppadvisor.report.formats import SWEEP_FORMATS
from ppadvisor.units import parse_count

if TYPE_CHECKING:
    from ppadvisor.cli.row_file import RowFile
    from ppadvisor.cli.sweep_points import Asked
    from ppadvisor.report.sweep_view import Shape
    from ppadvisor.search.sweep import SweepReport, SweepRow

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

Values = dict[str, Any]

FOR_PEOPLE = ("table", "markdown")


@dataclass
class Answered:
    """The rows so far."""

    rows: list[SweepRow] = field(default_factory=list)
    interrupted: bool = False


def shape_options(command: CommandT) -> CommandT:
    """What is shown of the rows, and how they are come by."""
    file = click.Path(path_type=Path)
    options = (
        click.option(
            "--pivot", type=CommaList(click.STRING), help="Two axes as a table: the one down, the one across."
        ),
        click.option(
            "--value", type=CommaList(click.STRING), help="What it, or a picture, shows (default: step_time_s)."
        ),
        click.option(
            "--plot", type=file, metavar="FILE", help="Draw FILE.svg, .png or .html; with --pivot a heat map."
        ),
        click.option(
            "--resume", type=file, metavar="FILE", help="Keep rows in FILE.csv or .jsonl; go on with those there."
        ),
        click.option("--quick", is_flag=True, help="The best of the search's first plans as they are, untuned."),
        click.option("--jobs", type=Quantity("count", parse_count), help="Processes (default: cores, where it helps)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@job_option
@request_options(axes=True)
@answer_options
@shape_options
@output_options_of(SWEEP_FORMATS)
def command(format: str, output: Path | None, margin: float, assume: tuple[str, ...], **values: Any) -> int:
    """The best plan at each point of a grid, or the reason why none fits.

    Every option takes a comma list, of quantities also ranges: 64:4096:x2, 8:64:+8. The product of the lists are the
    points. What is not pinned is searched at each point: pin --tp, --micro-batch and --recompute to compare like with
    like. Where --global-batch is not given, it follows m: d b m, with --micro-batch, --microbatches and d pinned
    (--dp, or --pp, --tp and --cp).

    Ctrl-C keeps what is done. With --resume FILE every row is kept at once, and the same command goes on after
    whatever ended it.

    Exit code 3 where no point has a plan that fits.

    \b
    ppadvisor sweep --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 4k --pp 8 --tp 8 \\
        --micro-batch 1 --recompute none --microbatches 8:256:x2 --schedule gpipe,1f1b \\
        --pivot microbatches,schedule --value bubble_fraction
    """
    from ppadvisor.cli.sweep_points import read_points
    from ppadvisor.report.sweep_view import render_sweep
    from ppadvisor.search.sweep import SweepReport

    asked = read_points(given_values(values), margin, read_assumptions(assume), quick=values["quick"])
    resume, plot = values["resume"], values["plot"]
    check_places({"--output": output, "--plot": plot, "--resume": resume})
    _check_format(format, output)
    shape = _shape(asked, values, format)
    draw = _drawing(asked, plot, shape)
    answered = _answered(asked, resume, values["jobs"] or _cores())
    if not answered.rows:
        return EXIT_INTERRUPTED
    report = SweepReport(**dict(asked.question), rows=tuple(answered.rows))
    if answered.interrupted and resume:
        return _interrupted(asked, answered, f"are in {str(resume)!r}: the same command goes on")
    if answered.interrupted:
        output = _partial(output)
    write(render_sweep(report, format, view_of(output), shape), output)
    if answered.interrupted:
        return _interrupted(asked, answered, f"are {f'in {str(output)!r}' if output else 'shown'}")
    if draw:
        write(draw(report), plot, "--plot")
    return EXIT_OK if any(row.fits for row in report.rows) else EXIT_NO_PLAN


def _check_format(format: str, output: Path | None) -> None:
    if format != "parquet":
        return
    if output is None:
        raise InputError("--format parquet is no text; give --output FILE")
    needs_extra("pyarrow", "parquet", "--format parquet")


def needs_extra(module: str, extra: str, option: str) -> None:
    """InputError, before any work is done, where a library is missing that few need."""
    if find_spec(module) is None:
        hint = f"pip install {module} (or ppadvisor with its extra {extra!r})"
        raise InputError(f"{option} needs {module}, which is not installed: {hint}")


def _shape(asked: Asked, values: Values, format: str) -> Shape:
    """What is shown. InputError for an unknown name, and for an option without effect."""
    from ppadvisor.cli.sweep_points import axis_flags
    from ppadvisor.report.sweep_pivot import Pivot
    from ppadvisor.report.sweep_values import DEFAULT_VALUE, axis_named, value_named
    from ppadvisor.report.sweep_view import Shape

    pivot, plot = values["pivot"], values["plot"]
    if pivot and not plot and format not in FOR_PEOPLE:
        raise InputError(f"--pivot has no effect on --format {format}, which is one row a point; or give --plot")
    if values["value"] and not pivot and not plot:
        raise InputError("--value has no effect without --pivot or --plot")
    shown = tuple(dict.fromkeys(value_named(text, "--value") for text in values["value"] or (DEFAULT_VALUE,)))
    if not pivot:
        return Shape(None, shown)
    known = asked.question.axes
    axes = tuple(axis_named(text, known, axis_flags(known), "--pivot") for text in pivot)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise InputError(f"--pivot: got {','.join(pivot)!r}; needs two axes, as in --pivot gpus,seq-len")
    return Shape(Pivot(*axes), shown)


def _drawing(asked: Asked, plot: Path | None, shape: Shape) -> Callable[[SweepReport], str | bytes] | None:
    """What draws the picture. InputError, before any point is asked, for one that cannot be drawn."""
    if plot is None:
        return None
    needs_extra("matplotlib", "plot", "--plot")
    from ppadvisor.report.sweep_plot import check_drawable, draw

    kind = plot.suffix.removeprefix(".")
    check_drawable(asked.question, shape, kind, str(plot))
    return partial(draw, shape=shape, kind=kind)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _answered(asked: Asked, resume: Path | None, jobs: int) -> Answered:
    """The rows of all points, or of those before an interrupt. InputError where every point contradicts itself."""
    answered = Answered()
    with _kept(asked, resume) as file:
        if file:
            answered.rows += file.kept
        try:
            _ask_the_others(asked, answered, file, jobs)
        except KeyboardInterrupt:
            answered.interrupted = True
            return answered
        try:
            _refuse_if_none_could_be_asked(answered.rows)
        except InputError:
            if file and not file.was_there:
                file.path.unlink()
            raise
    return answered


def _ask_the_others(asked: Asked, answered: Answered, file: RowFile | None, jobs: int) -> None:
    from ppadvisor.search.sweep import sweep_rows

    done = len(answered.rows)
    rows = sweep_rows(asked.points[done:], margin=asked.question.margin_fraction, quick=asked.question.quick, jobs=jobs)
    with closing(rows):
        for row in with_progress(rows, "points", len(asked.points), done):
            if file:
                file.append(row)
            answered.rows.append(row)


def _kept(asked: Asked, resume: Path | None) -> AbstractContextManager[RowFile | None]:
    if resume is None:
        return nullcontext()
    from ppadvisor.cli.row_file import open_row_file

    return open_row_file(resume, asked.question, [point.values for point in asked.points])


def _partial(output: Path | None) -> Path | None:
    """Where the rows before an interrupt go: what is in the file itself is of a whole sweep, and stays."""
    return output and output.with_name(f"{output.stem}.partial{output.suffix}")


def _interrupted(asked: Asked, answered: Answered, where: str) -> int:
    note(f"interrupted: {len(answered.rows):,} of {len(asked.points):,} points {where}")
    return EXIT_INTERRUPTED


def _refuse_if_none_could_be_asked(rows: Sequence[SweepRow]) -> None:
    from ppadvisor.search.sweep import CONTRADICTION

    if all(row.reason_code == CONTRADICTION for row in rows):
        alike = len({row.reason for row in rows}) == 1
        raise InputError(f"{'' if alike else 'every point contradicts itself; the first: '}{rows[0].reason}")
