"""A Hugging Face config.json as a ModelSpec: one entry of `FAMILIES` for each model_type.

Every entry reproduces the modules that transformers builds, parameter for parameter; a test holds each against a
published configuration and the count of transformers 5.24 (tests/published/hf_parameter_counts.json).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ppadvisor.errors import InputError, unknown_name
from ppadvisor.specs import hf_older
from ppadvisor.specs.hf_defaults import CLASS_DEFAULTS
from ppadvisor.specs.hf_parts import (
    attention_bias,
    every_nth_is_full,
    latent_attention,
    layer_count,
    mixed_layers,
    no_layer_is_full,
    routed_experts,
    trunk,
    windows,
)
from ppadvisor.specs.hf_reader import ConfigReader, Fields, shown
from ppadvisor.specs.hf_refused import REFUSED
from ppadvisor.specs.model import ModelSpec, MoeSpec
from ppadvisor.specs.validation import validate


@dataclass(frozen=True)
class Family:
    """How one model_type is read."""

    build: Callable[[ConfigReader], Fields]
    tied: bool
    """What an absent tie_word_embeddings means: the default of transformers' configuration class."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key -> the other names that published files use for it."""


def _llama(r: ConfigReader) -> Fields:
    return trunk(r, mlp_bias=r.flag("mlp_bias", False), **attention_bias(r))


def _mistral(r: ConfigReader) -> Fields:
    return trunk(r, **windows(r, no_layer_is_full))


def _mixtral(r: ConfigReader) -> Fields:
    width = r.size("intermediate_size")  # of one expert
    return trunk(r, moe=routed_experts(r, "num_local_experts", width), **windows(r, no_layer_is_full))


def _qwen_windows(r: ConfigReader, full_by_family: Callable[[int], bool]) -> Fields:
    # the files carry a sliding_window that is switched off
    return windows(r, full_by_family) if r.flag("use_sliding_window", False) else {}


def _qwen_upper_windows(r: ConfigReader) -> Fields:
    # transformers windows the layers from max_window_layers on, not those before it
    first = r.count("max_window_layers")
    return _qwen_windows(r, lambda i: i < first)


def _qwen2(r: ConfigReader) -> Fields:
    return trunk(r, qkv_bias=True, **_qwen_upper_windows(r))


def _qwen3(r: ConfigReader) -> Fields:
    return trunk(r, qk_norm="head", **attention_bias(r), **_qwen_upper_windows(r))


def _qwen_experts(r: ConfigReader, **fields: object) -> tuple[int, MoeSpec | None]:
    """Layer i has experts iff (i + 1) mod decoder_sparse_step = 0 and it is not in mlp_only_layers."""
    step = r.optional_size("decoder_sparse_step") or 1
    dense = set(r.whole_numbers("mlp_only_layers") or ())
    sparse = [i for i in range(layer_count(r)) if (i + 1) % step == 0 and i not in dense]
    return mixed_layers(r, "num_experts", sparse, **fields)


def _qwen2_moe(r: ConfigReader) -> Fields:
    shared: Fields = {
        "num_shared_experts": 1,
        "shared_expert_ffn_hidden_size": r.size("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }
    ffn, moe = _qwen_experts(r, **shared)
    upper = r.count("max_window_layers")
    window = _qwen_windows(r, lambda i: (i + 1) % 2 == 0 or i >= upper)
    return trunk(r, ffn_hidden_size=ffn, moe=moe, qkv_bias=r.flag("qkv_bias", True), **window)


def _qwen3_moe(r: ConfigReader) -> Fields:
    # some copies carry a shared_expert_intermediate_size; the family has no shared expert
    ffn, moe = _qwen_experts(r)
    return trunk(
        r, ffn_hidden_size=ffn, moe=moe, qk_norm="head", **attention_bias(r), **_qwen_windows(r, no_layer_is_full)
    )


def _gemma(r: ConfigReader, **more: object) -> Fields:
    r.only("use_bidirectional_attention", False, "attention is causal here")
    return trunk(r, **attention_bias(r), **more)


def _gemma2(r: ConfigReader) -> Fields:
    return _gemma(r, norms_per_layer=4, **windows(r, every_nth_is_full(2)))


def _gemma3(r: ConfigReader) -> Fields:
    pattern = r.optional_size("sliding_window_pattern") or 6
    return _gemma(r, norms_per_layer=4, qk_norm="head", **windows(r, every_nth_is_full(pattern)))


def _phi3(r: ConfigReader) -> Fields:
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        r.only(key, False, "transformers builds phi3 without biases")
    return trunk(r, **windows(r, no_layer_is_full))


def _deepseek_layers(r: ConfigReader) -> list[int]:
    """Layers with experts: from first_k_dense_replace on, every moe_layer_freq-th, or those its list marks with 1."""
    num_layers, first = layer_count(r), r.count("first_k_dense_replace")
    if isinstance(r.config.get("moe_layer_freq"), list):
        marks = r.whole_numbers("moe_layer_freq") or ()
        if len(marks) != num_layers:
            raise r.error("moe_layer_freq", f"got {len(marks)} entries, needs num_hidden_layers = {num_layers}")
        return [i for i in range(first, num_layers) if marks[i]]
    step = r.optional_size("moe_layer_freq") or 1
    return [i for i in range(first, num_layers) if i % step == 0]


def _deepseek_experts(r: ConfigReader, sparse: list[int], **fields: object) -> tuple[int, MoeSpec | None]:
    if r.given("n_routed_experts")[1] is None:  # null: every layer is dense
        return r.size("intermediate_size"), None
    shared = r.count("n_shared_experts")
    if shared:
        fields |= {"num_shared_experts": shared, "shared_expert_ffn_hidden_size": r.size("moe_intermediate_size")}
    return mixed_layers(r, "n_routed_experts", sparse, **fields)


def _deepseek_v2(r: ConfigReader) -> Fields:
    r.only("mlp_bias", False, "no published model has it")
    ffn, moe = _deepseek_experts(r, _deepseek_layers(r))
    return latent_attention(r, ffn_hidden_size=ffn, moe=moe)


def _deepseek_v3(r: ConfigReader) -> Fields:
    ffn, moe = _deepseek_experts(r, _deepseek_layers(r), score_correction_bias=True)
    return latent_attention(r, ffn_hidden_size=ffn, moe=moe, mtp_num_layers=r.count("num_nextn_predict_layers"))


def _glm4_moe_lite(r: ConfigReader) -> Fields:
    kinds = r.words("mlp_layer_types", ("dense", "sparse"))
    if kinds is not None and len(kinds) != layer_count(r):
        raise r.error("mlp_layer_types", f"got {len(kinds)} entries, needs num_hidden_layers = {layer_count(r)}")
    sparse = [i for i, kind in enumerate(kinds) if kind == "sparse"] if kinds else _deepseek_layers(r)
    ffn, moe = _deepseek_experts(r, sparse, score_correction_bias=True)
    return latent_attention(r, ffn_hidden_size=ffn, moe=moe, mtp_num_layers=r.count("num_nextn_predict_layers"))


def _gpt_oss(r: ConfigReader) -> Fields:
    width = r.size("intermediate_size")  # of one expert
    moe = routed_experts(r, "num_local_experts", width, router_bias=True, expert_bias=True)
    return trunk(r, moe=moe, attention_sinks=True, **attention_bias(r, True), **windows(r, every_nth_is_full(2)))


def _glm(r: ConfigReader) -> Fields:
    return trunk(r, qkv_bias=r.flag("attention_bias", True))


def _glm4(r: ConfigReader) -> Fields:
    return _glm(r) | {"norms_per_layer": 4}


def _glm4_moe(r: ConfigReader) -> Fields:
    ffn, moe = _deepseek_experts(r, _deepseek_layers(r), score_correction_bias=True)
    more: Fields = {
        "qkv_bias": r.flag("attention_bias", False),
        "qk_norm": "head" if r.flag("use_qk_norm", False) else "none",
        "mtp_num_layers": r.count("num_nextn_predict_layers"),
    }
    return trunk(r, ffn_hidden_size=ffn, moe=moe, **more)


def _cohere(r: ConfigReader) -> Fields:
    qk_norm = "per_head" if r.flag("use_qk_norm", False) else "none"
    norm: Fields = {"normalization": "layernorm", "norm_bias": False, "norms_per_layer": 1}
    return trunk(r, parallel_block=True, qk_norm=qk_norm, **norm, **attention_bias(r))


def _olmo(r: ConfigReader) -> Fields:
    return trunk(r, normalization="layernorm", norm_weight=False, **attention_bias(r))


def _olmo2(r: ConfigReader) -> Fields:
    return trunk(r, qk_norm="full", **attention_bias(r))


def _olmoe(r: ConfigReader) -> Fields:
    moe = routed_experts(r, "num_experts", r.size("intermediate_size"))
    return trunk(r, moe=moe, qk_norm="full", **attention_bias(r))


_GPT2_NAMES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions",),
    "intermediate_size": ("n_inner",),
}
_BLOOM_NAMES = {"hidden_size": ("n_embed",), "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",)}
_MPT_NAMES = {"hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",), "num_attention_heads": ("n_heads",)}
_EXPERTS = {"num_experts": ("num_local_experts",)}
_LOCAL_EXPERTS = {"num_local_experts": ("num_experts",), "num_experts_per_tok": ("experts_per_token",)}
_ROUTED_EXPERTS = {
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "num_nextn_predict_layers": ("num_mtp_layers",),
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_llama, tied=False),
    "mistral": Family(_mistral, tied=False),
    "mixtral": Family(_mixtral, tied=False, aliases=_LOCAL_EXPERTS),
    "qwen2": Family(_qwen2, tied=False),
    "qwen2_moe": Family(_qwen2_moe, tied=False, aliases=_EXPERTS),
    "qwen3": Family(_qwen3, tied=False),
    "qwen3_moe": Family(_qwen3_moe, tied=False, aliases=_EXPERTS),
    # of qwen3_vl* the default of the wrapper, which owns the output layer
    "qwen3_vl_text": Family(_qwen3, tied=False),
    "qwen3_vl_moe_text": Family(_qwen3_moe, tied=False, aliases=_EXPERTS),
    "gemma": Family(_gemma, tied=True),
    "gemma2": Family(_gemma2, tied=True),
    "gemma3_text": Family(_gemma3, tied=True, aliases={"sliding_window_pattern": ("_sliding_window_pattern",)}),
    "phi3": Family(_phi3, tied=False),
    "gpt2": Family(hf_older.gpt2, tied=True, aliases=_GPT2_NAMES),
    "gpt_neox": Family(hf_older.gpt_neox, tied=False),
    "gptj": Family(hf_older.gptj, tied=False, aliases=_GPT2_NAMES),
    "bloom": Family(hf_older.bloom, tied=True, aliases=_BLOOM_NAMES),
    "opt": Family(hf_older.opt, tied=True),
    "falcon": Family(hf_older.falcon, tied=True, aliases={"hidden_size": ("n_embed",)}),
    "mpt": Family(hf_older.mpt, tied=True, aliases=_MPT_NAMES),
    "starcoder2": Family(hf_older.starcoder2, tied=True),
    "deepseek_v2": Family(_deepseek_v2, tied=False, aliases=_ROUTED_EXPERTS),
    "deepseek_v3": Family(_deepseek_v3, tied=False, aliases=_ROUTED_EXPERTS),
    "kimi_k2": Family(_deepseek_v3, tied=False, aliases=_ROUTED_EXPERTS),  # DeepSeek-V3's modules under another name
    "glm4_moe_lite": Family(_glm4_moe_lite, tied=False, aliases=_ROUTED_EXPERTS),
    "gpt_oss": Family(_gpt_oss, tied=False, aliases=_LOCAL_EXPERTS),
    "glm": Family(_glm, tied=False),
    "glm4": Family(_glm4, tied=False),
    "glm4_moe": Family(_glm4_moe, tied=False, aliases=_ROUTED_EXPERTS),
    "cohere": Family(_cohere, tied=True),
    "olmo": Family(_olmo, tied=False),
    "olmo2": Family(_olmo2, tied=False),
    "olmoe": Family(_olmoe, tied=False, aliases=_EXPERTS),
    "granite": Family(_llama, tied=False),  # Llama's modules; its multipliers are numbers, not weights
}
"""model_type -> how it is read. `tied` was read off each configuration class of transformers 5.24."""

_TEXT_KEYS = ("text_config", "llm_config", "language_config")
_TEXT_TYPES = {"gemma3": "gemma3_text", "kimi_k25": "kimi_k2"}
"""Wrappers around a language model whose text_config may leave its model_type out."""


def model_from_hf_config(config: Mapping[str, object], where: str) -> ModelSpec:
    """The model that a config.json describes; of a multimodal one the language model. InputError where it cannot be.

    `where` is the file as errors name it.

    >>> small = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128, "vocab_size": 1000}
    >>> model_from_hf_config(small, "config.json").ffn_hidden_size
    256
    """
    model_type = _model_type(config, where)
    if model_type in FAMILIES:
        return _build(ConfigReader(config, where, model_type), config, where)
    for key in _TEXT_KEYS:
        text = config.get(key)
        if isinstance(text, Mapping):
            # transformers writes the inner configuration as its difference from the class, model_type at times too
            known = {"model_type": _TEXT_TYPES[model_type]} if model_type in _TEXT_TYPES else {}
            inner = _model_type(known | dict(text), f"{where}: {key}")
            if inner in FAMILIES:
                return _build(ConfigReader(text, f"{where}: {key}", inner, nested=True), config, where)
            raise unknown_name("model_type", inner, FAMILIES, f"{where}: {key}")
    if model_type in _TEXT_TYPES:
        raise InputError(f"{where}: text_config: missing; {model_type} keeps its language model there")
    raise unknown_name("model_type", model_type, FAMILIES, where)


def _model_type(config: Mapping[str, object], where: str) -> str:
    """The family's name as FAMILIES spells it; InputError for none, and for one known to be out of reach."""
    model_type = config.get("model_type")
    if model_type is None:
        raise InputError(f"{where}: model_type is missing: it names the model family; known: {', '.join(FAMILIES)}")
    if not isinstance(model_type, str):
        raise InputError(f"{where}: model_type: got {shown(model_type)}, needs the name of a model family")
    name = model_type.replace("-", "_")
    if name in REFUSED:
        raise InputError(f"{where}: model_type {model_type!r} {REFUSED[name]}")
    if config.get("is_encoder_decoder") is True:
        raise InputError(f"{where}: is_encoder_decoder: got true; only decoder-only models can be represented")
    return name


def _build(reader: ConfigReader, top: Mapping[str, object], where: str) -> ModelSpec:
    """The model of a known family; `top` is the whole file, whose tie_word_embeddings wins over a nested one."""
    family = FAMILIES[reader.family]
    reader = replace(reader, defaults=CLASS_DEFAULTS.get(reader.family, {}), aliases=family.aliases)
    tied = reader.flag("tie_word_embeddings", family.tied)
    part = ", its language model" if reader.nested else ""
    fields: Fields = {
        "name": _name(top, where) or reader.family,
        "source": f"{where} (Hugging Face, model_type {reader.family}{part})",
        "tied_embeddings": ConfigReader(top, where, reader.family).flag("tie_word_embeddings", tied),
    }
    return validate(ModelSpec, fields | family.build(reader), where)


def _name(top: Mapping[str, object], where: str) -> str:
    """The name of the file, of the model it came from, or of its directory: the first that says anything."""
    path, origin = PurePath(where), top.get("_name_or_path")
    if path.stem not in ("config", ""):
        return path.stem
    return PurePath(origin).name if isinstance(origin, str) and origin else path.parent.name
