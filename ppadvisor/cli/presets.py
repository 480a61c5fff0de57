"""`ppadvisor presets`: what is known by name, and where each number comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ppadvisor.cli.options import OneOf, output_options
from ppadvisor.cli.output import write_rows
from ppadvisor.report.rows import Column
from ppadvisor.units import format_bandwidth, format_bytes_gib, format_count, format_gib, format_tflops

if TYPE_CHECKING:
    from ppadvisor.schedules.base import Schedule
    from ppadvisor.specs.load import PresetKind


def _gigabytes(bandwidth_bytes_per_s: float) -> str:
    return f"{bandwidth_bytes_per_s / 1e9:,.6g}"


def _teraflops(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:,.6g}"


ID = Column("id", "id", justify="left")
SOURCE = Column("source", "source", justify="left", priority=1, min_width=50)
NODE = (
    Column("gpus_per_node", "GPUs per node"),
    Column("intra_node_bandwidth_bytes_per_s", "in node [GB/s]", _gigabytes),
    Column("inter_node_bandwidth_bytes_per_s", "between nodes [GB/s]", _gigabytes),
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "models": (
        ID,
        Column("declared_parameters", "params", format_count),
        Column("num_layers", "layers"),
        Column("hidden_size", "hidden"),
        Column("num_attention_heads", "heads"),
        Column("num_query_groups", "KV heads"),
        Column("moe.num_experts", "experts"),
        Column("vocab_size", "vocab"),
        SOURCE,
    ),
    "gpus": (
        ID,
        Column("memory_bytes", "memory [GiB]", format_gib),
        Column("peak_flops_per_s.bf16", "bf16 [TFLOP/s]", _teraflops),
        Column("peak_flops_per_s.fp16", "fp16 [TFLOP/s]", _teraflops),
        Column("hbm_bandwidth_bytes_per_s", "HBM [GB/s]", _gigabytes),
        *NODE,
        Column("architecture", "generation", justify="left", priority=1),
        SOURCE,
    ),
    "clusters": (ID, Column("gpu", "GPU", justify="left"), Column("num_gpus", "GPUs"), *NODE, SOURCE),
    "stacks": (ID, Column("title", "software stack", justify="left", min_width=30), SOURCE),
}
SCHEDULES_KIND = "schedules"
SCHEDULE_COLUMNS = (
    ID,
    Column("bubble", "bubble, equal stages", justify="left", min_width=20),
    Column("in_flight", "micro-batches in flight on rank r", justify="left", min_width=18),
    Column("virtual_stages", "v", justify="left"),
    Column("parameter_copies", "copies"),
    Column("split_backward", "split"),
    Column("run_by", "who runs it", justify="left", min_width=11),
    SOURCE,
)
FIELDS = (Column("field", "field", justify="left"), Column("value", "value", justify="left", min_width=40))


@click.command()
@click.argument("kind", type=OneOf("kind of preset", (*COLUMNS, SCHEDULES_KIND)))
@click.argument("name", required=False)
@output_options
def command(kind: str, name: str | None, format: str, output: Path | None) -> None:
    """Models, GPUs, clusters, software stacks and schedules known by name; with NAME every field of one."""
    if kind == SCHEDULES_KIND:
        _write_schedules(name, format, output)
    else:
        _write_presets(cast("PresetKind", kind), name, format, output)


def _write_schedules(name: str | None, format: str, output: Path | None) -> None:
    """What every schedule declares, and which frameworks list it."""
    from ppadvisor import frameworks, schedules

    if name is not None:
        schedules.get(name)  # an unknown one is answered with the nearest
    rows = [_schedule_row(schedules.get(known), frameworks.who_runs(known)) for known in schedules.SCHEDULES]
    shown = [row for row in rows if name in (None, row["id"])]
    title = f"{len(shown)} schedules; v virtual stages, split: backward in input and weight gradient"
    write_rows(SCHEDULE_COLUMNS, shown, format, output, title=title, extra={"kind": SCHEDULES_KIND})


def _schedule_row(schedule: Schedule, run_by: tuple[str, ...]) -> dict[str, Any]:
    steady = " (steady state)" if schedule.asynchronous else ""
    return {
        "id": schedule.id,
        "title": schedule.title,
        "bubble": schedule.bubble_formula + steady,
        "in_flight": schedule.in_flight_formula,
        "virtual_stages": str(schedule.virtual_stages),
        "parameter_copies": schedule.parameter_copies,
        "split_backward": "yes" if schedule.splits_backward else "no",
        "run_by": ", ".join(run_by) or "nobody yet",
        "source": schedule.source,
    }


def _write_presets(kind: PresetKind, name: str | None, format: str, output: Path | None) -> None:
    from ppadvisor.specs.load import (  # with pydantic, which help does not need
        preset_data,
        preset_names,
        resolve_preset,
    )

    ids = preset_names(kind) if name is None else (resolve_preset(kind, name),)
    rows: list[dict[str, Any]] = [{"id": preset, **preset_data(kind, preset)} for preset in ids]
    columns: tuple[Column, ...] = COLUMNS[kind]
    title = f"{len(rows)} {kind}"
    if name is not None and format != "json":  # for programs one preset has the same shape as many
        title, columns = f"{kind[:-1]} {ids[0]}", FIELDS
        rows = [{"field": field, "value": value} for field, value in _fields(rows[0], readable=format != "csv")]
    write_rows(columns, rows, format, output, title=title, extra={"kind": kind})


def _fields(data: Mapping[str, Any], *, readable: bool, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every field of a preset, nested ones as `peak_flops_per_s.bf16`."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _fields(value, readable=readable, prefix=f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _readable(f"{prefix}{key}", value) if readable else value


def _readable(field: str, value: object) -> str:
    """The value in the unit that the field's name ends with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if field.endswith("_bytes"):
        return f"{format_bytes_gib(value)} ({value:,} bytes)"
    if field.endswith("_bytes_per_s"):
        return format_bandwidth(value)
    return format_tflops(value) if "flops_per_s" in field else f"{value:,}"
