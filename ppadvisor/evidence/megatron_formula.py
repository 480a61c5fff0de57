"""What Megatron-LM's own theoretical report says of a plan: a baseline beside our memory, and nothing of ours.

megatron/training/theoretical_memory_usage.py at commit d98e8a64ddf34856e74b24714e3bedb2f5a39553 (line numbers below).
It leaves out context parallelism, uneven splits, the width of experts in activations and the last stage's logits; it
takes no schedule, no precision and no attention kernel, and nothing of what torch and the driver add.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ppadvisor.specs.model import ModelSpec, MoeSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

PAD = 128
"""The vocabulary is padded to a multiple of this times t (its --make-vocab-size-divisible-by)."""

EXTRA = 1.05
"""The factor that it puts on activations without sequence parallelism (:382-453)."""


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer, by how tensor parallelism treats them."""

    sharded: int
    """Divided by t."""
    replicated: int
    """Norms and routers: whole on every rank of t."""
    experts: int
    """Routed experts, divided by their own ways."""


@dataclass(frozen=True)
class ShardParameters:
    """Parameters of the most loaded rank; fractions where the formula divides unevenly."""

    sharded: float
    replicated: float
    experts: float

    @property
    def total(self) -> float:
        return self.sharded + self.replicated + self.experts


@dataclass(frozen=True)
class MegatronFormula:
    """What it prints, there in MB of 2^20: the most loaded rank, which it takes to be on the first stage."""

    weight_and_optimizer_bytes: float
    activation_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.weight_and_optimizer_bytes + self.activation_bytes


def megatron_formula(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> MegatronFormula:
    """Bytes of weights, gradients and optimizer, and of activations, as `report_theoretical_memory` adds them (:456).

    The activation formula for sequence parallelism is taken only where the core of attention is recomputed and t > 1
    (its argument parser switches sequence parallelism off at t = 1); every other run is reported by the other one.

    Llama-2-70B, t 8, p 8, m 2: its line reads `weight and optimizer=18938.83 MB, activation=2568.01 MB`; the test of
    the published values has it, and 24 more.
    """
    divided = training.sequence_parallel and plan.tensor_parallel > 1 and plan.recompute == "selective"
    activations = activation_with_sp_bytes if divided else activation_without_sp_bytes
    return MegatronFormula(
        weight_and_optimizer_bytes=weight_and_optimizer_bytes(model, plan),
        activation_bytes=activations(model, training.sequence_length, plan),
    )


def padded_vocab_size(model: ModelSpec, plan: PlanSpec) -> int:
    """V: the vocabulary up to a multiple of 128 t."""
    multiple = PAD * plan.tensor_parallel
    return ceil(model.vocab_size / multiple) * multiple


def attention_parameters(model: ModelSpec) -> int:
    """Of one layer, biases left out (:62-93); a heads of width k, g key/value groups, hidden h, n = 1 or 2 of a norm.

    2 h a k (1 + g/a); latent attention: q + r_kv (h + a (d_q + d_v) + n) + h d_r + a d_v h, where
    q = r_q (h + a (d_q + d_r) + n), or h a (d_q + d_r) without query compression.
    """
    h, a, mla = model.hidden_size, model.num_attention_heads, model.mla
    if mla is None:
        return 2 * h * model.head_dim * (a + model.num_query_groups)
    n = norm_tensors(model)
    query_width = a * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    query = h * query_width if mla.q_lora_rank is None else mla.q_lora_rank * (h + query_width + n)
    latent = mla.kv_lora_rank * (h + a * (mla.qk_nope_head_dim + mla.v_head_dim) + n)
    return query + latent + h * mla.qk_rope_head_dim + a * mla.v_head_dim * h


def norm_tensors(model: ModelSpec) -> int:
    """n: 1 for RMSNorm, 2 for LayerNorm (:60)."""
    return 1 if model.normalization == "rmsnorm" else 2


def layer_parameters(model: ModelSpec, moe: MoeSpec | None) -> LayerParameters:
    """Of one layer, dense or MoE (:95-150): 2 h f gamma of an MLP, gamma = 3/2 with a gate."""
    h = model.hidden_size
    per_width = h * (3 if model.gated_mlp else 2)
    norms = 2 * h * norm_tensors(model)
    if moe is None:
        return LayerParameters(attention_parameters(model) + per_width * model.ffn_hidden_size, norms, 0)
    shared = per_width * moe.shared_experts_ffn_hidden_size
    router = moe.num_experts * (h + model.mlp_bias) + h * moe.shared_expert_gate
    experts = per_width * moe.moe_ffn_hidden_size * moe.num_experts
    return LayerParameters(attention_parameters(model) + shared, norms + router, experts)


def most_loaded_parameters(model: ModelSpec, plan: PlanSpec) -> ShardParameters:
    """Of the first stage (:205-267): a p-th of the layers and of the final norm, the MTP layers whole, the embedding.

    MTP layers are like the last layer (:51-57). The output layer stands beside the embedding at p = 1 only.
    """
    kinds = [model.is_moe_layer(index) for index in range(model.num_layers)]
    weights = [(kind, kinds.count(kind) / plan.pipeline_parallel) for kind in (False, True)]
    weights.append((kinds[-1], float(model.mtp_num_layers)))
    layers = [(layer_parameters(model, model.moe if kind else None), number) for kind, number in weights if number]
    tables = 2 if plan.pipeline_parallel == 1 and not model.tied_embeddings else 1
    vocabulary = model.hidden_size * padded_vocab_size(model, plan) * tables
    final_norm = model.hidden_size * norm_tensors(model) / plan.pipeline_parallel
    expert_ways = plan.expert_tensor_parallel * plan.expert_parallel
    return ShardParameters(
        sharded=(sum(one.sharded * number for one, number in layers) + vocabulary) / plan.tensor_parallel,
        replicated=sum(one.replicated * number for one, number in layers) + final_norm,
        experts=sum(one.experts * number for one, number in layers) / expert_ways,
    )


def weight_and_optimizer_bytes(model: ModelSpec, plan: PlanSpec) -> float:
    """18 bytes a parameter, or 6 + 12/q where the optimizer is divided over q ranks, whatever the precision (:293-303).

    q is d, without context parallelism; of routed experts what is left of all ranks (:212).
    """
    p, t, c, d = plan.pipeline_parallel, plan.tensor_parallel, plan.context_parallel, plan.data_parallel
    shard = most_loaded_parameters(model, plan)
    if not plan.optimizer_sharding:
        return 18.0 * shard.total
    expert_ranks = p * t * c * d // (plan.expert_tensor_parallel * plan.expert_parallel * p)
    return (shard.sharded + shard.replicated) * (6 + 12 / d) + shard.experts * (6 + 12 / expert_ranks)


def _in_flight(plan: PlanSpec) -> float:
    """K over p micro-batches of a p-th of the layers: 1 + (p−1)/(p v) interleaved, min(1, m/p) else (:342-366)."""
    p, v = plan.pipeline_parallel, plan.virtual_stages
    if p == 1:
        return 1.0
    return 1 + (p - 1) / (p * v) if v > 1 else min(1.0, plan.num_microbatches / p)


def activation_with_sp_bytes(model: ModelSpec, sequence_length: int, plan: PlanSpec) -> float:
    """{ [s b h (18 + 4 f/h) L + 8 s b p + s b h p] K + [p = 1] 4 s b h (1 + V/h) } / t (:308-379)."""
    h, p = model.hidden_size, plan.pipeline_parallel
    tokens = sequence_length * plan.micro_batch_size
    layers = tokens * (18 * h + 4 * model.ffn_hidden_size) * model.num_layers
    pipeline = (layers + 8 * tokens * p + tokens * h * p) * _in_flight(plan)
    head = 4 * tokens * (h + padded_vocab_size(model, plan)) if p == 1 else 0
    return (pipeline + head) / plan.tensor_parallel


def activation_without_sp_bytes(model: ModelSpec, sequence_length: int, plan: PlanSpec) -> float:
    """1.05 { [s b h (10 + 24/t) L + 8 s b p + s b h p] K + [p = 1] 2 (s b V/t + s b h) } (:382-453)."""
    h, p, t = model.hidden_size, plan.pipeline_parallel, plan.tensor_parallel
    tokens = sequence_length * plan.micro_batch_size
    layers = tokens * h * (10 + 24 / t) * model.num_layers
    pipeline = (layers + 8 * tokens * p + tokens * h * p) * _in_flight(plan)
    head = 2 * tokens * (padded_vocab_size(model, plan) / t + h) if p == 1 else 0
    return EXTRA * (pipeline + head)
