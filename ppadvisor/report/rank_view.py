"""The answer of `validate --kind rank`: a line of scores a source, or a line a question; what the columns mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ppadvisor.evidence.order import CLEAR, RESOLUTION
from ppadvisor.evidence.ranking_score import BASELINES, Ranking
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.prose import join_blocks
from ppadvisor.report.rows import Column, Row, render_rows
from ppadvisor.report.validate_view import ALL, NOTHING, notes_of
from ppadvisor.units import format_fraction


def _whole(share: float) -> str:
    return format_fraction(share, digits=0)


def _count(number: float) -> str:
    """Shares of a choice make counts that are not whole."""
    return f"{number:.1f}".removesuffix(".0")


def _rule(key: str, name: str) -> Column:
    return Column(f"baselines.{key}.mean_regret_fraction", f"regret: {name}", format_fraction, priority=1)


SCORES = (
    Column("source", "source", justify="left"),
    Column("groups", "groups"),
    Column("plans", "plans"),
    Column("pairs", "pairs"),
    Column("pairs_ordered_fraction", "pairs right", _whole),
    Column("kendall_tau", "tau", lambda tau: f"{tau:+.2f}"),
    Column("best_fraction", "top-1", _whole),
    Column("mean_regret_fraction", "mean regret", format_fraction),
    Column("worst_regret_fraction", "worst regret", format_fraction),
    Column("baselines.largest_data_parallel.pairs_ordered_fraction", "pairs: largest d", _whole, priority=1),
    _rule("largest_data_parallel", "largest d"),
    _rule("most_microbatches_a_stage", "most m/p"),
    _rule("tensor_parallel_to_the_node", "t to the node"),
    _rule("random", "random"),
)


def _plan(ranked: Mapping[str, Any]) -> str:
    """`p8 t2 d4 b1 1f1b, 12.3 s`: a plan, and how long a step took."""
    plan, time_s = ranked["plan"], ranked["measured_step_time_s"]
    sizes = (
        ("p", "pipeline_parallel", 0),
        ("t", "tensor_parallel", 0),
        ("d", "data_parallel", 0),
        ("c", "context_parallel", 1),
        ("e", "expert_parallel", 1),
        ("b", "micro_batch_size", 0),
        ("v", "virtual_stages", 1),
    )
    words = [f"{letter}{plan[name]}" for letter, name, unsaid in sizes if plan[name] != unsaid]
    words += [plan["schedule"]] * (plan["schedule"] != "none")
    words += [f"{plan['recompute']} recompute"] * (plan["recompute"] != "none")
    return f"{' '.join(words)}, {'OOM' if time_s is None else f'{time_s:.4g} s'}"


def _ids(row: Row) -> str:
    return " or ".join(plan["id"] for plan in row["chosen"])


def _plans(row: Row) -> str:
    return " or ".join(_plan(plan) for plan in row["chosen"])


def _question(row: Row) -> str:
    return (
        f"{row['model']}, {row['num_gpus']} {row['gpu']}, batch {row['global_batch_size']}, "
        f"sequence {row['sequence_length']}, {row['attention']}"
    )


QUESTIONS = (
    Column("chosen_ids", "our first choice", derive=_ids, justify="left", min_width=28),
    Column("fastest.id", "fastest measured", justify="left"),
    Column("plans", "plans"),
    Column("regret_fraction", "regret", format_fraction),
    Column("chosen_plan", "it is", derive=_plans, justify="left", priority=1, min_width=14),
    Column("fastest", "fastest is", _plan, justify="left", priority=1, min_width=14),
    Column("question", "of the question", derive=_question, justify="left", priority=1, min_width=18),
)

EVERY_RULE = (
    "pairs_ordered_fraction",
    "near_pairs_ordered_fraction",
    "best_fraction",
    "mean_regret_fraction",
    "worst_regret_fraction",
    "ran_out",
)
CSV_SCORES = (
    *(column.key for column in SCORES if not column.key.startswith("baselines.")),
    "near_pairs",
    "plans_ran_out",
    "mean_choice_regret_fraction",
    *(f"baselines.{name}.{key}" for name in BASELINES for key in EVERY_RULE),
)
CSV_QUESTIONS = (
    *("source", "model", "gpu", "num_gpus", "global_batch_size", "sequence_length", "attention"),
    *("plans", "plans_ran_out", "pairs", "clear_pairs", "pairs_right", "clear_pairs_right"),
    *("best", "regret_fraction", "order_regret_fraction", "ran_out", "chosen_ids", "fastest.id"),
)


def render_ranking(report: Ranking, format: str, *, with_rows: bool, width: int, color: bool) -> str:
    """The report in one of FORMATS; json holds scores and rows whether or not rows are asked for."""
    if format == "json":
        return dump_json(report)
    columns, rows = (QUESTIONS, _rows(report)) if with_rows else (SCORES, _scores(report))
    if format == "csv":
        keys = CSV_QUESTIONS if with_rows else CSV_SCORES
        return render_rows([Column(key, key) for key in keys], rows, format)
    bullet = "- " if format == "markdown" else ""
    table = render_rows(columns, rows, format, width=width, color=color).rstrip("\n") if report.rows else NOTHING
    blocks = [
        [f"{bullet}{line}" for line in _header(report)],
        [table],
        [f"{bullet}{line}" for line in (*_known(report), *notes_of(report))],
    ]
    return join_blocks(blocks, format, width)


def _rows(report: Ranking) -> list[Row]:
    rows = [row.as_dict() for row in report.rows]
    return [{**row, "chosen_ids": _ids(row)} for row in rows]


def _scores(report: Ranking) -> list[Row]:
    return [{"source": name, **score.as_dict()} for name, score in {**report.sources, ALL: report.summary}.items()]


def _header(report: Ranking) -> Iterator[str]:
    partial = ", an input unknown or with a caveat (partial)" if report.partial else ""
    label = "" if report.label == ALL else f" labelled {report.label}"
    all_of_them = report.summary
    yield f"Validate  rank: {all_of_them.groups:,} groups of records{label}{partial}"
    yield f"Plans     {all_of_them.plans:,} ran, {all_of_them.plans_ran_out:,} ran out of memory"
    yield "Group     plans for one model, cluster and batch, measured by one source"
    yield f"Pairs     of plans that ran, {_whole(CLEAR)} apart or more; tau: {_whole(RESOLUTION)} or more"
    yield "Regret    measured time of the first choice among those that ran / fastest measured - 1"


def _known(report: Ranking) -> Iterator[str]:
    """What the choice is worth with our verdicts on memory in place of the knowledge which plans run."""
    rules = {"our order": report.summary, **report.summary.baselines}
    regrets = {name: rule.mean_choice_regret_fraction for name, rule in rules.items()}
    each = [f"{name.replace('_', ' ')} {format_fraction(one)}" for name, one in regrets.items() if one is not None]
    if each:
        yield f"Mean regret of the first choice among the plans that we say fit: {', '.join(each)}"
        ran_out = _count(report.summary.ran_out)
        yield f"Of our {report.summary.groups:,} first choices among them {ran_out} ran out of memory"
