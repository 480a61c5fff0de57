"""Memory of the micro-batches: what waits for a backward, what is in work, logits and loss, room for hand-offs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory_axes import LOSS_AT, STASH_AT, at_moments, by_chunk, by_plan, by_stage
from ppadvisor.engine.recomputation import layer_input_bytes, layer_saved, saved_per_chunk
from ppadvisor.engine.stash import Held


def in_flight_at(inputs: PlanInputs) -> FloatArray:
    """Micro-batches whose activations are alive in each chunk: (plans, stages, chunks, moments).

    In the backward of the embedding those of its chunk are one fewer: that micro-batch's layers are already freed.
    """
    in_flight = _held_at(inputs, lambda held: held.alive) if inputs.stash else by_chunk(inputs.chunk_in_flight)
    freed = by_chunk((inputs.stages.chunk_embedding > 0).astype(np.float64)) * at_moments(embedding_backward=1.0)
    return np.asarray(np.maximum(in_flight - freed, 0.0) * STASH_AT)


def waiting_at(inputs: PlanInputs) -> FloatArray:
    """Micro-batches that wait for their weight gradient in each chunk: (plans, stages, chunks, moments).

    Told apart for the plans that are shown.
    """
    return _held_at(inputs, lambda held: held.waiting)


def sent_at(inputs: PlanInputs) -> FloatArray:
    """Input gradients that a split backward handed on to another rank so far in the step: as `waiting_at`."""
    receives = (inputs.stages.chunk_embedding < 1) & (inputs.stages.chunk_takes_over < 1)
    return _held_at(inputs, lambda held: held.sent) * by_chunk(receives.astype(np.float64))


def _held_at(inputs: PlanInputs, part: Callable[[Held], FloatArray]) -> FloatArray:
    """(plans, stages, chunks, moments): at the moments of the loss those of the loss, none without a stash."""
    if inputs.stash is None:
        return np.zeros((*inputs.stages.chunk_head.shape, len(STASH_AT)))
    peak, loss = (by_chunk(part(held)) for held in (inputs.stash.at_peak, inputs.stash.at_loss))
    return np.asarray((peak * (1.0 - LOSS_AT) + loss * LOSS_AT) * STASH_AT)


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


def waiting_per_chunk(inputs: PlanInputs) -> FloatArray:
    """Bytes that the layers of a chunk hold for a micro-batch that waits for its weight gradient, (plans, stages,
    chunks).

    On the model's first stage torch's engine does nothing for the input gradient, which nobody wants, and the whole
    backward at the weight gradient: till then it holds what was saved, and no gradients (pipelining/stage.py:1018-1028,
    :1085-1106).
    """
    waiting = inputs.per_chunk(waiting_per_layer(inputs)) - freed_tail_per_chunk(inputs)
    if not inputs.problem.framework.whole_backward_on_first:
        return waiting
    return np.where(inputs.stages.chunk_embedding > 0, inputs.per_chunk(layer_saved(inputs)), waiting)


def freed_tail_per_chunk(inputs: PlanInputs) -> FloatArray:
    """Bytes of a chunk's last layer that go with the input gradient, (plans, stages, chunks): of its heaviest kind."""
    problem = inputs.problem
    if problem.framework.freed_tail is None:
        return np.zeros(inputs.stages.chunk_head.shape)
    tails = [problem.framework.freed_tail(problem.model, problem.training, kind) for kind in inputs.kinds]
    per_kind = np.stack([inputs.tensor_bytes(of_kind) for of_kind in tails], axis=-1)
    return np.asarray(np.where(inputs.stages.chunk_layers > 0, per_kind[:, None, None, :], 0.0).max(axis=3))


def waiting_activations_bytes(inputs: PlanInputs) -> FloatArray:
    """Split backward: what waits for its weight gradient at the peak."""
    return by_chunk(waiting_per_chunk(inputs)) * waiting_at(inputs)


def waiting_gradients_bytes(inputs: PlanInputs) -> FloatArray:
    """Of `waiting_activations_bytes`, the gradients that the weight gradients need beside what was saved."""
    saved = inputs.per_chunk(layer_saved(inputs)) - freed_tail_per_chunk(inputs)
    gradients = np.maximum(waiting_per_chunk(inputs) - saved, 0.0)
    return by_chunk(gradients) * waiting_at(inputs)


def waiting_head_per_microbatch(inputs: PlanInputs) -> FloatArray:
    """Bytes that the head holds of a micro-batch until its weight gradient, (plans,): its input, the logits' gradient.

    T V / t elements, and T h / x, or with the input of the final norm what that keeps, where nothing is freed.
    Own count; torch's engine as run by `verify --memory`.
    """
    return (
        waiting_norm_per_microbatch(inputs)
        + inputs.problem.training.activation_bytes * inputs.tokens * inputs.logits_per_token
    )


def waiting_norm_per_microbatch(inputs: PlanInputs) -> FloatArray:
    """Of `waiting_head_per_microbatch`, what the head keeps of its input, (plans,)."""
    frees = inputs.problem.framework.frees_in_input_gradient
    return layer_input_bytes(inputs) if frees else final_norm_bytes(inputs)


def waiting_norm_bytes(inputs: PlanInputs) -> FloatArray:
    """Of `waiting_head_bytes`, what the head keeps of its input: what was saved, no gradient."""
    return by_plan(waiting_norm_per_microbatch(inputs)) * by_chunk(inputs.stages.chunk_head) * waiting_at(inputs)


def final_norm_bytes(inputs: PlanInputs) -> FloatArray:
    """Input and output of the final norm of one micro-batch, (plans,); the output as the output layer keeps it."""
    ways = 1.0 if inputs.problem.framework.keeps_gathered_inputs else inputs.sequence_ways
    return layer_input_bytes(inputs) * (1.0 + inputs.sequence_ways / ways)


def waiting_head_bytes(inputs: PlanInputs) -> FloatArray:
    """Split backward: `waiting_head_per_microbatch` for every micro-batch that waits on the chunk with the head."""
    return by_plan(waiting_head_per_microbatch(inputs)) * by_chunk(inputs.stages.chunk_head) * waiting_at(inputs)


def sent_gradients_bytes(inputs: PlanInputs) -> FloatArray:
    """Input gradients that were sent and stay to the end of the step: torch's engine, split backward.

    2 T h / x for each input gradient of the step so far on a stage that received its input from another rank: torch
    leaves it in the `.grad` of the buffer that was received into, till the next step begins (pipelining/_backward.py:
    257-261; cleared by stage.py:613-622; a whole backward clears it at once, _backward.py:444-450).
    """
    if not inputs.problem.framework.keeps_input_gradients:
        return np.zeros((1, 1, 1, 1))
    return by_plan(layer_input_bytes(inputs)) * sent_at(inputs)


def sent_outputs_bytes(inputs: PlanInputs) -> FloatArray:
    """Outputs of the stage that live until their backward, where the framework does not free them after the send.

    With a split backward until the weight gradient. The last stage sends nothing, and what the next stage of the same
    rank takes over is that one's saved input. Megatron frees them (core/pipeline_parallel/schedules.py:171). DeepSpeed
    also keeps what it received beside the copy that it computes with (runtime/pipe/engine.py:607, v0.5.8).
    """
    framework, stages = inputs.problem.framework, inputs.stages
    if framework.frees_sent_outputs:
        return np.zeros((1, 1, 1, 1))
    real = (stages.count > 0)[:, :, None]
    kept = ((stages.chunk_head < 1) & (stages.chunk_hands_over < 1)).astype(np.float64) * real
    if framework.keeps_received_inputs:
        alone = (inputs.plans.tensor_parallel == 1)[:, None, None]
        kept = kept + (stages.chunk_embedding < 1) * real * alone
    return by_plan(_kept_boundary_bytes(inputs)) * by_chunk(kept) * (in_flight_at(inputs) + waiting_at(inputs))


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
    norms = by_plan(final_norm_bytes(inputs)) * _losses_alive(inputs) * by_chunk(inputs.stages.chunk_head)
    return norms + kept_losses_bytes(inputs)


def _losses_alive(inputs: PlanInputs) -> FloatArray:
    return np.minimum(in_flight_at(inputs), by_plan(inputs.head_in_flight))


def kept_losses_bytes(inputs: PlanInputs) -> FloatArray:
    """Of `head_activations_bytes`, what the loss keeps of every micro-batch but the one that `logits_bytes` counts."""
    problem = inputs.problem
    loss = problem.framework.loss(problem.training).saved_bytes * inputs.logits_per_token
    loss = loss * (1 + problem.model.mtp_num_layers)
    kept = np.maximum(_losses_alive(inputs) - 1.0, 0.0)
    return by_plan(inputs.tokens * loss) * kept * by_chunk(inputs.stages.chunk_head)


def held_logits(inputs: PlanInputs) -> FloatArray:
    """Bytes of each logit of the last micro-batch that stay until the next ones are there, (plans,).

    By the loss implementation, or by the schedule's loop: torch's keep the output, in 16 bit, in a variable.
    """
    framework, training = inputs.problem.framework, inputs.problem.training
    held = np.full(len(inputs.plans), framework.loss(training).kept_bytes)
    for schedule, rows in inputs.rows_by_schedule():
        if schedule.id in framework.holds_logits:
            held[rows] = np.maximum(held[rows], training.activation_bytes)
    return held


def logits_bytes(inputs: PlanInputs) -> FloatArray:
    """Logits and loss of the micro-batch whose loss is computed, by the loss implementation: bytes per logit x T V / t.

    A trainer that holds its last logits until the next ones has them at every moment (`held_logits`).
    With sequence parallelism the output layer also gathers its whole input.
    """
    problem = inputs.problem
    loss = problem.framework.loss(problem.training)
    logits = inputs.tokens * inputs.logits_per_token
    gathered = inputs.tokens * problem.training.activation_bytes * problem.model.hidden_size
    gathered = gathered * ((inputs.sequence_ways > 1) & (not problem.framework.keeps_gathered_inputs))
    # what the losses of the prediction layers keep is alive while the main loss is computed and taken back
    kept = loss.saved_bytes * problem.model.mtp_num_layers
    at_loss = {"loss": loss.forward_bytes + kept, "head_backward": loss.backward_bytes + kept}
    else_kept = by_plan(held_logits(inputs)) * at_moments(layer_backward=1, embedding_backward=1)
    at = by_plan(logits) * (at_moments(**at_loss, optimizer_step=loss.kept_bytes) + else_kept)
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
        kept = in_flight_at(inputs) + waiting_at(inputs)
        buffers = np.maximum(buffers - (receives * kept).sum(axis=2, keepdims=True), 0.0)
    return (
        by_plan(_kept_boundary_bytes(inputs))
        * buffers
        * at_moments(layer_backward=1, loss=1, head_backward=1, embedding_backward=1)
    )
