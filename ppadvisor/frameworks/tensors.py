"""Activation tensors of transformer layers that more than one framework shares, counted one by one.

Bytes per token in 16 bit: Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1) for the GPT layer
(34 s b h with flash attention and dropout), and the same count done for gated, grouped-query, latent and MoE layers.

`fused` is about a trainer's own kernels: a gated activation in one piece that also weighs an expert's tokens, and keys
and values of latent attention each in a tensor of their own (Megatron). Without it every operation is plain torch's
own, but for norms and flash attention, which are one kernel each; that list is what torch's autograd saves, byte for
byte (tests/live/test_saved_tensors.py).

`gathered` is about sequence parallelism: torch's DTensor gathers the sequence in front of a linear, which keeps what it
got, the whole sequence on every rank (torch/distributed/tensor/parallel/style.py, PrepareModuleInput; torchtitan
models/llama3/infra/parallelize.py, apply_tp; counted in tests/live/test_gathered.py). Without it a rank keeps its part
and gathers again in the backward (Megatron-LM core/tensor_parallel/layers.py).
"""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.frameworks.profile import LossProfile, Spread, Tensor
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
ATTENTION_OUTPUT, ACTIVATION = "attention output", "feed-forward activation"
"""Tensors that a framework treats in its own way."""


def _statistics(model: ModelSpec) -> int:
    """Bytes that a norm keeps of one row, in fp32: 1 / deviation, and the mean where it takes it away."""
    return 8 if model.normalization == "layernorm" else 4


def _of_linears(gathered: bool) -> Spread:
    """How what a linear takes is divided where the sequence is."""
    return Spread.WHOLE if gathered else Spread.SEQUENCE


def norm_tensors(model: ModelSpec, training: TrainingSpec, element: int, gathered: bool = False) -> list[Tensor]:
    """Inputs of the norms (the residual stream) and their outputs (inputs of the linears behind them)."""
    linears = _of_linears(gathered)
    h = model.hidden_size
    inputs = 1 if model.parallel_block else 2
    tensors = [
        Tensor("norm inputs", inputs * element * h, Spread.SEQUENCE, attention_share=0.5),
        Tensor(ATTENTION_NORM, element * h, linears, modules=("layernorm",), attention_share=1.0),
        Tensor("norm statistics", _statistics(model) * model.norms_per_layer, Spread.SEQUENCE, attention_share=0.5),
    ]
    if model.norms_per_layer > 1:
        tensors.append(Tensor(FEED_FORWARD_NORM, element * h, linears, modules=("layernorm",)))
    if not training.fused_norm:
        # 4 bytes of fp32 in place of the input's 2, and the normalised value in front of the weight
        tensors.append(Tensor("norms in fp32", 4 * h * model.norms_per_layer, Spread.SEQUENCE, attention_share=0.5))
    if model.norms_per_layer > 2:
        # Post-norms keep their own input, the output of attention or feed-forward.
        tensors.append(Tensor("post-norm inputs", (model.norms_per_layer - 2) * element * h, Spread.SEQUENCE))
    return tensors


def attention_tensors(
    model: ModelSpec, training: TrainingSpec, element: int, fused: bool, gathered: bool = False
) -> list[Tensor]:
    """q, k, v, the attention core of the kernel in use, and the input of the output projection."""
    if model.mla:
        return [*_mla_tensors(model, model.mla, element, fused, gathered), *_core_tensors(model, training, element)]
    heads, groups = model.num_attention_heads, model.num_query_groups
    width, kv_width = heads * model.head_dim, groups * model.head_dim
    tensors = [
        Tensor("q, k, v", element * (width + 2 * kv_width), Spread.TENSOR, attention_share=1.0),
        Tensor(ATTENTION_OUTPUT, element * width, Spread.TENSOR, attention_share=1.0),
    ]
    if model.qk_norm != "none":
        # q and k before their norm are kept beside q and k after it.
        size = element * (width + kv_width)
        tensors.append(Tensor("q, k before their norm", size, Spread.TENSOR, attention_share=1.0))
        whole = model.qk_norm == "full"
        statistics = _statistics(model) * (2 if whole else heads + groups)
        spread = Spread.WHOLE if whole else Spread.TENSOR
        tensors.append(Tensor("statistics of q, k", statistics, spread, attention_share=1.0))
    if training.attention == "eager" and groups < heads:
        # The products want a key and a value for every head; those of the groups are then needed no longer.
        repeated = element * 2 * (width - kv_width)
        name = "keys and values repeated"
        tensors.append(Tensor(name, repeated, Spread.TENSOR, modules=CORE_ATTENTION, attention_share=1.0))
    return [*tensors, *_core_tensors(model, training, element)]


def _mla_tensors(model: ModelSpec, mla: MlaSpec, element: int, fused: bool, gathered: bool) -> list[Tensor]:
    """DeepSeek-V2 (arXiv 2405.04434) section 2.1: latents, the expanded q, k, v, the attention output."""
    a, qk = model.num_attention_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
    normed = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    statistics = _statistics(model) * (2 if mla.q_lora_rank else 1)
    # In plain torch v is a part of the up-projection's output, and a part keeps the whole alive: the keys too.
    v_storage = mla.v_head_dim + (0 if fused else mla.qk_nope_head_dim)
    expanded, up, spread = element * a * (2 * qk + v_storage), ("mla_up_proj",), _of_linears(gathered)
    return [
        Tensor("latents", element * (normed + mla.qk_rope_head_dim), spread, attention_share=1.0),
        Tensor("normed latents", element * normed, spread, modules=up, attention_share=1.0),
        Tensor("statistics of the latents", statistics, spread, modules=up, attention_share=1.0),
        Tensor("q, k, v", expanded, Spread.TENSOR, modules=up, attention_share=1.0),
        Tensor(ATTENTION_OUTPUT, element * a * mla.v_head_dim, Spread.TENSOR, attention_share=1.0),
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
    model: ModelSpec, width: int, element: int, fused: bool, spread: Spread, modules: tuple[str, ...]
) -> list[Tensor]:
    """First product and activation output of a feed-forward of `width`, one or many experts.

    A gated one keeps gate, up and product; in plain torch also the activated gate. `modules`: those that drop both, and
    last the one that drops only what the activation makes.
    """
    products = 2 if model.gated_mlp else 1
    activated = 2 if model.gated_mlp and not fused else 1
    first, second = ("expert first product", "expert activation")
    if spread is not Spread.EXPERT_INNER:
        first, second = "feed-forward first product", ACTIVATION
    return [
        Tensor(first, products * element * width, spread, modules=modules[:-1]),
        Tensor(second, activated * element * width, spread, modules=modules),
    ]


def mlp_tensors(model: ModelSpec, width: int, element: int, fused: bool) -> list[Tensor]:
    """Inner tensors of a dense feed-forward of `width`."""
    return _inner_tensors(model, width, element, fused, Spread.TENSOR, ("mlp", "activation"))


def moe_tensors(model: ModelSpec, moe: MoeSpec, element: int, fused: bool, gathered: bool = False) -> list[Tensor]:
    """Dispatched tokens, inner tensors of the routed and shared experts, the router."""
    h, k, moe_module, spread = model.hidden_size, moe.experts_per_token, ("moe",), _of_linears(gathered)
    tensors = [
        Tensor("expert input", element * h, Spread.EXPERT_TOKENS, modules=moe_module),
        *_inner_tensors(model, moe.moe_ffn_hidden_size, element, fused, Spread.EXPERT_INNER, (*moe_module, "moe_act")),
    ]
    if fused:
        # fp32 logits, probabilities and their gradients' copies, and the routing map
        tensors.append(Tensor("router", 16 * moe.num_experts, Spread.SEQUENCE, modules=moe_module))
    else:
        tensors += [
            # to be multiplied by its weight, which wants it for its gradient
            Tensor("expert output", element * h, Spread.EXPERT_TOKENS, modules=moe_module),
            # fp32 probabilities; of each chosen expert three 64-bit indices (expert, order, row) and the weight in fp32
            # and as an activation; their fp32 sum
            Tensor("router", 4 * moe.num_experts + (3 * 8 + 4 + element) * k + 4, spread, modules=moe_module),
        ]
    if width := moe.shared_experts_ffn_hidden_size:
        shared_modules = (*moe_module, "shared_experts", "activation")
        shared = _inner_tensors(model, width, element, fused, Spread.TENSOR, shared_modules)
        tensors += [replace(tensor, name=f"shared {tensor.name}") for tensor in shared]
        if moe.shared_expert_gate:
            name = "shared output and its gate"
            tensors.append(Tensor(name, element * (h + 1), spread, modules=moe_module))
    return tensors


def layer_tensors(
    model: ModelSpec, training: TrainingSpec, kind: LayerKind, *, fused: bool, gathered: bool = False
) -> list[Tensor]:
    """All that one layer of this kind keeps for its backward, without recomputation."""
    element = training.activation_bytes
    if kind.moe and model.moe:
        feed_forward = moe_tensors(model, model.moe, element, fused, gathered)
    else:
        feed_forward = mlp_tensors(model, model.ffn_hidden_size, element, fused)
    return [
        *norm_tensors(model, training, element, gathered),
        *attention_tensors(model, training, element, fused, gathered),
        *feed_forward,
        *dropout_tensors(model, training),
    ]
