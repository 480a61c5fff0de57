"""Memory of the micro-batches: what waits for a backward, what is in work, logits and loss, room for hand-offs."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory_axes import STASH_AT, at_moments, by_chunk, by_plan, by_stage
from ppadvisor.engine.recomputation import layer_input_bytes, saved_per_chunk


def in_flight_at(inputs: PlanInputs) -> FloatArray:
    """Micro-batches whose activations are alive in each chunk: (plans, stages, chunks, moments).

    In the backward of the embedding those of its chunk are one fewer: that micro-batch's layers are already freed.
    """
    in_flight = by_chunk(inputs.chunk_in_flight)
    freed = by_chunk((inputs.stages.chunk_embedding > 0).astype(np.float64)) * at_moments(embedding_backward=1.0)
    return np.asarray(np.maximum(in_flight - freed, 0.0) * STASH_AT)


def saved_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """What the layers of the stage keep, times the micro-batches in flight there."""
    return by_chunk(saved_per_chunk(inputs)) * in_flight_at(inputs)


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
    return np.asarray(by_chunk(inputs.per_chunk(waiting_per_layer(inputs)) * inputs.chunks_waiting) * STASH_AT)


def waiting_head_bytes(inputs: PlanInputs) -> FloatArray:
    """Split backward: what the head holds until its weight gradient: its input, and the gradient of the logits.

    T (h / x + V / t) elements for every micro-batch that waits on the chunk with the head. Own count.
    """
    if inputs.chunks_waiting is None:
        return np.zeros((1, 1, 1, 1))
    elements = inputs.problem.model.hidden_size / inputs.sequence_ways + inputs.logits_per_token
    one = inputs.problem.training.activation_bytes * inputs.tokens * elements
    return np.asarray(by_plan(one) * by_chunk(inputs.chunks_waiting * inputs.stages.chunk_head) * STASH_AT)


def sent_outputs_bytes(inputs: PlanInputs) -> FloatArray:
    """Outputs of the stage that live until their backward, where the framework does not free them after the send.

    The last stage sends nothing. Megatron frees them (core/pipeline_parallel/schedules.py:171). DeepSpeed also keeps
    what it received beside the copy that it computes with (runtime/pipe/engine.py:607, v0.5.8).
    """
    framework, stages = inputs.problem.framework, inputs.stages
    if framework.frees_sent_outputs:
        return np.zeros((1, 1, 1, 1))
    real = (stages.count > 0)[:, :, None]
    kept = (stages.chunk_head < 1).astype(np.float64) * real
    if framework.keeps_received_inputs:
        alone = (inputs.plans.tensor_parallel == 1)[:, None, None]
        kept = kept + (stages.chunk_embedding < 1) * real * alone
    return by_plan(_kept_boundary_bytes(inputs)) * by_chunk(kept) * in_flight_at(inputs)


def embedding_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """Token ids (8 bytes a token) and, with dropout, its mask, of every micro-batch in flight on the first stage."""
    training = inputs.problem.training
    mask = inputs.problem.model.hidden_size / inputs.sequence_ways if training.dropout else 0.0
    one = inputs.tokens * (8 + mask)
    return by_plan(one) * by_chunk(inputs.stages.chunk_embedding) * in_flight_at(inputs)


def head_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """Input and output of the final norm and what the loss keeps, of every micro-batch in flight on the last stage.

    At the loss's own moments its micro-batch is counted by `logits_bytes`, so one less is counted here.
    """
    problem = inputs.problem
    norm = 2 * problem.training.activation_bytes * problem.model.hidden_size / inputs.sequence_ways
    loss = problem.framework.loss(problem.training).saved_bytes * inputs.logits_per_token
    loss = loss * (1 + problem.model.mtp_num_layers)
    in_flight = np.minimum(in_flight_at(inputs), by_plan(inputs.head_in_flight))
    kept = np.maximum(in_flight - 1.0, 0.0)
    both = by_plan(inputs.tokens * norm) * in_flight + by_plan(inputs.tokens * loss) * kept
    return both * by_chunk(inputs.stages.chunk_head)


def logits_bytes(inputs: PlanInputs) -> FloatArray:
    """Logits and loss of the micro-batch whose loss is computed, by the loss implementation: bytes per logit x T V / t.

    A trainer that holds its last logits until the next ones has them at every moment.
    With sequence parallelism the output layer also gathers its whole input.
    """
    problem = inputs.problem
    loss = problem.framework.loss(problem.training)
    logits = inputs.tokens * inputs.logits_per_token
    gathered = inputs.tokens * problem.training.activation_bytes * problem.model.hidden_size
    gathered = gathered * (inputs.sequence_ways > 1)
    # what the losses of the prediction layers keep is alive while the main loss is computed and taken back
    kept = loss.saved_bytes * problem.model.mtp_num_layers
    else_kept = dict.fromkeys(("layer_backward", "embedding_backward", "optimizer_step"), loss.kept_bytes)
    at_loss = {"loss": loss.forward_bytes + kept, "head_backward": loss.backward_bytes + kept}
    at = by_plan(logits) * at_moments(**at_loss, **else_kept)
    return (at + by_plan(gathered) * at_moments(loss=1, head_backward=1)) * by_stage(inputs.stages.has_head)


def spread_head_bytes(inputs: PlanInputs) -> FloatArray:
    """Vocabulary parallelism: what every rank keeps for its share of the head, and the first one of the embedding.

    T h times the schedule's buffers; 4 bytes of each of its T V / (t p) logits between the two steps of the head; on
    the first rank the reduced embedding of each micro-batch in flight, beside the sum with the positions, 2 T h, with
    its dropout mask. Source: sail-sg/VocabularyParallelism (commit 6191c3bf), vocab_parallel_schedule.py:270-311, :837,
    vocab_output.py:100-344, counted over its own order of work; about 1 % of the peak is still missing.
    """
    rates = np.zeros((len(inputs.plans), 2))
    spread = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.rows_by_schedule():
        rates[rows], spread[rows] = schedule.head_buffers, schedule.spreads_head
    if not spread.any():
        return np.zeros((1, 1, 1, 1))
    problem, plans = inputs.problem, inputs.plans
    hidden = inputs.tokens * problem.model.hidden_size / inputs.sequence_ways
    logits = 4 * inputs.tokens * inputs.logits_per_token / plans.pipeline_parallel * spread
    buffers = by_plan(hidden * rates[:, 0] + logits) * at_moments(layer_backward=1, embedding_backward=1)
    buffers = buffers + by_plan(hidden * rates[:, 1]) * at_moments(loss=1, head_backward=1)
    element = problem.training.activation_bytes + (1 if problem.training.dropout else 0)
    first = by_stage((inputs.stages.first_stage == 0).astype(np.float64)) * by_plan(element * hidden * spread)
    real = by_stage((inputs.stages.count > 0).astype(np.float64))
    return np.asarray(real * buffers + (first * in_flight_at(inputs)).sum(axis=2, keepdims=True))


def output_weight_gradient_bytes(inputs: PlanInputs) -> FloatArray:
    """The output layer's gradient, in the weight's precision, before it is accumulated where no buffer is kept."""
    if inputs.problem.framework.dummy_weight_gradients:
        return np.zeros((1, 1, 1, 1))
    elements = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    head = inputs.problem.training.weight_bytes * elements
    return by_plan(head) * by_stage(inputs.stages.has_head) * at_moments(head_backward=1)


def embedding_gradient_bytes(inputs: PlanInputs) -> FloatArray:
    """The dense gradient of the token table, 2 V h / t (4 in fp32), before it is accumulated on the first stage."""
    elements = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    table = inputs.problem.training.weight_bytes * elements
    return by_plan(table) * by_stage(inputs.stages.has_embedding) * at_moments(embedding_backward=1)


def _kept_boundary_bytes(inputs: PlanInputs) -> FloatArray:
    """What a rank keeps of one tensor between two stages. (plans,)"""
    if inputs.problem.framework.partitions_boundaries and not inputs.problem.training.sequence_parallel:
        return layer_input_bytes(inputs) / inputs.plans.tensor_parallel
    return layer_input_bytes(inputs)


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
    """Room for what is received from neighbouring stages.

    Where every micro-batch has a buffer of its own, what was received into it is the very input that the first layer
    keeps: those in flight, or waiting for their weight gradient, are counted with the saved activations already (as
    torch's engine was measured).
    """
    buffers = by_stage(receive_buffers(inputs))
    if inputs.problem.framework.keeps_all_receive_buffers:
        receives = by_chunk((inputs.stages.chunk_embedding < 1).astype(np.float64))
        kept = in_flight_at(inputs)
        if inputs.chunks_waiting is not None:
            kept = kept + by_chunk(inputs.chunks_waiting) * STASH_AT
        buffers = np.maximum(buffers - (receives * kept).sum(axis=2, keepdims=True), 0.0)
    return (
        by_plan(_kept_boundary_bytes(inputs))
        * buffers
        * at_moments(layer_backward=1, loss=1, head_backward=1, embedding_backward=1)
    )
