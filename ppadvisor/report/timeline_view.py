"""The answer of `timeline` on stdout: the rows in characters with their totals, or one of the other formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppadvisor.engine.timeline import Timeline
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, View, render_rows
from ppadvisor.report.timeline_words import times_of, title_of, totals_of, unit_of
from ppadvisor.schedules.replay import IDLE_CAUSES
from ppadvisor.search.explain import NothingToExplain
from ppadvisor.units import format_fraction, format_gib


def render_timeline(timeline: Timeline, format: str, view: View, about: Sequence[str] = ()) -> str:
    """The timeline in one of FORMATS; `about` are the lines that say what it is a timeline of."""
    if format == "json":
        from ppadvisor.report.timeline_document import document_of

        return dump_json(document_of(timeline))
    columns, rows = columns_of(timeline.makespan_s, of_plan=timeline.plan is not None), rank_rows(timeline)
    if format == "csv":
        return render_rows(columns, rows, format)
    table = render_rows(columns, rows, format, width=view.width, color=view.color, title="Idle time by cause")
    times = times_of(timeline)
    head = [*about, f"{title_of(timeline)}{f'; {times}' if times else ''}"]
    totals = [f"{name:<10}{value}" for name, value in totals_of(timeline)]
    if format == "markdown":
        return join_blocks([_listed(head), _listed(totals), [table.rstrip("\n")]], format, view.width)
    from ppadvisor.report.timeline_text import draw

    drawn = draw(timeline, view).rstrip("\n")
    return join_blocks([head, [drawn], totals, [table.rstrip("\n")]], format, view.width)


def render_nothing(answer: NothingToExplain, format: str) -> str:
    """That there is no timeline, and why, in one of FORMATS."""
    if format == "json":
        return dump_json(answer)
    if format == "csv":
        return render_rows(columns_of(1.0, of_plan=True), [], format)
    return f"Nothing to draw: {answer.note}\n"


def _listed(lines: Sequence[str]) -> list[str]:
    return [f"- {' '.join(line.split())}" for line in lines]


def columns_of(makespan_s: float, *, of_plan: bool) -> tuple[Column, ...]:
    """One row a rank; all times in one unit."""
    unit = unit_of(makespan_s)

    def seconds(key: str, name: str) -> Column:
        return Column(key, f"{name} [{unit.name}]", lambda time_s: unit.number(time_s, digits=4))

    held = [Column("activations_peak_bytes", "activations [GiB]", format_gib)] if of_plan else []
    return (
        Column("rank", "rank"),
        seconds("busy_s", "busy"),
        Column("idle_fraction", "idle", format_fraction),
        *(seconds(f"idle_s.{cause}", cause) for cause in IDLE_CAUSES),
        Column("in_flight_microbatches", "in flight", lambda count: f"{count:g}"),
        *held,
    )


def rank_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """What each rank did, in numbers."""
    return [
        {
            "rank": rank.rank,
            "busy_s": rank.busy_s,
            "idle_fraction": sum(rank.idle_s.values()) / timeline.makespan_s,
            "idle_s": rank.idle_s,
            "in_flight_microbatches": rank.in_flight_microbatches,
            "activations_peak_bytes": rank.held_bytes.peak if rank.held_bytes else None,
        }
        for rank in timeline.ranks
    ]
