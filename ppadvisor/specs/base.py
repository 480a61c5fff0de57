"""What every specification shares: it is frozen, refuses unknown keys and non-finite numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ppadvisor.errors import printable
from ppadvisor.units import LARGEST_COUNT


class Spec(BaseModel):
    """A frozen, strict record of what the user (or a preset) says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


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
