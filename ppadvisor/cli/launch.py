"""`ppadvisor launch`: a saved plan as the options that start the trainer."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ppadvisor.cli.chosen import naming, note, plan_of_file
from ppadvisor.cli.configurations import NEWER_THAN_HOPPER
from ppadvisor.cli.options import OneOf
from ppadvisor.cli.output import write
from ppadvisor.errors import EXIT_OK, InputError, RefusedError
from ppadvisor.frameworks import WRITERS

if TYPE_CHECKING:
    from ppadvisor.search.results import ProblemEcho
    from ppadvisor.specs.plan import PlanSpec


@click.command()
@click.argument("file", metavar="FILE[#RANK]")
@click.option("--framework", type=OneOf("framework", tuple(WRITERS)), help="Trainer (default: that of the plan).")
@click.option("--format", type=OneOf("format", ("text",)), default="text", show_default=True, help="Form.")
@click.option("--output", type=click.Path(path_type=Path), metavar="OUT", help="Write to OUT; it is replaced whole.")
@click.pass_context
def command(context: click.Context, /, file: str, framework: str | None, format: str, output: Path | None) -> int:
    """The bash fragment that starts Megatron-LM with a plan of a file that `plan --format json` wrote.

    What is written is read again as `check` reads it; a value that Megatron has no option for is told in a comment.
    Exit code 3: the trainer does not run the plan.

    \b
    ppadvisor launch plan.json#2 --output train.sh
    """
    chosen = plan_of_file(context, file, beside=("framework", "format", "output"), told="written")
    if chosen.plan is None:
        raise RefusedError(chosen.why_none)
    with naming(file):
        problem = _for_framework(chosen.problem, framework)
        _check_legal(problem, chosen.plan)
    written = import_module(WRITERS[problem.framework]).launch(
        problem.model,
        problem.training,
        chosen.plan,
        problem.cluster,
        one_connection=not NEWER_THAN_HOPPER.search(problem.cluster.gpu.name),
    )
    if written.unsaid:
        note(f"not said, {problem.framework} has no option for it: {'; '.join(written.unsaid)}")
    write(written.text, output)
    return EXIT_OK


def _for_framework(problem: ProblemEcho, framework: str | None) -> ProblemEcho:
    """The problem as the trainer's own. InputError where it is another's and none was asked for."""
    if framework is None and problem.training.framework not in WRITERS:
        known = ", ".join(f"--framework {name}" for name in WRITERS)
        raise InputError(f"the plan is for {problem.training.framework}, which is not written; {known} takes it over")
    if framework in (None, problem.training.framework):
        return problem
    training = problem.training.model_copy(update={"framework": framework, "stack": None})
    return problem.model_copy(update={"framework": framework, "training": training})


def _check_legal(problem: ProblemEcho, plan: PlanSpec) -> None:
    """RefusedError for what the trainer cannot run, with the trainers that can."""
    from ppadvisor import frameworks
    from ppadvisor.search.explain import NothingToExplain, legal_problem

    profile = frameworks.get(problem.framework)
    if plan.schedule not in profile.schedules:
        others = ", ".join(frameworks.who_runs(plan.schedule)) or "no trainer known here"
        raise RefusedError(f"{problem.framework} does not run schedule {plan.schedule}; {others} would")
    if plan.optimizer_sharding not in profile.optimizer_sharding:
        allowed = ", ".join(map(str, profile.optimizer_sharding))
        raise RefusedError(f"{problem.framework} has no ZeRO {plan.optimizer_sharding}; allowed: {allowed}")
    answer = legal_problem(problem, plan)
    if isinstance(answer, NothingToExplain):
        raise RefusedError(answer.note)
