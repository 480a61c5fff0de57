"""`ppadvisor check`: a trainer's own configuration, judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppadvisor.cli.configurations import configuration_options, read_subject
from ppadvisor.cli.options import output_options_of
from ppadvisor.cli.output import view_of, write
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, EXIT_THRESHOLD, InputError
from ppadvisor.report.formats import CHECK_FORMATS

if TYPE_CHECKING:
    from ppadvisor.search.check_results import CheckReport
    from ppadvisor.search.gates import Gate

MAX_GATES_BYTES = 100_000
BESIDE_A_PLAN = ("gate", "gates", "format", "output")
"""What may be said where a file holds the problem and the plan."""


@click.command()
@click.argument("file", metavar="FILE")
@configuration_options
@click.option("--gate", multiple=True, metavar="METRIC<=LIMIT", help="Threshold: bubble_fraction<=0.1. Repeatable.")
@click.option("--gates", type=click.Path(path_type=Path), metavar="GATES", help="File with a gate on each line.")
@output_options_of(CHECK_FORMATS, help="Form of the answer; from markdown on for a CI.", target="OUT")
@click.pass_context
def command(
    context: click.Context,
    /,
    file: str,
    format: str,
    output: Path | None,
    gate: tuple[str, ...],
    gates: Path | None,
    **_: Any,
) -> int:
    """Judge FILE, a trainer's configuration: does it run, does it fit, how far is it from the best plan.

    FILE may be - for stdin, or FILE[#RANK] for a plan that `plan --format json` wrote. Nothing of it is executed. GPUs
    that it does not name come from --gpus; without --gpu or --cluster only the trainer's rules are checked. Exit code
    3: illegal or does not fit; 4: a gate is broken.

    \b
    ppadvisor check train.sh --gpu h100-sxm-80gb --gate 'peak_memory_fraction<=0.9' --gate 'regret<=0.1'
    """
    from ppadvisor.report.check_view import render_check

    report = _checked(context, file, [*_of_options(gate), *_of_file(gates)])
    view = view_of(output)
    write(render_check(report, format, width=view.width, color=view.color), output)
    if not report.legal or report.fits is False:
        return EXIT_NO_PLAN
    return EXIT_OK if report.gates_passed else EXIT_THRESHOLD


def _checked(context: click.Context, file: str, gates: list[Gate]) -> CheckReport:
    from ppadvisor.search.check import check

    return check(read_subject(context, file, beside=BESIDE_A_PLAN), gates=gates)


def _of_options(texts: tuple[str, ...]) -> list[Gate]:
    from ppadvisor.search.gates import parse_gate

    return [parse_gate(text) for text in texts]


def _of_file(path: Path | None) -> list[Gate]:
    """The gates of a file: a line each, what follows # is a comment. InputError for one that holds none."""
    from ppadvisor.search.gates import parse_gate
    from ppadvisor.specs.files import read_text

    if path is None:
        return []
    lines = [line.partition("#")[0].strip() for line in read_text(path, MAX_GATES_BYTES).splitlines()]
    found = [parse_gate(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    if not found:
        raise InputError(f"{path}: holds no gate; needs one on a line, as in bubble_fraction<=0.1")
    return found
