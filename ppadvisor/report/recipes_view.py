"""The answer of `validate --kind recipes`: a line a configuration, its recipe beside our plan."""

from __future__ import annotations

from collections.abc import Iterator

from ppadvisor.evidence.recipes import PlanTold, Recipes
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.report.validate_view import notes_of
from ppadvisor.search.advise import short_plan
from ppadvisor.units import format_fraction


def _seconds(time_s: float) -> str:
    return f"{time_s:.4g}"


def _verdict(verdict: str) -> str:
    return verdict.replace("_", " ")


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}"


COLUMNS = (
    Column("number", "#"),
    Column("model", "model", justify="left", min_width=9),
    Column("gpus", "GPUs", derive=lambda row: f"{row['num_gpus']} {row['gpu']}", justify="left"),
    Column("global_batch_size", "batch"),
    Column("precision", "in", justify="left"),
    Column("measured_step_time_s", "run took [s]", _seconds, min_width=5),
    Column("recipe.step_time_s", "recipe [s]", _seconds, min_width=6),
    Column("ours.step_time_s", "ours [s]", _seconds, min_width=5),
    Column("step_time_fraction", "ours / recipe", _ratio, min_width=6),
    Column("recipe.verdict", "we say", _verdict, justify="left", priority=1, min_width=10),
    Column("given_room_fraction", "given room", _ratio, priority=1, min_width=5),
    Column("recipe.text", "recipe", justify="left", priority=1, min_width=16),
    Column("ours.text", "ours", justify="left", priority=1, min_width=16),
    Column("difference", "ours has", justify="left", priority=1, min_width=16),
)
PLAN_IN_CSV = ("step_time_s", "peak_bytes", "conservative_bytes", "verdict", "text")
CSV_KEYS = (
    *("id", "source", "model", "gpu", "num_gpus", "global_batch_size", "sequence_length", "precision", "runs"),
    *("measured_step_time_s", "capacity_bytes", "step_time_fraction", "given_room_fraction", "difference"),
    *(f"{plan}.{key}" for plan in ("recipe", "ours", "given_room") for key in PLAN_IN_CSV),
)


def render_recipes(report: Recipes, format: str, *, width: int, color: bool) -> str:
    """The report in one of FORMATS."""
    if format == "json":
        return dump_json(report)
    rows = _rows(report)
    if format == "csv":
        return render_rows([Column(key, key) for key in CSV_KEYS], rows, format)
    bullet = "- " if format == "markdown" else ""
    blocks = [
        [f"{bullet}{line}" for line in _header(report)],
        [render_rows(COLUMNS, rows, format, width=width, color=color).rstrip("\n")],
        [f"{bullet}{line}" for line in (*_sums(report), *notes_of(report))],
    ]
    return join_blocks(blocks, format, width)


def _rows(report: Recipes) -> list[Row]:
    rows: list[Row] = []
    for number, row in enumerate(report.rows, 1):
        plans = {"recipe": row.recipe, "ours": row.ours, "given_room": row.given_room}
        texts = {name: _with_text(plan) for name, plan in plans.items() if plan is not None}
        rows.append({**row.as_dict(), "number": number, **texts})
    return rows


def _with_text(told: PlanTold) -> Row:
    return {**told.as_dict(), "text": short_plan(told.plan)}


def _header(report: Recipes) -> Iterator[str]:
    runs = sum(row.runs for row in report.rows)
    yield f"Validate  recipes: {len(report.rows)} configurations, {runs} runs; of each the recipe measured fastest"
    yield "Ours      the fastest of the plans that `plan` shows for the same model, GPUs, batch and precision"
    yield (
        f"We say    whether the recipe, with what its record leaves out taken as below, fits: up to "
        f"{format_fraction(report.margin_fraction, 0)} of memory and, conservatively, all of it"
    )
    yield "Room      where ours is slower: ours / recipe on GPUs that hold what we predict of the recipe"


def _sums(report: Recipes) -> Iterator[str]:
    """How often ours is no worse, and what stands in the way elsewhere."""
    known = [row for row in report.rows if row.step_time_fraction is not None]
    fits = [row for row in known if row.recipe.verdict == "fits"]
    slower = [row for row in known if row.given_room_fraction is not None]
    even_so = sum((row.given_room_fraction or 0) > 1 for row in slower)
    yield (
        f"No slower than the recipe by our prediction: {len(known) - len(slower)} of {len(report.rows)}; where we say "
        f"that the recipe fits {sum(row not in slower for row in fits)} of {len(fits)}"
    )
    if slower:
        yield f"Of the {len(slower)} where ours is slower, given room for the recipe {len(slower) - even_so} are not"
