"""`ppadvisor calibrate`: what the logs of runs say of a cluster, written as a cluster file that every command reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ppadvisor.cli.options import OneOf
from ppadvisor.cli.output import view_of, write
from ppadvisor.errors import InputError
from ppadvisor.report.formats import FORMATS

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.evidence.calibrate import Calibration
    from ppadvisor.evidence.constants import Run
    from ppadvisor.specs.plan import PlanSpec

DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@click.command()
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path), metavar="[LOG]...")
@click.option(
    "--plan", "plans", multiple=True, metavar="FILE[#RANK]", help="The plan that ran; one for all logs, or one each."
)
@click.option("--records", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="In place of logs.")
@click.option("--framework", metavar="NAME", help="Whose lines to read (default: as the log tells).")
@click.option("--date", metavar="YYYY-MM-DD", help="Day to note (default: that of the last step line, if any).")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the cluster file; replaced whole."
)
@click.option(
    "--format", type=OneOf("format", tuple(FORMATS)), default="table", show_default=True, help="Form of the answer."
)
def command(
    logs: tuple[Path, ...],
    plans: tuple[str, ...],
    records: tuple[Path, ...],
    framework: str | None,
    date: str | None,
    output: Path | None,
    format: str,
) -> None:
    """Fit the assumptions that measured runs identify; write them with the cluster.

    LOG is what Megatron-LM, Megatron-Bridge, NeMo, torchtitan or DeepSpeed printed. --plan is the JSON of `plan` with
    the plan that ran: GPU and links are the plan's. --records reads measured runs (`ppadvisor schema record`) instead.
    The file that -o writes goes into --cluster of every command; what the user gives with --assume wins over it.

    \b
    ppadvisor calibrate run.log --plan plan.json#2 -o cluster.toml
    ppadvisor calibrate a.log b.log --plan plan.json --plan other.json -o cluster.toml
    """
    from ppadvisor.report.calibrate_view import render_calibration

    if date is not None and not DAY.fullmatch(date):
        raise InputError(f"--date: got {date!r}; needs YYYY-MM-DD")
    report = _answer(logs, plans, records, framework, date)
    if not report.fitted:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in report.refused)
        raise InputError(f"the runs identify no assumption ({reasons})")
    if output is not None:
        from ppadvisor.specs.cluster_file import cluster_toml

        write(cluster_toml(report.cluster), output)
    view = view_of(None)
    write(render_calibration(report, format, width=view.width, color=view.color), None)


def _answer(
    logs: tuple[Path, ...],
    plans: tuple[str, ...],
    records: tuple[Path, ...],
    framework: str | None,
    date: str | None,
) -> Calibration:
    from ppadvisor.evidence.calibrate import calibrate

    if records:
        from ppadvisor.evidence.cases import check_record
        from ppadvisor.evidence.measured_run import runs_of_records
        from ppadvisor.evidence.records import read_records

        for given, what in ((logs, "LOG"), (plans, "--plan"), (framework, "--framework")):
            if given:
                raise InputError(f"{what} has no effect beside --records, which hold plans and trainers; give one")
        runs, skipped = runs_of_records(read_records(records, check_record))
        if not runs:
            raise InputError(f"no record can be used: {skipped[0].id}: {skipped[0].reason}")
        return calibrate(runs, day=date, skipped=skipped)
    return calibrate(_runs(logs, plans, framework), day=date)


def _runs(logs: tuple[Path, ...], plans: tuple[str, ...], framework: str | None) -> list[Run]:
    """Each log with its plan."""
    from ppadvisor.evidence.logs import read_log
    from ppadvisor.evidence.measured_run import run_of_log

    if not logs:
        raise InputError("give the LOG of a run with --plan FILE, or --records FILE")
    if len(plans) not in (1, len(logs)):
        raise InputError(f"--plan: got {len(plans)} for {len(logs)} logs; needs one, or one for each log")
    ran = [_plan_that_ran(reference) for reference in plans]
    ran = ran * len(logs) if len(ran) == 1 else ran
    return [run_of_log(read_log(path, framework), *of) for path, of in zip(logs, ran, strict=True)]


def _plan_that_ran(reference: str) -> tuple[Problem, PlanSpec]:
    """The problem and the plan of a file; that it does not fit by our estimate is no reason to refuse what ran."""
    from ppadvisor.cli.chosen import naming
    from ppadvisor.cli.plan_file import read_saved_plan
    from ppadvisor.search.explain import NothingToExplain, legal_problem

    saved = read_saved_plan(reference)
    if saved.plan is None:
        raise InputError(f"{reference} holds no legal plan")
    with naming(reference):
        problem = legal_problem(saved.problem, saved.plan)
        if isinstance(problem, NothingToExplain):
            raise InputError(problem.note)
    return problem, saved.plan
