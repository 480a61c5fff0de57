"""Megatron-LM's own answers to 55 combinations of options, and ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.megatron.config import configuration
from ppadvisor.frameworks.megatron.options import by_flag
from ppadvisor.frameworks.shell import Field

DATA = json.loads((Path(__file__).parent / "megatron_rule_checks.json").read_text())
CHECKS: list[dict[str, Any]] = DATA["checks"]
FLAGS = {
    "L": "--num-layers",
    "p": "--pipeline-model-parallel-size",
    "t": "--tensor-model-parallel-size",
    "cp": "--context-parallel-size",
    "h": "--hidden-size",
    "a": "--num-attention-heads",
    "s": "--seq-length",
    "gbs": "--global-batch-size",
}
NOT_LEGAL = {
    "MoE + TP w/o SP (training)": "experts_sequence_parallel",
    "seq parallel + s % t ": "sequence_over_ranks",
}
"""Accepted, and then: moe_layer.py:636-640 raises in the first forward; schedules.py:1184-1187 floors a shape."""


def read(check: dict[str, Any]) -> Configuration:
    """The options of a check, as a command line."""
    sizes = {**DATA["defaults"], **check["sizes"]}
    words = [f"{FLAGS[name]} {value}" for name, value in sizes.items() if name in FLAGS]
    words += [f"--max-position-embeddings {sizes['s']} --micro-batch-size 1 --bf16", check["options"]]
    connections = "8" if check["rule"].startswith("TP>1 with CUDA_DEVICE_MAX_CONNECTIONS") else "1"
    return configuration(
        tuple(Field(word, 1) for word in " ".join(words).split()),
        {"CUDA_DEVICE_MAX_CONNECTIONS": connections},
        Given(num_gpus=sizes["world"]),
        "checked.sh",
        in_file=None,
        notes=(),
    )


def test_there_are_all_of_them() -> None:
    """The file holds 55 combinations, 32 of which Megatron refuses."""
    assert len(CHECKS) == 55
    assert sum(check["answer"] != "OK" for check in CHECKS) == 32


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check["rule"])
def test_the_answer_is_megatrons(check: dict[str, Any]) -> None:
    """`accepted` is what Megatron's own start-up answered, and each refusal names options to change."""
    found = read(check)
    assert found.accepted == (check["answer"] == "OK"), found.broken
    refusals = [broken for broken in found.broken if broken.outcome is Outcome.REJECTED]
    assert all(broken.flags and broken.message and broken.source for broken in refusals)
    assert all(flag in by_flag() for broken in refusals for flag in broken.flags if broken.rule != "unknown_option")


@pytest.mark.parametrize("check", [c for c in CHECKS if c["answer"] == "OK"], ids=lambda check: check["rule"])
def test_the_stages_are_megatrons(check: dict[str, Any]) -> None:
    """What Megatron accepted it built: the same d, v and layers of each chunk of each rank."""
    plan = read(check).plan
    assert plan is not None
    assert (plan.data_parallel, plan.virtual_stages) == (check["data_parallel"], check["virtual_stages"])
    ranks = check.get("layers_of_ranks")
    if ranks is not None:
        assert plan.layers_per_stage == tuple(map(sum, ranks))
        assert plan.layers_per_chunk == tuple(layers for chunk in zip(*ranks, strict=True) for layers in chunk)


@pytest.mark.parametrize("check", [c for c in CHECKS if c["answer"] == "OK"], ids=lambda check: check["rule"])
def test_what_is_accepted_may_still_fail(check: dict[str, Any]) -> None:
    """`legal` is false where Megatron's code fails after its start-up, and there only."""
    rules = {broken.rule for broken in read(check).broken}
    assert rules == ({NOT_LEGAL[check["rule"]]} if check["rule"] in NOT_LEGAL else set())
