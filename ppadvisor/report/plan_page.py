"""An answer of `plan` as one page for a meeting: problem, ranked plans, memory, timeline, what-ifs, assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ppadvisor.engine.results import PlanEstimate
from ppadvisor.report import bars_html, timeline_html
from ppadvisor.report.explain_columns import ASSUMPTIONS, CLUSTER
from ppadvisor.report.page import facts, page, table
from ppadvisor.report.plan_view import (
    baseline_text,
    columns_for,
    header,
    nothing_fits_lines,
    plan_rows,
    rejected_lines,
    schedule_columns,
    schedule_rows,
)
from ppadvisor.report.split_view import split_lines
from ppadvisor.report.timeline_view import columns_of, rank_rows
from ppadvisor.search.advise import short_plan
from ppadvisor.search.drawable import Drawable
from ppadvisor.search.explain import ClusterNumber
from ppadvisor.search.results import PlanReport, RankedTime
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION
from ppadvisor.units import format_bytes_gib, format_fraction, format_seconds, format_tokens_per_s

STYLE = """
body{max-width:1400px;margin:16px auto;padding:0 16px}
h2{font-size:16px;margin:28px 0 6px;padding-bottom:3px;border-bottom:1px solid var(--rule)}
h3{font-size:14px;margin:16px 0 4px}
p{margin:4px 0 8px;max-width:110ch}
ul.plain{margin:4px 0 8px;padding-left:20px;max-width:110ch}
.tiles{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0;padding:0;list-style:none}
.tiles li{flex:1 1 140px;padding:8px 12px;background:var(--tint);border:1px solid var(--rule)}
.tiles span{display:block;color:var(--faint);font-size:12px}
.tiles strong{display:block;font-size:17px}
.faint{color:var(--faint);font-size:12px}
th,td{padding:2px 8px;font-size:13px}
th.left,td.left{text-align:left}
td.wraps{white-space:normal}
td.wraps:last-child{min-width:min(44ch,80vw)}
td{vertical-align:top}
table{margin-top:6px}
tr.chosen td{background:var(--tint);font-weight:600}
pre{white-space:pre-wrap;padding:8px 12px;background:var(--tint);border:1px solid var(--rule);font-size:12px}
@media print{.scroll,.wide{overflow:visible}fieldset{display:none}}
"""


@dataclass(frozen=True)
class Meeting:
    """What a page is made of."""

    report: PlanReport
    rank: int
    """The plan that is shown in full, from 1; where none fits the nearest miss stands in its place."""
    drawn: Drawable | None
    """None where there is no pipeline, or it is too wide to draw."""
    cluster_numbers: Sequence[ClusterNumber]
    command: str
    """What makes this page again."""
    version: str
    """Of the program."""

    @property
    def estimate(self) -> PlanEstimate | None:
        """The plan that is shown in full."""
        if self.report.plans:
            return self.report.plans[self.rank - 1]
        return self.report.nearest_miss.estimate if self.report.nearest_miss else None


def render_page(meeting: Meeting) -> str:
    """The page: the same bytes for the same answer."""
    problem = meeting.report.problem
    cluster = problem.cluster
    title = f"{problem.model.name} on {cluster.num_gpus:,} x {cluster.gpu.name}"
    drawn = meeting.drawn
    styles = [bars_html.STYLE, *([timeline_html.chart_style(drawn.timeline)] if drawn else [timeline_html.CHART_STYLE])]
    script = timeline_html.SCRIPT if drawn else ""
    body = ["<main>", *_sections(meeting), "</main>", *([timeline_html.TOLD] if drawn else [])]
    return page(title, [*styles, STYLE], body, script)


def _sections(meeting: Meeting) -> Iterator[str]:
    report, estimate = meeting.report, meeting.estimate
    lines = (line.partition(" ") for line in header(report.problem, report))
    yield facts((name, " ".join(value.split())) for name, _, value in lines)
    if estimate is not None:
        yield from _chosen(meeting, estimate)
    yield from _ranked(meeting)
    if estimate is not None:
        yield from _memory(estimate)
        yield "<h2>Where a step goes</h2>"
        yield bars_html.time_bars(estimate.time)
        yield from _timeline(meeting, estimate)
    yield from _what_ifs(meeting)
    yield from _assumptions(meeting)
    yield from _reproduce(meeting)


def _chosen(meeting: Meeting, estimate: PlanEstimate) -> Iterator[str]:
    """The plan in a line, and its key numbers."""
    time, memory, report = estimate.time, estimate.memory, meeting.report
    named = f"Plan {meeting.rank} of {len(report.plans)} shown" if report.plans else "No plan fits; the nearest miss"
    band = ""
    if isinstance(time, RankedTime):
        band = f"{format_seconds(time.step_time_low_s)} to {format_seconds(time.step_time_high_s)}"
    verdict = memory.verdict.replace("_", " ")
    tiles = (
        ("a step", format_seconds(time.step_time_s), band),
        ("throughput", format_tokens_per_s(time.tokens_per_s), ""),
        ("model FLOPs utilisation", format_fraction(time.model_flops_utilization), ""),
        ("bubble", format_fraction(time.bubble_fraction), ""),
        (
            "fullest GPU",
            format_bytes_gib(memory.peak_bytes),
            f"of {format_bytes_gib(memory.capacity_bytes)}: {verdict}",
        ),
    )
    shown = "".join(
        f"<li><span>{escape(name)}</span><strong>{escape(value)}</strong><span>{escape(more)}</span></li>"
        for name, value, more in tiles
    )
    yield f"<p>{escape(named)}: <strong>{escape(short_plan(estimate.plan))}</strong></p>"
    yield f'<ul class="tiles">{shown}</ul>'


def _ranked(meeting: Meeting) -> Iterator[str]:
    report = meeting.report
    yield "<h2>Ranked plans</h2>"
    if not report.plans:
        yield _paragraphs(nothing_fits_lines(report))
        return
    rows = plan_rows(report.plans)
    yield table(columns_for(rows), rows, chosen=meeting.rank - 1)
    yield (
        '<p class="faint">p, t, c, e, d: sizes of pipeline, tensor, context, expert and data parallelism; v: virtual '
        "stages; b: sequences in a micro-batch; m: micro-batches in a step. low and high: nine in ten draws over the "
        "ranges of the assumptions.</p>"
    )
    yield "<h3>Why the first is first</h3>"
    yield _list(report.why)
    stages = split_lines(report)
    if stages:
        yield f"<h3>{escape(stages[0].rstrip(':'))}</h3>"
        yield _list([line.strip() for line in stages[1:]])


def _memory(estimate: PlanEstimate) -> Iterator[str]:
    yield "<h2>Memory of each stage</h2>"
    yield bars_html.memory_bars(estimate.memory)
    yield f'<p class="faint">{escape(bars_html.memory_caption(estimate.memory))}</p>'


def _timeline(meeting: Meeting, estimate: PlanEstimate) -> Iterator[str]:
    drawn, whole = meeting.drawn, estimate.plan.num_microbatches
    if estimate.plan.pipeline_parallel == 1:
        return
    yield "<h2>Timeline</h2>"
    if drawn is None:
        yield "<p>Too many stages to draw here; ppadvisor timeline --trace writes all of it.</p>"
        return
    timeline = drawn.timeline
    if drawn.num_microbatches < whole:
        yield (
            f"<p>Drawn with {drawn.num_microbatches:,} of {whole:,} micro-batches, the rest repeats the middle; the "
            f"bubble is {format_fraction(timeline.bubble_fraction)} here and "
            f"{format_fraction(estimate.time.bubble_fraction)} in the whole step.</p>"
        )
    yield from timeline_html.chart(timeline)
    yield table(columns_of(timeline.makespan_s, of_plan=True), rank_rows(timeline))


def _what_ifs(meeting: Meeting) -> Iterator[str]:
    report = meeting.report
    yield "<h2>What if</h2>"
    if report.hints:
        yield _list(report.hints)
    yield "<h3>Baselines</h3>"
    yield _list([baseline_text(name, report) for name in report.baselines])
    if len(report.schedules) > 1:
        yield "<h3>The best plan of each schedule, replayed</h3>"
        yield table(schedule_columns(report), schedule_rows(report))
    yield _paragraphs(rejected_lines(report))


def _assumptions(meeting: Meeting) -> Iterator[str]:
    yield "<h2>Assumptions</h2>"
    yield "<p>What nobody can know before the run: the value, the range that published runs leave open, the source.</p>"
    yield table(ASSUMPTIONS, [used.as_dict() for used in meeting.report.problem.assumptions])
    yield "<h3>Numbers of the cluster</h3>"
    yield table(CLUSTER, [number.as_dict() for number in meeting.cluster_numbers])


def _reproduce(meeting: Meeting) -> Iterator[str]:
    yield "<h2>How to make this page again</h2>"
    yield f"<pre>{escape(meeting.command)}</pre>"
    versions = f"ppadvisor {meeting.version}, model {MODEL_VERSION}, format {FORMAT_VERSION}"
    yield f'<p class="faint">{escape(versions)}. All numbers are predicted.</p>'


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line.strip())}</p>" for line in lines)
