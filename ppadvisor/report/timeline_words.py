"""What all pictures of a timeline say alike: names of the kinds of work and idle causes, titles, ticks of the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ppadvisor.engine.timeline import RankTimeline, Timeline
from ppadvisor.schedules.base import Kind
from ppadvisor.units import format_bytes_gib, format_fraction, time_unit

KIND_NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRAD: "input gradient",
    Kind.WEIGHT_GRAD: "weight gradient",
    Kind.VOCABULARY_FORWARD: "head, first part",
    Kind.VOCABULARY_BACKWARD: "head, second part",
    Kind.VOCABULARY_WEIGHT_GRAD: "head, weight gradient",
}

CAUSE_NAMES = {
    "fill": "fill: before its first action",
    "drain": "drain: after its last action",
    "upstream": "upstream: waits for an activation",
    "downstream": "downstream: waits for a gradient",
    "link": "link: what it needs is on the wire",
}


class Unit(NamedTuple):
    """The one unit in which a timeline tells its times: seconds, or what reads better for less than one."""

    scale_s: float
    name: str

    def number(self, time_s: float, digits: int = 6) -> str:
        """So many digits, all of those before the point, without the unit's name."""
        value = time_s / self.scale_s
        return f"{value:.{max(digits, len(f'{value:.0f}'))}g}"

    def text(self, time_s: float, digits: int = 6) -> str:
        """`33 s`."""
        return f"{self.number(time_s, digits)} {self.name}"

    def span(self, start_s: float, end_s: float) -> str:
        """`4 to 10 s (6 s)`."""
        return f"{self.number(start_s)} to {self.text(end_s)} ({self.text(end_s - start_s)})"


def unit_of(makespan_s: float) -> Unit:
    """The unit for a timeline of this length; never minutes, in which an action would be 0.01667."""
    return Unit(*time_unit(min(makespan_s, 1.0)))


def title_of(timeline: Timeline) -> str:
    """`1F1B, p = 4, m = 8`: the sizes that tell timelines apart."""
    sizes = [f"p = {timeline.pipeline_parallel}", f"m = {timeline.num_microbatches}"]
    if timeline.virtual_stages > 1:
        sizes.insert(1, f"v = {timeline.virtual_stages}")
    return ", ".join([timeline.schedule.title, *sizes])


def times_of(timeline: Timeline) -> str:
    """The times that it was made from, of one chunk; empty where a plan has its own for each stage."""
    times, text = timeline.times, unit_of(timeline.makespan_s).text
    if times is None:
        return ""
    told = [
        (f"F {text(times.forward_s)}", Kind.FORWARD),
        (f"B {text(times.backward_s)}", Kind.BACKWARD),
        (f"I {text(times.input_grad_s)}, W {text(times.weight_grad_s)}", Kind.INPUT_GRAD),
    ]
    passes = ", ".join(words for words, kind in told if kind in timeline.kinds)
    what = "stage" if timeline.virtual_stages == 1 else "chunk"
    return f"one {what}: {passes}; hand-off {text(times.handoff_s)}"


def totals_of(timeline: Timeline) -> list[tuple[str, str]]:
    """(name, value) of what a timeline comes to; the two definitions of its bubble by name."""
    text = unit_of(timeline.makespan_s).text
    busy = sum(rank.busy_s for rank in timeline.ranks) / timeline.pipeline_parallel
    lines = [
        ("Makespan", f"{text(timeline.makespan_s)}, of which a rank works {text(busy, 4)} on average"),
        (
            "Bubble",
            f"{format_fraction(timeline.bubble_fraction)} of the makespan; "
            f"{format_fraction(timeline.bubble_in_span_fraction)} in span (a rank's first to last action)",
        ),
        ("In flight", _in_flight(timeline)),
    ]
    if timeline.schedule.asynchronous:
        lines.append(("Note", "asynchronous: drawn from an empty pipeline to an empty one; in a run it never drains"))
    return lines


def facts_of(timeline: Timeline, about: Sequence[str]) -> list[tuple[str, str]]:
    """(name, value) of all that stands above a picture; `about` are lines that begin with their names."""
    pairs = [(name, " ".join(value.split())) for name, _, value in (line.partition(" ") for line in about)]
    times = times_of(timeline)
    return [*pairs, *([("Times", times)] if times else []), *totals_of(timeline)]


def counted(microbatches: float) -> str:
    """`1 micro-batch`, `2.5 micro-batches`."""
    return f"{microbatches:g} micro-batch{'' if microbatches == 1 else 'es'}"


def _in_flight(timeline: Timeline) -> str:
    most = max(timeline.ranks, key=lambda rank: rank.in_flight_microbatches)
    text = f"at most {counted(most.in_flight_microbatches)}, on rank {most.rank}"
    held = [rank.held_bytes.peak for rank in timeline.ranks if rank.held_bytes]
    if held:
        text += f"; activations at most {format_bytes_gib(max(held))}, on rank {held.index(max(held))}"
    return text


def ticks(makespan_s: float, most: int) -> list[tuple[float, str]]:
    """(seconds, label) of the ticks of an axis from 0, at most so many steps of 1, 2 or 5 times a power of ten.

    >>> ticks(33.0, 4)
    [(0.0, '0 s'), (10.0, '10'), (20.0, '20'), (30.0, '30')]
    """
    unit = unit_of(makespan_s)
    least = makespan_s / unit.scale_s / max(most, 1)
    power = 10.0 ** math.floor(math.log10(least))
    # what rounding leaves of a power of ten still counts as one
    step_s = next((size for size in (1, 2, 5) if size * power >= least * (1 - 1e-9)), 10) * power * unit.scale_s
    times = [index * step_s for index in range(math.floor(makespan_s / step_s * (1 + 1e-9)) + 1)]
    return [(time_s, unit.number(time_s) if time_s else unit.text(0.0)) for time_s in times]


def stages_text(rank: RankTimeline) -> str:
    """`stage 3` or `stages 0, 4` of a rank."""
    stages = sorted({int(stage) for stage in rank.stage.tolist()})
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
