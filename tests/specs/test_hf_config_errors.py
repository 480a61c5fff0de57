"""A config.json that cannot be read says why: file, key, what was given, what is needed."""

from __future__ import annotations

import math
import re

import pytest

from ppadvisor.errors import InputError
from ppadvisor.specs.hf_config import FAMILIES, model_from_hf_config
from ppadvisor.specs.hf_refused import REFUSED

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS = MIXTRAL | {"model_type": "gpt_oss", "num_hidden_layers": 2}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
OPT = {k: v for k, v in LLAMA.items() if k != "intermediate_size"} | {
    "model_type": "opt",
    "ffn_dim": 16384,
    "max_position_embeddings": 2048,
}
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}


def message(config: dict[str, object]) -> str:
    """The one line that a bad config.json is answered with."""
    with pytest.raises(InputError) as caught:
        model_from_hf_config(config, "config.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "key", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1"),
        (0, "0"),
        (4096.5, "4096.5"),
        (4096.0, "4096.0"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (True, "true"),
        ("4096", '"4096"'),
        ([4096], "[4096]"),
        (None, "null"),
    ],
)
def test_bad_size(key: str, value: object, shown: str) -> None:
    """Anything but a whole number > 0 is refused for every size, with the key and what it got."""
    assert message(LLAMA | {key: value}) == f"config.json: {key}: got {shown}, needs a whole number > 0"


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [-1, 0, 1.5, math.nan, False, "8"])
def test_bad_optional_size(key: str, value: object) -> None:
    """A key that may be absent or null is checked like any other where it is there."""
    assert message(LLAMA | {key: value}).startswith(f"config.json: {key}: got ")


@pytest.mark.parametrize("key", sorted(LLAMA))
def test_missing_size(key: str) -> None:
    """At the top level every size must be there: nothing is guessed from the family."""
    assert message({k: v for k, v in LLAMA.items() if k != key}).startswith(f"config.json: {key}")


def test_missing_size_is_called_by_its_published_name() -> None:
    """GPT-2's file is asked for n_embd, not for a hidden_size that it never has."""
    assert message({"model_type": "gpt2", "n_head": 4}).startswith("config.json: n_embd: missing")


@pytest.mark.parametrize(
    ("value", "text"), [(10**30, "needs at most 1000000000"), (10**9, "needs at most 10000")], ids=["size", "layers"]
)
def test_absurd_number(value: int, text: str) -> None:
    """A number beyond any model is refused at once instead of filling time and memory."""
    assert text in message(LLAMA | {"num_hidden_layers": value})


def test_heads_that_do_not_divide() -> None:
    """hidden_size must be a multiple of the heads where head_dim comes from the division, and only there."""
    assert message(LLAMA | {"num_attention_heads": 30}) == (
        "config.json: hidden_size: got 4096, needs a multiple of num_attention_heads (30)"
    )
    assert model_from_hf_config(LLAMA | {"num_attention_heads": 30, "head_dim": 128}, "config.json").head_dim == 128
    assert "d_model: got 4096, needs a multiple of n_heads (31)" in message(MPT | {"n_heads": 31})


def test_groups_that_do_not_divide() -> None:
    """The heads must be a multiple of the key/value heads; a number that the family filled in is called so."""
    assert message(LLAMA | {"num_key_value_heads": 5}) == (
        "config.json: num_attention_heads: got 32, needs a multiple of num_key_value_heads (5)"
    )
    assert "what mistral takes where the key is absent" in message(
        LLAMA | {"model_type": "mistral", "num_attention_heads": 4}
    )
    falcon = {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 5}
    assert "a multiple of num_kv_heads (5)" in message(LLAMA | falcon)


def test_names_that_disagree() -> None:
    """Two names of one size with two values are an error, not a choice."""
    assert message(MPT | {"hidden_size": 2048}) == "config.json: hidden_size: got 2048, but d_model says 4096"


@pytest.mark.parametrize("value", [1, "true", [True]])
def test_bad_switch(value: object) -> None:
    """A switch is true or false."""
    assert "needs true or false" in message(LLAMA | {"tie_word_embeddings": value})
    assert "needs true or false" in message(LLAMA | {"attention_bias": value})


def test_more_experts_chosen_than_there_are() -> None:
    """A token cannot choose more experts than exist; both numbers are shown."""
    assert message(MIXTRAL | {"num_experts_per_tok": 9}) == (
        "config.json: num_experts_per_tok: got 9, needs at most num_local_experts (8)"
    )


@pytest.mark.parametrize("value", [0, -1, 2.5, "8", None])
def test_bad_number_of_experts(value: object) -> None:
    """The number of experts of a family that has them is a whole number > 0."""
    assert message(MIXTRAL | {"num_local_experts": value}).startswith("config.json: num_local_experts: got ")


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types: got 1 entries, needs num_hidden_layers = 2"),
        ({"layer_types": ["full_attention", "linear_attention"]}, 'layer_types[1]: got "linear_attention"; only'),
        ({"layer_types": "full_attention"}, 'layer_types: got "full_attention", needs a list'),
        ({"sliding_window": 0}, "sliding_window: got 0, needs a whole number > 0"),
        ({"sliding_window": 128.5}, "sliding_window: got 128.5"),
    ],
)
def test_bad_windows(change: dict[str, object], start: str) -> None:
    """A list of layer kinds has one known kind a layer, a window is a whole number > 0."""
    assert message(GPT_OSS | change).startswith(f"config.json: {start}")


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"moe_layer_freq": [0, 1]}, "moe_layer_freq: got 2 entries, needs num_hidden_layers = 4"),
        ({"moe_layer_freq": [0, 1, "x", 1]}, 'moe_layer_freq[2]: got "x", needs a whole number >= 0'),
        ({"moe_layer_freq": 0}, "moe_layer_freq: got 0, needs a whole number > 0"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace: got -1, needs a whole number >= 0"),
        ({"n_shared_experts": 1.5}, "n_shared_experts: got 1.5, needs a whole number >= 0"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers: got -1"),
        ({"kv_lora_rank": None}, "kv_lora_rank: got null"),
    ],
)
def test_bad_deepseek(change: dict[str, object], start: str) -> None:
    """The keys of latent attention and of mixed dense and sparse layers are checked like the sizes."""
    assert message(DEEPSEEK | change).startswith(f"config.json: {start}")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim: got 512; only 4096"),
        (MPT | {"no_bias": False}, "no_bias: got false; only true"),
        (MPT | {"expansion_ratio": 2}, "expansion_ratio: got 2; only 4"),
        (MPT | {"norm_type": "rmsnorm"}, 'norm_type: got "rmsnorm"'),
        (MPT | {"attn_config": {"alibi": False}}, "attn_config: alibi: got false"),
        (MPT | {"attn_config": {"qk_ln": True}}, "attn_config: qk_ln: got true"),
        (MPT | {"attn_config": {"attn_type": "grouped_query_attention"}}, "attn_config: attn_type"),
        (MPT | {"attn_config": 3}, "attn_config: got 3, needs an object"),
        (LLAMA | {"model_type": "phi3", "lm_head_bias": True}, "lm_head_bias: got true; only false"),
        (LLAMA | {"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_attention: got true"),
        (
            LLAMA | {"model_type": "falcon", "num_ln_in_parallel_attn": 3},
            "num_ln_in_parallel_attn: got 3, needs 1 or 2",
        ),
    ],
)
def test_option_that_cannot_be_represented(config: dict[str, object], key: str) -> None:
    """An option that changes the model in a way ModelSpec cannot hold is refused, never dropped (opt-350m, MPT)."""
    assert message(config).startswith(f"config.json: {key}")


def test_missing_model_type() -> None:
    """Without model_type the message says what is missing and which families there are."""
    text = message({k: v for k, v in LLAMA.items() if k != "model_type"})
    assert text.startswith("config.json: model_type is missing")
    assert "deepseek_v3" in text
    assert message(LLAMA | {"model_type": 3}).startswith("config.json: model_type: got 3, needs the name")


def test_unknown_model_type() -> None:
    """An unknown family is answered with the nearest known one and all of them."""
    text = message(LLAMA | {"model_type": "lama"})
    assert "unknown model_type 'lama'; did you mean 'llama'?" in text
    assert all(re.search(rf"\b{family}\b", text) for family in FAMILIES)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("mamba", "state-space"),
        ("jamba", "state-space"),
        ("falcon_h1", "state-space"),
        ("qwen3_next", "linear-attention"),
        ("nemotron_h", "state-space"),
        ("granitemoehybrid", "state-space"),
        ("t5", "encoder-decoder"),
        ("bart", "encoder-decoder"),
        ("bert", "is an encoder"),
        ("xlm-roberta", "is an encoder"),
        ("deepseek_v32", "indexer"),
    ],
)
def test_refused_family(model_type: str, reason: str) -> None:
    """A known family that cannot be represented is refused with the reason, not as unknown."""
    text = message(LLAMA | {"model_type": model_type})
    assert reason in text
    assert "unknown" not in text


def test_no_family_is_both_read_and_refused() -> None:
    """FAMILIES and REFUSED have nothing in common."""
    assert not set(FAMILIES) & set(REFUSED)


def test_encoder_decoder_by_its_flag() -> None:
    """is_encoder_decoder = true is refused whatever the family is called."""
    assert "is_encoder_decoder: got true" in message(LLAMA | {"is_encoder_decoder": True})


@pytest.mark.parametrize(
    ("config", "start"),
    [
        ({"model_type": "gemma3"}, "text_config: missing; gemma3 keeps its language model there"),
        ({"model_type": "llava", "text_config": {}}, "text_config: model_type is missing"),
        ({"model_type": "llava", "text_config": {"model_type": "lama"}}, "text_config: unknown model_type 'lama'"),
        (
            {"model_type": "qwen9", "text_config": {"model_type": "qwen3_5_text"}},
            "text_config: model_type 'qwen3_5_text' has",
        ),
        ({"model_type": "llava", "text_config": LLAMA | {"hidden_size": -1}}, "text_config: hidden_size: got -1"),
    ],
)
def test_bad_text_config(config: dict[str, object], start: str) -> None:
    """A problem inside text_config is placed there."""
    assert message(config).startswith(f"config.json: {start}")
