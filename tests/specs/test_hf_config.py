"""Reading a config.json: exact parameter counts of published models, and the traps of each family.

Expected counts are those of transformers (`hf_parameter_counts.json` names version and class); the published files
are in `tests/published/hf_configs`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.engine.parameters import count_parameters
from ppadvisor.specs.hf_config import FAMILIES, model_from_hf_config
from ppadvisor.specs.model import ModelSpec

PUBLISHED = Path(__file__).parent.parent / "published"
RECORDS: list[dict[str, Any]] = json.loads((PUBLISHED / "hf_parameter_counts.json").read_text(encoding="utf-8"))


def published(name: str) -> dict[str, Any]:
    """A published config.json by the name of its model."""
    config: dict[str, Any] = json.loads((PUBLISHED / "hf_configs" / f"{name}.json").read_text(encoding="utf-8"))
    return config


def imported(name: str, **changed: object) -> ModelSpec:
    """The model of a published config.json, some of its keys changed."""
    return model_from_hf_config(published(name) | changed, f"{name}/config.json")


def without(name: str, *keys: str) -> ModelSpec:
    """The model of a published config.json, some of its keys left out."""
    return model_from_hf_config({k: v for k, v in published(name).items() if k not in keys}, "config.json")


def moe_layers(model: ModelSpec) -> list[int]:
    """Indices of the layers with experts."""
    return [i for i in range(model.num_layers) if model.is_moe_layer(i)]


def full_layers(model: ModelSpec) -> list[int]:
    """Indices of the layers that attend to everything."""
    return [i for i in range(model.num_layers) if model.attention_window(i) is None]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["config"])
def test_parameter_count_is_exact(record: dict[str, Any]) -> None:
    """Each published configuration has, parameter for parameter, the count that transformers builds (without MTP)."""
    model = imported(record["config"].removesuffix(".json"))
    assert count_parameters(model.changed(mtp_num_layers=0)) == record["parameters"]


def test_every_family_has_a_published_model() -> None:
    """No entry of FAMILIES is without a published configuration whose count it must reproduce."""
    assert {record["model_type"] for record in RECORDS} == set(FAMILIES)
    assert {path.name for path in (PUBLISHED / "hf_configs").iterdir()} == {record["config"] for record in RECORDS}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("bloom", "176.247271424"),  # its model card: 176,247,271,424 parameters
        ("gpt-oss-120b", "116.83"),  # gpt-oss model card (arXiv 2508.10925), table 1
        ("gpt-oss-20b", "20.91"),  # likewise
        ("DeepSeek-V3", "671"),  # arXiv 2412.19437, abstract
        ("Mixtral-8x7B-v0.1", "46.7"),  # its announcement
        ("OLMoE-1B-7B-0924", "6.9"),  # arXiv 2409.02060, section 2
    ],
)
def test_count_of_the_authors(name: str, billions: str) -> None:
    """The counts come out that the authors print, to all their digits: transformers is not the only witness."""
    main = count_parameters(imported(name).changed(mtp_num_layers=0))
    assert f"{main / 1e9:.{len(billions.partition('.')[2])}f}" == billions


@pytest.mark.parametrize(("name", "parameters"), [("gemma-2-2b-it", 2_024_517_888), ("gemma-2-27b", 26_047_480_320)])
def test_count_without_embedding(name: str, parameters: int) -> None:
    """The non-embedding parameters of the Gemma 2 report (arXiv 2408.00118, table 2) come out exactly."""
    model = imported(name)
    assert count_parameters(model) - model.vocab_size * model.hidden_size == parameters


def test_mtp_module_of_deepseek_v3() -> None:
    """The MTP module adds one MoE layer, the 2h -> h projection and three norms, and leads to the published 685B.

    The checkpoint holds a second copy of the embedding and of the output layer, which the module shares with the main
    model (README_WEIGHTS.md of DeepSeek-V3), so the 685B of the model card have them twice.
    """
    model = imported("DeepSeek-V3")
    h, vocab, experts = 7168, 129280, 256
    attention = h * 1536 + 1536 + 1536 * 128 * 192 + h * (512 + 64) + 512 + 512 * 128 * (128 + 128) + 128 * 128 * h
    layer = attention + h * experts + (experts + 1) * 3 * h * 2048 + 2 * h
    module = layer + 2 * h * h + 3 * h
    assert model.mtp_num_layers == 1
    main = count_parameters(model.changed(mtp_num_layers=0))
    assert count_parameters(model) - main == module
    assert main + module + 2 * vocab * h == pytest.approx(685e9, rel=1e-3)


def test_a_patched_copy_without_mtp() -> None:
    """num_nextn_predict_layers = 0, or its absence, means no MTP module."""
    assert imported("DeepSeek-V3", num_nextn_predict_layers=0).mtp_num_layers == 0
    assert without("DeepSeek-V3", "num_nextn_predict_layers").mtp_num_layers == 0


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("Llama-2-7b-hf", False),
        ("Mistral-7B-v0.1", False),
        ("Qwen2-0.5B-Instruct", False),
        ("gemma-2b", True),
        ("gemma-2-2b-it", True),
        ("gemma-3-1b-it", True),
        ("gpt2", True),
        ("gpt-neox-20b", False),
        ("gpt-j-6b", False),
        ("bloom-560m", True),
        ("opt-125m", True),
        ("falcon-7b", True),
        ("mpt-7b", True),
        ("starcoder2-7b", True),
        ("aya-23-8B", True),
        ("OLMo-1B-hf", False),
        ("granite-3.3-8b-instruct", False),
    ],
)
def test_absent_tie_word_embeddings(name: str, tied: bool) -> None:
    """An absent tie_word_embeddings means what the family's configuration class of transformers 5.24 says."""
    assert without(name, "tie_word_embeddings").tied_embeddings is tied


def test_tie_word_embeddings_beside_a_text_config() -> None:
    """The tie_word_embeddings of the whole file wins over the one inside text_config."""
    config = published("Qwen3-VL-4B-Instruct") | {"tie_word_embeddings": False}
    assert config["text_config"]["tie_word_embeddings"] is True
    assert model_from_hf_config(config, "config.json").tied_embeddings is False
    del config["tie_word_embeddings"]
    assert model_from_hf_config(config, "config.json").tied_embeddings is True


def test_text_config_is_a_difference_from_the_class() -> None:
    """gemma-3-4b's text_config names neither heads nor vocabulary: 8 heads of 256, 4 groups, 262208 tokens by class."""
    model = imported("gemma-3-4b-it")
    assert (model.num_attention_heads, model.num_query_groups, model.head_dim) == (8, 4, 256)
    assert model.vocab_size == 262_208
    assert "text_config" not in published("gemma-3-1b-it")
    assert "language model" in model.source


def test_text_config_without_a_model_type() -> None:
    """A known wrapper tells the family of a text_config that does not."""
    config = published("gemma-3-4b-it")
    del config["text_config"]["model_type"]
    model = model_from_hf_config(config, "config.json")
    assert (model.hidden_size, model.qk_norm) == (2560, "head")


@pytest.mark.parametrize(
    ("name", "heads", "head_dim", "hidden"),
    [
        ("Mistral-Nemo-Base-2407", 32, 128, 5120),
        ("Qwen3-32B", 64, 128, 5120),
        ("Qwen3-30B-A3B", 32, 128, 2048),
        ("gemma-2-27b", 32, 128, 4608),
        ("GLM-4.5-Air", 96, 128, 4096),
        ("gpt-oss-20b", 64, 64, 2880),
        ("DeepSeek-V3", 128, 192, 7168),
    ],
)
def test_head_dim_is_not_hidden_over_heads(name: str, heads: int, head_dim: int, hidden: int) -> None:
    """Heads x head_dim differs from hidden_size where the file (with MLA: 128 + 64) says so."""
    model = imported(name)
    assert (model.num_attention_heads, model.head_dim, model.hidden_size) == (heads, head_dim, hidden)
    assert heads * head_dim != hidden


def test_absent_head_dim_of_a_family_with_a_fixed_one() -> None:
    """Gemma and Qwen3 have their own head_dim where the key is absent, Llama divides."""
    assert without("gemma-2-2b-it", "head_dim").head_dim == 256
    assert without("Qwen3-0.6B", "head_dim").head_dim == 128
    assert without("Llama-3.2-1B-Instruct", "head_dim").head_dim == 64


def test_absent_or_null_key_value_heads() -> None:
    """null means one group a head; absence means the class: one a head for Llama, 8 for Mistral."""
    assert without("Meta-Llama-3.1-8B", "num_key_value_heads").num_query_groups == 32
    assert imported("Mistral-7B-v0.3", num_key_value_heads=None).num_query_groups == 32
    assert without("Mistral-7B-v0.3", "num_key_value_heads").num_query_groups == 8


def test_key_value_heads_mean_nothing_with_mla_or_without_groups() -> None:
    """An unrelated num_key_value_heads changes neither a model with latent attention nor one that knows no groups."""
    assert imported("DeepSeek-V3", num_key_value_heads=7).num_query_groups == 128
    assert imported("gpt2", num_key_value_heads=7).num_query_groups == 12


def test_intermediate_size_by_family() -> None:
    """It is the dense width (Llama), the width of one expert (Mixtral, GPT-OSS) or unused (Qwen3-MoE, all sparse)."""
    assert imported("Llama-2-7b-hf").ffn_hidden_size == 11008
    for name, width in (("Mixtral-8x7B-v0.1", 14336), ("gpt-oss-20b", 2880)):
        moe = imported(name).moe
        assert moe is not None
        assert moe.moe_ffn_hidden_size == width
    copies = [imported("Qwen3-30B-A3B", intermediate_size=size) for size in (5472, 6144, 3072)]
    assert (
        copies[0]
        == copies[1]
        == copies[2]
        == without("Qwen3-30B-A3B", "intermediate_size").changed(name=copies[0].name, source=copies[0].source)
    )


def test_sparse_step_and_dense_layers_of_qwen() -> None:
    """Layer i has experts iff (i + 1) mod decoder_sparse_step = 0 and it is not in mlp_only_layers."""
    model = imported("Qwen3-30B-A3B", num_hidden_layers=8, decoder_sparse_step=2, mlp_only_layers=[3])
    assert moe_layers(model) == [1, 5, 7]
    assert model.ffn_hidden_size == 6144
    dense = imported("Qwen3-30B-A3B", num_hidden_layers=2, mlp_only_layers=[0, 1])
    assert dense.moe is None


def test_first_dense_layers_and_their_frequency() -> None:
    """DeepSeek-V3 has 3 dense layers, Kimi-K2 1; moe_layer_freq is a number or a list of marks."""
    assert moe_layers(imported("DeepSeek-V3")) == list(range(3, 61))
    assert moe_layers(imported("Kimi-K2.5")) == list(range(1, 61))
    assert moe_layers(imported("DeepSeek-V3", num_hidden_layers=8, moe_layer_freq=2)) == [4, 6]
    marks = [0, 0, 0, 0, 1, 1, 0, 1]
    assert moe_layers(imported("DeepSeek-V3", num_hidden_layers=8, moe_layer_freq=marks)) == [4, 5, 7]


def test_null_experts_of_deepseek() -> None:
    """n_shared_experts = null is no shared expert, n_routed_experts = null a dense model."""
    moe = imported("DeepSeek-V3", n_shared_experts=None).moe
    assert moe is not None
    assert moe.num_shared_experts == 0
    assert imported("DeepSeek-V3", n_routed_experts=None).moe is None


def test_uncompressed_queries_of_deepseek() -> None:
    """q_lora_rank = null (V2-Lite) is an uncompressed query; absence is the class's 1536."""
    lite = imported("DeepSeek-V2-Lite").mla
    assert lite is not None
    assert lite.q_lora_rank is None
    by_class = without("DeepSeek-V2-Lite", "q_lora_rank").mla
    assert by_class is not None
    assert by_class.q_lora_rank == 1536


@pytest.mark.parametrize(
    ("name", "window", "full"),
    [
        ("Mistral-7B-v0.1", 4096, []),
        ("Mistral-7B-v0.3", None, list(range(32))),
        ("gemma-2-2b-it", 4096, list(range(1, 26, 2))),
        ("gemma-3-1b-it", 512, [5, 11, 17, 23]),
        ("gemma-3-4b-it", 1024, [5, 11, 17, 23, 29]),
        ("gpt-oss-20b", 128, list(range(1, 24, 2))),
        ("starcoder2-7b", 4096, []),
        ("Qwen2.5-7B", None, list(range(28))),
        ("Phi-3.5-mini-instruct", None, list(range(32))),
        ("aya-23-8B", None, list(range(32))),
    ],
)
def test_sliding_windows(name: str, window: int | None, full: list[int]) -> None:
    """Which layers see everything: all (no window, one switched off, one beyond the longest sequence), none, some."""
    model = imported(name)
    assert model.sliding_window == window
    assert full_layers(model) == full


def test_layer_types_without_a_period() -> None:
    """A layer_types list that repeats with no period is kept layer by layer."""
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert full_layers(imported("gpt-oss-20b", num_hidden_layers=4, layer_types=kinds)) == [0, 3]


def test_window_of_the_upper_layers_of_qwen() -> None:
    """use_sliding_window windows the layers from max_window_layers on (transformers, Qwen2Config)."""
    on = {"use_sliding_window": True, "sliding_window": 4096, "num_hidden_layers": 6, "max_window_layers": 2}
    assert full_layers(imported("Qwen2.5-7B", **on)) == [0, 1]
    assert full_layers(imported("Qwen1.5-MoE-A2.7B-Chat", **on | {"max_window_layers": 4})) == [1, 3, 4, 5]


def test_three_blocks_of_falcon() -> None:
    """7b: parallel, one norm, one group; 40b: two norms, 8 groups; rw: sequential, ALiBi; 11B: new, one norm."""
    seven, forty, rw = imported("falcon-7b"), imported("falcon-40b"), imported("falcon-rw-1b")
    assert (seven.parallel_block, seven.norms_per_layer, seven.num_query_groups) == (True, 1, 1)
    assert (forty.parallel_block, forty.norms_per_layer, forty.num_query_groups) == (True, 2, 8)
    assert (rw.parallel_block, rw.norms_per_layer, rw.num_query_groups, rw.qkv_bias) == (False, 2, 32, True)
    assert (rw.positional_embedding, seven.positional_embedding) == ("alibi", "rope")
    assert imported("falcon-40b", num_ln_in_parallel_attn=1).norms_per_layer == 1


def test_older_names_of_a_size() -> None:
    """bloom-560m says n_embed and num_attention_heads, bloom hidden_size and n_head; both are read."""
    small, large = imported("bloom-560m"), imported("bloom")
    assert (small.hidden_size, small.num_attention_heads, small.num_layers) == (1024, 16, 24)
    assert (large.hidden_size, large.num_attention_heads, large.num_layers) == (14336, 112, 70)
    assert imported("bloom-560m", hidden_size=None).hidden_size == 1024


def test_positions_of_the_older_families() -> None:
    """The table of OPT has two rows more than positions; GPT-2 has none to spare; BLOOM and MPT have no table."""
    assert imported("opt-125m").max_position_embeddings == 2050
    assert imported("gpt2").max_position_embeddings == 1024
    for name in ("bloom-560m", "mpt-7b"):
        model = imported(name)
        assert (model.positional_embedding, model.max_position_embeddings) == ("alibi", None)


def test_switches_of_qk_norm_and_bias() -> None:
    """use_qk_norm and attention_bias are read, not taken from the family: Command-R+, GLM-4.5 have what others lack."""
    assert (imported("aya-23-8B").qk_norm, imported("c4ai-command-r-plus").qk_norm) == ("none", "per_head")
    assert (imported("GLM-4.5-Air").qk_norm, imported("GLM-4.5").qk_norm) == ("none", "head")
    assert imported("GLM-4-9B-0414", attention_bias=False).qkv_bias is False
    llama = imported("Llama-2-7b-hf", attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.attention_output_bias, llama.mlp_bias) == (True, True, True)


def test_biases_of_latent_attention() -> None:
    """attention_bias adds one to both down-projections and the output, none to uncompressed queries (transformers)."""
    compressed = {"attention_bias": True, "num_hidden_layers": 1}
    plain = {"attention_bias": False, "num_hidden_layers": 1}
    for change, biases in (({}, 1536 + 576 + 7168), ({"q_lora_rank": None}, 576 + 7168)):
        with_bias = imported("DeepSeek-V3", num_nextn_predict_layers=0, **compressed | change)
        no_bias = imported("DeepSeek-V3", num_nextn_predict_layers=0, **plain | change)
        assert count_parameters(with_bias) - count_parameters(no_bias) == biases


@pytest.mark.parametrize(
    ("where", "origin", "name"),
    [
        ("models/tiny.json", "someone/base", "tiny"),
        ("models/tiny/config.json", "someone/base", "base"),
        ("models/tiny/config.json", "", "tiny"),
        ("config.json", None, "llama"),
    ],
)
def test_name_of_the_model(where: str, origin: str | None, name: str) -> None:
    """The model is called after its file, its origin or its directory, the first that says anything."""
    assert model_from_hf_config(published("Llama-2-7b-hf") | {"_name_or_path": origin}, where).name == name
