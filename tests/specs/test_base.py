"""Structs: validated where a person builds them, taken as they are where the program does."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from ppadvisor.errors import InputError
from ppadvisor.report.json_ import dump_json
from ppadvisor.specs.cluster import MAX_GPUS, ClusterSpec
from ppadvisor.specs.model import ModelSpec, MoeSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import MAX_BATCH, TrainingSpec
from ppadvisor.specs.validation import trust, validate
from tests.problems import cluster, gpu, model, plan, training


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_layers": -3}, r"num_layers\n  Input should be greater than 0"),
        ({"num_layers": 10_001}, r"num_layers\n  Input should be less than or equal to 10000"),
        ({"num_layers": "12"}, r"num_layers\n  Input should be a valid integer"),
        ({"num_layers": 12.0}, r"num_layers\n  Input should be a valid integer"),
        ({"gated_mlp": 1}, r"gated_mlp\n  Input should be a valid boolean"),
        ({"normalization": "batchnorm"}, r"normalization\n  Input should be 'layernorm' or 'rmsnorm'"),
        ({"num_query_groups": 5}, "num_attention_heads must be a multiple of num_query_groups"),
        ({"moe": {"num_experts": 4, "experts_per_token": 8, "moe_ffn_hidden_size": 8}}, "at most num_experts"),
        ({"moe": {"num_experts": 0}}, r"moe.num_experts\n  Input should be greater than 0"),
    ],
)
def test_a_wrong_model_is_refused(changed: dict[str, Any], message: str) -> None:
    """A Python caller who builds a model meets the kinds, the bounds, and what concerns several fields."""
    with pytest.raises(ValidationError, match=message) as error:
        model("gpt", **changed)
    assert error.value.title == "ModelSpec"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequence_length": 8}, r"global_batch_size\n  Field required"),
        ({"sequence_length": 8, "global_batch_size": 8, "foo": 1}, r"foo\n  Extra inputs are not permitted"),
    ],
)
def test_a_missing_or_unknown_field_is_refused(given: dict[str, Any], message: str) -> None:
    """As what is of the wrong kind is: by one kind of error, a ValueError that names class and field."""
    with pytest.raises(ValidationError, match=f"for TrainingSpec\n{message}"):
        TrainingSpec(**given)


def test_a_wrong_cluster_is_refused() -> None:
    """So does one who builds a GPU or a cluster: no size beyond all bounds, no number that is none."""
    with pytest.raises(ValidationError, match="less than or equal to 10000000"):
        cluster(MAX_GPUS + 1)
    with pytest.raises(ValidationError, match="finite number"):
        gpu(hbm_bandwidth_bytes_per_s=float("nan"))
    with pytest.raises(ValidationError, match="whole number of nodes"):
        cluster(12, gpus_per_node=8)


def test_names_are_those_of_the_fields() -> None:
    """A misspelt or a missing field is refused by its name, where it is read and where the program builds it."""
    with pytest.raises(InputError, match="own: unknown key 'global_batch'; did you mean 'global_batch_size'"):
        validate(TrainingSpec, {"sequence_length": 8, "global_batch": 8}, "own")
    with pytest.raises(TypeError, match="TrainingSpec has no global_batch"):
        TrainingSpec.trusted(sequence_length=8, global_batch=8)
    with pytest.raises(TypeError, match="global_batch_size is missing"):
        TrainingSpec.trusted(sequence_length=8)


def test_what_is_read_takes_its_kind() -> None:
    """A whole number where a real one is meant becomes one, a list a tuple, a table the struct that it describes."""
    device = gpu(hbm_bandwidth_bytes_per_s=10**12)
    assert repr(device.hbm_bandwidth_bytes_per_s) == "1000000000000.0"
    table: dict[str, Any] = {"num_experts": 8, "experts_per_token": 2, "moe_ffn_hidden_size": 64, "moe_layers": [1, 3]}
    assert model("gpt", moe=table).moe == MoeSpec(**{**table, "moe_layers": (1, 3)})
    one = plan([4, 4]).as_dict()
    del one["layers_per_chunk"]
    assert validate(PlanSpec, one, "own").layers_per_chunk == (4, 4)


def test_trust_checks_what_concerns_several_fields() -> None:
    """What the program builds of options is not validated; contradictions and the limits of counts are refused."""
    fields = vars(cluster(16))
    for changed, message in (
        ({"num_gpus": MAX_GPUS + 1}, "own: num_gpus: got 10000001; input should be less than or equal to 10000000"),
        ({"num_gpus": 0}, "own: num_gpus: got 0; input should be greater than 0"),
        ({"num_gpus": 12}, "own: num_gpus (--gpus) must be a whole number of nodes: got 12 GPUs in nodes of 8; "),
    ):
        for build in (trust, validate):
            with pytest.raises(InputError) as error:
                build(ClusterSpec, {**fields, **changed}, "own")
            assert str(error.value).startswith(message)
    with pytest.raises(InputError, match=f"own: global_batch_size: got {MAX_BATCH + 1}; input should be less than"):
        trust(TrainingSpec, {"sequence_length": 8, "global_batch_size": MAX_BATCH + 1}, "own")


def test_a_struct_is_frozen_and_comparable() -> None:
    """It cannot be changed; a changed copy leaves it alone; equal ones are equal, hash alike, and survive pickle."""
    one = training()
    with pytest.raises(FrozenInstanceError):
        one.global_batch_size = 8  # type: ignore[misc]  # what is tested
    other = one.changed(global_batch_size=one.global_batch_size * 2)
    assert other != one == training()
    assert other.changed(global_batch_size=one.global_batch_size) == one
    assert hash(one) == hash(training())
    assert pickle.loads(pickle.dumps(one)) == one


def test_json_is_the_fields() -> None:
    """Text and mapping say the same, structs and tuples inside included; what is left out is left out."""
    of = model("gpt", moe=MoeSpec(num_experts=8, experts_per_token=2, moe_ffn_hidden_size=64, moe_layers=(1, 3)))
    assert json.loads(dump_json(of)) == of.as_dict()
    assert of.as_dict()["moe"]["moe_layers"] == [1, 3]
    assert of.as_dict(("moe", "name")).keys() == set(ModelSpec.names()) - {"moe", "name"}
    with pytest.raises(TypeError, match="not JSON serializable"):
        dump_json({"value": object()})


def test_pydantic_takes_structs_as_fields() -> None:
    """In a model, or by itself, a struct is validated strictly, and its schema is that of its fields."""

    class Question(BaseModel):
        run: TrainingSpec

    run = {"sequence_length": 8, "global_batch_size": 4}
    assert Question.model_validate({"run": run}).run == TrainingSpec(sequence_length=8, global_batch_size=4)
    with pytest.raises(ValidationError, match=r"run.sequence_length\n  Input should be a valid integer"):
        Question.model_validate({"run": {**run, "sequence_length": "8"}})
    schema = TypeAdapter(TrainingSpec).json_schema()
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == set(TrainingSpec.names())
    assert schema["required"] == ["sequence_length", "global_batch_size"]
