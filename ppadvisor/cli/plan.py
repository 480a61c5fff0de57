"""`ppadvisor plan`: the ranked plans for a model on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ppadvisor.cli.answer import answer_options, ask
from ppadvisor.cli.job import job_option
from ppadvisor.cli.options import OneOf, Quantity, output_options
from ppadvisor.cli.output import view_of, write
from ppadvisor.cli.request import request_options
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK
from ppadvisor.units import parse_count


@click.command()
@job_option
@request_options(axes=False)
@answer_options
@click.option("--top", type=Quantity("count", parse_count), help="Plans to show (default: 10).")
@click.option(
    "--sort",
    type=OneOf("sort key", ("step_time_s", "peak_bytes", "bubble_fraction")),
    default="step_time_s",
    show_default=True,
    help="What the first plan is best at.",
)
@output_options
def command(format: str, output: Path | None, top: int | None, sort: str, **values: Any) -> int:
    """Rank (p, m, schedule) for a model on a cluster: what fits, how long a step takes, why.

    Pins (--pp, --tp, ...) take one value or a comma list; what is not pinned is searched. Times are predicted; a file
    of `ppadvisor calibrate` (--cluster) holds what your runs say of them, and `ppadvisor timeline` takes measured
    times of a chunk (--t-f, --t-b, --t-w).

    \b
    ppadvisor plan --model llama-3.1-70b --gpu h100-sxm-80gb --gpus 64 --seq-len 8k --global-batch 1024
    """
    from ppadvisor.report.plan_view import render_plan

    report = ask(values, top=top, sort=sort)
    view = view_of(output)
    write(render_plan(report, format, width=view.width, color=view.color), output)
    return EXIT_OK if report.plans else EXIT_NO_PLAN
