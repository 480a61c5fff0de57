"""An assumption that was fitted to measured runs of one cluster and software."""

from __future__ import annotations

from ppadvisor.specs.base import Spec


class CalibratedAssumption(Spec):
    """Its value, the range that the fit leaves open, and what it was fitted to."""

    value: float
    low: float
    high: float
    source: str

    def check(self) -> None:
        """ValueError where the value is not within its range."""
        if not self.low <= self.value <= self.high:
            raise ValueError(f"value {self.value:g} is not within low {self.low:g} and high {self.high:g}")
