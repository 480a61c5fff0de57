"""What the configuration classes of transformers 5.24 take for an absent key, where a config.json may lack it.

The optional keys (num_key_value_heads, head_dim, ...) may be absent anywhere. The sizes may be absent in a
text_config only, so they stand here for the families that are met inside one.
"""

from __future__ import annotations

from collections.abc import Mapping

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_Defaults = Mapping[str, int | None]


def _class(*sizes: int | None, **more: int | None) -> _Defaults:
    return dict(zip(_SIZES, sizes, strict=True)) | more


_QWEN_WINDOW = {"sliding_window": 4096, "max_window_layers": 28}
_QWEN3 = _class(4096, 22016, 32, 32, 32, 151936, 32768, head_dim=128, **_QWEN_WINDOW)
_QWEN3_EXPERTS = {"moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128}
_DEEPSEEK_ATTENTION = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_DEEPSEEK_V3 = _class(
    *(7168, 18432, 61, 128, 128, 129280, 4096),
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
    **_DEEPSEEK_ATTENTION,
)

CLASS_DEFAULTS: Mapping[str, _Defaults] = {
    "llama": _class(4096, 11008, 32, 32, None, 32000, 2048),
    "mistral": _class(4096, 14336, 32, 32, 8, 32000, 131072, sliding_window=4096),
    "mixtral": _class(4096, 14336, 32, 32, 8, 32000, 131072, num_local_experts=8, num_experts_per_tok=2),
    "qwen2": _class(4096, 22016, 32, 32, 32, 151936, 32768, **_QWEN_WINDOW),
    "qwen2_moe": _class(
        *(2048, 5632, 24, 16, 16, 151936, 32768),
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        num_experts_per_tok=4,
        num_experts=60,
        **_QWEN_WINDOW,
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": _class(2048, 6144, 24, 32, 4, 151936, 32768, sliding_window=4096, **_QWEN3_EXPERTS),
    "qwen3_vl_text": _class(4096, 22016, 32, 32, 32, 151936, 128000, head_dim=128),
    "qwen3_vl_moe_text": _class(
        *(2048, 5632, 24, 16, 16, 151936, 128000), moe_intermediate_size=1408, num_experts_per_tok=4, num_experts=60
    ),
    "gemma": _class(3072, 24576, 28, 16, 16, 256000, 8192, head_dim=256),
    "gemma2": _class(2304, 9216, 26, 8, 4, 256000, 8192, head_dim=256, sliding_window=4096),
    "gemma3_text": _class(2304, 9216, 26, 8, 4, 262208, 131072, head_dim=256, sliding_window=4096),
    "phi3": _class(3072, 8192, 32, 32, None, 32064, 4096),
    "starcoder2": {"num_key_value_heads": 2},
    "deepseek_v2": _class(
        *(4096, 11008, 32, 32, None, 102400, 2048),
        moe_intermediate_size=1407,
        n_routed_experts=64,
        n_shared_experts=2,
        first_k_dense_replace=0,
        **_DEEPSEEK_ATTENTION,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe_lite": {"n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 768},
    "gpt_oss": _class(
        *(2880, 2880, 36, 64, 8, 201088, 131072),
        head_dim=64,
        num_local_experts=128,
        num_experts_per_tok=4,
        sliding_window=128,
    ),
    "glm": {"num_key_value_heads": 2, "head_dim": 128},
    "glm4": {"num_key_value_heads": 2, "head_dim": 128},
    "glm4_moe": {"num_key_value_heads": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
}
