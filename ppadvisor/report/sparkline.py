"""A row of numbers in a line of text: `▁▂▄█`."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
MISSING = "×"


def sparkline(values: Sequence[float | None]) -> str:
    """One bar a value, the lowest to the highest; a cross where there is none.

    >>> sparkline([1, 2, None, 8])
    '▁▂×█'
    """
    known = [value for value in values if value is not None]
    low, span = (min(known), max(known) - min(known)) if known else (0.0, 0.0)
    steps = len(BARS) - 1
    return "".join(
        MISSING if value is None else BARS[round((value - low) / span * steps) if span else 0] for value in values
    )
