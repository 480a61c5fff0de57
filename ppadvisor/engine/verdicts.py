"""Whether a plan fits into memory: in the middle of the estimate with a margin, at its conservative end without."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppadvisor.engine.results import Verdict

FloatArray = NDArray[np.float64]

VERDICTS: tuple[Verdict, ...] = ("fits", "borderline", "does_not_fit")


def verdict_of(peak: FloatArray, conservative: FloatArray, capacity: float, margin: float) -> NDArray[np.int64]:
    """Index into VERDICTS of each plan.

    fits: the middle estimate within margin x capacity and the conservative one within the capacity; borderline: one
    of the two; does_not_fit: neither.
    """
    passed = (peak <= margin * capacity).astype(np.int64) + (conservative <= capacity)
    return 2 - passed
