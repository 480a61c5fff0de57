"""`ppadvisor bubble`: what the pipeline's depth and the number of micro-batches alone decide."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from ppadvisor.cli.options import CommaList, OneOf, Quantity, output_options
from ppadvisor.cli.output import write_rows
from ppadvisor.engine.bubble import (
    FILL_DRAIN_SCHEDULES,
    bubble_fraction,
    bubble_overhead,
    smallest_num_microbatches,
)
from ppadvisor.errors import InputError
from ppadvisor.report.rows import Column, Row
from ppadvisor.schedules import SCHEDULES
from ppadvisor.units import format_fraction, parse_count, parse_exact_fraction

COUNTS = CommaList(Quantity("count", parse_count))


def _percent(share: float) -> str:
    return format_fraction(share, digits=2)


def _ratio(row: Row) -> str:
    """The bubble as the formula gives it, not reduced: 7/39."""
    idle = row["pipeline_parallel"] - 1
    return f"{idle}/{row['num_microbatches'] + idle}"


COLUMNS = (
    Column("pipeline_parallel", "p"),
    Column("num_microbatches", "m"),
    Column("bubble_ratio", "(p-1)/(m+p-1)", derive=_ratio),
    Column("bubble_fraction", "bubble", _percent),
    Column("utilization_fraction", "utilisation", _percent),
    Column("bubble_overhead", "bubble overhead (p-1)/m", _percent),
)
OVERHEAD = Column("bubble_overhead", "idle over ideal", _percent)


@click.command()
@click.option("--pp", type=COUNTS, required=True, help="Pipeline stages p.")
@click.option("--microbatches", type=COUNTS, help="Micro-batches m of one step.")
@click.option(
    "--target", type=Quantity("share", parse_exact_fraction), help="Find the smallest m whose bubble is at most this."
)
@click.option(
    "--schedule", type=OneOf("schedule", tuple(SCHEDULES)), default="1f1b", show_default=True, help="Order of work."
)
@click.option("--vp", type=Quantity("count", parse_count), help="Virtual stages v (default: the schedule's fewest).")
@output_options
def command(
    pp: tuple[int, ...],
    microbatches: tuple[int, ...] | None,
    target: Fraction | None,
    schedule: str,
    vp: int | None,
    format: str,
    output: Path | None,
) -> None:
    """Bubble and utilisation of a pipeline with equal stages and free links.

    With measured times of a chunk: `ppadvisor timeline --schedule 1f1b --pp 8 --microbatches 32 --t-f 20ms --t-b 21ms
    --t-w 18ms`.

    \b
    ppadvisor bubble --pp 8 --microbatches 8,32,64
    ppadvisor bubble --pp 8 --target 5%
    """
    if schedule not in FILL_DRAIN_SCHEDULES:
        _write_closed_form(pp, microbatches, target, schedule, vp, format, output)
        return
    if vp not in (None, 1):
        raise InputError(f"--vp: got {vp}, but schedule {schedule} has 1 virtual stage")
    pairs = _pairs(pp, microbatches, target, schedule)
    title = f"Bubble of {schedule}, equal stages, free links"
    extra: dict[str, Any] = {"schedule": schedule}
    if target is not None:
        title += f": the fewest micro-batches for at most {_percent(float(target))}"
        extra["target_fraction"] = float(target)
        if len(pairs) == 1:
            extra["num_microbatches"] = pairs[0][1]
    write_rows(COLUMNS, [_row(p, m) for p, m in pairs], format, output, title=title, extra=extra)


def _write_closed_form(
    pp: tuple[int, ...],
    microbatches: tuple[int, ...] | None,
    target: Fraction | None,
    schedule: str,
    vp: int | None,
    format: str,
    output: Path | None,
) -> None:
    """The bubble that a schedule declares for equal stages, free links and F = I = W."""
    from ppadvisor import schedules  # with numpy, which the exact fill-and-drain bubble does not need

    if target is not None:
        names = ", ".join(FILL_DRAIN_SCHEDULES[:2])
        raise InputError(f"--target: the fewest micro-batches are known for {names} only; give --microbatches")
    if microbatches is None:
        raise InputError(f"--microbatches is missing for schedule {schedule}")
    declared = schedules.get(schedule)
    v = declared.virtual_stages.default if vp is None else vp
    rows = []
    for p, m in ((p, m) for p in pp for m in microbatches):
        problem = declared.problem(p, m, v)
        if problem is not None:
            raise InputError(f"schedule {schedule}: {problem}")
        bubble = float(declared.bubble_fraction(p, m, v))
        sizes = {"pipeline_parallel": p, "virtual_stages": v, "num_microbatches": m}
        rows.append({**sizes, **_shares(bubble)})
    columns = (COLUMNS[0], Column("virtual_stages", "v"), COLUMNS[1], *COLUMNS[3:-1], OVERHEAD)
    title = f"Bubble of {schedule}, equal stages, free links, F = I = W"
    extra = {"schedule": schedule, "formula": declared.bubble_formula}
    write_rows(columns, rows, format, output, title=title, extra=extra)


def _shares(bubble: float) -> dict[str, float]:
    return {
        "bubble_fraction": bubble,
        "utilization_fraction": 1 - bubble,
        "bubble_overhead": bubble / (1 - bubble),
    }


def _pairs(
    pp: tuple[int, ...], microbatches: tuple[int, ...] | None, target: Fraction | None, schedule: str
) -> list[tuple[int, int]]:
    """The (p, m) to show; InputError for options that contradict each other or have no effect."""
    if schedule == "naive":
        if target is not None or microbatches not in (None, (1,)):
            raise InputError(
                "--microbatches: schedule naive runs the whole local batch as one micro-batch: m is 1, and only 1"
            )
        return [(p, 1) for p in pp]
    if (microbatches is None) == (target is None):
        raise InputError("give either --microbatches (then the bubble is told) or --target (then m is)")
    if target is None:
        return [(p, m) for p in pp for m in microbatches or ()]
    if target >= 1:
        raise InputError("--target: every bubble is below 1; allowed: a share above 0 and below 1, such as 0.05 or 5%")
    return [(p, smallest_num_microbatches(pipeline_parallel=p, target=target)) for p in pp]


def _row(p: int, m: int) -> dict[str, Any]:
    bubble = bubble_fraction(pipeline_parallel=p, num_microbatches=m)
    return {
        "pipeline_parallel": p,
        "num_microbatches": m,
        "bubble_fraction": float(bubble),
        "utilization_fraction": float(1 - bubble),
        "bubble_overhead": float(bubble_overhead(pipeline_parallel=p, num_microbatches=m)),
    }
