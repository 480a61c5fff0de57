"""What `verify` answers: one report a kind, a row for each rank and term that was compared."""

from __future__ import annotations

from typing import Any, Literal

from ppadvisor.engine.results import Result
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION


class VerifyReport(Result):
    """What every kind of comparison says. Each kind narrows `kind` and gives its own `rows`."""

    format_version: str = FORMAT_VERSION
    model_version: str = MODEL_VERSION
    kind: Literal["ops", "memory", "run", "layers"]
    agrees: bool
    """All rows agree."""
    tolerance_fraction: float
    """How far the measured may be from the predicted; 0: the same."""
    torch_version: str
    engine: str
    """What of torch did the work."""
    plan: PlanSpec | None
    """None where bare numbers were given."""
    schedule: str
    pipeline_parallel: int
    virtual_stages: int
    num_microbatches: int
    rows: tuple[Any, ...]
    disagreements: tuple[str, ...] = ()
    """Which rank and which term, in words; empty where all agree."""
    notes: tuple[str, ...]
    """What a reader must know to judge the numbers."""


class OpsRow(Result):
    """The order of one rank, ours and torch's, in torch's words."""

    rank: int
    agrees: bool
    num_operations: int
    torch_num_operations: int
    num_differences: int
    """Places at which another operation stands."""


class OpsDifference(Result):
    """One place of a rank's order at which they differ; None: the order has ended."""

    rank: int
    position: int
    predicted: str | None
    torch: str | None


class OpsReport(VerifyReport):
    """The answer of `verify --ops`."""

    kind: Literal["ops"] = "ops"
    rows: tuple[OpsRow, ...]
    differences: tuple[OpsDifference, ...]
    """The first of each rank that differs."""


class MemoryTerm(Result):
    """One part of what a rank held at its peak."""

    rank: int
    term: str
    predicted_bytes: int
    measured_bytes: int
    difference_bytes: int
    """Measured less predicted."""


class MemoryRow(Result):
    """One rank at its peak, weights, their gradients and optimizer states left out."""

    rank: int
    predicted_bytes: int
    measured_bytes: int
    difference_fraction: float
    """Measured over predicted, less 1."""
    predicted_saved_bytes: int
    """The most that is saved for a backward, at whatever moment."""
    measured_saved_bytes: int
    saved_difference_fraction: float
    predicted_moment: str
    measured_during: str
    """Torch's action (stage, F, B, I or W, micro-batch) and the operation in which the peak stood."""
    largest_term: str | None
    """The part that differs most."""
    largest_term_bytes: int
    """Measured less predicted."""
    agrees: bool


class MemoryReport(VerifyReport):
    """The answer of `verify --memory`."""

    kind: Literal["memory"] = "memory"
    framework: str
    model: str
    rows: tuple[MemoryRow, ...]
    terms: tuple[MemoryTerm, ...]


class RunTerm(Result):
    """One quantity of the whole pipeline."""

    name: str
    predicted: float
    measured: float
    difference_fraction: float
    """Measured over predicted, less 1; of the bubble, of what is no bubble, so that it compares with the step's."""
    agrees: bool


class RunRow(Result):
    """One rank in the step of median time."""

    rank: int
    num_operations: int
    num_differences: int
    """Places of the order at which it did another operation."""
    predicted_work_s: float
    work_s: float
    """In which its stages worked, the engine left out."""
    predicted_end_s: float
    """When its last action ended, from the start of the step."""
    end_s: float
    work_difference_fraction: float
    end_difference_fraction: float
    """Both of the predicted step."""
    agrees: bool


class EngineCost(Result):
    """What the engine itself takes, which no replay knows."""

    empty_step_s: float
    """A step without work: the engine and its messages alone, processes sharing the cores of this machine."""
    empty_action_s: float
    """The same for each action of the rank that does most."""
    replayed_s: float
    """The replay fed with the measured time of each kind of action on each stage."""
    between_s: float
    """What is left of the measured step: messages, and the engine between two actions."""
    inside_s: float
    """By how much the replay grew: the engine inside of actions, and work that lasted longer than it was told to."""


class RunReport(VerifyReport):
    """The answer of `verify --run`."""

    kind: Literal["run"] = "run"
    rows: tuple[RunRow, ...]
    terms: tuple[RunTerm, ...]
    engine_cost: EngineCost
    unit_s: float
    """The mean forward of a stage in this run."""
    time_scale: float | None
    """Seconds of this run for each second of the plan; None where bare numbers were given."""
    steps_s: tuple[float, ...]
    """Each measured step; the numbers above are of the median one."""
    realtime: bool
    """The system let the processes run before all others, so that a busy machine does not count."""


class LayersTerm(Result):
    """A part of the step."""

    name: str
    predicted_s: float
    measured_s: float
    """Of the median step, the slowest rank's; of what only the prediction has (`overhead`) 0."""
    difference_fraction: float | None
    """Measured over predicted, less 1; None where the machine is not the one that is predicted, or nothing is."""
    agrees: bool | None
    """None: not judged."""


class LayersRow(Result):
    """One rank. Predicted is of the plan's GPU, whatever it ran on; peaks are None on a CPU."""

    rank: int
    num_layers: int
    num_operations: int
    num_differences: int
    """Places of the order at which it did another operation."""
    predicted_forward_s: float
    """Of one micro-batch, the rank's stages together, without waiting; backward with what is recomputed."""
    forward_s: float
    predicted_backward_s: float
    backward_s: float
    predicted_allocated_bytes: int
    allocated_bytes: int | None
    """torch's peak of the tensors in the counted steps."""
    allocated_difference_fraction: float | None
    predicted_reserved_bytes: int
    reserved_bytes: int | None
    agrees: bool
    """The order, and where they are judged the allocated bytes."""


class LayersReport(VerifyReport):
    """The answer of `verify --layers`: real layers, a process a rank."""

    kind: Literal["layers"] = "layers"
    framework: str
    model: str
    gpu: str
    """That of the prediction."""
    device: Literal["cuda", "cpu"]
    device_name: str
    judged: bool
    """It ran on the GPU that is predicted, so that times and peaks are held against the prediction."""
    memory_tolerance_fraction: float
    scale: float
    """Share of the layers that was asked for; 1: all."""
    layers_per_stage: tuple[int, ...]
    rows: tuple[LayersRow, ...]
    terms: tuple[LayersTerm, ...]
    steps_s: tuple[float, ...]
    """Each counted step, the slowest rank's."""
