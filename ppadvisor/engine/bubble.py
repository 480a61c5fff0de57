"""The bubble of a fill-and-drain pipeline in exact arithmetic, for answers that must not hang on a rounded double."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

FILL_DRAIN_SCHEDULES = ("1f1b", "gpipe", "naive")
"""The schedules with this bubble; `naive` is the case m = 1. A test holds it against what they declare and replay."""


def bubble_fraction(*, pipeline_parallel: int, num_microbatches: int) -> Fraction:
    """Idle share of the rank-time of a pipeline with equal stages and free links.

    (p − 1) / (m + p − 1)

    Huang et al. 2019, GPipe, arXiv 1811.06965, section 2.3; 1F1B has the same: Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2.1 (their fraction (p − 1)/m is over ideal time: our `bubble_overhead`).

    >>> bubble_fraction(pipeline_parallel=8, num_microbatches=32)
    Fraction(7, 39)
    """
    return Fraction(pipeline_parallel - 1, num_microbatches + pipeline_parallel - 1)


def bubble_overhead(*, pipeline_parallel: int, num_microbatches: int) -> Fraction:
    """Idle time over ideal compute time of the same pipeline: (p − 1) / m.

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1.
    """
    return Fraction(pipeline_parallel - 1, num_microbatches)


def smallest_num_microbatches(*, pipeline_parallel: int, target: Fraction) -> int:
    """The fewest micro-batches m ≥ 1 whose bubble is at most `target`, for 0 < target ≤ 1.

    (p − 1)/(m + p − 1) ≤ target  ⟺  m ≥ (p − 1)(1/target − 1)

    >>> smallest_num_microbatches(pipeline_parallel=8, target=Fraction(5, 100))
    133
    """
    return max(1, ceil((pipeline_parallel - 1) * (1 / target - 1)))
