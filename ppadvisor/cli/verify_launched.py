"""`ppadvisor verify --layers`, under torchrun: a process a rank; the first prints, all end with one exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from ppadvisor.cli.errors import EXIT_INTERRUPTED, SaidElsewhereError, answer_to, report_error
from ppadvisor.cli.output import view_of, with_progress, write
from ppadvisor.errors import EXIT_OK, EXIT_THRESHOLD, InputError

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.specs.plan import PlanSpec
    from ppadvisor.verify.launched import Launcher
    from ppadvisor.verify.results import LayersReport
    from ppadvisor.verify.scaled import Subject

T = TypeVar("T")


class RankCommand(click.Command):
    """A command that may be one of several ranks: where they fail, one of them says why."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Wrong options are wrong on all ranks."""
        try:
            return super().make_context(*args, **options)
        except click.ClickException as error:
            _failed(error)

    def invoke(self, ctx: click.Context) -> Any:
        """The command itself."""
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except (Exception, KeyboardInterrupt) as error:
            _failed(error)


def _failed(error: Exception | KeyboardInterrupt) -> NoReturn:
    """The error, on a rank that is to say it; ranks that have met end at once, for torch would wait for the others."""
    from ppadvisor.verify.launched import have_met, launcher, says_why

    try:
        here = launcher()
    except InputError:
        here = None
    if here is None:
        raise error
    if isinstance(error, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    elif not says_why(here):
        code = answer_to(error)[1]
    elif have_met():
        code = report_error(error)
    else:
        raise error
    if not have_met():
        raise SaidElsewhereError(code) from None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def run_layers(
    problem: Problem, plan: PlanSpec, here: Launcher, values: Mapping[str, Any], format: str, output: Path | None
) -> int:
    """Real layers of the plan on all ranks; the first writes answer and record. The exit code."""
    from ppadvisor.evidence.own_run import check_recorded
    from ppadvisor.verify.launched import met
    from ppadvisor.verify.run_layers import layers_subject, verify_layers

    subject = layers_subject(problem, plan, here, values["scale"])
    record: Path | None = values["record"]
    if record is not None:
        check_recorded(subject.problem, subject.plan)
    given = {name: values[name] for name in ("steps", "tolerance") if values[name] is not None}
    with met(here) as ranks:
        counted = with_progress if here.speaks else _uncounted
        report = verify_layers(subject, ranks, progress=counted, for_record=record is not None, **given)
        if here.speaks:
            _write(subject, report, format, output, record)
        ranks.wait()  # if it could not be written, no rank ends well
    return EXIT_OK if report.agrees else EXIT_THRESHOLD


def _uncounted(items: Iterable[T], _what: str, _count: int | None) -> Iterable[T]:
    return items


def _write(subject: Subject, report: LayersReport, format: str, output: Path | None, record: Path | None) -> None:
    from ppadvisor.report.verify_view import render_verification

    if record is not None:
        write(_record_line(subject, report), record, "--record")
    view = view_of(output)
    write(render_verification(report, format, width=view.width, color=view.color), output)


def _record_line(subject: Subject, report: LayersReport) -> str:
    """The run as a line of records."""
    from ppadvisor.evidence.own_run import Numbers, record_of_run

    numbers = Numbers(
        step_time_s=report.terms[0].measured_s,
        allocated_bytes=[row.allocated_bytes for row in report.rows if row.allocated_bytes is not None],
        reserved_bytes=[row.reserved_bytes for row in report.rows if row.reserved_bytes is not None],
        on_gpu=report.device == "cuda",
        machine=report.device_name,
        torch_version=report.torch_version.partition("+")[0],
    )
    return record_of_run(subject.problem, subject.plan, numbers).model_dump_json(exclude_none=True) + "\n"
