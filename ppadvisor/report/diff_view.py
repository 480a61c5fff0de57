"""The answer of `diff` as a person reads it: what HEAD breaks, what changed, what that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module

from ppadvisor.engine.draws import NUM_DRAWS
from ppadvisor.report.check_view import MOST_STAGES, mark, rule_lines
from ppadvisor.report.compare_view import signed
from ppadvisor.report.diff_findings import METRICS, field_name, measured, option_text, percent, value_text
from ppadvisor.report.explain_columns import words
from ppadvisor.report.formats import DIFF_FORMATS
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks, layers_text
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.search.advise import short_plan
from ppadvisor.search.check_results import Judgement
from ppadvisor.search.diff_results import DiffReport, OptionChanged
from ppadvisor.units import (
    format_bytes,
    format_bytes_gib,
    format_fraction,
    format_gib,
    format_seconds,
    format_tokens_per_s,
)

MOST_OPTIONS = 12
"""Options without a known effect that are named."""


def _place(row: Row) -> str | None:
    """The line of HEAD and the option on it."""
    line = "" if row["line"] is None else f"line {row['line']}: "
    return f"{line}{row['option']}" if row["option"] else None


def _money(amount: float) -> str:
    return f"{amount:,.4g}"


SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "step_time_s": ("step time", format_seconds),
    "tokens_per_s": ("tokens/s", format_tokens_per_s),
    "tokens_per_s_per_gpu": ("tokens/s of a GPU", format_tokens_per_s),
    "model_flops_utilization": ("MFU", format_fraction),
    "bubble_fraction": ("bubble", format_fraction),
    "peak_bytes": ("peak memory", format_bytes_gib),
    "peak_memory_fraction": ("of the GPU", format_fraction),
    "handoff_bytes": ("hand-off between stages", format_bytes),
    "cost_per_step": ("cost of a step", _money),
    "cost_per_billion_tokens": ("cost of 10^9 tokens", _money),
}
"""Each number: what people call it, and how it is written."""


def _number(side: str, row: Row) -> str | None:
    return None if row[side] is None else SHOWN[row["name"]][1](row[side])


def _change(row: Row) -> str | None:
    """Shares in points, all else in percent of BASE."""
    if row["difference"] is None:
        return None
    if SHOWN[row["name"]][1] is format_fraction:
        return signed(lambda value: f"{100 * value:.1f} points", row["difference"])
    share = row["change_fraction"]
    return _number("head", {"name": row["name"], "head": row["difference"]}) if share is None else _percent(share)


def _percent(share: float) -> str:
    return signed(format_fraction, share)


def _held(side: str, row: Row) -> str:
    """GiB, with a star where the stage binds."""
    held = row[side]
    return "-" if held is None else f"{format_gib(held['total_bytes'])}{'*' if row[f'{side}_binds'] else ' '}"


def _layers(row: Row) -> str:
    return " -> ".join(dict.fromkeys("-" if row[s] is None else str(row[s]["num_layers"]) for s in ("base", "head")))


PLACE = Column("place", "said in head by", justify="left", derive=_place, min_width=16)
CHANGES = (
    Column("part", "part", justify="left"),
    Column("name", "field", justify="left", min_width=12),
    Column("base", "base", justify="left", min_width=16),
    Column("head", "head", justify="left", min_width=16),
    PLACE,
)
EFFECTS = (
    Column("title", "", justify="left"),
    Column("base", "base", derive=partial(_number, "base")),
    Column("head", "head", derive=partial(_number, "head")),
    Column("change", "change", derive=_change),
)
PARTS = (
    Column("name", "part", words, justify="left"),
    Column("base_s", "base", format_seconds),
    Column("head_s", "head", format_seconds),
    Column("difference_s", "change", partial(signed, format_seconds)),
)
STAGES = (
    Column("stage", "stage"),
    Column("layers", "layers", derive=_layers),
    Column("base", "base [GiB]", derive=partial(_held, "base")),
    Column("head", "head [GiB]", derive=partial(_held, "head")),
    Column("difference_bytes", "change [GiB]", partial(signed, format_gib)),
    Column("head_of_capacity_fraction", "of the GPU", format_fraction),
)


def render_diff(report: DiffReport, format: str, *, width: int, color: bool) -> str:
    """The report in one of DIFF_FORMATS."""
    if format == "json":
        return dump_json(report)
    if DIFF_FORMATS[format] != __name__:
        return str(import_module(DIFF_FORMATS[format]).render(report))

    def draw(title: str, columns: Sequence[Column], rows: list[Row]) -> list[str]:
        table = render_rows(columns, rows, "table", width=width, color=color, title=title) if rows else ""
        return [table.rstrip("\n")]

    blocks = [
        [side_line("Base", report.base), side_line("Head", report.head)],
        [line for rule in report.head.rules for line in rule_lines(rule)],
        [f"{mark(passed)} {text}" for passed, text in verdicts(report)],
        list(comes_to(report)),
        draw("What changed", change_columns(report), change_rows(report)),
        list(_options(report)),
        draw("What it does", EFFECTS, effect_rows(report)),
        draw("Where a step goes, mean over the ranks", PARTS, part_rows(report)),
        draw("Stages, each at its highest moment; * binds", STAGES, stage_rows(report)),
        list(missing(report)),
    ]
    return join_blocks(blocks, "text", width)


def side_line(name: str, side: Judgement) -> str:
    """The file, its trainer and GPUs, its plan."""
    plan = side.plan
    text = "no plan" if plan is None else f"{short_plan(plan)}; layers per stage {layers_text(plan.layers_per_stage)}"
    file = "standard input" if side.file == "-" else side.subject
    return f"{name:<10}{file}: {side.framework} on {side.num_gpus} GPUs; {text}"


def verdicts(report: DiffReport) -> Iterator[tuple[bool, str]]:
    """(passed, text) of whether HEAD is legal and fits, and of each number that may not become worse."""
    base, head = report.base, report.head
    yield head.legal, f"head {_legal(head)}" + ("" if head.legal == base.legal else f"; base {_legal(base)}")
    if head.estimate is not None:
        now, before = head.estimate.memory, base.estimate.memory if base.estimate else None
        text = f"{words(now.verdict)}: {format_bytes_gib(now.peak_bytes)}, limit {format_bytes_gib(now.limit_bytes)}"
        changed = f"; base {words(before.verdict)}" if before is not None and before.verdict != now.verdict else ""
        yield now.fits, text + changed
    if report.tolerance_fraction is None:
        return
    for one in report.regressions:
        yield False, f"{METRICS[one.metric]}: {measured(one)}{_at(head.file, one.option, one.line)}"
    if not report.regressions and head.estimate is not None:
        allowed = percent(report.tolerance_fraction)
        reason = report.not_comparable
        yield True, f"{reason}: nothing to compare with" if reason else f"no regression of more than {allowed}"


def _legal(side: Judgement) -> str:
    if side.legal:
        return "runs and trains what was asked for"
    if not side.accepted_by_framework:
        return f"is refused by {side.framework}"
    fails = any(rule.outcome == "fails" for rule in side.rules)
    return "starts, and fails at the first step" if fails else "runs, and trains something else"


def _at(file: str, option: str | None, line: int | None) -> str:
    if option is None:
        return ""
    return f" ({option})" if line is None else f" ({file}:{line}: {option})"


def comes_to(report: DiffReport) -> Iterator[str]:
    """Time and memory in a sentence each, and how sure the first is."""
    for text in report.summary:
        name, _, rest = text.partition(" ")
        yield f"{name.capitalize():<10}{rest}"
    if report.head_slower_in_fraction is not None:
        share = format_fraction(report.head_slower_in_fraction, 0)
        yield f"{'Sure':<10}head is slower in {share} of {NUM_DRAWS} draws over the ranges of the assumptions"
    if _unchanged(report) and not any(one.effect == "not_modelled" for one in report.options):
        yield "Nothing changed that memory or time depend on."


def _unchanged(report: DiffReport) -> bool:
    """Whether both sides make the same plan for the same question, as far as the estimate sees."""
    return report.base.plan is not None and report.head.plan is not None and not report.changes


def change_columns(report: DiffReport) -> tuple[Column, ...]:
    """With the options of HEAD where there are some."""
    said = any(one.option is not None for one in report.changes)
    return CHANGES if said else tuple(column for column in CHANGES if column is not PLACE)


def change_rows(report: DiffReport) -> list[Row]:
    """A row a field."""
    return [
        {
            "part": one.part,
            "name": field_name(one),
            "base": value_text(one.base, one.field),
            "head": value_text(one.head, one.field),
            "option": one.option,
            "line": one.line,
        }
        for one in report.changes
    ]


def effect_rows(report: DiffReport) -> list[Row]:
    """A row a number; that of a GPU only where their number changed."""
    same = report.base.num_gpus == report.head.num_gpus
    shown = (one for one in report.effects if not (same and one.name == "tokens_per_s_per_gpu"))
    return [{**one.as_dict(), "title": SHOWN[one.name][0]} for one in shown]


def part_rows(report: DiffReport) -> list[Row]:
    """A row a part of the step that either side has; none where nothing changed."""
    return [part.as_dict() for part in report.parts if (part.base_s or part.head_s) and not _unchanged(report)]


def stage_rows(report: DiffReport) -> list[Row]:
    """A row a stage; of very many the first, those that bind and the last ones; none where nothing changed."""
    if _unchanged(report):
        return []
    bound = {
        name: side.estimate.memory.binding_stage
        for name, side in (("base", report.base), ("head", report.head))
        if side.estimate is not None
    }
    rows: list[Row] = [
        {**stage.as_dict(), **{f"{name}_binds": stage.stage == bound.get(name) for name in ("base", "head")}}
        for stage in report.stages
    ]
    if len(rows) <= MOST_STAGES:
        return rows
    ends = {side.plan.pipeline_parallel - 1 for side in (report.base, report.head) if side.plan is not None}
    return [rows[index] for index in sorted({0, *bound.values(), *ends}) if index < len(rows)]


def other_options(report: DiffReport) -> tuple[list[OptionChanged], list[OptionChanged]]:
    """(options that change memory or time and that no estimate sees, those that no changed field comes from)."""
    told = {one.field.rpartition(".")[2] for one in report.changes}
    unseen = [one for one in report.options if one.effect == "not_modelled"]
    return unseen, [one for one in report.options if one.effect != "not_modelled" and one.field not in told]


def _options(report: DiffReport) -> Iterator[str]:
    unseen, others = other_options(report)
    for one in unseen:
        place = f"{report.head.file}:{one.head_line}: " if one.head_line is not None else ""
        yield f"not modelled: {place}{option_text(one)}: changes memory or time, the estimate is made without it"
    if others:
        yield f"other options: {others_text(others)}"


def others_text(others: Sequence[OptionChanged]) -> str:
    """The first of them."""
    more = f", and {len(others) - MOST_OPTIONS} more" if len(others) > MOST_OPTIONS else ""
    return ", ".join(map(option_text, others[:MOST_OPTIONS])) + more


def missing(report: DiffReport) -> Iterator[str]:
    """Why a side has no numbers."""
    for name, side in (("BASE", report.base), ("HEAD", report.head)):
        for notice in side.notices:
            if notice.kind == "missing":
                yield f"missing in {name}: {notice.message}"
    if any(side.legal and side.cluster is None for side in (report.base, report.head)):
        yield "missing: --gpu or --cluster, for memory and time"
