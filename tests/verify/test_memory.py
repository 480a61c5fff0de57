"""What torch's engine was counted to hold beside today's prediction, and what the comparison makes of differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.errors import EXIT_USAGE
from ppadvisor.verify.memory import TOLERANCE, compared
from ppadvisor.verify.memory_checks import check_buildable, check_driven
from ppadvisor.verify.memory_parts import PARTS, RECEIVE, SAVED, WORK, Peak, RankMeasured
from ppadvisor.verify.memory_predicted import PART_OF_TERM, RankPredicted, predict_ranks
from ppadvisor.verify.torch_engine import UnverifiableError
from tests.problems import model, plan, problem
from tests.verify.memory_rows import CASES, MemoryCase, readme_table, records, report_of

README = Path(__file__).parents[2] / "README.md"
every_row = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
PREDICTED = RankPredicted(0, {SAVED: 1000.0, RECEIVE: 100.0, WORK: 50.0}, "layer_backward", 1000.0)


@every_row
def test_each_rank_holds_what_is_predicted(case: MemoryCase) -> None:
    """Within 2 % on every rank, all together and what is saved, as torch's own engine was counted at true size."""
    report = report_of(case)
    assert report.agrees, report.disagreements
    assert len(report.rows) == len(records()[case.name]["ranks"]) == case.p
    assert all(abs(row.difference_fraction) <= 0.02 >= abs(row.saved_difference_fraction) for row in report.rows)


def test_the_rows_cover_what_was_asked_for() -> None:
    """Five models, six schedules of torch, with and without recomputation, tensor parallel and experts divided."""
    assert {case.model for case in CASES} == {
        "gpt3-175b",
        "llama-3-8b",
        "llama-3-70b",
        "mixtral-8x7b",
        "deepseek-v2-lite",
    }
    schedules = {"gpipe", "1f1b", "interleaved-1f1b", "interleaved-zero-bubble", "zb-v", "dualpipev"}
    assert {case.schedule for case in CASES} == schedules
    assert {case.recompute for case in CASES} == {"none", "full"}
    assert max(case.t for case in CASES) == 8
    assert max(case.e for case in CASES) > 1
    assert any(case.m < case.p and case.schedule == "zb-v" for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES) == len(records()) == 15


def test_the_readme_shows_the_rows() -> None:
    """The table of the README is what the file and today's prediction say."""
    assert readme_table() in README.read_text(encoding="utf-8")


@every_row
def test_a_layer_more_is_noticed(case: MemoryCase) -> None:
    """The comparison can fail: with a layer moved from the last rank to the first, the first does not agree."""
    split, last = [*case.split], int(case.pipeline().schedule.placement(case.p, case.v)[-1, 0])
    split[0], split[last] = split[0] + 1, split[last] - 1
    rows = zip(predict_ranks(case.pipeline(tuple(split))), report_of(case).rows, strict=True)
    saved = [predicted.saved_peak_bytes / row.measured_saved_bytes - 1 for predicted, row in rows]
    assert saved[0] > TOLERANCE / 2
    assert saved[-1] < -TOLERANCE / 2


def measured(saved: int = 1000, receive: int = 100, work: int = 50, most: int = 1000) -> RankMeasured:
    """A rank that held this."""
    parts = {SAVED: saved, RECEIVE: receive, WORK: work}
    return RankMeasured(0, Peak(sum(parts.values()), parts, "0B0 mm"), most)


def test_the_same_agrees() -> None:
    """1150 bytes beside 1150: agrees, and every part that is there has a row."""
    report = compared(CASES[2].pipeline(), [PREDICTED], [measured()])
    assert (report.agrees, report.disagreements) == (True, ())
    assert [(term.term, term.difference_bytes) for term in report.terms] == [(SAVED, 0), (RECEIVE, 0), (WORK, 0)]
    assert (report.rows[0].predicted_bytes, report.rows[0].measured_bytes) == (1150, 1150)


@pytest.mark.parametrize(("receive", "agrees"), [(122, True), (124, False), (78, True), (76, False)])
def test_two_per_cent_and_no_more(receive: int, agrees: bool) -> None:
    """2 % of 1150 are 23 bytes, either way; beyond them the rank and the term are named."""
    report = compared(CASES[2].pipeline(), [PREDICTED], [measured(receive=receive)])
    assert report.agrees == agrees
    row = report.rows[0]
    assert (row.largest_term, row.largest_term_bytes) == (RECEIVE, receive - 100)
    if not agrees:
        direction = "more" if receive > 100 else "less"
        assert report.disagreements[0].startswith("rank 0: ")
        assert report.disagreements[0].endswith(f"receive_buffers 24 B {direction}")


def test_parts_that_cancel_do_not_hide_the_stash() -> None:
    """The whole is the same, what is saved at most is not: does not agree."""
    report = compared(CASES[2].pipeline(), [PREDICTED], [measured(most=1021)])
    assert not report.agrees
    assert "saved activations" in report.disagreements[0]


def test_every_term_of_the_micro_batches_has_a_part() -> None:
    """What comes and goes is in one part each; what stays, and what FSDP gathers, is in none."""
    from ppadvisor.engine.memory import BETWEEN_STEPS, TERMS

    left_out = {*BETWEEN_STEPS, "gathered_parameters", "spread_head"}
    assert {name for name, _ in TERMS} - left_out == set(PART_OF_TERM)
    assert set(PART_OF_TERM.values()) == set(PARTS)


@pytest.mark.parametrize(
    ("changed", "run", "told"),
    [
        ({}, {"framework": "megatron"}, "megatron has layers and a pipeline of its own"),
        ({}, {"framework": "generic", "loss": "fused"}, "loss fused"),
        ({}, {"precision": "fp8"}, "fp8"),
        ({}, {"fused_norm": False}, "norms that are not fused"),
        ({"context_parallel": 2}, {}, "2 context-parallel ranks"),
        ({"tensor_parallel": 4}, {}, "2 key/value heads on 4 ranks"),
        ({"tensor_parallel": 2}, {"framework": "generic"}, "generic gathers again"),
        ({"recompute": "selective", "recompute_modules": ("mlp",)}, {}, "recomputation of mlp"),
        ({"schedule": "none"}, {}, "p is 1"),
    ],
)
def test_what_cannot_be_built_is_said(changed: dict[str, Any], run: dict[str, Any], told: str) -> None:
    """Exit code 2, with the reason: nothing is run and nothing is claimed."""
    of = problem(model("llama"), **{"framework": "torchtitan", **run})
    layers = [12] if changed.get("schedule") == "none" else [6, 6]
    with pytest.raises(UnverifiableError, match=told) as caught:
        check_buildable(of, plan(layers, **changed))
    assert caught.value.exit_code == EXIT_USAGE


def test_prediction_layers_are_not_built() -> None:
    """Multi-token prediction is said, not left out."""
    with pytest.raises(UnverifiableError, match="1 layers of multi-token prediction"):
        check_buildable(problem(model("mla-mtp"), framework="torchtitan"), plan([6, 6]))


@pytest.mark.parametrize(
    ("schedule", "told"), [("dualpipe", "keeps 2 copies"), ("pipedream", "several versions of the weights")]
)
def test_orders_that_torch_cannot_be_told(schedule: str, told: str) -> None:
    """Two copies of the model, or weights of several steps: exit code 2."""
    case = replace(CASES[2], schedule=schedule)
    with pytest.raises(UnverifiableError, match=told):
        check_driven(case.pipeline())
