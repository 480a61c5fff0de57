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
    kind: Literal["ops", "memory", "run"]
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
