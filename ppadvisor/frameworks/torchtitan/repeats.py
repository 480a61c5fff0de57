"""What torch's checkpoint repeats and leaves behind where a split backward makes the gradients of the weights.

Torch 2.13: pipelining/_backward.py:288-347 makes them one group of weights after the other, each by a backward of its
own; utils/checkpoint.py:1086-1110 repeats a checkpointed forward once for every backward that reads of it, and keeps
for each what has a reader in the graph (`_CheckpointFrame.recomputed`), until the reader has run or is dropped: the
graph of a stage's later layers holds that of the earlier ones. Order of the weights: torchtitan's TransformerBlock
(commit 238fa995, models/llama3/model/model.py:351-383): attention, feed-forward, norms.

A group is weights whose gradients begin at the same nodes of the input's way through the layer (_backward.py:89-139,
`get_param_groups`): each matrix is one, with its bias, and each norm, each product of all routed experts, the router.
"""

from __future__ import annotations

from dataclasses import replace

from ppadvisor.frameworks.profile import Repeats, Tensor
from ppadvisor.frameworks.tensors import ACTIVATION, ATTENTION_NORM, FEED_FORWARD_NORM, layer_tensors
from ppadvisor.specs.model import LayerKind, ModelSpec
from ppadvisor.specs.training import TrainingSpec

NORMS = ("norm inputs", "norm statistics", "post-norm inputs")
ROWS = "expert input"
READ = (
    *NORMS,
    ATTENTION_NORM,
    FEED_FORWARD_NORM,
    ROWS,
    "q, k before their norm",
    "statistics of q, k",
    "latents",
    "normed latents",
    "statistics of the latents",
)
"""Tensors of a layer that only its weights' gradients read: the inputs of linears, of experts and of norms."""
PRODUCTS = (ACTIVATION, "expert activation", f"shared {ACTIVATION}")
"""What an activation makes, and the product with the other half if it is gated; the last matrix reads the product."""


def repeats(model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> Repeats:
    """Groups of weights of a layer, what a repeat for each of them leaves, and the moments at which most is there."""
    saved = layer_tensors(model, training, kind, fused=False, gathered=True)
    kept = 0.5 if model.gated_mlp else 0.0
    left = [replace(t, bytes_per_token=t.bytes_per_token * kept) if t.name in PRODUCTS else t for t in saved]
    products = [replace(t, bytes_per_token=t.bytes_per_token * (1 - kept)) for t in saved if t.name in PRODUCTS[:2]]
    norms = [t for t in saved if t.name in NORMS]
    attention, inner = _attention_groups(model), 3 if model.gated_mlp else 2
    worst: tuple[tuple[int, tuple[Tensor, ...]], ...]
    if kind.moe and model.moe:
        later = [*products, *norms, *(t for t in saved if t.name == FEED_FORWARD_NORM)]
        first = (*later, *(t for t in saved if t.name == ROWS))
        worst = ((attention + inner - 2, first), (attention + inner - 1, tuple(later)))
        groups = inner + 1 + (inner + bool(model.moe.shared_expert_gate) if model.moe.num_shared_experts else 0)
    else:
        # of a gated one the gate comes behind the last matrix, and reads what the first has read
        again = [t for t in saved if t.name == FEED_FORWARD_NORM and model.gated_mlp]
        worst, groups = ((attention + 1, (*products, *norms, *again)),), inner
    alone = tuple(t for t in left if t.name not in READ and t.bytes_per_token)
    of_one_norm = [replace(t, bytes_per_token=t.bytes_per_token / model.norms_per_layer) for t in norms]
    return Repeats(attention + groups + model.norms_per_layer, alone, worst, tuple(of_one_norm))


def _attention_groups(model: ModelSpec) -> int:
    """Groups of weights of a layer's attention; a bias goes with its matrix."""
    if model.mla:
        return 6 + (1 if model.mla.q_lora_rank else -1)
    return 4 + (0 if model.qk_norm == "none" else 2)
