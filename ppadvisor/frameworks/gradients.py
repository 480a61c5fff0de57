"""Gradients of a layer that more than one framework shares: those that weight gradients wait for, those in work."""

from __future__ import annotations

from ppadvisor.frameworks.profile import Spread, Tensor, When
from ppadvisor.specs.model import LayerKind, ModelSpec, MoeSpec
from ppadvisor.specs.training import TrainingSpec

NORM_GRADIENTS = "gradients of the norms' outputs"


def output_gradients(
    model: ModelSpec, training: TrainingSpec, kind: LayerKind, *, gathered: bool = False
) -> tuple[Tensor, ...]:
    """Gradients of what linears, experts and norms put out: what the weight gradients need beside the saved inputs.

    `gathered`: linears see the whole sequence, as DTensor has it under sequence parallelism.
    """
    h, element = model.hidden_size, training.activation_bytes
    spread = Spread.WHOLE if gathered else Spread.SEQUENCE
    # the outputs of attention and feed-forward: one and the same where both are added to the residual stream untouched
    outputs = 1 if model.parallel_block and not training.dropout else 2
    gates = 2 if model.gated_mlp else 1
    if kind.moe and model.moe:
        feed_forward = _expert_gradients(model, model.moe, element, gates, spread)
        if not model.moe.num_shared_experts:
            outputs = 1  # the routed experts' own are counted with them
    else:
        width = gates * element * model.ffn_hidden_size
        feed_forward = [Tensor("gradients of the feed-forward", width, Spread.TENSOR)]
    return (
        *_attention_gradients(model, element, spread),
        Tensor("gradients of the residual stream", element * h * outputs, spread),
        Tensor(NORM_GRADIENTS, element * h * model.norms_per_layer, Spread.SEQUENCE),
        *feed_forward,
    )


def freed_tail(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Of what the last layer of a stage saved, what torch's step for the input gradient lets go of.

    What comes behind the last product, which no weight gradient needs: the experts' outputs, a dropout's mask.
    """
    tensors = []
    if kind.moe and model.moe:
        tensors.append(Tensor("expert output", training.activation_bytes * model.hidden_size, Spread.EXPERT_TOKENS))
    if training.dropout:
        tensors.append(Tensor("last dropout mask", model.hidden_size, Spread.SEQUENCE))
    return tuple(tensors)


def _attention_gradients(model: ModelSpec, element: int, spread: Spread) -> list[Tensor]:
    """Of the projections to q, k, v, and of the norms between."""
    a, mla = model.num_attention_heads, model.mla
    if mla:
        latents = 2 * (mla.q_lora_rank or 0) + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim
        expanded = a * (2 * mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
        return [
            Tensor("gradients of the latents", element * latents, spread, attention_share=1.0),
            Tensor("gradients of q, k, v", element * expanded, Spread.TENSOR, attention_share=1.0),
        ]
    width, kv_width = a * model.head_dim, model.num_query_groups * model.head_dim
    name = "gradients of q, k, v"
    tensors = [Tensor(name, element * (width + 2 * kv_width), Spread.TENSOR, attention_share=1.0)]
    if model.qk_norm != "none":
        name = "gradients of q, k behind their norm"
        tensors.append(Tensor(name, element * (width + kv_width), Spread.TENSOR, attention_share=1.0))
    return tensors


def _expert_gradients(model: ModelSpec, moe: MoeSpec, element: int, gates: int, spread: Spread) -> list[Tensor]:
    """Of the routed experts' two products, of the router and of the shared experts' first product."""
    gated = 1 if moe.shared_expert_gate else 0
    tensors = [
        Tensor("gradients of the experts", gates * element * moe.moe_ffn_hidden_size, Spread.EXPERT_INNER),
        Tensor("gradients of the experts' outputs", element * model.hidden_size, Spread.EXPERT_TOKENS),
        Tensor("gradients of the router", element * (moe.num_experts + gated), spread),
    ]
    if shared := moe.shared_experts_ffn_hidden_size:
        tensors.append(Tensor("gradients of the shared experts", gates * element * shared, Spread.TENSOR))
    return tensors


def input_step_work(
    model: ModelSpec, training: TrainingSpec, kind: LayerKind, *, gathered: bool = False
) -> tuple[tuple[Tensor, ...], ...]:
    """The worst moments of torch's step for the input gradient, with what has been put aside by then.

    At its end, all but the first norm's gradient: those of the input by q, k and v are added up, three alive at once,
    beside the residual stream's unless that is put aside itself; with written-out scores earlier, at these. In experts
    those of their input are, in front of attention. Counted on torch 2.13, `verify --memory`.
    """
    h, element = model.hidden_size, training.activation_bytes
    spread = Spread.WHOLE if gathered else Spread.SEQUENCE
    aside = output_gradients(model, training, kind, gathered=gathered)
    first_norm = Tensor(NORM_GRADIENTS, element * h * (model.norms_per_layer - 1), Spread.SEQUENCE)
    moment = [first_norm if tensor.name == NORM_GRADIENTS else tensor for tensor in aside]
    if training.attention == "flash":
        moment.append(Tensor("three gradients of an attention's input", 3 * element * h, spread))
    else:
        moment += _score_work(model, training)
    if training.dropout or gathered:
        when = When.ALWAYS if training.dropout else When.SEQUENCE_PARALLEL
        moment.append(Tensor("residual gradient", element * h, Spread.SEQUENCE, when))
    if not (kind.moe and model.moe and model.gated_mlp):
        return (tuple(moment),)
    inner = (tensor for tensor in aside if not tensor.attention_share and tensor.name != NORM_GRADIENTS)
    rows = Tensor("three gradients of the experts' input", 3 * element * h, Spread.EXPERT_TOKENS)
    return tuple(moment), (*inner, rows)


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


def last_product_work(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """What is alive beside the gradient of the feed-forward's last matrix when plain torch has made that.

    The gradient of the product's input; of its output, for experts in the place of the saved output that is freed.
    """
    moe = model.moe if kind.moe else None
    width = moe.moe_ffn_hidden_size if moe else model.ffn_hidden_size
    spread = Spread.EXPERT_INNER if moe else Spread.TENSOR
    inner = Tensor("gradient of the last product's input", training.activation_bytes * width, spread)
    return (*_residual_work(model, training), inner)


def _residual_work(model: ModelSpec, training: TrainingSpec) -> list[Tensor]:
    h, element = model.hidden_size, training.activation_bytes
    size = (4 if training.dropout else 2) * h * element / 2
    return [
        Tensor("residual gradient", size, Spread.SEQUENCE, attention_share=0.5),
        Tensor("gathered linear input", element * h, Spread.WHOLE, When.SEQUENCE_PARALLEL, attention_share=0.5),
    ]


def _score_work(model: ModelSpec, training: TrainingSpec) -> list[Tensor]:
    if training.attention == "flash":
        return []
    # of the probabilities and of the scores; with dropout the first takes the place of the dropped-out probabilities
    alive = 1 if training.dropout else 2
    size = alive * training.activation_bytes * model.num_attention_heads
    return [Tensor("score gradients", size, Spread.SCORES, attention_share=1.0)]
