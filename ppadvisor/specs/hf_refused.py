"""Model families that are known and cannot be represented, with the reason."""

from __future__ import annotations

_STATE_SPACE = (
    "has state-space, recurrent or linear-attention layers; only attention layers with a feed-forward network "
    "can be represented"
)
_ENCODER_DECODER = "is an encoder-decoder; only decoder-only models can be represented"
_ENCODER = "is an encoder, not a causal language model; only decoder-only models can be represented"
_SPARSE = "chooses the keys of its attention with an indexer, whose parameters and cost cannot be represented"

_FAMILIES_BY_REASON = {
    _STATE_SPACE: """
        bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid hymba jamba kimi_linear lfm2 lfm2_moe mamba mamba2
        minimax minimax_text_01 nemotron_h nemotron_h_omni olmo_hybrid plamo2 qwen3_5 qwen3_5_moe qwen3_5_moe_text
        qwen3_5_text qwen3_next recurrent_gemma rwkv rwkv5 rwkv6 rwkv7 xlstm zamba zamba2
    """,
    _ENCODER_DECODER: """
        bart bigbird_pegasus blenderbot blenderbot_small encoder_decoder led longt5 m2m_100 marian mbart mt5 mvp
        nllb_moe pegasus pegasus_x plbart prophetnet seamless_m4t speech_to_text switch_transformers t5 t5gemma t5gemma2
        umt5 whisper
    """,
    _ENCODER: """
        albert bert big_bird camembert clip deberta deberta_v2 distilbert electra ernie esm eurobert funnel ibert
        longformer modernbert mpnet nomic_bert roberta roformer siglip vit xlm xlm_roberta xlm_roberta_xl
    """,
    _SPARSE: "deepseek_v32 glm_moe_dsa",
}

REFUSED = {name: reason for reason, names in _FAMILIES_BY_REASON.items() for name in names.split()}
"""model_type (with _ for -) -> why it is refused."""
