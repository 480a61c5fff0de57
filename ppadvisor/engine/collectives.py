"""Seconds of collectives on a ring and of point-to-point messages, from bytes, ranks and bandwidth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Number = float | FloatArray
"""The same for all, or one a row."""


def all_gather_s(volume_bytes: FloatArray, ranks: FloatArray, bandwidth: FloatArray, latency_s: Number) -> FloatArray:
    """All-gather to (or reduce-scatter from) `volume_bytes` on every rank: (n-1)/n V / bw + latency; 0 for one rank.

    Source: Thakur, Rabenseifner, Gropp 2005, ring algorithm. Volumes in bytes, bandwidth in bytes/s per direction.
    """
    busy = (ranks - 1) / ranks * volume_bytes / bandwidth + latency_s
    return np.asarray(busy * (ranks > 1))


def all_reduce_s(volume_bytes: FloatArray, ranks: FloatArray, bandwidth: FloatArray, latency_s: Number) -> FloatArray:
    """All-reduce of `volume_bytes`: a reduce-scatter and an all-gather, 2 (n-1)/n V / bw + latency."""
    return all_gather_s(2 * volume_bytes, ranks, bandwidth, latency_s)


def all_to_all_s(
    volume_bytes: FloatArray,
    ranks: FloatArray,
    ranks_in_node: FloatArray,
    intra_bandwidth: Number,
    inter_bandwidth: Number,
    latency_s: Number,
) -> FloatArray:
    """Every rank sends `volume_bytes` evenly to all ranks; both tiers work at once, the slower one decides."""
    outside = np.maximum(ranks - ranks_in_node, 0.0) / ranks
    inside = np.maximum(np.minimum(ranks, ranks_in_node) - 1.0, 0.0) / ranks
    busy = np.maximum(volume_bytes * inside / intra_bandwidth, volume_bytes * outside / inter_bandwidth) + latency_s
    return np.asarray(busy * (ranks > 1))
