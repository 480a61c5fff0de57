"""Our writing of Megatron's theoretical memory report is its own, for each record that was executed.

`megatron_theoretical_memory.json` holds what the functions returned; models and plans stand in
`megatron_parameters.json` under the same ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.evidence.megatron_formula import (
    activation_with_sp_bytes,
    activation_without_sp_bytes,
    megatron_formula,
    most_loaded_parameters,
    weight_and_optimizer_bytes,
)
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import validate

HERE = Path(__file__).parent
PLANS: dict[str, Any] = json.loads((HERE / "megatron_parameters.json").read_text(encoding="utf-8"))
RECORDS: list[dict[str, Any]] = json.loads((HERE / "megatron_theoretical_memory.json").read_text(encoding="utf-8"))[
    "records"
]
ASKED = {record["id"]: record for record in PLANS["records"]}
MIB = 2**20

SAME_NAMES = (
    "pipeline_parallel",
    "tensor_parallel",
    "data_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "virtual_stages",
    "micro_batch_size",
    "num_microbatches",
)

every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])


def exactly(value: float) -> Any:
    """Equal within the tolerance of the records."""
    return pytest.approx(value, rel=1e-12)


def model_of(record: dict[str, Any]) -> ModelSpec:
    """The model of a record."""
    name = ASKED[record["id"]]["model"]
    return validate(ModelSpec, {"name": name, **PLANS["models"][name]}, name)


def plan_of(record: dict[str, Any]) -> PlanSpec:
    """The plan of a record. The formula does not look at its layers: it divides all by p."""
    asked = ASKED[record["id"]]
    layers = [1] * asked["pipeline_parallel"]
    sizes = {name: asked[name] for name in SAME_NAMES} | {
        "schedule": "1f1b",
        "recompute": record["recompute"],
        "optimizer_sharding": int(asked["distributed_optimizer"]),
        "layers_per_stage": layers,
        "layers_per_chunk": layers * asked["virtual_stages"],
    }
    return validate(PlanSpec, sizes, record["id"])


def training_of(record: dict[str, Any]) -> TrainingSpec:
    """The training of a record."""
    asked = ASKED[record["id"]]
    return TrainingSpec(
        sequence_length=asked["sequence_length"],
        global_batch_size=asked["micro_batch_size"] * asked["num_microbatches"] * asked["data_parallel"],
        sequence_parallel=asked["sequence_parallel"],
    )


def test_every_executed_record_is_there() -> None:
    """The 25 records are those of the parameter counts, in their order."""
    assert [record["id"] for record in RECORDS] == list(ASKED)
    assert len(RECORDS) == 25


@every_record
def test_parameters_are_megatrons(record: dict[str, Any]) -> None:
    """Parameters of the most loaded rank: divided over t, whole on each, in routed experts."""
    shard = most_loaded_parameters(model_of(record), plan_of(record))
    assert shard.sharded == exactly(record["sharded_parameters"])
    assert shard.replicated == exactly(record["replicated_parameters"])
    assert shard.experts == exactly(record["expert_parameters"])


@every_record
def test_bytes_are_megatrons(record: dict[str, Any]) -> None:
    """Weights and optimizer, and both activation formulas, also where the report does not take them."""
    model, plan, length = model_of(record), plan_of(record), training_of(record).sequence_length
    assert weight_and_optimizer_bytes(model, plan) == exactly(record["weight_and_optimizer_bytes"])
    assert activation_with_sp_bytes(model, length, plan) == exactly(record["activation_with_sp_bytes"])
    assert activation_without_sp_bytes(model, length, plan) == exactly(record["activation_without_sp_bytes"])


@every_record
def test_the_report_is_megatrons(record: dict[str, Any]) -> None:
    """The activation formula that the report takes, and the total that it prints."""
    formula = megatron_formula(model_of(record), training_of(record), plan_of(record))
    assert formula.activation_bytes / MIB == exactly(record["reported_activation_mib"])
    assert formula.total_bytes / MIB == exactly(record["reported_total_mib"])
