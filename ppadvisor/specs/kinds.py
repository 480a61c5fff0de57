"""What fields of specifications may hold, for pydantic: their annotations are looked up here when it is asked."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from ppadvisor.errors import printable
from ppadvisor.units import LARGEST_COUNT

__all__ = [
    "Field",
    "Indices",
    "JsonValue",
    "NonNegativeInt",
    "PositiveBytes",
    "PositiveFloat",
    "PositiveInt",
    "Shown",
]

Shown = Annotated[str, AfterValidator(printable)]
"""Words of a file that a report repeats."""
Indices = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False)]
"""Whole numbers from 0 on; a TOML or JSON array is taken as well as a tuple."""
PositiveInt = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
"""Bounded as counts on the command line are: what is larger is a slip, and would overflow further on."""
PositiveBytes = Annotated[int, Field(gt=0)]
"""No count: more than any is allowed, as on the command line."""
NonNegativeInt = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveFloat = Annotated[float, Field(gt=0)]
