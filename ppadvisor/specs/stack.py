"""A software stack: what its kernels and its runtime reach of a GPU, by the GPU's generation."""

from __future__ import annotations

from dataclasses import fields, replace

from ppadvisor.errors import InputError
from ppadvisor.specs.assumptions import DEFAULT, Assumptions
from ppadvisor.specs.base import Spec

ANY = "any"


class Constant(Spec):
    """One assumption of a stack."""

    value: float
    low: float
    high: float
    source: str
    """Where it comes from; of a fitted one, the data that it was fitted to."""

    def check(self) -> None:
        """ValueError where the value is not within its range."""
        if not self.low <= self.value <= self.high:
            raise ValueError(f"value {self.value:g} is not within {self.low:g} to {self.high:g}")


class StackSpec(Spec):
    """Trainer, framework and kernels of a time, as one thing to calibrate: constants by GPU generation."""

    id: str
    title: str
    source: str
    constants: dict[str, dict[str, Constant]]
    """Generation, or `any`, -> assumption -> constant."""

    def check(self) -> None:
        """ValueError for an assumption that there is not."""
        names = {field.name for field in fields(Assumptions)}
        for of_generation in self.constants.values():
            unknown = sorted(set(of_generation) - names)
            if unknown:
                raise ValueError(f"unknown assumption {unknown[0]!r}")

    def applied(self, assumptions: Assumptions, architecture: str) -> Assumptions:
        """The assumptions with this stack's constants in place of the defaults; what is given or calibrated stays.

        InputError where the architecture is none that a GPU may have.
        """
        if architecture == ANY:
            raise InputError("architecture: 'any' is no generation of a GPU; leave it out")
        constants = {**self.constants.get(ANY, {}), **self.constants.get(architecture, {})}
        updates = {
            name: replace(
                getattr(assumptions, name),
                value=constant.value,
                low=constant.low,
                high=constant.high,
                source=constant.source,
                provenance=f"software stack {self.id}",
            )
            for name, constant in constants.items()
            if getattr(assumptions, name).provenance == DEFAULT
        }
        return replace(assumptions, **updates)
