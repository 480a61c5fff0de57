"""Activation tensors of transformer layers that more than one framework shares, counted one by one.

Bytes per token in 16 bit: Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) for the GPT layer
(34 s b h with flash attention and dropout), and the same count done for gated, grouped-query, latent and MoE layers.

`fused` is about a trainer's own kernels: a gated activation in one piece that also weighs an expert's tokens, and keys
and values of latent attention each in a tensor of their own (Megatron). Without it every operation is plain torch's
own, but for norms and flash attention, which are one kernel each; that list is what torch's autograd saves, byte for
byte (tests/live/test_saved_tensors.py).
"""

from __future__ import annotations

from ppadvisor.frameworks.profile import LossProfile, Spread, Tensor, When
from ppadvisor.specs.model import LayerKind, MlaSpec, ModelSpec, MoeSpec
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


def _statistics(model: ModelSpec) -> int:
    """Bytes that a norm keeps of one row, in fp32: 1 / deviation, and the mean where it takes it away."""
    return 8 if model.normalization == "layernorm" else 4


def norm_tensors(model: ModelSpec, element: int) -> list[Tensor]:
    """Inputs of the norms (the residual stream) and their outputs (inputs of the linears behind them)."""
    h = model.hidden_size
    inputs = 1 if model.parallel_block else 2
    tensors = [
        Tensor("norm inputs", inputs * element * h, Spread.SEQUENCE),
        Tensor("norm outputs", min(model.norms_per_layer, 2) * element * h, Spread.SEQUENCE),
        Tensor("norm statistics", _statistics(model) * model.norms_per_layer, Spread.SEQUENCE),
    ]
    if model.norms_per_layer > 2:
        # Post-norms keep their own input, the output of attention or feed-forward.
        tensors.append(Tensor("post-norm inputs", (model.norms_per_layer - 2) * element * h, Spread.SEQUENCE))
    return tensors


def attention_tensors(model: ModelSpec, training: TrainingSpec, element: int, fused: bool) -> list[Tensor]:
    """q, k, v, the attention core of the kernel in use, and the input of the output projection."""
    if model.mla:
        return [*_mla_tensors(model, model.mla, element, fused), *_core_tensors(model, training, element)]
    heads, groups = model.num_attention_heads, model.num_query_groups
    width, kv_width = heads * model.head_dim, groups * model.head_dim
    tensors = [
        Tensor("q, k, v", element * (width + 2 * kv_width), Spread.TENSOR),
        Tensor("attention output", element * width, Spread.TENSOR),
    ]
    if model.qk_norm != "none":
        # q and k before their norm are kept beside q and k after it.
        tensors.append(Tensor("q, k before their norm", element * (width + kv_width), Spread.TENSOR))
        statistics = _statistics(model) * (2 if model.qk_norm == "full" else heads + groups)
        tensors.append(
            Tensor("statistics of q, k", statistics, Spread.WHOLE if model.qk_norm == "full" else Spread.TENSOR)
        )
    if training.attention == "eager" and groups < heads:
        # The products want a key and a value for every head; those of the groups are then needed no longer.
        repeated = element * 2 * (width - kv_width)
        tensors.append(Tensor("keys and values repeated", repeated, Spread.TENSOR, selective=True))
    return [*tensors, *_core_tensors(model, training, element)]


def _mla_tensors(model: ModelSpec, mla: MlaSpec, element: int, fused: bool) -> list[Tensor]:
    """DeepSeek-V2 (arXiv 2405.04434) section 2.1: latents, the expanded q, k, v, the attention output."""
    a, qk = model.num_attention_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    latents = 2 * (mla.q_lora_rank or 0) + (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    # In plain torch v is a part of the up-projection's output, and a part keeps the whole alive: the keys too.
    v_storage = mla.v_head_dim + (0 if fused else mla.qk_nope_head_dim)
    return [
        Tensor("latents and their norms", element * latents, Spread.SEQUENCE),
        Tensor("statistics of the latents", _statistics(model) * (2 if mla.q_lora_rank else 1), Spread.SEQUENCE),
        Tensor("q, k, v", element * a * (2 * qk + v_storage), Spread.TENSOR),
        Tensor("attention output", element * a * mla.v_head_dim, Spread.TENSOR),
    ]


def _core_tensors(model: ModelSpec, training: TrainingSpec, element: int) -> list[Tensor]:
    a = model.num_attention_heads
    if training.attention == "flash":
        return [Tensor("softmax statistics", 4 * a, Spread.TENSOR, selective=True)]
    # Probabilities; with dropout also their dropped-out copy and a one-byte mask: 5 a s per token in 16 bit.
    per_score = (2 * element + 1) if training.dropout else element
    return [Tensor("attention probabilities", per_score * a, Spread.SCORES, selective=True)]


def dropout_tensors(model: ModelSpec, training: TrainingSpec) -> list[Tensor]:
    """One-byte masks behind attention and feed-forward."""
    return [Tensor("dropout masks", 2 * model.hidden_size, Spread.SEQUENCE)] if training.dropout else []


def mlp_tensors(model: ModelSpec, width: int, element: int, fused: bool) -> list[Tensor]:
    """Inner tensors of a feed-forward of `width`: first product and activation output.

    A gated one keeps gate, up and product; in plain torch also the activated gate.
    """
    return [Tensor("feed-forward inner", _inner_copies(model, fused) * element * width, Spread.TENSOR)]


def _inner_copies(model: ModelSpec, fused: bool) -> int:
    if not model.gated_mlp:
        return 2
    return 3 if fused else 4


def moe_tensors(model: ModelSpec, moe: MoeSpec, element: int, fused: bool) -> list[Tensor]:
    """Dispatched tokens, inner tensors of the routed and shared experts, the router."""
    h, k = model.hidden_size, moe.experts_per_token
    tensors = [
        Tensor("expert input", element * h, Spread.EXPERT_TOKENS),
        Tensor("expert inner", _inner_copies(model, fused) * element * moe.moe_ffn_hidden_size, Spread.EXPERT_INNER),
    ]
    if fused:
        # fp32 logits, probabilities and their gradients' copies, and the routing map
        tensors.append(Tensor("router", 16 * moe.num_experts, Spread.SEQUENCE))
    else:
        tensors += [
            # to be multiplied by its weight, which wants it for its gradient
            Tensor("expert output", element * h, Spread.EXPERT_TOKENS),
            # fp32 probabilities; of each chosen expert three 64-bit indices (expert, order, row) and the weight in fp32
            # and as an activation; their fp32 sum
            Tensor("router", 4 * moe.num_experts + (3 * 8 + 4 + element) * k + 4, Spread.SEQUENCE),
        ]
    if moe.num_shared_experts and moe.shared_expert_ffn_hidden_size:
        width = moe.num_shared_experts * moe.shared_expert_ffn_hidden_size
        tensors += mlp_tensors(model, width, element, fused)
        if moe.shared_expert_gate:
            tensors.append(Tensor("shared output and its gate", element * (h + 1), Spread.SEQUENCE))
    return tensors


def layer_tensors(model: ModelSpec, training: TrainingSpec, kind: LayerKind, *, fused: bool) -> list[Tensor]:
    """All that one layer of this kind keeps for its backward, without recomputation."""
    element = training.activation_bytes
    if kind.moe and model.moe:
        feed_forward = moe_tensors(model, model.moe, element, fused)
    else:
        feed_forward = mlp_tensors(model, model.ffn_hidden_size, element, fused)
    return [
        *norm_tensors(model, element),
        *attention_tensors(model, training, element, fused),
        *feed_forward,
        *dropout_tensors(model, training),
    ]


def output_gradients(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Gradients of what linears, experts and norms put out: what the weight gradients need beside the saved inputs."""
    h, element = model.hidden_size, training.activation_bytes
    # the outputs of attention and feed-forward: one and the same where both are added to the residual stream untouched
    outputs = 1 if model.parallel_block and not training.dropout else 2
    gates = 2 if model.gated_mlp else 1
    if kind.moe and model.moe:
        feed_forward = _expert_gradients(model, model.moe, element, gates)
        if not model.moe.num_shared_experts:
            outputs = 1  # the routed experts' own are counted with them
    else:
        width = gates * element * model.ffn_hidden_size
        feed_forward = [Tensor("gradients of the feed-forward", width, Spread.TENSOR)]
    residual = element * h * (outputs + model.norms_per_layer)
    return (
        *_attention_gradients(model, element),
        Tensor("gradients of the residual stream", residual, Spread.SEQUENCE),
        *feed_forward,
    )


def _attention_gradients(model: ModelSpec, element: int) -> list[Tensor]:
    """Of the projections to q, k, v, and of the norms between."""
    a, mla = model.num_attention_heads, model.mla
    if mla:
        latents = 2 * (mla.q_lora_rank or 0) + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim
        expanded = a * (2 * mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
        return [
            Tensor("gradients of the latents", element * latents, Spread.SEQUENCE),
            Tensor("gradients of q, k, v", element * expanded, Spread.TENSOR),
        ]
    width, kv_width = a * model.head_dim, model.num_query_groups * model.head_dim
    tensors = [Tensor("gradients of q, k, v", element * (width + 2 * kv_width), Spread.TENSOR)]
    if model.qk_norm != "none":
        tensors.append(Tensor("gradients of q, k behind their norm", element * (width + kv_width), Spread.TENSOR))
    return tensors


def _expert_gradients(model: ModelSpec, moe: MoeSpec, element: int, gates: int) -> list[Tensor]:
    """Of the routed experts' two products, of the router and of the shared experts' first product."""
    gated = 1 if moe.shared_expert_gate else 0
    tensors = [
        Tensor("gradients of the experts", gates * element * moe.moe_ffn_hidden_size, Spread.EXPERT_INNER),
        Tensor("gradients of the experts' outputs", element * model.hidden_size, Spread.EXPERT_TOKENS),
        Tensor("gradients of the router", element * (moe.num_experts + gated), Spread.SEQUENCE),
    ]
    if moe.num_shared_experts and moe.shared_expert_ffn_hidden_size:
        shared = moe.num_shared_experts * moe.shared_expert_ffn_hidden_size
        tensors.append(Tensor("gradients of the shared experts", gates * element * shared, Spread.TENSOR))
    return tensors


def backward_work(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Gradients alive at the worst moment of a layer's backward: residual, feed-forward input, gathered input."""
    h, element = model.hidden_size, training.activation_bytes
    if kind.moe and model.moe:
        inner = [
            Tensor("expert inner gradient", element * model.moe.moe_ffn_hidden_size, Spread.EXPERT_INNER),
            Tensor("expert input gradient", element * h, Spread.EXPERT_TOKENS),
        ]
    else:
        inner = [Tensor("feed-forward gradient", element * model.ffn_hidden_size, Spread.TENSOR)]
    return (*_residual_work(model, training), *inner, *_score_work(model, training))


def plain_backward_work(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """The same in plain torch, where every operation's gradients are tensors of their own.

    A gated activation has three alive at once, the saved product freed. Where that is less, experts have three of
    their outputs': as it comes, times the weight, and times the output for the weight's own gradient. Counted on torch
    2.13: exact for dense layers with flash attention; with dropout, experts or written-out scores on the heavy side.
    """
    h, element = model.hidden_size, training.activation_bytes
    gates = 2 if model.gated_mlp else 1
    if kind.moe and model.moe:
        width, rows = gates * element * model.moe.moe_ffn_hidden_size, 3 * element * h
        inner = Tensor("expert inner gradients", width, Spread.EXPERT_INNER)
        outer = Tensor("expert output gradients", rows, Spread.EXPERT_TOKENS)
        largest = inner if width > rows else outer
    else:
        largest = Tensor("feed-forward gradients", gates * element * model.ffn_hidden_size, Spread.TENSOR)
    return (*_residual_work(model, training), largest, *_score_work(model, training))


def _residual_work(model: ModelSpec, training: TrainingSpec) -> list[Tensor]:
    h, element = model.hidden_size, training.activation_bytes
    return [
        Tensor("residual gradient", (4 if training.dropout else 2) * h * element / 2, Spread.SEQUENCE),
        Tensor("gathered linear input", element * h, Spread.WHOLE, When.SEQUENCE_PARALLEL),
    ]


def _score_work(model: ModelSpec, training: TrainingSpec) -> list[Tensor]:
    if training.attention == "flash":
        return []
    return [Tensor("score gradients", 2 * training.activation_bytes * model.num_attention_heads, Spread.SCORES)]
