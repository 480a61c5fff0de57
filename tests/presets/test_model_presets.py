"""Model presets against what was published about the models, and against each other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ppadvisor.engine.parameters import count_active_parameters, count_parameters
from ppadvisor.specs.base import Spec
from ppadvisor.specs.load import load_model, preset_data, preset_names
from ppadvisor.specs.model import MlaSpec, ModelSpec, MoeSpec

MODELS = preset_names("models")

PUBLISHED_COUNTS = {
    # Totals in the safetensors headers of the released weights, unless another source is given.
    "gpt2-xl-1.5b": 1_557_611_200,  # the model of openai-community/gpt2-xl in transformers
    "bloom-7b1": 7_069_016_064,  # model card of bigscience/bloom-7b1
    "bloom-176b": 176_247_271_424,  # model card of bigscience/bloom
    "llama-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-32b": 32_762_123_264,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2-27b": 27_227_128_320,
    "deepseek-v2-lite": 15_706_484_224,
    "phi-3-mini-3.8b": 3_821_079_552,
    "olmo-2-32b": 32_234_279_936,
    "command-r-plus-104b": 103_810_674_688,
    "gpt-oss-120b": 116_829_156_672,
}

SC21_TABLE_1 = {
    # Narayanan et al. 2021, arXiv 2104.04473, Table 1: parameters in billions.
    "gpt-1.7b": 1.7,
    "gpt-3.6b": 3.6,
    "gpt-7.5b": 7.5,
    "gpt-18b": 18.4,
    "gpt-39b": 39.1,
    "gpt-76b": 76.1,
    "gpt-145b": 145.6,
    "gpt-310b": 310.1,
    "gpt-530b": 529.6,
    "gpt-1t": 1008.0,
}

GPT3_TABLE_D1 = {"gpt3-2.7b": 2_650, "gpt3-6.7b": 6_660, "gpt3-13b": 12_850, "gpt3-175b": 174_600}
"""Brown et al. 2020, arXiv 2005.14165, Table D.1: parameters in millions, printed in steps of ten."""

ACTIVE_BILLIONS = {
    "mixtral-8x7b": 12.9,  # Jiang et al. 2024, arXiv 2401.04088, section 1: 13B; model card: 12.9B
    "mixtral-8x22b": 39,  # model card: 39B of 141B
    "deepseek-v2": 21,  # arXiv 2405.04434, abstract
    "qwen3-30b-a3b": 3.3,  # model card: 3.3B activated
    "qwen3-235b-a22b": 22,  # model card: 22B activated
    "qwen3-coder-480b-a35b": 35,  # model card: 35B activated
    "qwen2-57b-a14b": 14,  # model card: 14B activated
    "dbrx-132b": 36,  # model card: 36B active
    "llama-4-scout-109b": 17,  # model card: 17B activated
    "llama-4-maverick-400b": 17,  # model card: 17B activated
}

FULL_ATTENTION_LAYERS = {
    # Number of layers without a window, from layer_types or the sliding window pattern of the released config.json.
    "mistral-7b-v0.1": 0,
    "mistral-7b-v0.3": 32,
    "gemma-2-9b": 21,
    "gemma-2-27b": 23,
    "gemma-3-1b": 4,
    "gemma-3-27b": 10,
    "gpt-oss-20b": 12,
    "gpt-oss-120b": 18,
    "llama-4-scout-109b": 12,
    "llama-3.1-405b": 126,
}

MOE_LAYERS = {
    # Number of layers with routed experts, from first_k_dense_replace or the step of the released config.json.
    "deepseek-v2": 59,
    "deepseek-v2-lite": 26,
    "deepseek-v3": 58,
    "kimi-k2-1t": 60,
    "glm-4.5-355b": 89,
    "glm-4.5-air-106b": 45,
    "llama-4-maverick-400b": 24,
    "mixtral-8x7b": 32,
    "llama-3-8b": 0,
}


def moe_layers(model: ModelSpec) -> int:
    """Number of layers with routed experts."""
    return sum(model.is_moe_layer(i) for i in range(model.num_layers))


def score_correction_biases(model: ModelSpec, layers: int) -> int:
    """One number an expert in each MoE layer: in the released files, but a buffer and no parameter to us."""
    return layers * model.moe.num_experts if model.moe and model.moe.score_correction_bias else 0


def released_main_weights(model: ModelSpec) -> int:
    """Our count of what `declared_parameters` counts: no MTP layer, the score correction biases included."""
    main = model.changed(mtp_num_layers=0)
    return count_parameters(main) + score_correction_biases(model, moe_layers(model))


def released_files_with_mtp(model: ModelSpec) -> int:
    """Numbers in files that hold the MTP layer with its own copies of the embedding and the output matrix."""
    copies = 2 * model.vocab_size * model.hidden_size
    biases = score_correction_biases(model, moe_layers(model) + model.mtp_num_layers)
    return count_parameters(model) + biases + model.mtp_num_layers * copies


def restated_defaults(spec: type[Spec], data: dict[str, Any]) -> list[str]:
    """Keys of `data` whose value the specification has without being told."""
    defaults = {field.name: field.default for field in fields(spec)}
    return [k for k, v in data.items() if defaults[k] == v]


def test_at_least_forty_five_models() -> None:
    """There are at least 45 model presets, each with a lower-case id."""
    assert len(MODELS) >= 45
    assert all(name == name.lower() for name in MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_preset_is_valid_and_says_its_source(name: str) -> None:
    """Every preset is a valid specification whose file gives a name and a source of its own."""
    model = load_model(name)
    data = preset_data("models", name)
    assert model.name == data["name"].strip() != ""
    assert len(data["source"].strip()) > 20


@pytest.mark.parametrize("name", MODELS)
def test_preset_does_not_restate_defaults(name: str) -> None:
    """No preset spells out a key that stands at its default, so what a file says is what is special."""
    data = preset_data("models", name)
    assert restated_defaults(ModelSpec, data) == []
    assert restated_defaults(MoeSpec, data.get("moe", {})) == []
    assert restated_defaults(MlaSpec, data.get("mla", {})) == []


@pytest.mark.parametrize("name", [n for n in MODELS if load_model(n).declared_parameters])
def test_declared_parameters_are_ours(name: str) -> None:
    """The count of the specification equals the published count that the preset declares, to the last parameter."""
    model = load_model(name)
    assert released_main_weights(model) == model.declared_parameters


@pytest.mark.parametrize("name", [n for n in MODELS if not load_model(n).declared_parameters])
def test_rounded_count_is_in_the_source(name: str) -> None:
    """A preset without an exact published count says in its source which rounded size was published."""
    assert "published rounded: " in load_model(name).source


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED_COUNTS.items())
def test_published_counts(name: str, parameters: int) -> None:
    """Counts written down here, apart from the preset files, are met exactly."""
    assert count_parameters(load_model(name)) == parameters


@pytest.mark.parametrize(("name", "billions"), SC21_TABLE_1.items())
def test_megatron_sc21_sizes(name: str, billions: float) -> None:
    """The GPT family of Megatron's SC21 paper has the sizes that its Table 1 prints."""
    assert round(count_parameters(load_model(name)) / 1e9, 1) == billions


@pytest.mark.parametrize(("name", "millions"), GPT3_TABLE_D1.items())
def test_gpt3_sizes(name: str, millions: int) -> None:
    """The GPT-3 models have the sizes that Table D.1 of the paper prints."""
    assert round(count_parameters(load_model(name)) / 1e7) * 10 == millions


@pytest.mark.parametrize(
    ("name", "embedding", "others"),
    # arXiv 2402.16819 Table 1 and arXiv 2406.11704 Table 1: embedding and other parameters in billions.
    [("nemotron-4-15b", 3.2, 12.5), ("nemotron-4-340b", 9.4, 331.6)],
)
def test_nemotron_sizes(name: str, embedding: float, others: float) -> None:
    """Nemotron-4's embedding (both matrices) and its other parameters have the published sizes, to 0.06 B."""
    model = load_model(name)
    both = 2 * model.vocab_size * model.hidden_size
    assert both / 1e9 == pytest.approx(embedding, abs=0.06)
    assert (count_parameters(model) - both) / 1e9 == pytest.approx(others, abs=0.06)


@pytest.mark.parametrize(("name", "billions"), ACTIVE_BILLIONS.items())
def test_active_parameters(name: str, billions: float) -> None:
    """What one token meets in a mixture of experts is the published number of active parameters, to 2.5 %."""
    assert count_active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.025)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    # OpenAI 2025, arXiv 2508.10925, Table 1; the unembedding counts as active there, the embedding does not.
    [("gpt-oss-120b", 116.83, 5.13), ("gpt-oss-20b", 20.91, 3.61)],
)
def test_gpt_oss_table(name: str, total: float, active: float) -> None:
    """GPT-OSS has the total and active billions of its model card's Table 1, to the printed digits."""
    model = load_model(name)
    embedding = model.vocab_size * model.hidden_size
    assert round(count_parameters(model) / 1e9, 2) == total
    assert round((count_active_parameters(model) - embedding) / 1e9, 2) == active


def test_deepseek_v3_main_model() -> None:
    """DeepSeek-V3 without its MTP layer has the 671,026,419,200 weights of the released main model."""
    assert released_main_weights(load_model("deepseek-v3")) == 671_026_419_200


@pytest.mark.parametrize(
    ("name", "numbers"),
    # Safetensors totals of zai-org/GLM-4.5, zai-org/GLM-4.5-Air and deepseek-ai/DeepSeek-R1 (FP8 scales left out).
    [
        ("glm-4.5-355b", 358_337_791_296),
        ("glm-4.5-air-106b", 110_468_824_832),
        ("deepseek-v3", 684_489_845_504),
    ],
)
def test_released_files_with_mtp_layer(name: str, numbers: int) -> None:
    """The MTP layer is counted as released: with it and its copied matrices the files' totals come out exactly."""
    assert released_files_with_mtp(load_model(name)) == numbers


def test_llama_4_vision_tower_is_the_same() -> None:
    """What the text presets leave out of Llama 4's released weights is one and the same vision tower for both."""
    # Safetensors totals of meta-llama/Llama-4-Scout-17B-16E and Llama-4-Maverick-17B-128E.
    scout = 108_641_793_536 - count_parameters(load_model("llama-4-scout-109b"))
    maverick = 401_583_781_376 - count_parameters(load_model("llama-4-maverick-400b"))
    assert scout == maverick == 871_932_416


@pytest.mark.parametrize(
    ("name", "released"),
    # Safetensors totals of google/gemma-3-4b-it, -12b-it and -27b-it.
    [("gemma-3-4b", 4_300_079_472), ("gemma-3-12b", 12_187_325_040), ("gemma-3-27b", 27_432_406_640)],
)
def test_gemma_3_vision_tower_is_the_same(name: str, released: int) -> None:
    """What the text presets leave out of Gemma 3 is one 417M vision tower and a projector from its width 1152 to h."""
    model = load_model(name)
    projector = 1152 * model.hidden_size + 1152
    assert released - count_parameters(model) - projector == 416_866_032


@pytest.mark.parametrize(("name", "layers"), FULL_ATTENTION_LAYERS.items())
def test_layers_with_full_attention(name: str, layers: int) -> None:
    """The number of layers that attend to the whole sequence is that of the released model."""
    model = load_model(name)
    assert sum(model.attention_window(i) is None for i in range(model.num_layers)) == layers


@pytest.mark.parametrize(("name", "layers"), MOE_LAYERS.items())
def test_layers_with_experts(name: str, layers: int) -> None:
    """The number of layers with routed experts is that of the released model."""
    assert moe_layers(load_model(name)) == layers


def test_similar_ids_are_different_models() -> None:
    """An exact id never means a longer one: llama-3-8b and llama-3.1-8b, gpt2 and gpt3 sizes stay apart."""
    assert load_model("llama-3-8b").name != load_model("llama-3.1-8b").name
    assert load_model("llama-2-7b").num_layers == 32
    assert load_model("gpt3-13b").num_layers == 40


@pytest.mark.parametrize(("beginning", "whole"), [("phi-3-mini", "phi-3-mini-3.8b"), ("kimi", "kimi-k2-1t")])
def test_beginning_of_an_id_is_enough(beginning: str, whole: str) -> None:
    """An unambiguous beginning of an id finds the preset."""
    assert load_model(beginning) == load_model(whole)
