"""What an evaluation answers, typed: the same objects for Python callers and, dumped, for JSON. Bytes and seconds."""

from __future__ import annotations

from typing import Literal

from ppadvisor.specs.base import Struct
from ppadvisor.specs.plan import PlanSpec

Verdict = Literal["fits", "borderline", "does_not_fit"]


class Result(Struct):
    """A part of an answer. It is built by the program, so nobody validates it, unless it is read back from a file."""


class StageMemory(Result):
    """One stage at its highest moment."""

    stage: int
    num_layers: int
    parameters: int
    """On one rank of the stage."""
    in_flight_microbatches: float
    moment: str
    allocated_bytes: int
    """Tensors only: what torch reports as max allocated."""
    total_bytes: int
    """The sum of `terms`: tensors and the allowances of the process."""
    conservative_bytes: int
    terms: dict[str, int]


class PlanMemory(Result):
    """Memory of a plan: the stage that binds decides."""

    peak_bytes: int
    conservative_bytes: int
    """The peak with the memory assumptions at the heavy end of their ranges."""
    allocated_bytes: int
    capacity_bytes: int
    limit_bytes: int
    """Capacity times the margin, for the middle estimate."""
    headroom_bytes: int
    """limit_bytes - peak_bytes; negative where the plan does not fit."""
    fits: bool
    verdict: Verdict
    binding_stage: int
    stages: tuple[StageMemory, ...]


class StageTime(Result):
    """Seconds of one micro-batch on one stage, and how much of the pipeline's span it waits."""

    stage: int
    forward_s: float
    backward_s: float
    idle_fraction: float


class PlanTime(Result):
    """Time of one optimizer step."""

    step_time_s: float
    pipeline_s: float
    replayed: bool
    """The order of work was run action by action; False where an array form stands in (very many micro-batches)."""
    bubble_fraction: float
    bubble_in_span_fraction: float | None
    """Idle share inside each rank's own first-to-last span, as the Zero Bubble paper counts; None if not replayed."""
    utilization_fraction: float
    equal_stage_bubble_fraction: float
    """The schedule's closed form for equal stages and free links."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flops: float
    model_flops_utilization: float
    hardware_flops_utilization: float
    handoff_bytes: int
    """One activation across one stage boundary."""
    tensor_parallel_bytes: int
    """What one rank sends for tensor parallelism in one stage and micro-batch, forward and backward."""
    terms: dict[str, float]
    stages: tuple[StageTime, ...]


class PlanEstimate(Result):
    """One plan with all that is predicted of it."""

    plan: PlanSpec
    memory: PlanMemory
    time: PlanTime


class Rejection(Result):
    """A plan that is not ranked, and why."""

    code: str
    message: str
    plan: PlanSpec
