"""Traffic of a plan: per layer (tensor, context, expert parallel), between stages, per step (data parallel).

Ranks are placed as Megatron-LM and torch's device meshes place them: tensor parallel innermost, then context, data,
and pipeline outermost. A group that fits into a node uses the fast links, any other the slow ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppadvisor.engine.collectives import Number, all_gather_s, all_reduce_s, all_to_all_s
from ppadvisor.engine.compute import Pass
from ppadvisor.engine.inputs import FloatArray, PlanInputs, beside_stages
from ppadvisor.engine.once import once_per_size
from ppadvisor.engine.parameters import layer_weights
from ppadvisor.specs.model import LayerKind

IN_ONE_TENSOR = ("key", "value", "key_bias", "value_bias")
"""Of attention, what trainers keep in one tensor with the query's."""


@dataclass(frozen=True)
class Links:
    """Usable bandwidth, bytes/s per GPU and direction: a number, or one a plan where efficiencies are drawn."""

    intra: Number
    inter: Number

    @staticmethod
    def of(inputs: PlanInputs) -> Links:
        cluster, assumed = inputs.problem.cluster, inputs.problem.assumptions
        return Links(
            cluster.intra_node_bandwidth_bytes_per_s * assumed.intra_node_efficiency.value,
            cluster.inter_node_bandwidth_bytes_per_s * assumed.inter_node_efficiency.value,
        )

    def for_span(self, span: FloatArray, gpus_per_node: int) -> FloatArray:
        """Bandwidth of a group whose ranks lie within `span` consecutive ranks."""
        return np.where(span <= gpus_per_node, self.intra, np.minimum(self.inter, self.intra))


def _boundary_elements(inputs: PlanInputs) -> FloatArray:
    return inputs.tokens * inputs.problem.model.hidden_size


def tensor_parallel_pairs(inputs: PlanInputs, kind: LayerKind) -> FloatArray:
    """All-reduces (or all-gather and reduce-scatter pairs) of a layer and direction: attention, feed-forward. (plans,)

    Routed experts with etp = 1 need none; shared ones do.
    """
    moe = inputs.problem.model.moe
    if not kind.moe or moe is None:
        return np.full(len(inputs.plans), 2.0)
    return np.where((inputs.plans.expert_tensor_parallel > 1) | (moe.num_shared_experts > 0), 2.0, 1.0)


def tensor_parallel_bandwidth(inputs: PlanInputs) -> FloatArray:
    """Usable bandwidth of a tensor-parallel group, (plans,): over several nodes it shares the NICs of all its ranks."""
    ranks = inputs.plans.tensor_parallel.astype(np.float64)
    return group_bandwidth(inputs, ranks, np.ones_like(ranks))


def tensor_parallel_pass(inputs: PlanInputs, kind: LayerKind) -> Pass:
    """All-reduces of T h, in forward and backward alike.

    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
    """
    problem, t = inputs.problem, inputs.plans.tensor_parallel.astype(np.float64)
    assumed = problem.assumptions
    volume = problem.training.activation_bytes * _boundary_elements(inputs)
    one = all_reduce_s(volume, t, tensor_parallel_bandwidth(inputs), assumed.collective_latency_s.value)
    pairs = tensor_parallel_pairs(inputs, kind)
    return Pass(pairs * one, pairs * one)


def tensor_parallel_bytes(inputs: PlanInputs, *, layers: float, ranks: int) -> FloatArray:
    """Bytes that one of `ranks` tensor-parallel ranks sends for `layers` layers and one micro-batch, (plans,).

    Four all-reduces of T h a layer, forward and backward, of 2 (t-1)/t each. Source: as `tensor_parallel_pass`.
    """
    tensor = inputs.problem.training.activation_bytes * _boundary_elements(inputs)
    return np.asarray(layers * 4 * 2 * (ranks - 1) / ranks * tensor)


def key_value_width(inputs: PlanInputs) -> FloatArray:
    """Elements of one token's keys and values on one rank, (plans,)."""
    model, t = inputs.problem.model, inputs.plans.tensor_parallel
    if model.mla is None:
        return np.asarray(2 * model.num_query_groups * model.head_dim / np.minimum(t, model.num_query_groups))
    widths = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim + model.mla.v_head_dim
    return np.asarray(model.num_attention_heads * widths / t)


def context_parallel_pass(inputs: PlanInputs) -> Pass:
    """Keys and values go around the c ranks of a ring (gradients too, backward); a stated share hides under attention.

    Source: Liu et al. 2023 (arXiv 2310.01889); volume (c-1) T (k + v widths) per layer and rank.
    """
    problem, plans = inputs.problem, inputs.plans
    assumed = problem.assumptions
    c = plans.context_parallel.astype(np.float64)
    volume = c * problem.training.activation_bytes * inputs.tokens * key_value_width(inputs)
    bandwidth = Links.of(inputs).for_span(c * plans.tensor_parallel, problem.cluster.gpus_per_node)
    whole = all_gather_s(volume, c, bandwidth, assumed.collective_latency_s.value)
    exposed = (1 - assumed.context_parallel_overlap.value) * whole
    return Pass(exposed, 2 * exposed)


def expert_parallel_pass(inputs: PlanInputs, kind: LayerKind) -> Pass:
    """Dispatch and combine: two all-to-alls a MoE layer and direction, of the tokens that a rank owns.

    With expert tensor parallelism the dispatched tokens are also gathered and reduced over its ranks.
    """
    problem, plans = inputs.problem, inputs.plans
    moe, assumed = problem.model.moe, problem.assumptions
    zero = np.zeros(len(plans))
    if not kind.moe or moe is None:
        return Pass(zero, zero)
    links, node = Links.of(inputs), problem.cluster.gpus_per_node
    e, etp = plans.expert_parallel.astype(np.float64), plans.expert_tensor_parallel.astype(np.float64)
    tokens = inputs.tokens / plans.tensor_parallel * assumed.expert_load_factor.value
    volume = problem.training.activation_bytes * problem.model.hidden_size * tokens * moe.experts_per_token
    latency = assumed.collective_latency_s.value
    # the e ranks of a group stand etp apart, so a node holds node / etp of them
    exchange = all_to_all_s(volume, e, np.maximum(node / etp, 1.0), links.intra, links.inter, latency)
    gather = all_gather_s(volume * etp, etp, links.for_span(etp, node), latency)
    exposed = (1 - assumed.expert_parallel_overlap.value) * 2 * (exchange + gather)
    return Pass(exposed, exposed)


@dataclass(frozen=True)
class Handoffs:
    """One-way hand-offs over the p-1 boundaries of a pipeline, (plans,) seconds and bytes."""

    bytes: FloatArray
    sum_s: FloatArray
    max_s: FloatArray
    intra_s: FloatArray
    inter_s: FloatArray


def handoffs(inputs: PlanInputs) -> Handoffs:
    """Seconds of one tensor across each boundary: s b h / (c x) bytes over the link between the two ranks.

    A boundary crosses nodes when its ranks do: always once t c d fills a node, else at every node border.
    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 3.2; Megatron-LM schedules.py:1184.
    """
    problem, plans = inputs.problem, inputs.plans
    assumed, links = problem.assumptions, Links.of(inputs)
    volume = problem.training.activation_bytes * _boundary_elements(inputs) / inputs.sequence_ways
    intra = volume / links.intra + assumed.handoff_latency_s.value
    inter = volume / np.minimum(links.inter, links.intra) + assumed.handoff_latency_s.value
    # each chunk passes the boundaries between neighbouring ranks; a loop also goes from the last rank back to the first
    share = boundaries_between_nodes(inputs) / np.maximum(plans.pipeline_parallel - 1, 1)
    span = plans.pipeline_parallel * plans.tensor_parallel * plans.context_parallel * plans.data_parallel
    far_crossing = inputs.stages.far * (span > problem.cluster.gpus_per_node)
    crossing = share * inputs.stages.adjacent + far_crossing
    inside = inputs.stages.adjacent + inputs.stages.far - crossing
    slowest = np.where(crossing > 0, inter, np.where(inside > 0, intra, 0.0))
    return Handoffs(volume, crossing * inter + inside * intra, slowest, intra, inter)


def boundaries_between_nodes(inputs: PlanInputs) -> FloatArray:
    """How many of the p-1 boundaries lie between nodes, (plans,)."""
    plans, node = inputs.plans, inputs.problem.cluster.gpus_per_node
    width = plans.tensor_parallel * plans.context_parallel * plans.data_parallel
    nodes = -(-plans.pipeline_parallel * width // node)
    return np.where(
        width >= node, plans.pipeline_parallel - 1, np.minimum(nodes - 1, plans.pipeline_parallel - 1)
    ).astype(np.float64)


def group_bandwidth(inputs: PlanInputs, ranks: FloatArray, stride: FloatArray) -> FloatArray:
    """Bandwidth of a ring over `ranks` ranks that stand `stride` apart; inside a node they share their NICs."""
    links, node = Links.of(inputs), inputs.problem.cluster.gpus_per_node
    inside = np.clip(node / stride, 1.0, ranks)
    shared = inside**inputs.problem.assumptions.nic_sharing_exponent.value
    across = np.minimum(links.intra, links.inter * shared)
    return np.where(ranks * stride <= node, links.intra, across)


@once_per_size
def data_parallel_bytes_per_parameter(inputs: PlanInputs, gradient_bytes: int) -> FloatArray:
    """Bytes a step that are reduced and gathered for one parameter, (plans,).

    ZeRO-0 all-reduces the gradients; 1 reduce-scatters them and gathers the weights; 2 reduces every micro-batch,
    unless the framework keeps whole gradients for one reduction; 3 also gathers the weights for every forward and
    backward.
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7.
    """
    zero, m = inputs.plans.optimizer_sharding, inputs.plans.num_microbatches.astype(np.float64)
    # a pipeline's backwards follow each other too closely to reduce between them
    once = inputs.problem.framework.accumulates_whole_gradients | (inputs.plans.pipeline_parallel > 1)
    reductions = np.where((zero >= 2) & ~once, m, 1.0) * np.where(zero == 0, 2.0, 1.0) * gradient_bytes
    if inputs.problem.framework.reduces_at_the_end:
        reductions = np.full(len(inputs.plans), 2 * 4.0)
    gathers = np.where(zero == 0, 0.0, np.where(zero >= 3, 2 * m, 1.0))
    return np.asarray(reductions + gathers * inputs.problem.training.weight_bytes)


def data_parallel_overlap(inputs: PlanInputs) -> Number:
    """Share of the data-parallel traffic that hides under compute."""
    framework, assumed = inputs.problem.framework, inputs.problem.assumptions
    return 0.0 if framework.reduces_at_the_end else assumed.data_parallel_overlap.value


def data_parallel_s(inputs: PlanInputs, gradient_bytes: int) -> FloatArray:
    """Exposed seconds a step of gradient reduction and parameter gathering on each stage, (plans, stages).

    A stated share hides under compute.
    """
    assumed = inputs.problem.assumptions
    volume = data_parallel_bytes_per_parameter(inputs, gradient_bytes)[:, None]
    latency = beside_stages(assumed.collective_latency_s.value)
    total = np.zeros((1, 1))
    for parameters, (ranks, bandwidth) in zip(inputs.parameters, data_parallel_rings(inputs), strict=True):
        gathered = all_gather_s(volume * parameters, ranks[:, None], bandwidth[:, None], latency)
        # a model without experts starts no collective for them
        total = total + gathered * (parameters > 0)
    exposed = (1 - beside_stages(data_parallel_overlap(inputs))) * total
    return np.asarray(exposed + gathered_pieces(inputs) * beside_stages(assumed.gather_piece_s.value))


@once_per_size
def data_parallel_rings(inputs: PlanInputs) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """(ranks, bandwidth) of the ring that shares (dense, routed-expert) parameters, (plans,) each."""
    stride = inputs.plans.tensor_parallel.astype(np.float64)
    dense, expert = inputs.sharding_ways, inputs.expert_sharding_ways
    among_experts = group_bandwidth(inputs, expert, inputs.expert_ways.astype(np.float64))
    return (dense, group_bandwidth(inputs, dense, stride)), (expert, among_experts)


def gathered_pieces(inputs: PlanInputs) -> FloatArray:
    """Pieces, one a rank and tensor, that ZeRO-3 handles a step, (plans, stages).

    Each matrix is gathered for the forward, again for the backward and again where that repeats the forward; each
    tensor's gradient is reduced. Biases and norms are too small to be divided (DeepSpeed's
    stage3_param_persistence_threshold). Source: DeepSpeed runtime/zero/partition_parameters.py.
    """
    plans, model = inputs.plans, inputs.problem.model
    rows = plans.optimizer_sharding >= 3
    if not rows.any():
        return np.zeros(inputs.stages.count.shape)
    gathers = 2.0 + plans.recomputed_fully()
    pieces = np.zeros(inputs.stages.count.shape)
    for index, kind in enumerate(inputs.kinds):
        weights = [weight for weight in layer_weights(model, kind) if weight.name not in IN_ONE_TENSOR]
        matrices = sum(weight.is_matrix for weight in weights)
        biases_of_norms = model.norms_per_layer * (model.normalization == "layernorm")
        each = gathers * matrices + len(weights) + biases_of_norms
        pieces += inputs.stages.layers[:, :, index] * each[:, None]
    return np.asarray(pieces * (rows * plans.num_microbatches * inputs.sharding_ways)[:, None])


def tied_embedding_s(inputs: PlanInputs) -> FloatArray:
    """All-reduce of the two copies of a tied embedding's gradient between first and last stage, (plans,).

    None where one rank holds both ends: on a V both use one table, spread over all ranks both are cut alike.
    """
    if not inputs.problem.model.tied_embeddings:
        return np.zeros(len(inputs.plans))
    plans = inputs.plans
    volume = 4 * inputs.problem.model.hidden_size * inputs.vocab_size / plans.tensor_parallel
    apart = (plans.pipeline_parallel > 1) & ~(inputs.both_ends > 0).any(axis=1)
    ranks = np.where(apart, 2.0, 1.0)
    span = plans.pipeline_parallel * plans.tensor_parallel * plans.context_parallel * plans.data_parallel
    bandwidth = Links.of(inputs).for_span(span.astype(np.float64), inputs.problem.cluster.gpus_per_node)
    return all_reduce_s(volume, ranks, bandwidth, inputs.problem.assumptions.collective_latency_s.value)
