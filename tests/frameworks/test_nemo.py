"""Public configurations of NeMo 1, reduced, read and judged; and what its keys mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppadvisor.engine.parameters import count_parameters
from ppadvisor.errors import InputError
from ppadvisor.frameworks import recognised
from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.nemo.config import read

FILES = Path(__file__).parent.parent / "published" / "nemo_configs"

PLAIN = """\
trainer: {num_nodes: 1, devices: 8, precision: bf16}
model:
  mcore_gpt: true
  megatron_amp_O2: true
  transformer_engine: true
  micro_batch_size: 1
  global_batch_size: 64
  encoder_seq_length: 4096
  max_position_embeddings: 4096
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  optim: {name: mcore_distributed_optim}
"""


def public(name: str, vocab_size: int) -> Configuration:
    """A reduced public configuration."""
    return read(FILES / f"{name}.yaml", Given(vocab_size=vocab_size))


def said(folder: Path, *lines: str) -> Configuration:
    """The plain file with these keys of its model over it."""
    path, keys = folder / "run.yaml", [line.partition(":")[0] for line in lines]
    kept = [line for line in PLAIN.splitlines() if line.strip().partition(":")[0] not in keys]
    path.write_text("\n".join([*kept, *(f"  {line}" for line in lines)]) + "\n")
    return read(path, Given(vocab_size=32000))


def test_gpt3_175b() -> None:
    """p 8, t 4, v 6 on 1024 GPUs: m = 2048 / 32 = 64; 174.6 B parameters (Brown et al. 2020)."""
    found = public("175b", 50257)
    assert found.legal
    assert found.num_gpus == 1024
    assert found.model is not None
    assert found.plan is not None
    assert (found.plan.data_parallel, found.plan.virtual_stages, found.plan.num_microbatches) == (32, 6, 64)
    assert count_parameters(found.model) == pytest.approx(174.6e9, rel=0.001)


def test_llama_3_1_405b() -> None:
    """126 layers on p 9 with v 7; m = 2016 / 32 = 63 is a multiple of 9.

    16 query groups where the released model has 8: keys and values of 126 layers are 126 x 2 x 16384 x 1024 parameters
    more than its 405,853,388,800.
    """
    found = public("llama3_1_405b", 128256)
    assert found.legal
    assert found.model is not None
    assert found.plan is not None
    assert (found.plan.pipeline_parallel, found.plan.context_parallel, found.plan.num_microbatches) == (9, 2, 63)
    assert found.plan.layers_per_stage == (14,) * 9
    assert found.model.num_query_groups == 16
    assert count_parameters(found.model) == 405_853_388_800 + 126 * 2 * 16384 * 1024
    told = {remark.flags[0]: remark.line for remark in found.remarks if remark.kind == "not_modelled"}
    assert set(told) == {"model.ub_tp_comm_overlap", "model.defer_embedding_wgrad_compute"}


def test_mixtral_8x7b() -> None:
    """46 702 792 704 parameters (published); gradients in bf16; sequence parallelism idle at t 1, told by its line."""
    found = public("mixtral_8x7b", 32000)
    assert found.legal
    assert found.model is not None
    assert found.plan is not None
    assert found.training is not None
    assert count_parameters(found.model) == 46_702_792_704
    assert (found.plan.expert_parallel, found.plan.virtual_stages, found.plan.data_parallel) == (8, 8, 16)
    assert found.training.gradient_precision == "bf16"
    lines = (FILES / "mixtral_8x7b.yaml").read_text().splitlines()
    idle = next(remark for remark in found.remarks if remark.kind == "no_effect")
    assert idle.line is not None
    assert lines[idle.line - 1].strip().startswith("sequence_parallel")


def test_falcon_7b_cannot_start_as_shipped() -> None:
    """16 nodes of 8 are 128 replicas, and its batch is 32: NeMo's launcher ships it so."""
    found = public("falcon_7b", 65024)
    assert [broken.rule for broken in found.broken] == ["global_batch_size"]
    assert not found.accepted
    broken = found.broken[0]
    assert broken.flags[0] == "model.global_batch_size"
    assert broken.line is not None
    assert "global_batch_size: 32" in (FILES / "falcon_7b.yaml").read_text().splitlines()[broken.line - 1]


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        (("megatron_amp_O2: false", "virtual_pipeline_model_parallel_size: 2"), "o2_for_virtual_stages"),
        (("num_moe_experts: 8", "expert_model_parallel_size: 8", "optim: {name: distributed_fused_adam}"),
         "optimizer_for_experts"),
        (("tensor_model_parallel_size: 3",), "world_size"),
        (("pipeline_model_parallel_size: 8", "num_layers: 30"), "layers_divide"),
        (("activations_checkpoint_granularity: full",), "recompute"),
        (("pipeline_model_parallel_size: 4", "virtual_pipeline_model_parallel_size: 3"), "virtual_stages"),
    ],
)  # fmt: skip
def test_rules(tmp_path: Path, lines: tuple[str, ...], rule: str) -> None:
    """NeMo's own refusals (megatron_gpt_model.py:361-372) and those of Megatron-Core below it."""
    assert rule in [broken.rule for broken in said(tmp_path, *lines).broken]
    assert {broken.outcome for broken in said(tmp_path, *lines).broken} == {Outcome.REJECTED}


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        (("activation: fast-swiglu",), "gated_mlp", True),
        (("bias: false", "qkv_bias: true"), "qkv_bias", True),
        (("bias: false",), "mlp_bias", False),
        (("normalization: rmsnorm",), "normalization", "rmsnorm"),
        (("share_embeddings_and_output_weights: false",), "tied_embeddings", False),
        (("num_query_groups: 8",), "num_query_groups", 8),
        (("position_embedding_type: rope",), "positional_embedding", "rope"),
    ],
)
def test_what_keys_mean_for_the_model(tmp_path: Path, lines: tuple[str, ...], field: str, value: object) -> None:
    """megatron_base_model.py:505-590: NeMo's names and ours."""
    found = said(tmp_path, *lines)
    assert found.broken == ()
    assert getattr(found.model, field) == value


def test_no_option_of_the_command_line_is_named(tmp_path: Path) -> None:
    """Messages and places speak of NeMo's keys alone."""
    found = said(tmp_path, "pipeline_model_parallel_size: 8", "num_layers: 30", "sequence_parallel: true")
    text = " ".join([*(one.message for one in found.broken), *(one.message for one in found.remarks)])
    assert "--pipeline" not in text
    assert "model.account_for_embedding_in_pipeline_split" in text
    assert found.places["pipeline_parallel"] == ("model.pipeline_model_parallel_size", 13)


def test_it_is_recognised_and_neighbours_are_told() -> None:
    """NeMo's own; a document without a model, and one of NeMo 2, are one line each."""
    path = FILES / "175b.yaml"
    assert recognised(path, path.read_text()) == "nemo"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainer:\n  devices: 8\n", "no section `model`"),
        ("trainer:\n  strategy:\n    tensor_model_parallel_size: 2\nmodel:\n  x: 1\n", "NeMo 2"),
        ("trainer: {num_nodes: 1, devices: 8}\nmodel:\n  tensor_model_parallel_size: ${oc.env:TP}\n", "not known"),
    ],
)
def test_what_is_no_nemo_1(tmp_path: Path, text: str, message: str) -> None:
    """One clear line that says why."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read(path, Given())
