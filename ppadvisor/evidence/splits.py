"""Layers of each stage where a record gives none, or those of a rank's chunks together."""

from __future__ import annotations

from collections.abc import Sequence


def modules_evenly(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage where embedding, layers, final norm and head are divided evenly, first stages one more."""
    base, more = divmod(num_layers + 3, stages)
    sizes = [base + (stage < more) for stage in range(stages)]
    sizes[0] -= 1
    sizes[-1] -= 2
    return tuple(sizes)


def spread(layers: int, stages: Sequence[int], *, last: int) -> list[tuple[int, int]]:
    """(stage, layers) of one rank's stages: even; embedding and head stand for a layer where it does not come out."""
    base, extra = divmod(layers, len(stages))
    inner_first = sorted(stages, key=lambda stage: (stage in (0, last), stage))
    return [(stage, base + (place < extra)) for place, stage in enumerate(inner_first)]
