"""Activation tensors of transformer layers that more than one framework shares, counted one by one.

Bytes per token in 16 bit: Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) for the GPT layer
(34 s b h with flash attention and dropout), and the same count done for gated, grouped-query, latent and MoE layers.
"""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.frameworks.profile import LossProfile, Spread, Tensor, When
from ppadvisor.specs.model import LayerKind, MlaSpec, ModelSpec, MoeSpec
from ppadvisor.specs.recomputation import CORE_ATTENTION
from ppadvisor.specs.training import Loss, TrainingSpec

LOSSES: dict[Loss, LossProfile] = {
    "native": LossProfile(
        "vocabulary-parallel cross entropy, fp32 in place",
        6,
        2,
        4,
        30,
        8,
        "NVIDIA/Megatron-LM core/tensor_parallel/cross_entropy.py: 16-bit logits 2, fp32 exponentials kept 4; "
        "traffic from stage timings of Vocabulary Parallelism (arXiv 2411.05288): cast, max, exp, sum, divide",
    ),
    "fused": LossProfile(
        "one fused kernel", 2, 2, 2, 6, 4, "Transformer Engine cross entropy: the gradient is written over the logits"
    ),
    "torch": LossProfile(
        "plain fp32 cross entropy", 14, 4, 6, 36, 16, "16-bit logits 2, fp32 cast 4, fp32 log-softmax 4, its gradient 4"
    ),
}


ATTENTION_NORM, FEED_FORWARD_NORM = "norm output before attention", "norm output before the feed-forward"


def norm_tensors(model: ModelSpec, training: TrainingSpec, element: int) -> list[Tensor]:
    """Inputs of the norms (the residual stream) and their outputs (inputs of the linears behind them)."""
    h = model.hidden_size
    statistics = 8 if model.normalization == "layernorm" else 4
    inputs = 1 if model.parallel_block else 2
    tensors = [
        Tensor("norm inputs", inputs * element * h, Spread.SEQUENCE, attention_share=0.5),
        Tensor(ATTENTION_NORM, element * h, Spread.SEQUENCE, modules=("layernorm",), attention_share=1.0),
        Tensor("norm statistics", statistics * model.norms_per_layer, Spread.SEQUENCE, attention_share=0.5),
    ]
    if model.norms_per_layer > 1:
        tensors.append(Tensor(FEED_FORWARD_NORM, element * h, Spread.SEQUENCE, modules=("layernorm",)))
    if not training.fused_norm:
        # 4 bytes of fp32 in place of the input's 2, and the normalised value in front of the weight
        tensors.append(Tensor("norms in fp32", 4 * h * model.norms_per_layer, Spread.SEQUENCE, attention_share=0.5))
    if model.norms_per_layer > 2:
        # Post-norms keep their own input, the output of attention or feed-forward.
        tensors.append(Tensor("post-norm inputs", (model.norms_per_layer - 2) * element * h, Spread.SEQUENCE))
    return tensors


def attention_tensors(model: ModelSpec, training: TrainingSpec, element: int) -> list[Tensor]:
    """q, k, v, the attention core of the kernel in use, and the input of the output projection."""
    if model.mla:
        return [*_mla_tensors(model, model.mla, element), *_core_tensors(model, training, element)]
    width, kv_width = model.num_attention_heads * model.head_dim, model.num_query_groups * model.head_dim
    tensors = [
        Tensor("q, k, v", element * (width + 2 * kv_width), Spread.TENSOR, attention_share=1.0),
        Tensor("attention output", element * width, Spread.TENSOR, attention_share=1.0),
    ]
    if model.qk_norm != "none":
        # q and k before their norm are kept beside q and k after it.
        size = element * (width + kv_width)
        tensors.append(Tensor("q, k before their norm", size, Spread.TENSOR, attention_share=1.0))
    return [*tensors, *_core_tensors(model, training, element)]


def _mla_tensors(model: ModelSpec, mla: MlaSpec, element: int) -> list[Tensor]:
    """DeepSeek-V2 (arXiv 2405.04434) section 2.1: latents, the expanded q, k, v, the attention output."""
    a, qk = model.num_attention_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    normed = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    return [
        Tensor("latents", element * (normed + mla.qk_rope_head_dim), Spread.SEQUENCE, attention_share=1.0),
        Tensor("normed latents", element * normed, Spread.SEQUENCE, modules=("mla_up_proj",), attention_share=1.0),
        Tensor(
            "q, k, v",
            element * a * (2 * qk + mla.v_head_dim),
            Spread.TENSOR,
            modules=("mla_up_proj",),
            attention_share=1.0,
        ),
        Tensor("attention output", element * a * mla.v_head_dim, Spread.TENSOR, attention_share=1.0),
    ]


def _core_tensors(model: ModelSpec, training: TrainingSpec, element: int) -> list[Tensor]:
    a = model.num_attention_heads
    if training.attention == "flash":
        return [Tensor("softmax statistics", 4 * a, Spread.TENSOR, modules=CORE_ATTENTION, attention_share=1.0)]
    # Probabilities; with dropout also their dropped-out copy and a one-byte mask: 5 a s per token in 16 bit.
    per_score = (2 * element + 1) if training.dropout else element
    name = "attention probabilities"
    return [Tensor(name, per_score * a, Spread.SCORES, modules=CORE_ATTENTION, attention_share=1.0)]


def dropout_tensors(model: ModelSpec, training: TrainingSpec) -> list[Tensor]:
    """One-byte masks behind attention and feed-forward."""
    if not training.dropout:
        return []
    size = 2 * model.hidden_size
    return [Tensor("dropout masks", size, Spread.SEQUENCE, modules=("dropout",), attention_share=0.5)]


def _inner_tensors(
    model: ModelSpec, width: int, element: int, gated_copies: int, spread: Spread, modules: tuple[str, ...]
) -> list[Tensor]:
    """First product and activation output of a feed-forward of `width`, one or many experts.

    `gated_copies`: tensors of the inner width that a gated feed-forward keeps (3 with a fused
    activation: gate, up, product; 4 in plain torch: also the activated gate). `modules`: those that drop both, and the
    one that drops only what the activation makes.
    """
    products = 2 if model.gated_mlp else 1
    activated = (gated_copies if model.gated_mlp else 2) - products
    part = "expert" if spread is Spread.EXPERT_INNER else "feed-forward"
    return [
        Tensor(f"{part} first product", products * element * width, spread, modules=modules[:-1]),
        Tensor(f"{part} activation", activated * element * width, spread, modules=modules),
    ]


def mlp_tensors(model: ModelSpec, width: int, element: int, gated_copies: int) -> list[Tensor]:
    """Inner tensors of a dense feed-forward of `width`."""
    return _inner_tensors(model, width, element, gated_copies, Spread.TENSOR, ("mlp", "activation"))


def moe_tensors(model: ModelSpec, moe: MoeSpec, element: int, gated_copies: int) -> list[Tensor]:
    """Dispatched tokens, inner tensors of the routed and shared experts, the router."""
    inner = moe.moe_ffn_hidden_size
    tensors = [
        Tensor("expert input", element * model.hidden_size, Spread.EXPERT_TOKENS, modules=("moe",)),
        *_inner_tensors(model, inner, element, gated_copies, Spread.EXPERT_INNER, ("moe", "moe_act")),
        # fp32 logits, probabilities and their gradients' copies, and the routing map
        Tensor("router", 16 * moe.num_experts, Spread.SEQUENCE, modules=("moe",)),
    ]
    if moe.num_shared_experts and moe.shared_expert_ffn_hidden_size:
        width = moe.num_shared_experts * moe.shared_expert_ffn_hidden_size
        shared = _inner_tensors(
            model, width, element, gated_copies, Spread.TENSOR, ("moe", "shared_experts", "activation")
        )
        tensors += [replace(tensor, name=f"shared {tensor.name}") for tensor in shared]
    return tensors


def layer_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind, gated_copies: int) -> list[Tensor]:
    """All that one layer of this kind keeps for its backward, without recomputation."""
    element = training.activation_bytes
    if kind.moe and model.moe:
        feed_forward = moe_tensors(model, model.moe, element, gated_copies)
    else:
        feed_forward = mlp_tensors(model, model.ffn_hidden_size, element, gated_copies)
    return [
        *norm_tensors(model, training, element),
        *attention_tensors(model, training, element),
        *feed_forward,
        *dropout_tensors(model, training),
    ]


def output_gradients(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Gradients of the outputs of a layer's linears: what the weight gradients need beside the saved inputs."""
    h, element = model.hidden_size, training.activation_bytes
    width = model.num_attention_heads * model.head_dim
    attention = width + 2 * model.num_query_groups * model.head_dim
    gates = 2 if model.gated_mlp else 1
    tensors = [
        Tensor("gradients of q, k, v", element * attention, Spread.TENSOR),
        # attention output, feed-forward output, and the outputs of the two norms
        Tensor("gradients of the residual stream", 4 * element * h, Spread.SEQUENCE),
    ]
    if kind.moe and model.moe:
        inner = gates * element * model.moe.moe_ffn_hidden_size
        return (*tensors, Tensor("gradients of the experts", inner, Spread.EXPERT_INNER))
    return (*tensors, Tensor("gradients of the feed-forward", gates * element * model.ffn_hidden_size, Spread.TENSOR))


def backward_work(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Gradients alive at the worst moment of a layer's backward: residual, feed-forward input, gathered input."""
    h, element = model.hidden_size, training.activation_bytes
    tensors = [
        Tensor("residual gradient", (4 if training.dropout else 2) * h * element / 2, Spread.SEQUENCE),
        Tensor("gathered linear input", element * h, Spread.WHOLE, When.SEQUENCE_PARALLEL),
    ]
    if kind.moe and model.moe:
        tensors += [
            Tensor("expert inner gradient", element * model.moe.moe_ffn_hidden_size, Spread.EXPERT_INNER),
            Tensor("expert input gradient", element * h, Spread.EXPERT_TOKENS),
        ]
    else:
        tensors.append(Tensor("feed-forward gradient", element * model.ffn_hidden_size, Spread.TENSOR))
    if training.attention == "eager":
        tensors.append(Tensor("score gradients", 2 * element * model.num_attention_heads, Spread.SCORES))
    return tuple(tensors)
