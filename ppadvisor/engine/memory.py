"""Memory of every stage: named terms at a few moments; the peak is the highest moment, the sum of its terms.

Every term is a function of the plan table that returns bytes of shape (plans, stages, chunks, moments), where an
axis on which the term does not depend has length 1. A stage's terms at a moment, chunks summed, add up to what is
allocated at that moment; the allowances of the process (context, communicators, fragmentation) come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.parameters import layer_weights
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.plan import RECOMPUTE

MOMENTS: tuple[str, ...] = ("layer_backward", "loss", "head_backward", "embedding_backward", "optimizer_step")
"""layer_backward: a layer's backward starts with everything in flight. loss: the loss's worst moment. head_backward:
the output layer's backward. embedding_backward: the first stage, that micro-batch's layers already freed.
optimizer_step: nothing in flight."""

_STASH_AT = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
"""Whether the micro-batches in flight are alive at each moment (less one at embedding_backward)."""


def _at(**moments: float | FloatArray) -> FloatArray:
    """A (1, 1, 1, moments) mask with the given values, zero elsewhere."""
    return np.array([moments.get(name, 0.0) for name in MOMENTS], dtype=np.float64)[None, None, None, :]


def _stage(values: FloatArray) -> FloatArray:
    """(plans, stages) -> (plans, stages, 1, 1)."""
    return values[:, :, None, None]


def _chunk(values: FloatArray) -> FloatArray:
    """(plans, stages, chunks) -> (plans, stages, chunks, 1)."""
    return values[:, :, :, None]


def _plan(values: FloatArray) -> FloatArray:
    """(plans,) -> (plans, 1, 1, 1)."""
    return values[:, None, None, None]


def _sharded(inputs: PlanInputs, from_stage: int) -> tuple[FloatArray, FloatArray]:
    """(dense, expert) divisor of a state that ZeRO shards from stage `from_stage` on, (plans, 1)."""
    on = inputs.plans.optimizer_sharding >= from_stage
    dense = np.where(on, inputs.sharding_ways, 1.0)
    expert = np.where(on, inputs.expert_sharding_ways, 1.0)
    return dense[:, None], expert[:, None]


def _state(inputs: PlanInputs, bytes_per_parameter: float, from_stage: int) -> FloatArray:
    dense, expert = inputs.parameters
    dense_ways, expert_ways = _sharded(inputs, from_stage)
    return _stage(bytes_per_parameter * (dense / dense_ways + expert / expert_ways))


def gradient_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of one accumulated gradient element."""
    precision = inputs.problem.framework.gradient_precision(inputs.problem.training)
    return 4 if precision == "fp32" else 2


def optimizer_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of optimizer state per parameter: main weights, moments, and an fp32 gradient where gradients are 16 bit.

    Adam: 12 with fp32 gradients (18 in all with 16-bit weights), 16 with 16-bit ones (20 in all), 8 in fp32 (16 in
    all). Source: Megatron-LM docs/user-guide/features/dist_optimizer.md; Rajbhandari et al. 2020, section 3.1.
    """
    optimizer, training = inputs.problem.optimizer, inputs.problem.training
    if training.precision == "fp32":
        return optimizer.moments_bytes
    fp32_gradient = 4 if optimizer.main_weight_bytes and gradient_bytes_per_parameter(inputs) == 2 else 0
    return optimizer.main_weight_bytes + optimizer.moments_bytes + fp32_gradient


def weight_bytes_per_parameter(inputs: PlanInputs) -> int:
    """Bytes of one weight as it is stored: 2 (4 in fp32); fp8 adds its own copy and its transpose."""
    training = inputs.problem.training
    return training.weight_bytes + (2 if training.precision == "fp8" else 0)


def weights_bytes(inputs: PlanInputs) -> FloatArray:
    """Weights of the stage, divided under ZeRO-3."""
    return _state(inputs, weight_bytes_per_parameter(inputs), from_stage=3)


def gradients_bytes(inputs: PlanInputs) -> FloatArray:
    """Accumulated gradients of the stage, divided from ZeRO-2 on."""
    return _state(inputs, gradient_bytes_per_parameter(inputs), from_stage=2)


def whole_gradients_bytes(inputs: PlanInputs) -> FloatArray:
    """Gradients that stay whole until the step's only reduction, beside their sharded sum: FSDP2 under pipelining."""
    dense, expert = inputs.parameters
    shards = (inputs.plans.optimizer_sharding >= 2) & (inputs.plans.num_microbatches > 1)
    alive = shards & (inputs.sharding_ways > 1) & inputs.problem.framework.accumulates_whole_gradients
    return _stage(gradient_bytes_per_parameter(inputs) * (dense + expert) * alive[:, None])


def optimizer_states_bytes(inputs: PlanInputs) -> FloatArray:
    """Main weights and moments, divided by d c (experts: by their own data-parallel size) from ZeRO-1 on."""
    return _state(inputs, optimizer_bytes_per_parameter(inputs), from_stage=1)


def gathered_bytes_per_parameter(inputs: PlanInputs) -> FloatArray:
    """Bytes of a whole parameter of the layer in work: its gradient from ZeRO-2 on, two layers' weights in ZeRO-3."""
    zero = inputs.plans.optimizer_sharding
    per_parameter = np.where(zero >= 2, gradient_bytes_per_parameter(inputs), 0)
    per_parameter = per_parameter + np.where(zero >= 3, 2 * inputs.problem.training.weight_bytes, 0)
    return np.asarray(per_parameter * (inputs.sharding_ways > 1), dtype=np.float64)


def gathered_parameters_bytes(inputs: PlanInputs) -> FloatArray:
    """ZeRO-2 and 3: whole gradients of the layer in work; ZeRO-3: whole weights of it and of the next one."""
    dense, expert = inputs.layer_parameters
    layer = inputs.largest_layer(dense + expert) * gathered_bytes_per_parameter(inputs)[:, None]
    return _stage(layer) * _at(layer_backward=1, loss=1, head_backward=1, embedding_backward=1)


def distinct_matrix_parameters(inputs: PlanInputs) -> FloatArray:
    """Elements of one matrix of each shape in the largest layer of a stage, on one rank, (plans, stages)."""
    model = inputs.problem.model
    per_kind = []
    for kind in inputs.kinds:
        matrices = tuple(w for w in layer_weights(model, kind) if w.is_matrix)
        dense, expert = inputs.rank_parameters(matrices)
        num_experts = model.moe.num_experts if model.moe else 1
        # a rank's experts share one shape
        per_kind.append(dense + expert * inputs.plans.expert_parallel / num_experts)
    return inputs.largest_layer(np.stack(per_kind, axis=-1))


def weight_gradient_buffers_bytes(inputs: PlanInputs) -> FloatArray:
    """Transformer Engine's buffer per distinct weight shape, kept for good: one layer's matrices, one expert's.

    In the weight's precision.

    Source: TransformerEngine, get_dummy_wgrad (with gradient-accumulation fusion); the output layer has its own.
    """
    if not inputs.problem.framework.dummy_weight_gradients:
        return np.zeros((1, 1, 1, 1))
    head = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    elements = distinct_matrix_parameters(inputs) + head[:, None] * inputs.stages.has_head
    return _stage(inputs.problem.training.weight_bytes * elements)


def layer_saved(inputs: PlanInputs, *, recompute: str) -> FloatArray:
    """Bytes that one layer of each kind keeps for one micro-batch under a recomputation, (plans, kinds)."""
    problem = inputs.problem
    if recompute == "full":
        # the layer's input: divided only by sequence parallelism
        checkpoint = problem.training.activation_bytes * problem.model.hidden_size
        one = checkpoint * inputs.tokens / inputs.sequence_ways
        return np.repeat(one[:, None], len(inputs.kinds), axis=1)
    tensors = [problem.framework.saved_tensors(problem.model, problem.training, kind) for kind in inputs.kinds]
    if recompute == "selective":
        tensors = [tuple(t for t in of_kind if not t.selective) for of_kind in tensors]
    return np.stack([inputs.tensor_bytes(of_kind) for of_kind in tensors], axis=-1)


def saved_per_layer(inputs: PlanInputs) -> FloatArray:
    """Bytes one layer of each kind keeps for one micro-batch under the plan's recomputation, (plans, kinds)."""
    choices = [layer_saved(inputs, recompute=name) for name in RECOMPUTE]
    return np.asarray(np.choose(inputs.plans.recompute[:, None], choices))


def in_flight_at(inputs: PlanInputs) -> FloatArray:
    """Micro-batches whose activations are alive in each chunk: (plans, stages, chunks, moments).

    In the backward of the embedding those of its chunk are one fewer: that micro-batch's layers are already freed.
    """
    in_flight = _chunk(inputs.chunk_in_flight)
    freed = _chunk((inputs.stages.chunk_embedding > 0).astype(np.float64)) * _at(embedding_backward=1.0)
    return np.asarray(np.maximum(in_flight - freed, 0.0) * _STASH_AT)


def saved_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """What the layers of the stage keep, times the micro-batches in flight there."""
    return _chunk(inputs.per_chunk(saved_per_layer(inputs))) * in_flight_at(inputs)


def waiting_per_layer(inputs: PlanInputs) -> FloatArray:
    """Bytes one layer of each kind holds between its input gradient and its weight gradient, (plans, kinds).

    What the framework keeps there: the whole saved set (recomputed, where that was asked for) and the gradients that
    the weight gradients need.
    """
    problem = inputs.problem
    tensors = [problem.framework.waiting_tensors(problem.model, problem.training, kind) for kind in inputs.kinds]
    return np.stack([inputs.tensor_bytes(of_kind) for of_kind in tensors], axis=-1)


def waiting_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """Split backward: what waits for its weight gradient at the peak. Told apart for the plans that are shown."""
    if inputs.chunks_waiting is None:
        return np.zeros((1, 1, 1, 1))
    return np.asarray(_chunk(inputs.per_chunk(waiting_per_layer(inputs)) * inputs.chunks_waiting) * _STASH_AT)


def weight_versions_bytes(inputs: PlanInputs) -> FloatArray:
    """Asynchronous schedules: the older versions of its weights that a rank keeps for the backwards still to come."""
    versions = np.ones(inputs.stages.count.shape)
    for schedule, rows in inputs.rows_by_schedule():
        if schedule.weight_versions is not None:
            p = inputs.plans.pipeline_parallel[rows][:, None]
            versions[rows] = schedule.weight_versions(p, inputs.stages.first_stage[rows])
    dense, expert = inputs.parameters
    return _stage((versions - 1) * weight_bytes_per_parameter(inputs) * (dense + expert))


def sent_outputs_bytes(inputs: PlanInputs) -> FloatArray:
    """Outputs of the stage that live until their backward, where the framework does not free them after the send.

    The last stage sends nothing. Megatron frees them (core/pipeline_parallel/schedules.py:171).
    """
    if inputs.problem.framework.frees_sent_outputs:
        return np.zeros((1, 1, 1, 1))
    sends = _chunk((inputs.stages.chunk_head < 1).astype(np.float64) * (inputs.stages.count > 0)[:, :, None])
    return _plan(_boundary_bytes(inputs)) * sends * in_flight_at(inputs)


def embedding_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """Token ids (8 bytes a token) and, with dropout, its mask, of every micro-batch in flight on the first stage."""
    training = inputs.problem.training
    mask = inputs.problem.model.hidden_size / inputs.sequence_ways if training.dropout else 0.0
    one = inputs.tokens * (8 + mask)
    return _plan(one) * _chunk(inputs.stages.chunk_embedding) * in_flight_at(inputs)


def recomputed_layer_bytes(inputs: PlanInputs) -> FloatArray:
    """The layer in work under recomputation: what it keeps once its forward has been repeated."""
    whole = layer_saved(inputs, recompute="none")
    missing = np.maximum(whole - saved_per_layer(inputs), 0.0)
    return _stage(inputs.largest_layer(missing)) * _at(layer_backward=1)


def layer_backward_work_bytes(inputs: PlanInputs) -> FloatArray:
    """Gradients and gathered inputs alive in the backward of one layer."""
    problem = inputs.problem

    def work(tensors: tuple[Tensor, ...]) -> FloatArray:
        return inputs.tensor_bytes(tensors)

    per_kind = np.stack(
        [work(problem.framework.backward_work(problem.model, problem.training, kind)) for kind in inputs.kinds], axis=-1
    )
    return _stage(inputs.largest_layer(per_kind)) * _at(layer_backward=1)


def head_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """Input and output of the final norm and what the loss keeps, of every micro-batch in flight on the last stage.

    At the loss's own moments its micro-batch is counted by `logits_bytes`, so one less is counted here.
    """
    problem = inputs.problem
    norm = 2 * problem.training.activation_bytes * problem.model.hidden_size / inputs.sequence_ways
    loss = problem.framework.loss(problem.training).saved_bytes * inputs.vocab_size / inputs.plans.tensor_parallel
    loss = loss * (1 + problem.model.mtp_num_layers)
    in_flight = np.minimum(in_flight_at(inputs), _plan(inputs.head_in_flight))
    kept = np.maximum(in_flight - 1.0, 0.0)
    both = _plan(inputs.tokens * norm) * in_flight + _plan(inputs.tokens * loss) * kept
    return both * _chunk(inputs.stages.chunk_head)


def logits_bytes(inputs: PlanInputs) -> FloatArray:
    """Logits and loss of the micro-batch whose loss is computed, by the loss implementation: bytes per logit x T V / t.

    With sequence parallelism the output layer also gathers its whole input.
    """
    problem = inputs.problem
    loss = problem.framework.loss(problem.training)
    logits = inputs.tokens * inputs.vocab_size / inputs.plans.tensor_parallel
    gathered = inputs.tokens * problem.training.activation_bytes * problem.model.hidden_size
    gathered = gathered * (inputs.sequence_ways > 1)
    at = _plan(logits) * _at(loss=loss.forward_bytes, head_backward=loss.backward_bytes)
    return (at + _plan(gathered) * _at(loss=1, head_backward=1)) * _stage(inputs.stages.has_head)


def output_weight_gradient_bytes(inputs: PlanInputs) -> FloatArray:
    """The output layer's gradient, in the weight's precision, before it is accumulated where no buffer is kept."""
    if inputs.problem.framework.dummy_weight_gradients:
        return np.zeros((1, 1, 1, 1))
    elements = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    head = inputs.problem.training.weight_bytes * elements
    return _plan(head) * _stage(inputs.stages.has_head) * _at(head_backward=1)


def embedding_gradient_bytes(inputs: PlanInputs) -> FloatArray:
    """The dense gradient of the token table, 2 V h / t (4 in fp32), before it is accumulated on the first stage."""
    elements = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    table = inputs.problem.training.weight_bytes * elements
    return _plan(table) * _stage(inputs.stages.has_embedding) * _at(embedding_backward=1)


def _boundary_bytes(inputs: PlanInputs) -> FloatArray:
    """One tensor between two stages: s b h / (c x), x = t with sequence parallelism. (plans,)"""
    training = inputs.problem.training
    return training.activation_bytes * inputs.problem.model.hidden_size * inputs.tokens / inputs.sequence_ways


def receive_buffers(inputs: PlanInputs) -> FloatArray:
    """Tensors of a stage boundary that a rank keeps room for, (plans, stages): two, an activation and a gradient.

    torch's engine keeps one for each micro-batch and neighbouring stage: measured at p = 4, m = 8: [8, 16, 16, 8].
    """
    plans, stages = inputs.plans, inputs.stages
    pipelined = (plans.pipeline_parallel > 1)[:, None]
    if not inputs.problem.framework.keeps_all_receive_buffers:
        return 2.0 * pipelined * np.ones(stages.count.shape)
    neighbours = 2 * stages.chunk_head.shape[2] - stages.has_embedding - stages.has_head
    return np.asarray(plans.num_microbatches[:, None] * neighbours * pipelined)


def handoff_buffers_bytes(inputs: PlanInputs) -> FloatArray:
    """Room for what is received from neighbouring stages."""
    return (
        _plan(_boundary_bytes(inputs))
        * _stage(receive_buffers(inputs))
        * _at(layer_backward=1, loss=1, head_backward=1, embedding_backward=1)
    )


TERMS: tuple[tuple[str, Callable[[PlanInputs], FloatArray]], ...] = (
    ("weights", weights_bytes),
    ("gradients", gradients_bytes),
    ("whole_gradients", whole_gradients_bytes),
    ("optimizer_states", optimizer_states_bytes),
    ("gathered_parameters", gathered_parameters_bytes),
    ("weight_gradient_buffers", weight_gradient_buffers_bytes),
    ("saved_activations", saved_activations_bytes),
    ("waiting_activations", waiting_activations_bytes),
    ("weight_versions", weight_versions_bytes),
    ("sent_outputs", sent_outputs_bytes),
    ("embedding_activations", embedding_activations_bytes),
    ("recomputed_layer", recomputed_layer_bytes),
    ("layer_backward_work", layer_backward_work_bytes),
    ("head_activations", head_activations_bytes),
    ("logits", logits_bytes),
    ("output_weight_gradient", output_weight_gradient_bytes),
    ("embedding_gradient", embedding_gradient_bytes),
    ("handoff_buffers", handoff_buffers_bytes),
)
"""Everything that the allocator hands out. A new term is one function and one line here."""

ALLOWANCES: tuple[str, ...] = ("allocator_overhead", "cuda_context", "workspace", "communicator_buffers")
"""What the process holds beyond the tensors; computed from the assumptions, at every moment."""


@dataclass(frozen=True)
class MemoryTable:
    """Memory of each plan and stage at its highest moment. Bytes; (plans, stages) unless said otherwise."""

    terms: dict[str, FloatArray]
    """Each term at the stage's highest moment, allowances included; their sum is `total`."""
    allocated: FloatArray
    """What torch calls max allocated: the terms without the allowances."""
    total: FloatArray
    """What the process needs: the middle estimate."""
    high: FloatArray
    """The conservative end: the assumptions about memory at the heavy end of their ranges."""
    moment: NDArray[np.int64]
    """Index into MOMENTS."""


def memory_table(inputs: PlanInputs, *, keep_terms: bool) -> MemoryTable:
    """Evaluate every term, take each stage's highest moment. Without `keep_terms` only the sums are kept."""
    shape = (*inputs.stages.count.shape, len(MOMENTS))
    allocated_at = np.zeros(shape)
    at_moment: dict[str, FloatArray] = {}
    for name, term in TERMS:
        by_moment = term(inputs).sum(axis=2)
        allocated_at += by_moment
        if keep_terms:
            at_moment[name] = np.broadcast_to(by_moment, shape)
    moment = np.argmax(allocated_at, axis=-1)
    allocated = np.take_along_axis(allocated_at, moment[..., None], axis=-1)[..., 0]
    terms = {name: np.take_along_axis(values, moment[..., None], axis=-1)[..., 0] for name, values in at_moment.items()}
    middle, high = _allowances(inputs, allocated)
    if keep_terms:
        terms |= middle
    # padding groups hold nothing and must never bind
    real = inputs.stages.count > 0
    total = (allocated + sum(middle.values())) * real
    load = inputs.problem.assumptions.expert_load_factor
    unbalanced = _dispatched_bytes(inputs) * (load.high / load.value - 1.0)
    return MemoryTable(terms, allocated * real, total, (allocated + unbalanced + sum(high.values())) * real, moment)


def _dispatched_bytes(inputs: PlanInputs) -> FloatArray:
    """The part of the stash that grows with unbalanced routing, (plans, stages)."""
    problem = inputs.problem
    if problem.model.moe is None:
        return np.zeros(inputs.stages.count.shape)
    kept = inputs.plans.recompute != RECOMPUTE.index("full")
    per_kind = []
    for kind in inputs.kinds:
        tensors = problem.framework.saved_tensors(problem.model, problem.training, kind)
        dispatched = tuple(t for t in tensors if t.spread.name.startswith("EXPERT"))
        per_kind.append(inputs.tensor_bytes(dispatched))
    one = np.stack(per_kind, axis=-1)
    # under full recomputation only the layer in work holds its dispatched tokens
    of_chunk = inputs.per_chunk(one)
    stash = np.where(kept[:, None], (of_chunk * inputs.chunk_in_flight).sum(axis=2), inputs.largest_layer(one))
    # what waits for its weight gradient is whole, recomputed where it had to be
    return stash if inputs.chunks_waiting is None else stash + (of_chunk * inputs.chunks_waiting).sum(axis=2)


def communicator_groups(inputs: PlanInputs) -> FloatArray:
    """Process groups of more than one rank that a rank belongs to, (plans,)."""
    plans = inputs.plans
    sizes = (
        plans.tensor_parallel,
        plans.context_parallel,
        plans.data_parallel * plans.context_parallel,
        plans.pipeline_parallel,
        inputs.expert_ways,
    )
    return np.asarray(np.sum([size > 1 for size in sizes], axis=0), dtype=np.float64)


def _allowances(inputs: PlanInputs, allocated: FloatArray) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """The allowances in the middle and at the heavy end of their ranges, (plans, stages) each."""
    assumed = inputs.problem.assumptions
    ones = np.ones_like(allocated)
    groups_of_stage = communicator_groups(inputs)[:, None] * ones

    def of(end: str) -> dict[str, FloatArray]:
        return {
            "allocator_overhead": allocated * getattr(assumed.allocator_overhead, end),
            "cuda_context": ones * getattr(assumed.cuda_context_bytes, end),
            "workspace": ones * getattr(assumed.workspace_bytes, end),
            "communicator_buffers": groups_of_stage * getattr(assumed.communicator_bytes, end),
        }

    return of("value"), of("high")
