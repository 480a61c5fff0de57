"""What the prediction says of the same tensors, in the same parts: a plan's memory terms without what stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory import TERMS
from ppadvisor.engine.memory_activations import kept_losses_bytes
from ppadvisor.engine.memory_axes import MOMENTS, Term, in_table
from ppadvisor.engine.memory_waiting import held_bytes, waiting_gradients_bytes, waiting_norm_bytes
from ppadvisor.engine.pipeline import Pipeline
from ppadvisor.engine.stash import Held, Stash, stash_of
from ppadvisor.verify.memory_parts import LOGITS, OUTPUTS, PARTS, RECEIVE, SAVED, SENT, WAITING, WORK

PART_OF_TERM = {
    "saved_activations": SAVED,
    "waiting_activations": SAVED,
    "embedding_activations": SAVED,
    "head_activations": SAVED,
    "logits": LOGITS,
    "waiting_head": WAITING,
    "handoff_buffers": RECEIVE,
    "sent_outputs": OUTPUTS,
    "sent_gradients": SENT,
    "recomputed_layer": WORK,
    "layer_backward_work": WORK,
    "output_weight_gradient": WORK,
    "embedding_gradient": WORK,
}
"""The part that each term of the micro-batches is in; terms with two parts are told apart below."""


@dataclass(frozen=True)
class RankPredicted:
    """What is predicted of one rank."""

    rank: int
    parts: dict[str, float]
    moment: str
    saved_peak_bytes: float


def predicted_parts(inputs: PlanInputs) -> dict[str, FloatArray]:
    """Bytes of each part at each moment, (stages, moments)."""
    ranks = inputs.stages.count.shape
    parts = {part: np.zeros((ranks[1], len(MOMENTS))) for part in PARTS}

    def of(term: Term) -> FloatArray:
        return np.asarray(in_table(term, ranks)[0])

    for name, term in TERMS:
        if name in PART_OF_TERM:
            parts[PART_OF_TERM[name]] = parts[PART_OF_TERM[name]] + of(term(inputs))
    # what is in a term of another part: (from, to, bytes)
    for source, target, moved in (
        (SAVED, WAITING, waiting_gradients_bytes(inputs)),
        (SAVED, LOGITS, kept_losses_bytes(inputs)),
        (WAITING, SAVED, waiting_norm_bytes(inputs)),
    ):
        parts[source] = parts[source] - of(moved)
        parts[target] = parts[target] + of(moved)
    return parts


def saved_peaks(pipeline: Pipeline) -> list[float]:
    """The most that is saved on each rank, at whatever moment: what waits for its weight gradient without gradients."""
    inputs = pipeline.inputs
    saved = held_bytes(inputs).alive[0]
    one = Held(saved, saved, np.zeros_like(saved))
    assert pipeline.orders is not None
    stash = stash_of(pipeline.orders, one, np.zeros_like(saved), inputs.stages.chunk_head[0])
    peak = stash.at_peak.each(lambda values: values[None])
    most = replace(inputs, stash=Stash(peak, peak))
    return [float(peak) for peak in predicted_parts(most)[SAVED].max(axis=1)]


def predict_ranks(pipeline: Pipeline) -> list[RankPredicted]:
    """Every rank at its highest moment, as `explain` sees it but for weights, gradients and optimizer states."""
    parts = predicted_parts(pipeline.inputs)
    highest = np.argmax(sum(parts.values()), axis=1)
    saved = saved_peaks(pipeline)
    return [
        RankPredicted(
            rank,
            {part: float(values[rank, moment]) for part, values in parts.items()},
            MOMENTS[moment],
            saved[rank],
        )
        for rank, moment in enumerate(highest.tolist())
    ]
