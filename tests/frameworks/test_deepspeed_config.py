"""Configurations of DeepSpeed: public ones read and judged; what the program says beside; what is taken and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.deepspeed.config import read, read_json_text, recognises
from ppadvisor.specs.load import load_model

CONFIGS = Path(__file__).parent.parent / "published" / "deepspeed_configs"
SIZES = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1}


def public(name: str, num_gpus: int, **given: Any) -> Configuration:
    """A public file with what its program says."""
    return read(CONFIGS / name, Given(num_gpus, **given))


def said(more: dict[str, Any], num_gpus: int = 16, *, model: str = "gpt2-medium", **given: Any) -> Configuration:
    """A configuration with these keys beside the sizes, for 1024 tokens of a preset."""
    given = {"model": load_model(model), "sequence_length": 1024, **given}
    return read_json_text(json.dumps({**SIZES, **more}, indent=1), "ds.json", Given(num_gpus, **given))


def rules(configuration: Configuration) -> list[str]:
    """The rules that it breaks."""
    return [broken.rule for broken in configuration.broken]


def kinds(configuration: Configuration, kind: str) -> list[str]:
    """The first option of each remark of a kind."""
    return [remark.flags[0] for remark in configuration.remarks if remark.kind == kind and remark.flags]


def test_the_megatron_3d_example() -> None:
    """Its script: 16 GPUs, mp 2, pp 2, GPT-2 345M of 24 layers, gas 16: what DeepSpeed makes of 256 / 4 / 4."""
    found = public(
        "megatron_3d.json", 16, model=load_model("gpt2-medium"), sequence_length=1024, pipeline_parallel=2,
        tensor_parallel=2, partition_method="type:transformer", recompute="full",
    )  # fmt: skip
    assert found.legal
    assert found.plan is not None
    plan = found.plan
    assert (plan.data_parallel, plan.micro_batch_size, plan.num_microbatches) == (4, 4, 16)
    assert (plan.layers_per_stage, plan.recompute, plan.optimizer_sharding) == ((12, 12), "full", 0)
    assert found.training is not None
    assert (found.training.precision, found.training.gradient_precision) == ("fp16", "fp16")


def test_the_zero_2_example_has_no_pipeline() -> None:
    """B25: the file beside it sets ZeRO 2, which the pipeline engine asserts away; without a pipeline it may stay."""
    with_stages = public("megatron_3d_zero_2.json", 16, pipeline_parallel=2, tensor_parallel=2)
    assert rules(with_stages) == ["pipeline_zero", "optimizer_parameters"]
    lines = (CONFIGS / "megatron_3d_zero_2.json").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if '"stage"' in text)
    assert with_stages.broken[0].line == line
    assert "pipeline_zero" not in rules(public("megatron_3d_zero_2.json", 16))
    assert "zero_optimization.overlap_comm" in kinds(with_stages, "not_modelled")


def test_the_pipeline_example() -> None:
    """AlexNet on any number of replicas of two stages: 256 = 8 x m x d; nothing is known of the model."""
    found = public("pipeline_parallelism.json", 4, pipeline_parallel=2)
    assert found.legal
    assert found.plan is None
    assert "give --model and --seq-len" in " ".join(one.message for one in found.remarks if one.kind == "missing")
    assert rules(public("pipeline_parallelism.json", 6, pipeline_parallel=2)) == ["batch_identity"]
    assert rules(public("pipeline_parallelism.json", 3, pipeline_parallel=2)) == ["world_size"]


def test_the_hugging_face_example() -> None:
    """`auto` is the Trainer's to fill in: not known, told, and not refused."""
    found = public("hugging_face_zero_3.json", 8, model=load_model("gpt2-xl"), sequence_length=1024)
    assert found.legal
    assert (found.plan, found.training) == (None, None)
    missing = [one for one in found.remarks if one.kind == "missing"]
    assert [one.flags for one in missing] == [("train_micro_batch_size_per_gpu",)]


@pytest.mark.parametrize(
    ("more", "given", "rule"),
    [
        ({"gradient_accumulation_steps": 3}, {}, "batch_identity"),
        ({"train_batch_size": 8}, {}, "batch_identity"),
        ({"train_micro_batch_size_per_gpu": "1"}, {}, "option_value"),
        ({"train_batch_size": -64}, {}, "batch_positive"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, {}, "fp16_and_bf16"),
        ({"fp16": True}, {}, "option_value"),
        ({"zero_optimization": {"stage": 3}}, {"pipeline_parallel": 2}, "pipeline_zero"),
        ({"zero_optimization": {"stag": 1}}, {}, "zero_keys"),
        ({"zero_optimization": {"stage": 7}}, {}, "zero_stage"),
        ({"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": 1}}, {}, "one_bit"),
        ({"amp": {"enabled": True}, "zero_optimization": {"stage": 1}}, {}, "amp"),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}, {}, "gradient_precision"),
        ({"fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, {}, "gradient_precision"),
        ({"data_types": {"grad_accum_dtype": "int4"}}, {}, "gradient_precision"),
        ({"elasticity": {"enabled": True}}, {"pipeline_parallel": 2}, "elasticity"),
        ({"pipeline": {"pipe_partitioned": "yes"}}, {"pipeline_parallel": 2}, "partitioned"),
        ({"pipeline": {"activation_checkpoint_interval": "1"}}, {"pipeline_parallel": 2}, "checkpoint_interval"),
        ({}, {"tensor_parallel": 16, "model": "qwen2.5-7b"}, "attention_heads"),
        ({}, {"pipeline_parallel": 5}, "world_size"),
    ],
)  # fmt: skip
def test_what_it_refuses(more: dict[str, Any], given: dict[str, Any], rule: str) -> None:
    """Each is an assertion or error of DeepSpeed's at start-up, with what to change."""
    found = said(more, **given)
    assert rules(found) == [rule]
    assert not found.accepted
    assert found.broken[0].flags


def test_heads_have_their_divisors() -> None:
    """B19: 28 heads allow t 1, 2, 4, 7, 14, 28."""
    found = said({}, tensor_parallel=8, model="qwen2.5-7b")
    assert found.broken[0].message.endswith("allowed t: 1, 2, 4, 7, 14, 28")


def test_the_batch_that_would_fit() -> None:
    """B16: 1024 on 384 GPUs with t 2, p 4, b 1 (d 48) is no multiple; 1008 and 1056 are."""
    found = said({"train_batch_size": 1024}, 384, tensor_parallel=2, pipeline_parallel=4)
    assert rules(found) == ["batch_identity"]
    assert "1008 or 1056" in found.broken[0].message


def test_a_stage_needs_a_layer() -> None:
    """B24: of 24 layers on 32 stages some stage is empty, which fails."""
    found = said({}, 32, pipeline_parallel=32)
    assert rules(found) == ["layers"]
    assert found.broken[0].outcome is Outcome.FAILS


@pytest.mark.parametrize(
    ("method", "model", "split"),
    [
        ("type:transformer", "gpt2-medium", (6, 6, 6, 6)),
        # 26 entries of weight 1: the first two stages take 7; the tied head is of the embedding's class
        ("type:transformer|embedding", "gpt2-medium", (6, 7, 6, 5)),
        ("type:<embedding>|<layer>", "gpt2-medium", (6, 6, 6, 6)),
        # an untied head is of another class: 33 entries
        ("type:transformer|embedding", "llama-3.1-8b", (8, 8, 8, 8)),
        ("type:<layer>|<head>", "llama-3.1-8b", (9, 8, 8, 7)),
    ],
)
def test_partition_methods(method: str, model: str, split: tuple[int, ...]) -> None:
    """Which classes count decides the split (B24: embedding and head as layers)."""
    found = said({}, pipeline_parallel=4, partition_method=method, model=model)
    assert found.plan is not None
    assert found.plan.layers_per_stage == split
    assert not any("partition" in remark.message for remark in found.remarks)


def test_a_partition_that_is_not_known_is_told() -> None:
    """`parameters` needs the user's classes: taken as even, and said so."""
    found = said({}, pipeline_parallel=4, partition_method="parameters")
    assert found.plan is not None
    assert found.plan.layers_per_stage == (6, 6, 6, 6)
    assert "partition_method" in kinds(found, "assumed")


def test_stages_in_the_file_are_a_note() -> None:
    """DeepSpeed reads pipeline.stages nowhere: taken where the user says no --pp, and told either way."""
    noted = said({"pipeline": {"stages": 4}})
    assert noted.plan is not None
    assert noted.plan.pipeline_parallel == 4
    assert "pipeline.stages" in kinds(noted, "assumed")
    other = said({"pipeline": {"stages": 4}}, pipeline_parallel=2)
    assert other.plan is not None
    assert other.plan.pipeline_parallel == 2
    assert "pipeline.stages" in kinds(other, "no_effect")


@pytest.mark.parametrize(
    ("more", "given", "precision", "gradients"),
    [
        # engine.py, get_data_types
        ({}, {}, "fp32", "fp32"),
        ({"bf16": {"enabled": True}}, {}, "bf16", "fp32"),
        ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}, {}, "bf16", "bf16"),
        ({"bfloat16": {"enabled": True}, "zero_optimization": {"stage": 1},
          "data_types": {"grad_accum_dtype": "fp32"}}, {}, "bf16", "fp32"),
        ({"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}, {}, "fp16", "fp16"),
    ],
)  # fmt: skip
def test_precision_of_gradients(more: dict[str, Any], given: dict[str, Any], precision: str, gradients: str) -> None:
    """Given, else fp32 for bf16 without ZeRO, else the model's own."""
    found = said(more, **given)
    assert found.training is not None
    assert (found.training.precision, found.training.gradient_precision) == (precision, gradients)


@pytest.mark.parametrize(
    ("more", "flag", "kind"),
    [
        ({"train_batchsize": 3}, "train_batchsize", "no_effect"),
        ({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e7}}, "zero_optimization.reduce_bucket_size",
         "not_modelled"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
         "zero_optimization.offload_optimizer", "not_modelled"),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, "activation_checkpointing.cpu_checkpointing",
         "not_modelled"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type", "not_modelled"),
        ({"pipeline": {"activation_checkpoint_interval": 1}}, "pipeline.activation_checkpoint_interval", "no_effect"),
    ],
)  # fmt: skip
def test_what_is_taken_and_told(more: dict[str, Any], flag: str, kind: str) -> None:
    """Accepted, and named with its line: never seen by DeepSpeed, or in no formula here."""
    found = said(more)
    assert found.legal
    told = next(one for one in found.remarks if one.kind == kind and one.flags[:1] == (flag,))
    assert told.line is not None


def test_defaults_are_not_told() -> None:
    """5e8 is the default of a bucket, `none` of an offload: nothing to say."""
    zero = {
        "stage": 1,
        "reduce_bucket_size": 5e8,
        "offload_optimizer": {"device": "none"},
        "contiguous_gradients": True,
    }
    assert kinds(said({"zero_optimization": zero}), "not_modelled") == []


def test_recomputation_is_said_once() -> None:
    """By the file's interval with a pipeline; --recompute beside it has no effect and is an error."""
    sections = {"pipeline": {"activation_checkpoint_interval": 2}}
    found = said(sections, pipeline_parallel=2)
    assert found.plan is not None
    assert found.plan.recomputation.text == "full:uniform:2"
    with pytest.raises(InputError, match="--recompute has no effect"):
        said(sections, pipeline_parallel=2, recompute="full")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"partition_method": "type:transformer"}, "--partition has no effect"),
        ({"expert_parallel": 2}, "--ep has no effect: GPT-2 medium"),
        ({"recompute": "some"}, "--recompute: unknown recompute 'some'"),
    ],
)
def test_what_is_said_beside_has_an_effect(given: dict[str, Any], told: str) -> None:
    """A partition without a pipeline, experts of a dense model, recomputation of nothing that is known."""
    with pytest.raises(InputError, match=told):
        said({}, **given)


def test_what_is_recognised() -> None:
    """A JSON object with a size of its batch or ZeRO, comments before it or not."""
    assert recognises(Path("x.json"), '// a\n{"train_batch_size": 1}')
    assert recognises(Path("/dev/stdin"), '{"zero_optimization": {}}')
    assert not recognises(Path("x.json"), '{"model_type": "llama"}')
    assert not recognises(Path("x.yaml"), '{"train_batch_size": 1}')
