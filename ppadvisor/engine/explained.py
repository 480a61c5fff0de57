"""The parts of an explained plan, typed; dumped, they are the JSON of `explain`."""

from __future__ import annotations

from ppadvisor.engine.results import Result


class Worked(Result):
    """A formula, the same with the numbers in it, its source, and what it comes to."""

    formula: str
    substituted: str
    """Arithmetic in numbers that any program can evaluate."""
    source: str
    value: float


class BubbleExplained(Worked):
    """The bubble of equal stages with free links beside the replayed one."""

    ratio: str | None
    """The closed form as one number over another: `7/39`."""
    replayed: float
    """Stages and links as they are; by the schedule's array form where the plan was not replayed."""


class InFlightExplained(Worked):
    """Micro-batches in flight by the schedule's closed form, beside those counted in its order of work.

    In whole ranks: one chunk of v counts 1/v. The order is counted where the rank holds most bytes, which with chunks
    that differ, or split backwards, need not be where it holds most micro-batches.
    """

    counted: float | None
    """None where no order was counted: that of an asynchronous schedule, and one of very many micro-batches."""


class ChunkExplained(Result):
    """What a rank holds of one stage of the model, at its highest moment."""

    chunk: int
    """From 0: the number that k0, w0 and n0 carry."""
    stage: int
    """In model order, from 0."""
    num_layers: int
    """Those of multi-token prediction included."""
    in_flight: float
    """k: micro-batches whose activations are held for their backward."""
    waiting: float
    """w: micro-batches whose input gradient is done and whose weight gradient is not."""


class MemoryTerm(Result):
    """One memory term of one stage at its highest moment."""

    name: str
    bytes: int
    formula: str
    substituted: str
    source: str


class TimeTerm(Result):
    """One part of a step, the mean over the ranks."""

    name: str
    seconds: float
    formula: str
    substituted: str
    source: str


class Volume(Result):
    """What one rank sends for one micro-batch."""

    name: str
    bytes: int
    formula: str
    substituted: str
    source: str


class StageExplained(Result):
    """One stage at its highest moment."""

    stage: int
    num_layers: int
    parameters: Worked
    in_flight_microbatches: InFlightExplained
    chunks: tuple[ChunkExplained, ...]
    """Several with virtual stages or two copies of the model."""
    moment: str
    allocated_bytes: int
    total_bytes: int
    """The sum of the terms' bytes."""
    conservative_bytes: int
    terms: tuple[MemoryTerm, ...]


class LayerWeight(Result):
    """One weight of a layer: `count` matrices of `rows` x `columns`; a vector has 0 rows."""

    name: str
    rows: int
    columns: int
    count: int
    divided: str
    parameters: int
    """On one rank."""


class LayerTensor(Result):
    """One tensor that a layer's forward leaves for its backward."""

    name: str
    bytes_per_token: float
    divided: str
    condition: str
    formula: str
    substituted: str
    bytes: int
    """On one rank, for one micro-batch."""
    kept: bool
    """False where the plan's recomputation drops it."""


class KernelTime(Result):
    """Seconds of one piece of a layer's compute on one rank, one micro-batch."""

    name: str
    forward_s: float
    backward_s: float


class LayerExplained(Result):
    """What one layer of a kind stores, keeps and computes on one rank."""

    kind: str
    num_layers: int
    """In the whole model, multi-token prediction included."""
    weights: tuple[LayerWeight, ...]
    saved_bytes: int
    """The sum of the tensors that are kept."""
    tensors: tuple[LayerTensor, ...]
    forward_s: float
    """The sum of the kernels, but not less than the time to launch them."""
    backward_s: float
    kernels: tuple[KernelTime, ...]
    waiting_bytes: int
    """What it holds between input gradient and weight gradient; 0 where the schedule does them as one."""
    waiting: tuple[LayerTensor, ...]
    """The tensors of which that is the sum."""


class SymbolUsed(Result):
    """A symbol of the formulas."""

    symbol: str
    meaning: str
    value: float | None
    """None where it is not the same in all of them: the substituted formulas say it."""


class PlanParts(Result):
    """Everything that the engine can say about where the numbers of one plan come from."""

    bubble: BubbleExplained
    utilization: Worked
    time: tuple[TimeTerm, ...]
    stages: tuple[StageExplained, ...]
    layers: tuple[LayerExplained, ...]
    traffic: tuple[Volume, ...]
    symbols: tuple[SymbolUsed, ...]
