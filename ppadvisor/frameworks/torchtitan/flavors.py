"""torchtitan's own models: `model.name` and `model.flavor` -> sizes.

Source: pytorch/torchtitan commit 238fa995, torchtitan/models/<name>/__init__.py and model/args.py. A flavor that has
the sizes of a published model is that preset, with what torchtitan builds otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ppadvisor.specs.load import load_model
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.validation import validate

NO_PIPELINE = ("qwen3", "gpt_oss")
"""Their TrainSpec has no pipelining_fn."""
OTHER_MODELS = ("flux", "llama3_ft", "vlm", "transformers_modeling_backend")
"""Models and experiments that are registered too, and of which there is no model here."""
EXPERIMENTS = ("simple_fsdp.", "compiler_toolkit.", "autoparallel.")

NOT_BUILT = ("mtp_num_layers", "sliding_window", "sliding_window_period", "full_attention_layers")
"""Parts of published models that its flavors lack or place otherwise."""

_DEBUG: dict[str, Any] = {
    "num_layers": 6,
    "hidden_size": 256,
    "ffn_hidden_size": 768,
    "num_attention_heads": 16,
    "num_query_groups": 16,
    "head_dim": 16,
    "vocab_size": 2048,
    "gated_mlp": True,
    "tied_embeddings": False,
    "normalization": "rmsnorm",
    "positional_embedding": "rope",
}
_DEBUG_DEEPSEEK = _DEBUG | {
    "ffn_hidden_size": 1024,
    "head_dim": 192,
    "mla": {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    "moe": {
        "num_experts": 8,
        "experts_per_token": 3,
        "moe_ffn_hidden_size": 256,
        "num_shared_experts": 2,
        "shared_expert_ffn_hidden_size": 256,
        "first_dense_layers": 1,
    },
}
_DEBUG_LLAMA4 = _DEBUG | {
    "moe": {
        "num_experts": 8,
        "experts_per_token": 1,
        "moe_ffn_hidden_size": 512,
        "num_shared_experts": 1,
        "shared_expert_ffn_hidden_size": 512,
        "layer_period": 2,
        "layer_offset": 1,
    }
}
_DEBUG_QWEN3 = _DEBUG | {
    "num_layers": 8,
    "ffn_hidden_size": 3072,
    "num_query_groups": 8,
    "head_dim": 128,
    "qk_norm": "head",
}
_QWEN3_EXPERTS = {"num_experts": 64, "experts_per_token": 8, "moe_ffn_hidden_size": 768}
_FULL_ATTENTION = {"sliding_window": None, "sliding_window_period": None}


@dataclass(frozen=True)
class Flavor:
    """A model of torchtitan's."""

    preset: str | None
    """None: the sizes stand in `changes`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"


def _blocks(layers: int) -> dict[str, Any]:
    """iRoPE: every fourth layer, from the first on, attends to everything."""
    return {"sliding_window_period": None, "full_attention_layers": tuple(range(0, layers, 4))}


FLAVORS: Mapping[str, Mapping[str, Flavor]] = {
    "llama3": {
        "debugmodel": Flavor(None, _DEBUG),
        "debugmodel_flex_attn": Flavor(None, _DEBUG, "flex"),
        "debugmodel_varlen_attn": Flavor(None, _DEBUG, "varlen"),
        "8B": Flavor("llama-3.1-8b"),
        "8B_flex": Flavor("llama-3.1-8b", {}, "flex"),
        "8B_varlen": Flavor("llama-3.1-8b", {}, "varlen"),
        "70B": Flavor("llama-3.1-70b"),
        "405B": Flavor("llama-3.1-405b"),
    },
    "llama4": {
        "debugmodel": Flavor(None, _DEBUG_LLAMA4),
        "debugmodel_irope": Flavor(
            None, _DEBUG_LLAMA4 | {"sliding_window": 256, "full_attention_layers": (0, 4)}, "flex"
        ),
        "17bx16e": Flavor("llama-4-scout-109b", _FULL_ATTENTION),
        "17bx128e": Flavor("llama-4-maverick-400b", _FULL_ATTENTION),
        "17bx16e_irope": Flavor("llama-4-scout-109b", _blocks(48), "flex"),
        "17bx128e_irope": Flavor("llama-4-maverick-400b", _blocks(48), "flex"),
    },
    "deepseek_v3": {
        "debugmodel": Flavor(None, _DEBUG_DEEPSEEK),
        "debugmodel_flex_attn": Flavor(None, _DEBUG_DEEPSEEK, "flex"),
        "16B": Flavor("deepseek-v2-lite", {}, "flex"),
        "236B": Flavor("deepseek-v2", {}, "flex"),
        "671B": Flavor("deepseek-v3", {"mtp_num_layers": 0}, "flex"),
    },
    "qwen3": {
        "debugmodel": Flavor(None, _DEBUG_QWEN3 | {"tied_embeddings": True}),
        "0.6B": Flavor("qwen3-0.6b"),
        "1.7B": Flavor("qwen3-1.7b"),
        "4B": Flavor("qwen3-4b"),
        "8B": Flavor("qwen3-8b"),
        "14B": Flavor("qwen3-14b"),
        "32B": Flavor("qwen3-32b"),
        "debugmodel_moe": Flavor(None, _DEBUG_QWEN3 | {"moe": _QWEN3_EXPERTS}),
        "30B-A3B": Flavor("qwen3-30b-a3b"),
        "235B-A22B": Flavor("qwen3-235b-a22b"),
    },
    "gpt_oss": {
        "debugmodel": Flavor(
            "gpt-oss-20b",
            {"num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 2880, "moe": {"num_experts": 8}},
            "flex",
        ),
        "20b": Flavor("gpt-oss-20b", {}, "flex"),
        "120b": Flavor("gpt-oss-120b", {}, "flex"),
    },
}


@cache
def model_of(name: str, flavor: str) -> ModelSpec:
    """The sizes of a flavor that is listed."""
    entry = FLAVORS[name][flavor]
    data = load_model(entry.preset).as_dict() if entry.preset else {}
    changes = dict(entry.changes)
    if entry.preset and "moe" in changes:
        changes["moe"] = data["moe"] | changes["moe"]
    named = {"name": f"{name} {flavor}", "source": "torchtitan 238fa995", "declared_parameters": None}
    return validate(ModelSpec, data | changes | named, f"torchtitan's flavor {name} {flavor}")


def flavor_of(model: ModelSpec) -> tuple[str, str] | None:
    """(name, flavor) with the same sizes, else one that differs in what torchtitan leaves out; None without one."""
    for left_out in ((), NOT_BUILT):
        for name, flavors in FLAVORS.items():
            for flavor in flavors:
                if sizes(model_of(name, flavor), left_out) == sizes(model, left_out):
                    return name, flavor
    return None


def sizes(model: ModelSpec, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """All of a model that costs anything; a correction of router scores is no weight."""
    values = model.as_dict(("name", "source", "declared_parameters", *left_out))
    if values["moe"]:
        values["moe"].pop("score_correction_bias")
    return values
