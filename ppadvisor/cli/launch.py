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
from ppadvisor.frameworks import TRAINS_AS, WRITERS

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.frameworks.configuration import Launch
    from ppadvisor.search.results import ProblemEcho
    from ppadvisor.specs.plan import PlanSpec


@click.command()
@click.argument("file", metavar="FILE[#RANK]")
@click.option("--framework", type=OneOf("framework", tuple(WRITERS)), help="Trainer (default: that of the plan).")
@click.option("--format", type=OneOf("format", ("text",)), default="text", show_default=True, help="Form.")
@click.option("--output", type=click.Path(path_type=Path), metavar="OUT", help="Write to OUT; it is replaced whole.")
@click.pass_context
def command(context: click.Context, /, file: str, framework: str | None, format: str, output: Path | None) -> int:
    """What starts a trainer with a plan of a file that `plan --format json` wrote: bash, or YAML of Megatron-Bridge.

    What is written is read again as `check` reads it; a value that the trainer has no option for is told in a comment.
    Exit code 3: the trainer does not run the plan.

    \b
    ppadvisor launch plan.json#2 --output train.sh
    """
    chosen = plan_of_file(context, file, beside=("framework", "format", "output"), told="written")
    if chosen.plan is None:
        raise RefusedError(chosen.why_none)
    with naming(file):
        asked = _for_framework(chosen.problem, framework and TRAINS_AS.get(framework, framework))
        problem = _legal_problem(asked, chosen.plan)
    form = framework or asked.framework
    written = import_module(WRITERS[form]).launch(
        problem.model,
        problem.training,
        chosen.plan,
        problem.cluster,
        one_connection=not NEWER_THAN_HOPPER.search(problem.cluster.gpu.name),
    )
    _check_cost(problem, chosen.plan, written, form)
    if written.unsaid:
        note(f"not said, {form} has no option for it: {'; '.join(written.unsaid)}")
    for line in written.beside:
        note(line)
    write(written.text, output)
    return EXIT_OK


def _for_framework(problem: ProblemEcho, framework: str | None) -> ProblemEcho:
    """The problem as the trainer's own. InputError where it is another's and none was asked for."""
    if framework is None and problem.training.framework not in WRITERS:
        known = ", ".join(f"--framework {name}" for name in WRITERS)
        raise InputError(f"the plan is for {problem.training.framework}, which is not written; {known} takes it over")
    if framework in (None, problem.training.framework):
        return problem
    training = problem.training.changed(framework=framework, stack=None)
    return problem.changed(framework=framework, training=training)


def _legal_problem(problem: ProblemEcho, plan: PlanSpec) -> Problem:
    """The problem as the formulas take it. RefusedError for what the trainer cannot run, with the trainers that can."""
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
    return answer


def _check_cost(problem: Problem, plan: PlanSpec, written: Launch, form: str) -> None:
    """RefusedError where the text would run at another time or peak than the plan that was chosen for them.

    A model that the trainer builds otherwise is told of instead, and more recomputation with what it costs.
    """
    from ppadvisor.engine.evaluate import estimate_plan
    from ppadvisor.frameworks.read_back import NOT_OPTIONS
    from ppadvisor.search.api import make_problem
    from ppadvisor.specs.plan import PlanSpec
    from ppadvisor.specs.training import TrainingSpec
    from ppadvisor.units import format_bytes_gib, format_seconds

    chosen = (*TrainingSpec.names(), *PlanSpec.names())
    lost = [text for text in written.unsaid if text.partition(" = ")[0] in chosen]
    training, read = written.read.training, written.read.plan
    if not lost or training is None or read is None:
        return
    same_kernels = training.changed(**{name: getattr(problem.training, name) for name in NOT_OPTIONS})
    taken = make_problem(problem.model, problem.cluster, same_kernels, problem.assumptions)
    before, after = estimate_plan(problem, plan, margin=1.0), estimate_plan(taken, read, margin=1.0)
    costs = [(one.time.step_time_s, one.memory.peak_bytes) for one in (before, after)]
    if costs[0] == costs[1]:
        return
    if not all(text.startswith("recompute") for text in lost) or costs[1][1] > costs[0][1]:
        raise RefusedError(f"{form} has no option for what changes memory or time: {'; '.join(lost)}")
    shown = [f"{format_seconds(seconds)}, {format_bytes_gib(peak)}" for seconds, peak in costs]
    note(f"more is recomputed than the plan asks for: {shown[1]} instead of {shown[0]}")
