"""An assumption that was fitted to measured runs of one cluster and software."""

from __future__ import annotations

from pydantic import model_validator

from ppadvisor.specs.base import Spec


class CalibratedAssumption(Spec):
    """Its value, the range that the fit leaves open, and what it was fitted to."""

    value: float
    low: float
    high: float
    source: str

    @model_validator(mode="after")
    def _within_its_range(self) -> CalibratedAssumption:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"value {self.value:g} is not within low {self.low:g} and high {self.high:g}")
        return self
