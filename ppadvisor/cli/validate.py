"""`ppadvisor validate`: every measured run predicted, and how far off that is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ppadvisor.cli.options import OneOf, output_options
from ppadvisor.cli.output import view_of, write, write_rows
from ppadvisor.errors import InputError
from ppadvisor.evidence import KIND_NAMES, LABELS, RANK, KindName
from ppadvisor.report.rows import Column, View

if TYPE_CHECKING:
    from ppadvisor.evidence.records import Record

ALL = "all"
KINDS = (*KIND_NAMES, RANK)

TRAINER_COLUMNS = (
    Column("framework", "framework of the record", justify="left"),
    Column("profile", "our profile", justify="left"),
    Column("loss", "loss", justify="left"),
    Column("half_gradients", "fp16 gradients", lambda value: "yes" if value else "no", justify="left"),
    Column("dropout", "dropout (GPT)", lambda value: "yes" if value else "no", justify="left"),
    Column("sequence_parallel", "sequence parallel", lambda value: "yes" if value else "no", justify="left"),
    Column("fused_norm", "fused norms", lambda value: "yes" if value else "no", justify="left"),
    Column("why", "why", justify="left", priority=1, min_width=40),
)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--kind", type=OneOf("kind", (*KIND_NAMES, RANK)), help="What is held against measurements.  [default: memory]"
)
@click.option("--label", type=OneOf("label", (*LABELS, ALL)), help="Which records.  [default: tests]")
@click.option("--partial", is_flag=True, help="Those with an unknown input or a caveat.")
@click.option("--rows", is_flag=True, help="A line a measured number (rank: a question) in place of scores.")
@click.option("--frameworks", is_flag=True, help="Print what the frameworks of records are taken for.")
@output_options
def command(
    files: tuple[Path, ...],
    kind: str | None,
    label: str | None,
    partial: bool,
    rows: bool,
    frameworks: bool,
    format: str,
    output: Path | None,
) -> None:
    """Predict measured runs and print how far off that is, a source at a time.

    Without FILE the runs that come with the package; a FILE holds one record a line (`ppadvisor schema record`).
    Records are labelled `calibrates` or `tests` by their configuration alone; those that test are shown. Kind `rank`
    asks whether plans that were measured for one model, cluster and batch come out in the right order.

    \b
    ppadvisor validate --kind memory
    ppadvisor validate --kind oom --label all
    ppadvisor validate --kind parts
    ppadvisor validate --kind rank
    ppadvisor validate --rows my_runs.jsonl
    """
    if frameworks:
        if files or kind or label or partial or rows:
            raise InputError("--frameworks prints the table of frameworks alone; what else was given has no effect")
        _write_trainers(format, output)
        return
    from ppadvisor.evidence.cases import check_record
    from ppadvisor.evidence.records import read_records, shipped_records

    records = read_records(files, check_record) if files else shipped_records()
    answer = _ranked if kind == RANK else _predicted
    write(answer(records, kind or "memory", label or "tests", partial, rows, format, view_of(output)), output)


def _predicted(
    records: tuple[Record, ...], kind: str, label: str, partial: bool, rows: bool, format: str, view: View
) -> str:
    """Each run by itself."""
    from ppadvisor.evidence.validate import validate_records
    from ppadvisor.report.validate_view import render_validation

    report = validate_records(records, cast(KindName, kind), label=label, partial=partial)
    _refuse_nothing(len(report.rows) + len(report.skipped), kind, label, partial)
    return render_validation(report, format, with_rows=rows, width=view.width, color=view.color)


def _ranked(
    records: tuple[Record, ...], kind: str, label: str, partial: bool, rows: bool, format: str, view: View
) -> str:
    """The order of the runs that answer one question."""
    from ppadvisor.evidence.ranking_score import rank_records
    from ppadvisor.report.rank_view import render_ranking

    report = rank_records(records, label=label, partial=partial)
    _refuse_nothing(len(report.rows) + len(report.skipped), kind, label, partial)
    return render_ranking(report, format, with_rows=rows, width=view.width, color=view.color)


def _refuse_nothing(number: int, kind: str, label: str, partial: bool) -> None:
    if not number:
        raise InputError(f"no record is usable for {'partial ' if partial else ''}{kind} with label {label}")


def _write_trainers(format: str, output: Path | None) -> None:
    from ppadvisor.evidence.trainers import TRAINERS

    rows = [asdict(trainer) | {"loss": trainer.loss_in_use} for trainer in TRAINERS]
    write_rows(TRAINER_COLUMNS, rows, format, output)
