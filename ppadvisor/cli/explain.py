"""`ppadvisor explain`: one plan, every number of it with its formula and where it comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppadvisor.cli.answer import answer_options, ask
from ppadvisor.cli.job import job_option
from ppadvisor.cli.options import OneOf, Quantity, option_name, output_options
from ppadvisor.cli.output import view_of, write
from ppadvisor.cli.request import given_values, parse_from_zero, request_options
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError
from ppadvisor.units import parse_count

if TYPE_CHECKING:
    from ppadvisor.search.explain import ExplainAnswer, PlanExplanation
    from ppadvisor.search.results import PlanReport
    from ppadvisor.specs.plan import PlanSpec

BESIDE_A_FILE = ("file", "stage", "all_stages", "format", "output")
"""What may be said where a file holds the problem and the plan."""


@click.command()
@click.argument("file", required=False, metavar="[FILE[#RANK]]")
@job_option
@request_options(axes=False)
@answer_options
@click.option(
    "--sort",
    type=OneOf("sort key", ("step_time_s", "peak_bytes", "bubble_fraction")),
    default="step_time_s",
    show_default=True,
    help="What the first plan of the search is best at.",
)
@click.option("--rank", type=Quantity("count", parse_count), help="Which plan of the search (default: 1).")
@click.option("--stage", type=Quantity("stage", parse_from_zero), help="Only this stage, from 0.")
@click.option("--all-stages", is_flag=True, help="Every stage (default in tables: first, binding and last).")
@output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str | None,
    stage: int | None,
    all_stages: bool,
    format: str,
    output: Path | None,
    **values: Any,
) -> int:
    """Every term of one plan: its formula, the numbers in it, its source.

    The plan is one of a file that `plan --format json` wrote (FILE#2: the second), or the --rank-th that `plan` would
    rank with the same options. Where nothing fits, the nearest miss is explained, and the exit code is 3.

    \b
    ppadvisor explain plan.json#2
    ppadvisor explain --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8k --global-batch 1024 --pp 8
    """
    from ppadvisor.report.explain_view import render_explanation
    from ppadvisor.search.explain import PlanExplanation

    if stage is not None and all_stages:
        raise InputError("--stage and --all-stages contradict each other; give one or the other")
    answer = _of_search(values) if file is None else _of_file(context, file)
    if isinstance(answer, PlanExplanation):
        answer = _with_stages(answer, stage, every=all_stages or format in ("json", "csv"))
    view = view_of(output)
    write(render_explanation(answer, format, width=view.width, color=view.color), output)
    return EXIT_OK if isinstance(answer, PlanExplanation) and answer.memory.fits else EXIT_NO_PLAN


def _of_file(context: click.Context, reference: str) -> ExplainAnswer:
    from ppadvisor.cli.plan_file import read_saved_plan
    from ppadvisor.search.explain import NothingToExplain, explain
    from ppadvisor.specs.version import MODEL_VERSION

    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name not in BESIDE_A_FILE and source not in (None, ParameterSource.DEFAULT):
            raise InputError(
                f"{option_name(param)} has no effect beside a file, which holds problem and plan; give one"
            )
    saved = read_saved_plan(reference)
    if saved.model_version != MODEL_VERSION:
        _note(
            f"{reference} was written by model version {saved.model_version}, this is {MODEL_VERSION}: "
            "the numbers are estimated again and may differ"
        )
    if saved.nearest_miss:
        _note(f"no plan of {reference} fits; its nearest miss is explained")
    if saved.plan is None:
        return NothingToExplain(plan=None, note=f"{reference} holds no legal plan")
    try:
        return explain(saved.problem, saved.plan)
    except InputError as error:
        raise InputError(f"{reference}: {error}") from None


def _note(text: str) -> None:
    print(f"ppadvisor: note: {text}", file=sys.stderr)


def _of_search(values: dict[str, Any]) -> ExplainAnswer:
    from ppadvisor.search.api import DEFAULT_TOP
    from ppadvisor.search.explain import NothingToExplain, explain

    if not given_values(values):
        raise InputError("give a file that `plan --format json` wrote, or the options of `plan`")
    rank, sort = values.pop("rank"), values.pop("sort")
    # no fewer than `plan` shows: the replay of those decides their order
    report = ask(values, top=max(rank or 1, DEFAULT_TOP), sort=sort)
    plan = _ranked(report, rank)
    if plan is None:
        reason = report.rejection_examples[0].message if report.rejection_examples else "no combination is left"
        return NothingToExplain(plan=None, note=f"no plan is legal: {reason}")
    if not report.plans:
        _note("no plan fits; the nearest miss is explained")
    return explain(report.problem, plan)


def _ranked(report: PlanReport, rank: int | None) -> PlanSpec | None:
    """The plan of this rank; where none fits and none was asked for by rank, the nearest miss, or None."""
    if not report.plans and rank is None:
        return report.nearest_miss.estimate.plan if report.nearest_miss else None
    if (rank or 1) > len(report.plans):
        raise InputError(f"--rank: got {rank}, but {len(report.plans) or 'no'} plans fit")
    return report.plans[(rank or 1) - 1].plan


def _with_stages(answer: PlanExplanation, stage: int | None, *, every: bool) -> PlanExplanation:
    """Only the stages that were asked for; unless told otherwise the first, the binding one and the last."""
    last = len(answer.stages) - 1
    if stage is not None and stage > last:
        raise InputError(f"--stage: got {stage}; the plan has stages 0 to {last}")
    if every and stage is None:
        return answer
    wanted = {0, answer.memory.binding_stage, last} if stage is None else {stage}
    return answer.model_copy(update={"stages": tuple(s for s in answer.stages if s.stage in wanted)})
