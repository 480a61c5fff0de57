"""`ppadvisor explain`: one plan, every number of it with its formula and source; or two plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppadvisor.cli.chosen import ChosenPlan, naming, plan_of_file, plan_of_search, plan_options
from ppadvisor.cli.options import Quantity, output_options
from ppadvisor.cli.output import view_of, write
from ppadvisor.cli.request import given_values, parse_from_zero
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, InputError

if TYPE_CHECKING:
    from ppadvisor.search.compare import Comparison
    from ppadvisor.search.explain import NothingToExplain, PlanExplanation

BESIDE_A_FILE = ("other", "stage", "all_stages", "format", "output")
"""What may be said where a file holds the problem and the plan."""


@click.command()
@plan_options
@click.argument("other", required=False, metavar="[FILE[#RANK]]")
@click.option("--stage", type=Quantity("stage", parse_from_zero), help="Only this stage, from 0.")
@click.option("--all-stages", is_flag=True, help="Every stage (default in tables: first, binding and last).")
@output_options
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str | None,
    other: str | None,
    stage: int | None,
    all_stages: bool,
    format: str,
    output: Path | None,
    **values: Any,
) -> int:
    """Every term of one plan: its formula, the numbers in it, its source. Of two plans: what makes one faster.

    The plan is one of a file that `plan --format json` wrote (FILE#2: the second), or the --rank-th that `plan` would
    rank with the same options. Where nothing fits, the nearest miss is explained, and the exit code is 3.

    \b
    ppadvisor explain plan.json#2
    ppadvisor explain plan.json#1 other.json#3
    ppadvisor explain --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8k --global-batch 1024 --pp 8
    """
    from ppadvisor.report.explain_view import render_explanation
    from ppadvisor.search.explain import NothingToExplain, PlanExplanation, explain

    if stage is not None and all_stages:
        raise InputError("--stage and --all-stages contradict each other; give one or the other")
    every = all_stages or format in ("json", "csv")
    if other is not None:
        if file is None:
            raise InputError("the second of two plans is given without the first; give both files")
        return _side_by_side(_compared(context, file, other), stage, format, output, every=every)
    chosen = _chosen(context, file, values)
    with naming(file):
        answer = (
            explain(chosen.problem, chosen.plan) if chosen.plan else NothingToExplain(plan=None, note=chosen.why_none)
        )
    if isinstance(answer, PlanExplanation):
        answer = _with_stages(answer, stage, every=every)
    view = view_of(output)
    write(render_explanation(answer, format, width=view.width, color=view.color), output)
    return EXIT_OK if isinstance(answer, PlanExplanation) and answer.memory.fits else EXIT_NO_PLAN


def _chosen(context: click.Context, file: str | None, values: dict[str, Any]) -> ChosenPlan:
    if file is not None:
        return plan_of_file(context, file, beside=BESIDE_A_FILE, told="explained")
    if not given_values(values):
        raise InputError("give a file that `plan --format json` wrote, or the options of `plan`")
    return plan_of_search(values, told="explained")


def _with_stages(answer: PlanExplanation, stage: int | None, *, every: bool) -> PlanExplanation:
    """Only the stages that were asked for; unless told otherwise the first, the binding one and the last."""
    last = len(answer.stages) - 1
    wanted = _wanted(stage, last, {0, answer.memory.binding_stage, last}, every=every)
    return answer.changed(stages=tuple(s for s in answer.stages if s.stage in wanted))


def _wanted(stage: int | None, last: int, usual: set[int], *, every: bool) -> set[int]:
    if stage is not None and stage > last:
        raise InputError(f"--stage: got {stage}; the plan has stages 0 to {last}")
    if stage is not None:
        return {stage}
    return set(range(last + 1)) if every else usual


def _compared(context: click.Context, file: str, other: str) -> Comparison | NothingToExplain:
    """The answer for the plans of two files. InputError where they are no plans for one question."""
    from ppadvisor.search.compare import check_same_question, compare
    from ppadvisor.search.explain import NothingToExplain, legal_problem

    plans, problems = [], []
    for name, reference in (("A", file), ("B", other)):
        chosen = plan_of_file(context, reference, beside=BESIDE_A_FILE, told="compared")
        if chosen.plan is None:
            return NothingToExplain(plan=None, note=f"{name}: {chosen.why_none}")
        with naming(reference):
            legal_problem(chosen.problem, chosen.plan)
        plans.append(chosen.plan)
        problems.append(chosen.problem)
    with naming(f"{file} and {other}"):
        check_same_question((problems[0], problems[1]))
    return compare((problems[0], problems[1]), (plans[0], plans[1]))


def _side_by_side(
    answer: Comparison | NothingToExplain, stage: int | None, format: str, output: Path | None, *, every: bool
) -> int:
    from ppadvisor.report.compare_view import render_comparison
    from ppadvisor.search.compare import Comparison

    if isinstance(answer, Comparison):
        last, sides = len(answer.stages) - 1, (answer.a, answer.b)
        ends = {side.plan.pipeline_parallel - 1 for side in sides}
        wanted = _wanted(stage, last, {0, *ends, *(side.memory.binding_stage for side in sides)}, every=every)
        answer = answer.changed(stages=tuple(s for s in answer.stages if s.stage in wanted))
    view = view_of(output)
    write(render_comparison(answer, format, width=view.width, color=view.color), output)
    fits = isinstance(answer, Comparison) and answer.a.memory.fits and answer.b.memory.fits
    return EXIT_OK if fits else EXIT_NO_PLAN
