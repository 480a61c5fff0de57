"""Whether DeepSpeed takes a configuration, and how it completes the batch: its own answers, given by its own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Given
from ppadvisor.frameworks.deepspeed.config import read_json_text
from ppadvisor.specs.load import load_model

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "deepspeed_rule_checks.json").read_text())["cases"]
NO_JSON = "{train_batch_size: 256"
"""Hjson without quotes, which DeepSpeed parses and nobody writes."""


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_deepspeed_answers_so(case: dict[str, Any]) -> None:
    """Accepted or refused as DeepSpeed does, with the batch, micro-batch and steps that it makes of them."""
    given = Given(case["data_parallel"], model=load_model("gpt2-medium"), sequence_length=1024, pipeline_parallel=1)
    if case.get("error") == "ValueError" or case["json"].startswith(NO_JSON):
        with pytest.raises(InputError, match=r"stands twice|not valid JSON"):
            read_json_text(case["json"], "ds.json", given)
        return
    found = read_json_text(case["json"], "ds.json", given)
    assert found.accepted == case["accepted"], [one.message for one in found.broken]
    assert all(one.flags and one.message for one in found.broken)
    if case["accepted"]:
        assert found.plan is not None
        assert found.training is not None
        sizes = [found.training.global_batch_size, found.plan.micro_batch_size, found.plan.num_microbatches]
        assert sizes == case["sizes"]


def test_both_answers_are_asked_for() -> None:
    """Of the cases some are accepted and some refused, by its assertions, by its classes and by arithmetic."""
    assert {case["accepted"] for case in CASES} == {True, False}
    assert {case.get("error") for case in CASES} >= {None, "AssertionError", "ValidationError", "TypeError"}
