"""Megatron's formula as a baseline: where it has a number, and how it is scored beside ours."""

from __future__ import annotations

from typing import Any

import pytest

from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.formula_score import FormulaRow, formula_errors, formula_fits, formula_row, undefined_for
from ppadvisor.evidence.megatron_formula import megatron_formula
from ppadvisor.evidence.records import Record, shipped_records
from ppadvisor.evidence.scores import SourceErrors
from ppadvisor.evidence.validate import validate_records
from tests.evidence.samples import record


def of(**changes: Any) -> FormulaRow:
    """A row of a formula that says nothing else."""
    nothing = {"predicted": None, "error_fraction": None, "verdict": None, "undefined": None}
    return FormulaRow(**{**nothing, **changes})


CHUNKS = {"virtual_stages": 2}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"plan": {"schedule": "zb-h1"}}, None),
        ({"plan": {"schedule": "interleaved-1f1b", **CHUNKS}}, None),
        ({"plan": {"schedule": "zb-v", **CHUNKS}}, "its chunks are those of interleaved 1F1B alone"),
        ({"training": {"optimizer_sharding": "zero1"}}, None),
        ({"training": {"optimizer_sharding": "zero2"}}, "gradients or weights are divided (ZeRO 2, 3)"),
        ({"measured": {"peak_scope": "first_stage"}}, None),
        ({"measured": {"peak_scope": "last_stage"}}, "another stage than the first was measured"),
    ],
)
def test_where_the_formula_is_defined(changes: dict[str, Any], reason: str | None) -> None:
    """Its inputs decide: it takes no schedule, and knows no ZeRO beyond the optimizer and no stage but the first."""
    assert undefined_for(case_of(record(**changes))) == reason


def test_a_row_says_the_formula_or_why_not() -> None:
    """Of memory its total and error, of fits its verdict against the GPU, of time nothing."""
    case = case_of(record())
    total = megatron_formula(case.problem.model, case.problem.training, case.plan).total_bytes
    memory = formula_row(case, "memory", total / 2)
    assert memory is not None
    assert (memory.predicted, memory.error_fraction, memory.verdict) == (total, 1.0, None)
    fits = formula_row(case, "oom", 0.0)
    assert fits is not None
    assert (fits.verdict, fits.error_fraction) == ("fits", None)
    large = formula_row(case_of(record(model={"num_layers": 240, "hidden_size": 16384})), "oom", 1.0)
    assert large is not None
    assert large.verdict == "does_not_fit"
    nowhere = formula_row(case_of(record(training={"optimizer_sharding": "zero3"})), "memory", 1.0)
    assert nowhere is not None
    assert nowhere.predicted is None
    assert nowhere.undefined is not None
    assert formula_row(case, "time", 1.0) is None


def test_errors_are_scored_on_the_same_rows() -> None:
    """Errors +30 and −10 % beside ours of +5 and −1 %; the row without the formula counts for neither."""
    rows = [(of(error_fraction=0.3), 0.05), (of(error_fraction=-0.1), -0.01), (of(undefined="no"), 0.9)]
    score = formula_errors(rows)
    assert score is not None
    assert list(score.as_dict().values()) == pytest.approx([2, 0.2, 0.1, -0.1, 0.3, 0.03])
    assert formula_errors([(None, 0.1)]) is None
    empty = formula_errors([(of(undefined="no"), 0.1)])
    assert empty is not None
    assert (empty.n, empty.mean_abs_error_fraction) == (0, None)


def test_verdicts_are_scored_on_the_same_rows() -> None:
    """Two ran out, one fitted: the formula misses one and is right on the others; our borderline is no miss."""
    fits, full = of(verdict="fits"), of(verdict="does_not_fit")
    score = formula_fits([(fits, True, "borderline"), (full, True, "fits"), (fits, False, "borderline")])
    assert list(score.as_dict().values()) == pytest.approx([3, 2 / 3, 1 / 2, 1 / 3, 1 / 2])
    assert formula_fits([(of(undefined="no"), True, "fits")]).as_dict() == {
        "n": 0,
        "right_fraction": None,
        "missed_oom_fraction": None,
        "our_right_fraction": None,
        "our_missed_oom_fraction": None,
    }


def test_every_memory_row_has_the_formula_or_a_reason() -> None:
    """Of the shipped runs none has both or neither, and the summary counts those that have it."""
    report = validate_records(shipped_records(), "memory")
    formulas = [row.megatron_formula for row in report.rows]
    assert all(one is not None and (one.predicted is None) == (one.undefined is not None) for one in formulas)
    assert isinstance(report.summary, SourceErrors)
    assert report.summary.megatron_formula is not None
    assert report.summary.megatron_formula.n == sum(one is not None and one.predicted is not None for one in formulas)


def runs_without_tricks() -> list[Record]:
    """1F1B of Megatron's own kind of trainer, nothing recomputed: what the formula is made for."""
    return [
        one
        for one in shipped_records()
        if one.training.framework in ("vocab-parallel", "megatron")
        and one.plan.schedule == "1f1b"
        and one.plan.recompute == "none"
    ]


def test_the_formula_is_near_where_it_is_made_for() -> None:
    """On 1F1B without recomputation Megatron's formula is within 25 % of measured peaks: it is not misread here."""
    report = validate_records(runs_without_tricks(), "memory")
    assert isinstance(report.summary, SourceErrors)
    formula = report.summary.megatron_formula
    assert formula is not None
    assert formula.n >= 10
    assert (formula.mean_abs_error_fraction or 1) < 0.25
