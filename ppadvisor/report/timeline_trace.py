"""The timeline as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Source of the form: "Trace Event Format" of the Chromium project: complete events (X) with `ts` and `dur` in
microseconds, counters (C), and metadata (M) that name processes and threads. A process is a rank: counters belong to
processes, and so each rank has its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ppadvisor.engine.timeline import RankTimeline, Steps, Timeline
from ppadvisor.report.timeline_words import KIND_NAMES, title_of
from ppadvisor.schedules.base import Kind
from ppadvisor.schedules.replay import IDLE_CAUSES

Event = dict[str, Any]

WORK, IDLE = 0, 1
"""The threads of a rank."""


def render(timeline: Timeline, about: Sequence[str] = ()) -> str:
    """The JSON object form, an event a line; `about` are the lines that say what it is a timeline of."""
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in _events(timeline))
    told = {"title": title_of(timeline), "about": "; ".join(" ".join(line.split()) for line in about)}
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(told)},"traceEvents":[\n{events}\n]}}\n'


def _events(timeline: Timeline) -> Iterator[Event]:
    for rank in timeline.ranks:
        yield from _names(rank)
        yield from _work(rank)
        yield from _idle(rank)
        yield from _counter(rank, "in flight", "micro-batches", rank.held_microbatches)
        if rank.held_bytes:
            yield from _counter(rank, "activations", "bytes", rank.held_bytes)


def _names(rank: RankTimeline) -> Iterator[Event]:
    name = f"rank {rank.rank}"
    yield {"ph": "M", "name": "process_name", "pid": rank.rank, "tid": WORK, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank.rank, "tid": WORK, "args": {"sort_index": rank.rank}}
    for thread, what in ((WORK, "work"), (IDLE, "idle")):
        yield {"ph": "M", "name": "thread_name", "pid": rank.rank, "tid": thread, "args": {"name": f"{name} {what}"}}


def _work(rank: RankTimeline) -> Iterator[Event]:
    columns = (rank.order, rank.stage.tolist(), rank.start_s.tolist(), rank.end_s.tolist())
    for action, stage, start, end in zip(*columns, strict=True):
        yield {
            **_complete(rank, WORK, start, end),
            "name": f"{action.kind.letter}{action.microbatch}",
            "cat": KIND_NAMES[Kind(action.kind)],
            "args": {"chunk": action.chunk, "stage": stage, "microbatch": action.microbatch},
        }


def _idle(rank: RankTimeline) -> Iterator[Event]:
    columns = (rank.idle.cause.tolist(), rank.idle.start_s.tolist(), rank.idle.end_s.tolist())
    for cause, start, end in zip(*columns, strict=True):
        yield {**_complete(rank, IDLE, start, end), "name": IDLE_CAUSES[cause], "cat": "idle", "args": {}}


def _counter(rank: RankTimeline, name: str, unit: str, steps: Steps) -> Iterator[Event]:
    for time_s, value in zip([0.0, *steps.time_s.tolist()], [0.0, *steps.value.tolist()], strict=True):
        yield {"ph": "C", "name": name, "pid": rank.rank, "tid": WORK, "ts": _us(time_s), "args": {unit: value}}


def _complete(rank: RankTimeline, thread: int, start_s: float, end_s: float) -> Event:
    begin = _us(start_s)
    return {"ph": "X", "pid": rank.rank, "tid": thread, "ts": begin, "dur": round(_us(end_s) - begin, 3)}


def _us(time_s: float) -> float:
    """Microseconds to the nanosecond, which is as fine as the viewers are."""
    return round(time_s * 1e6, 3)
