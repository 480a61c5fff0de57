"""`ppadvisor verify`: a plan run for real on torch's own pipeline engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ppadvisor.cli.chosen import given_parameters, naming, note, plan_of_file
from ppadvisor.cli.options import Quantity, option_name, output_options
from ppadvisor.cli.output import check_places, view_of, with_progress, write
from ppadvisor.cli.verify_launched import RankCommand, run_layers
from ppadvisor.errors import EXIT_OK, EXIT_THRESHOLD, InputError, RefusedError
from ppadvisor.units import parse_count, parse_duration, parse_fraction

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.specs.plan import PlanSpec
    from ppadvisor.verify.results import VerifyReport
    from ppadvisor.verify.work import Work


class KindOfProof(NamedTuple):
    """One thing that can be verified, and the options that only it has."""

    name: str
    module: str
    help: str
    options: tuple[str, ...] = ()
    needs_plan: bool = False
    takes_time: bool = False
    """It shows how far it is."""
    of_plans: tuple[str, ...] = ()
    """Bare numbers that it also takes beside a plan."""


KINDS = (
    KindOfProof("ops", "ppadvisor.verify.ops", "Our order of work against torch's, rank by rank."),
    KindOfProof(
        "memory",
        "ppadvisor.verify.memory",
        "Bytes of each rank against those that torch's engine holds, at true size, of tensors without data.",
        needs_plan=True,
        takes_time=True,
        of_plans=("microbatches",),
    ),
    KindOfProof(
        "run",
        "ppadvisor.verify.run",
        "Step time and bubble against real processes whose work is a sleep.",
        options=("unit", "steps", "tolerance"),
        takes_time=True,
        of_plans=("microbatches",),
    ),
    KindOfProof(
        "layers",
        "ppadvisor.verify.run_layers",
        "Under torchrun, a process a stage: real layers, their step time and on GPUs their peaks of memory.",
        options=("steps", "tolerance", "scale", "record"),
        needs_plan=True,
        of_plans=("microbatches",),
    ),
)
"""Each module has `verify_<name>`: of a plan's problem and the plan where it needs them, else of `Work`; that of the
last is called by `verify_launched`."""
LAYERS = KINDS[-1]
OUTPUTS = ("format", "output")
COUNT = Quantity("count", parse_count)
DURATION = Quantity("time", parse_duration)
SHARE = Quantity("fraction", parse_fraction)


@click.command(cls=RankCommand)
@click.argument("file", required=False, metavar="[FILE[#RANK]]")
@click.option("--ops", is_flag=True, help=KINDS[0].help)
@click.option("--memory", is_flag=True, help=KINDS[1].help)
@click.option("--run", is_flag=True, help=KINDS[2].help)
@click.option("--layers", is_flag=True, help=KINDS[3].help)
@click.option("--schedule", metavar="NAME", help="Bare numbers: order of work.")
@click.option("--pp", type=COUNT, help="Bare numbers: pipeline stages p.")
@click.option("--vp", type=COUNT, help="Bare numbers: virtual stages v of a rank (default: the schedule's least).")
@click.option(
    "--microbatches",
    type=COUNT,
    help="Bare numbers: micro-batches m. Beside a plan, but for --ops: so many of its own.",
)
@click.option("--unit", type=DURATION, help="--run: how long the mean forward sleeps (default: 50ms).")
@click.option(
    "--steps", type=COUNT, help="--run, --layers: measured steps, of which the median counts (default: 3; --layers: 5)."
)
@click.option("--tolerance", type=SHARE, help="How far a step may be off: --run 0 to 6%, --layers 20% either way.")
@click.option("--scale", type=SHARE, help="--layers: share of each stage's layers that is run.  [default: all]")
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="--layers: write the measured run.")
@output_options
@click.pass_context
def command(context: click.Context, /, file: str | None, format: str, output: Path | None, **values: Any) -> int:
    """Run a plan on torch's own pipeline engine, on CPUs or by torchrun on GPUs, and compare with what is predicted.

    The plan is one of a file that `plan --format json` wrote (FILE#2: the second), or bare numbers, a schedule,
    p and m. Needs torch 2.13. Exit codes: 0 it agrees; 4 it does not; 2 it cannot be verified.

    \b
    ppadvisor verify plan.json#2 --ops
    ppadvisor verify --ops --schedule 1f1b --pp 4 --microbatches 8
    torchrun --nproc-per-node 4 -m ppadvisor verify plan.json --layers --record run.jsonl
    """
    from ppadvisor.report.verify_view import render_verification
    from ppadvisor.verify.launched import launched
    from ppadvisor.verify.torch_engine import require_torch

    kind = _kind(context, values)
    check_places({"--output": output, "--record": values["record"]})
    require_torch()
    if kind is LAYERS:
        here = launched()
        with nullcontext() if here.speaks else redirect_stderr(StringIO()):  # its notes are alike on all ranks
            problem, plan = _to_run(context, file, values)
        return run_layers(problem, plan, here, values, format, output)
    report = _of_plan(context, kind, file, values) if file else _of_numbers(kind, values)
    view = view_of(output)
    write(render_verification(report, format, width=view.width, color=view.color), output)
    return EXIT_OK if report.agrees else EXIT_THRESHOLD


def _kind(context: click.Context, values: Mapping[str, Any]) -> KindOfProof:
    """The one kind that was asked for. InputError for none, for two, and for an option that only another has."""
    asked = [kind for kind in KINDS if values[kind.name]]
    if len(asked) != 1:
        names = ", ".join(f"--{kind.name}" for kind in KINDS)
        given = " and ".join(f"--{kind.name}" for kind in asked) or "none"
        raise InputError(f"give exactly one of {names}; got {given}")
    for name, param in given_parameters(context).items():
        owners = [kind for kind in KINDS if name in kind.options]
        if owners and asked[0] not in owners:
            of = ", ".join(f"--{kind.name}" for kind in owners)
            raise InputError(f"{option_name(param)} has no effect with --{asked[0].name}; it belongs to {of}")
    return asked[0]


def _verified(kind: KindOfProof, *subject: Any, **options: Any) -> VerifyReport:
    if kind.takes_time:
        options |= {"progress": with_progress, "say": note}
    try:
        report: VerifyReport = getattr(import_module(kind.module), f"verify_{kind.name}")(*subject, **options)
    except (KeyboardInterrupt, SystemExit):
        note("interrupted; what was started has been ended, and nothing was compared")
        raise
    return report


def _options(kind: KindOfProof, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given; the others have their default where they are used."""
    return {name: values[name] for name in kind.options if values[name] is not None}


def _of_numbers(kind: KindOfProof, values: Mapping[str, Any]) -> VerifyReport:
    if kind.needs_plan:
        raise InputError(f"--{kind.name} needs a plan: give a file that `plan --format json` wrote")
    return _verified(kind, _work_of_numbers(values), **_options(kind, values))


def _work_of_numbers(values: Mapping[str, Any]) -> Work:
    from ppadvisor.verify.work import work_of_numbers

    missing = [f"--{name}" for name in ("schedule", "pp", "microbatches") if values[name] is None]
    if missing:
        raise InputError(
            f"give a file that `plan --format json` wrote, or bare numbers, of which {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )
    return work_of_numbers(values["schedule"], values["pp"], values["microbatches"], values["vp"])


def _of_plan(context: click.Context, kind: KindOfProof, file: str, values: Mapping[str, Any]) -> VerifyReport:
    problem, plan = _chosen(context, kind, file)
    with naming(file):
        if kind.needs_plan:
            return _verified(kind, problem, _with_microbatches(plan, values), **_options(kind, values))
        return _verified(kind, _work_of_plan(problem, plan, values), **_options(kind, values))


def _work_of_plan(problem: Problem, plan: PlanSpec, values: Mapping[str, Any]) -> Work:
    from ppadvisor.verify.work import work_of_plan

    return work_of_plan(problem, plan, values["microbatches"])


def _to_run(context: click.Context, file: str | None, values: Mapping[str, Any]) -> tuple[Problem, PlanSpec]:
    """What the ranks of torchrun run."""
    if file is None:
        raise InputError(f"--{LAYERS.name} needs a plan: give a file that `plan --format json` wrote")
    problem, plan = _chosen(context, LAYERS, file)
    return problem, _with_microbatches(plan, values)


def _chosen(context: click.Context, kind: KindOfProof, file: str) -> tuple[Problem, PlanSpec]:
    """The plan of the file and its problem. RefusedError where there is none, or it is not legal."""
    from ppadvisor.search.explain import NothingToExplain, legal_problem

    beside = (*(one.name for one in KINDS), *kind.options, *kind.of_plans, *OUTPUTS)
    chosen = plan_of_file(context, file, beside=beside, told="verified")
    if chosen.plan is None:
        raise RefusedError(chosen.why_none)
    with naming(file):
        problem = legal_problem(chosen.problem, chosen.plan)
    if isinstance(problem, NothingToExplain):
        raise RefusedError(problem.note)
    return problem, chosen.plan


def _with_microbatches(plan: PlanSpec, values: Mapping[str, Any]) -> PlanSpec:
    """The plan with as many micro-batches as were asked for."""
    return plan.changed(num_microbatches=values["microbatches"] or plan.num_microbatches)
