"""`ppadvisor diff`: what a change of a configuration does to memory, time and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ppadvisor.cli.configurations import configuration_options, read_subjects
from ppadvisor.cli.options import Quantity, output_options_of
from ppadvisor.cli.output import view_of, write
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, EXIT_REGRESSION
from ppadvisor.report.formats import DIFF_FORMATS
from ppadvisor.units import parse_hourly, parse_tolerance

BESIDE_PLANS = ("base", "head", "fail_on_regression", "price", "format", "output")
"""What may be said where both files hold problem and plan."""


@click.command()
@click.argument("base", metavar="BASE")
@click.argument("head", metavar="HEAD")
@configuration_options
@click.option(
    "--fail-on-regression",
    type=Quantity("share", parse_tolerance),
    help="Exit 5 where step time or peak memory worsens by more: 2%.",
)
@click.option("--price", type=Quantity("price", parse_hourly), help="Of a GPU and hour, 2.50/h: what a step costs.")
@output_options_of(DIFF_FORMATS, help="Form of the answer; from markdown on for a CI.", target="OUT")
@click.pass_context
def command(
    context: click.Context,
    /,
    base: str,
    head: str,
    fail_on_regression: float | None,
    price: float | None,
    format: str,
    output: Path | None,
    **_: Any,
) -> int:
    """What changed from BASE to HEAD, and what that does to memory of each stage, bubble, step time and cost.

    Both are what `check` reads: a trainer's configuration, - for stdin, FILE[#RANK] for a plan that `plan --format
    json` wrote. No search is made. Exit code 3: HEAD is illegal or does not fit; 5: a regression.

    \b
    git show main:train.sh | ppadvisor diff - train.sh --gpu h100-sxm-80gb --fail-on-regression 2%
    """
    from ppadvisor.report.diff_view import render_diff
    from ppadvisor.search.diff import diff

    before, after = read_subjects(context, base, head, beside=BESIDE_PLANS)
    report = diff(before, after, tolerance=fail_on_regression, price_per_gpu_hour=price)
    view = view_of(output)
    write(render_diff(report, format, width=view.width, color=view.color), output)
    if not report.head.legal or report.head.fits is False:
        return EXIT_NO_PLAN
    return EXIT_REGRESSION if report.regressions else EXIT_OK
