"""`ppadvisor validate`: every measured run predicted, and how far off that is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from ppadvisor.cli.options import OneOf, output_options
from ppadvisor.cli.output import view_of, with_progress, write, write_rows
from ppadvisor.errors import InputError, unknown_name
from ppadvisor.evidence import KIND_NAMES, LABELS, RANK, RECIPES, KindName
from ppadvisor.report.rows import Column, View

if TYPE_CHECKING:
    from ppadvisor.engine.problem import Problem
    from ppadvisor.engine.results import PlanEstimate
    from ppadvisor.evidence.records import Record

ALL = "all"
KINDS = (*KIND_NAMES, RANK, RECIPES)

LOOKED_AT = 2
"""Plans of each search: a simpler one may stand before the fastest, which is the second then."""

TRAINER_COLUMNS = (
    Column("framework", "framework of the record", justify="left"),
    Column("profile", "our profile", justify="left"),
    Column("loss", "loss", justify="left"),
    Column("half_gradients", "16-bit gradients", lambda value: ", ".join(value) or "-", justify="left"),
    Column("fp8_weights", "fp8 weights", lambda value: "yes" if value else "no", justify="left"),
    Column("dropout", "dropout (GPT)", lambda value: "yes" if value else "no", justify="left"),
    Column("sequence_parallel", "sequence parallel", lambda value: "yes" if value else "no", justify="left"),
    Column("fused_norm", "fused norms", lambda value: "yes" if value else "no", justify="left"),
    Column("why", "why", justify="left", priority=1, min_width=40),
)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--kind", type=OneOf("kind", KINDS), help="What is held against measurements.  [default: memory]")
@click.option("--source", metavar="KEY", help="Only the records of this source.")
@click.option("--label", type=OneOf("label", (*LABELS, ALL)), help="Which records.  [default: tests]")
@click.option("--partial", is_flag=True, help="Those with an unknown input or a caveat.")
@click.option("--rows", is_flag=True, help="A line a measured number (rank: a question) in place of scores.")
@click.option("--frameworks", is_flag=True, help="Print what the frameworks of records are taken for.")
@output_options
def command(
    files: tuple[Path, ...],
    kind: str | None,
    source: str | None,
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
    asks whether plans that were measured for one model, cluster and batch come out in the right order. Kind `recipes`
    asks `plan` about each of Megatron-Bridge's published recipes and puts the answer beside it.

    \b
    ppadvisor validate --kind memory
    ppadvisor validate --kind oom --label all
    ppadvisor validate --kind parts
    ppadvisor validate --kind rank
    ppadvisor validate --kind recipes
    ppadvisor validate --rows my_runs.jsonl
    """
    if frameworks:
        if files or kind or source or label or partial or rows:
            raise InputError("--frameworks prints the table of frameworks alone; what else was given has no effect")
        _write_trainers(format, output)
        return
    from ppadvisor.evidence.cases import check_record
    from ppadvisor.evidence.records import read_records, shipped_records

    records = read_records(files, check_record) if files else shipped_records()
    if source:
        records = _of_source(records, source)
    if kind == RECIPES:
        if label or partial or rows:
            raise InputError("--kind recipes scores nothing: --label, --partial and --rows have no effect")
        write(_recipes(records, format, view_of(output), published=not (files or source)), output)
        return
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


def _recipes(records: tuple[Record, ...], format: str, view: View, *, published: bool) -> str:
    """What `plan` would choose in place of each recipe."""
    from ppadvisor.evidence.recipes import PUBLISHED, compare_recipes, recipes_of
    from ppadvisor.report.recipes_view import render_recipes
    from ppadvisor.search.api import DEFAULT_MARGIN
    from ppadvisor.search.compare_words import parts_of_gap
    from ppadvisor.search.pins import Pins
    from ppadvisor.search.ranking import rank
    from ppadvisor.search.shortlist import best_estimates

    def search(problem: Problem, margin: float) -> list[PlanEstimate]:
        return best_estimates(rank(problem, Pins(), margin=margin), LOOKED_AT, margin=margin)

    asked = (record for record in records if not published or record.source.key in PUBLISHED)
    recipes, skipped = recipes_of(asked)
    if not recipes:
        raise InputError(f"no record is a recipe with its result: {skipped[0].reason}")
    counted = with_progress(recipes, "recipes", len(recipes))
    report = compare_recipes(counted, skipped, search, parts_of_gap, margin=DEFAULT_MARGIN)
    return render_recipes(report, format, width=view.width, color=view.color)


def _of_source(records: tuple[Record, ...], source: str) -> tuple[Record, ...]:
    found = tuple(record for record in records if record.source.key == source)
    if not found:
        raise unknown_name("source", source, sorted({record.source.key for record in records}))
    return found


def _refuse_nothing(number: int, kind: str, label: str, partial: bool) -> None:
    if not number:
        raise InputError(f"no record is usable for {'partial ' if partial else ''}{kind} with label {label}")


def _write_trainers(format: str, output: Path | None) -> None:
    from ppadvisor.evidence.trainers import TRAINERS

    rows = [asdict(trainer) | {"loss": trainer.loss_in_use} for trainer in TRAINERS]
    write_rows(TRAINER_COLUMNS, rows, format, output)
