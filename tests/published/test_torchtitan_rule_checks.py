"""Whether torchtitan starts with a train config: its own answers, given by its own code without GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor import schedules
from ppadvisor.frameworks.configuration import Given
from ppadvisor.frameworks.torchtitan.config import read_toml_text

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "torchtitan_rule_checks.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_torchtitan_answers_so(case: dict[str, Any]) -> None:
    """Accepted or refused as torchtitan does; what is refused names the options to change; rank 0 holds its layers."""
    found = read_toml_text(case["toml"], "train.toml", Given(num_gpus=case["num_gpus"]))
    assert found.accepted == case["accepted"], [one.message for one in found.broken]
    assert all(one.flags and one.message for one in found.broken)
    if case.get("layers_of_rank_0") and found.legal:
        plan = found.plan
        assert plan is not None
        held = [0]
        if plan.virtual_stages > 1:
            held = schedules.get(plan.schedule).placement(plan.pipeline_parallel, plan.virtual_stages)[0].tolist()
        assert [plan.layers_per_chunk[stage] for stage in held] == case["layers_of_rank_0"]


def test_both_answers_are_asked_for() -> None:
    """Of the cases some are accepted and some refused, for every kind of error that torchtitan raises here."""
    assert {case["accepted"] for case in CASES} == {True, False}
    assert {case.get("error") for case in CASES} >= {None, "ValueError", "AssertionError", "TypeError"}
