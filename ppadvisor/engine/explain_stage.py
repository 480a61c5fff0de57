"""One stage of a plan as the explanations see it: at its highest moment, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from ppadvisor.engine.explain_inputs import PlanView
from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.memory_axes import in_flight_at, sent_at, waiting_at
from ppadvisor.engine.recomputation import kept_inputs, layer_saved, recomputed_share
from ppadvisor.engine.results import StageMemory

Worded = tuple[str, dict[str, float]]
"""A text in symbols with their values."""


@dataclass(frozen=True)
class ChunkView:
    """One chunk of a rank, and what of it is alive at the rank's highest moment."""

    index: int
    number: str
    """What its symbols carry: its index, or nothing where it is the rank's only chunk."""
    stage: int
    """In model order."""
    layers: FloatArray
    """Of each kind, (kinds,)."""
    alive: float
    """k: micro-batches whose activations it holds for their backward."""
    waiting: float
    """w: micro-batches that wait for their weight gradient."""
    sent: float
    """x: input gradients that were handed on and stay."""
    embedding: float
    """1, or the share of the embedding where that is spread."""
    head: float
    hands_over: float
    """1 where the next stage of the model is on the same rank."""
    kept_inputs: float
    """Layer inputs that it keeps for one micro-batch, where whole layers are recomputed."""
    whole_share: float
    """Of its layers, those that keep all they save."""


@dataclass(frozen=True)
class StageView:
    """One stage of a plan at its highest moment."""

    plan: PlanView
    memory: StageMemory

    @property
    def stage(self) -> int:
        return self.memory.stage

    @cached_property
    def chunks(self) -> tuple[ChunkView, ...]:
        """The chunks of the rank; one where it holds one stage of the model."""
        inputs, held = self.plan.inputs, self.plan.placement[self.stage]
        counts = (counted(inputs, self.memory.moment) for counted in (in_flight_at, waiting_at, sent_at))
        alive, waiting, sent = (count[0, self.stage] for count in counts)
        kept, share = kept_inputs(inputs)[0, self.stage], recomputed_share(inputs)[0, self.stage]
        return tuple(
            ChunkView(
                index,
                str(index) if self.plan.has_chunks else "",
                stage,
                inputs.stages.chunk_layers[0, self.stage, index],
                float(alive[index]),
                float(waiting[index]),
                float(sent[index]),
                float(inputs.stages.chunk_embedding[0, self.stage, index]),
                float(inputs.stages.chunk_head[0, self.stage, index]),
                float(inputs.stages.chunk_hands_over[0, self.stage, index]),
                float(kept[index]),
                1.0 - float(share[index]),
            )
            for index, stage in enumerate(held)
        )

    @property
    def embedding(self) -> float:
        """What the rank holds of an embedding: all (1), a share, nothing (0)."""
        return sum(chunk.embedding for chunk in self.chunks)

    @property
    def head(self) -> float:
        return sum(chunk.head for chunk in self.chunks)

    @property
    def in_pipeline(self) -> bool:
        """Whether micro-batches are being worked on."""
        return self.memory.moment != "optimizer_step"

    @property
    def share(self) -> str:
        """How embedding and head are divided over the ranks of the pipeline."""
        return " / p" if self.plan.schedule.spreads_head else ""

    def shared(self, text: str) -> str:
        """A text about embedding or head, divided as they are."""
        return f"({text}){self.share}" if self.share and " + " in text else text + self.share

    def of_stage(self, values: FloatArray) -> float:
        """The stage's number out of (plans, stages)."""
        return float(values[0, self.stage])

    def layer_sum(self, name: str, per_kind: FloatArray) -> Worded:
        """A quantity of a layer, (plans, kinds), over the layers of the stage."""
        return self.plan.layers(self.plan.inputs.stages.layers[0, self.stage], name, per_kind[0])

    def largest_kind(self, per_kind: FloatArray) -> int:
        """The kind of layer of the stage for which (plans, kinds) is largest."""
        held = self.plan.inputs.stages.layers[0, self.stage] > 0
        return int((per_kind[0] * held).argmax())

    @cached_property
    def whole_layers(self) -> FloatArray:
        """What one layer of each kind keeps without recomputation, (plans, kinds)."""
        return layer_saved(self.plan.inputs)

    def kept(self, chunks: Iterable[ChunkView], *, waiting: bool = False) -> Worded:
        """Micro-batches in flight on some of the chunks, `k` or `(k0 + k1)`, with those that wait, `(k + w)`; or ""."""
        held = list(chunks)
        values = {f"k{chunk.number}": chunk.alive for chunk in held if chunk.alive}
        values |= {f"w{chunk.number}": chunk.waiting for chunk in held if chunk.waiting and waiting}
        return _sum(list(values)), values

    def holds(self, kind: int) -> bool:
        """Whether the stage has a layer of this kind."""
        return bool(self.plan.inputs.stages.layers[0, self.stage, kind] > 0)

    def stash(self, count: Callable[[ChunkView], float], symbol: str, name: str, per_kind: FloatArray) -> Worded:
        """What layers keep for the micro-batches of each chunk: `k * n * S`, or `(k0 * n0 + k1 * n1) * S`.

        With several kinds of layer `k0 * (n0_1 * S1 + n0_2 * S2) + k1 * n1_2 * S2`; "" where nothing is kept.
        """
        one_kind = len(self.plan.inputs.kinds) == 1
        terms: list[str] = []
        values: dict[str, float] = {}
        for chunk in self.chunks:
            if not count(chunk) or not chunk.layers.any():
                continue
            layers = f"n{chunk.number}" if one_kind or not chunk.number else f"n{chunk.number}_"
            text, more = self.plan.layers(chunk.layers, name, per_kind[0], count=layers)
            terms.append(f"{symbol}{chunk.number} * {text}")
            values |= {**more, f"{symbol}{chunk.number}": count(chunk)}
        if one_kind and len(terms) > 1:
            return f"{_sum([term.removesuffix(f' * {name}') for term in terms])} * {name}", values
        return " + ".join(terms), values


def _sum(terms: list[str]) -> str:
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})" if terms else ""
