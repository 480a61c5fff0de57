"""Memory of the micro-batches: what waits for a backward, what is in work, logits and loss, room for hand-offs."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory_axes import (
    IN_PIPELINE,
    NOTHING,
    Term,
    at,
    plus,
    while_alike,
    while_in_flight,
    while_waiting,
)
from ppadvisor.engine.recomputation import layer_input_bytes, saved_per_chunk, saved_per_rank


def saved_activations_bytes(inputs: PlanInputs) -> Term:
    """What the layers of the stage keep, times the micro-batches in flight there."""
    if inputs.stash is None:
        return while_alike(inputs, *saved_per_rank(inputs))
    saved = saved_per_chunk(inputs)
    return while_in_flight(inputs, lambda in_flight: saved * in_flight)


def sent_outputs_bytes(inputs: PlanInputs) -> Term:
    """Outputs of the stage that live until their backward, where the framework does not free them after the send.

    With a split backward until the weight gradient. The last stage sends nothing, and what the next stage of the same
    rank takes over is that one's saved input. Megatron frees them (core/pipeline_parallel/schedules.py:171). DeepSpeed
    also keeps what it received beside the copy that it computes with (runtime/pipe/engine.py:607, v0.5.8).
    """
    framework, stages = inputs.problem.framework, inputs.stages
    if framework.frees_sent_outputs:
        return NOTHING
    real = (stages.count > 0)[:, :, None]
    kept = ((stages.chunk_head < 1) & (stages.chunk_hands_over < 1)).astype(np.float64) * real
    if framework.keeps_received_inputs:
        alone = (inputs.plans.tensor_parallel == 1)[:, None, None]
        kept = kept + (stages.chunk_embedding < 1) * real * alone
    each = _kept_boundary_bytes(inputs)[:, None, None] * kept
    return plus(while_in_flight(inputs, lambda in_flight: each * in_flight), while_waiting(inputs, each))


def embedding_activations_bytes(inputs: PlanInputs) -> Term:
    """Token ids (8 bytes a token) and, with dropout, its mask, of every micro-batch in flight on the first stage."""
    training = inputs.problem.training
    mask = inputs.problem.model.hidden_size / inputs.sequence_ways if training.dropout else 0.0
    each = inputs.tokens * (8 + mask)
    if inputs.stash is None:
        of_rank = each[:, None] * inputs.stages.has_embedding
        return while_alike(inputs, of_rank, of_rank)
    of_chunks = each[:, None, None] * inputs.stages.chunk_embedding
    return while_in_flight(inputs, lambda in_flight: of_chunks * in_flight)


def head_activations_bytes(inputs: PlanInputs) -> Term:
    """Input and output of the final norm and what the loss keeps, of every micro-batch in flight on the last stage.

    At the loss's own moments its micro-batch is counted by `logits_bytes`, so one less is counted here.
    """
    each = final_norm_bytes(inputs), _kept_loss_bytes(inputs), inputs.head_in_flight

    def kept(in_flight: FloatArray) -> FloatArray:
        norm, loss, most = (of_plans.reshape(-1, *(1,) * (in_flight.ndim - 1)) for of_plans in each)
        heads = np.minimum(in_flight, most)
        return np.asarray(norm * heads + loss * np.maximum(heads - 1.0, 0.0))

    if inputs.stash is None:
        return while_alike(inputs, inputs.stages.has_head, inputs.stages.head_with_embedding, kept)
    return while_in_flight(inputs, lambda in_flight: kept(in_flight) * inputs.stages.chunk_head)


def final_norm_bytes(inputs: PlanInputs) -> FloatArray:
    """Input and output of the final norm of one micro-batch, (plans,); the output as the output layer keeps it."""
    ways = 1.0 if inputs.problem.framework.keeps_gathered_inputs else inputs.sequence_ways
    return layer_input_bytes(inputs) * (1.0 + inputs.sequence_ways / ways)


def _kept_loss_bytes(inputs: PlanInputs) -> FloatArray:
    """What the loss keeps of one micro-batch, with those of the prediction layers, (plans,)."""
    problem = inputs.problem
    each = problem.framework.loss(problem.training).saved_bytes * (1 + problem.model.mtp_num_layers)
    return np.asarray(each * inputs.tokens * inputs.logits_per_token)


def kept_losses_bytes(inputs: PlanInputs) -> Term:
    """Of `head_activations_bytes`, what the loss keeps of every micro-batch but the one that `logits_bytes` counts."""
    each, most = _kept_loss_bytes(inputs)[:, None, None] * inputs.stages.chunk_head, inputs.head_in_flight
    return while_in_flight(inputs, lambda k: each * np.maximum(np.minimum(k, most[:, None, None]) - 1.0, 0.0))


def held_logits(inputs: PlanInputs) -> FloatArray:
    """Bytes of each logit of the last micro-batch that stay until the next ones are there, (plans,).

    By the loss implementation, or by the schedule's loop: torch's keep the output, in 16 bit, in a variable.
    """
    framework, training = inputs.problem.framework, inputs.problem.training
    held = np.full(len(inputs.plans), framework.loss(training).kept_bytes)
    for schedule, rows in inputs.by_schedule:
        if schedule.id in framework.holds_logits:
            held[rows] = np.maximum(held[rows], training.activation_bytes)
    return held


def logits_bytes(inputs: PlanInputs) -> Term:
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
    has_head = inputs.stages.has_head
    term = {moment: (logits * each + gathered)[:, None] * has_head for moment, each in at_loss.items()}
    held = held_logits(inputs)
    if held.any():
        term |= at((logits * held)[:, None] * has_head, "layer_backward", "embedding_backward")
    if loss.kept_bytes:
        term |= at((logits * loss.kept_bytes)[:, None] * has_head, "optimizer_step")
    return term


def spread_head_bytes(inputs: PlanInputs) -> Term:
    """Vocabulary parallelism: what every rank keeps for its share of the head, and the first one of the embedding.

    T h times the schedule's buffers; 4 bytes of each of its T V / (t p) logits between the two steps of the head; on
    the first rank the reduced embedding of each micro-batch in flight, beside the sum with the positions, 2 T h, with
    its dropout mask. Source: sail-sg/VocabularyParallelism (commit 6191c3bf), vocab_parallel_schedule.py:270-311, :837,
    vocab_output.py:100-344, counted over its own order of work; about 1 % of the peak is still missing.
    """
    if not any(schedule.spreads_head for schedule, _ in inputs.by_schedule):
        return NOTHING
    rates = np.zeros((len(inputs.plans), 2))
    spread = np.zeros(len(inputs.plans))
    for schedule, rows in inputs.by_schedule:
        rates[rows], spread[rows] = schedule.head_buffers, schedule.spreads_head
    problem, plans = inputs.problem, inputs.plans
    hidden = inputs.tokens * problem.model.hidden_size / inputs.sequence_ways
    logits = 4 * inputs.tokens * inputs.logits_per_token / plans.pipeline_parallel * spread
    real = inputs.stages.count > 0
    in_layers, in_head = (each[:, None] * real for each in (hidden * rates[:, 0] + logits, hidden * rates[:, 1]))
    element = problem.training.activation_bytes + (1 if problem.training.dropout else 0)
    first = ((inputs.stages.first_stage == 0) * (element * hidden * spread)[:, None])[:, :, None]
    buffers = at(in_layers, "layer_backward", "embedding_backward") | at(in_head, "loss", "head_backward")
    return plus(buffers, while_in_flight(inputs, lambda in_flight: first * in_flight))


def output_weight_gradient_bytes(inputs: PlanInputs) -> Term:
    """The output layer's gradient, in the weight's precision, before it is accumulated where no buffer is kept."""
    if inputs.problem.framework.dummy_weight_gradients:
        return NOTHING
    elements = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    head = inputs.problem.training.weight_bytes * elements
    return at(head[:, None] * inputs.stages.has_head, "head_backward")


def embedding_gradient_bytes(inputs: PlanInputs) -> Term:
    """The dense gradient of the token table, 2 V h / t (4 in fp32), before it is accumulated on the first stage."""
    elements = inputs.problem.model.hidden_size * inputs.vocab_size / inputs.plans.tensor_parallel
    table = inputs.problem.training.weight_bytes * elements
    return at(table[:, None] * inputs.stages.has_embedding, "embedding_backward")


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
        return np.asarray(2.0 * pipelined * np.ones_like(stages.count, dtype=np.float64))
    neighbours = 2 * stages.chunk_count.sum(axis=2) - stages.has_embedding - stages.has_head
    return np.asarray(plans.num_microbatches[:, None] * neighbours * pipelined)


def handoff_buffers_bytes(inputs: PlanInputs) -> Term:
    """Room for what is received from neighbouring stages.

    Where every micro-batch has a buffer of its own, what was received into it is the very input that the first layer
    keeps: those in flight, or waiting for their weight gradient, are counted with the saved activations already (as
    torch's engine was measured).
    """
    each, buffers = _kept_boundary_bytes(inputs)[:, None], receive_buffers(inputs)
    if not inputs.problem.framework.keeps_all_receive_buffers:
        return at(each * buffers, *IN_PIPELINE)
    receives = (inputs.stages.chunk_embedding < 1).astype(np.float64)
    kept = plus(while_in_flight(inputs, lambda in_flight: receives * in_flight), while_waiting(inputs, receives))
    return {moment: each * np.maximum(buffers - inputs_kept, 0.0) for moment, inputs_kept in kept.items()}
