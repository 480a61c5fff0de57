"""Stage times as a search asks for them: sums of all parts, ranks and single chunks apart."""

from __future__ import annotations

import numpy as np

from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.once import remembered
from ppadvisor.engine.repeated import group_repeats_s, repeating_share, repeats_some, split_share
from ppadvisor.engine.stages import Stages
from ppadvisor.engine.step_time import (
    DIRECTIONS,
    ChunkSeconds,
    Seconds,
    StageTimes,
    of_kinds,
    plain_pass,
    repeated_pass,
    with_ends,
)


@remembered
def _together(inputs: PlanInputs) -> tuple[dict[str, Seconds], FloatArray]:
    """(each direction with all its parts; what is repeated of a layer of each kind, (plans, kinds)).

    The backward with what is repeated, unless that is some of the layers of a chunk.
    """
    plain = [plain_pass(inputs, kind) for kind in inputs.kinds]
    again = of_kinds("backward", [repeated_pass(inputs, kind) for kind in inputs.kinds])
    per_kind = {name: of_kinds(name, plain) for name in (*DIRECTIONS, "weight_grad")}
    if not repeats_some(inputs):
        per_kind["backward"] = per_kind["backward"] + again
    return {name: with_ends(inputs, name, seconds) for name, seconds in per_kind.items()}, again


def search_times(inputs: PlanInputs) -> StageTimes:
    """`stage_times` in fewer steps: all work goes by the name of `compute`."""
    directions, again = _together(inputs)
    forward, backward, weight_grad = (seconds.of(inputs.stages) for seconds in directions.values())
    if repeats_some(inputs):
        backward = backward + inputs.per_chunk(again) * repeating_share(inputs)
    repeats, split = group_repeats_s(inputs, again), np.ones((1, 1, 1))
    if repeats.any():
        split = split_share(inputs)
    else:
        repeats = np.zeros((1, 1, 1))
    work = inputs.stages.all_chunks(forward + backward + repeats * split)
    return StageTimes(forward, backward, weight_grad, {"compute": work}, repeats, split)


def times_of_contents(inputs: PlanInputs, contents: Stages) -> ChunkSeconds:
    """What single chunks take that differ in nothing but what they hold: `Stages.contents` of the plans."""
    directions, _ = _together(inputs)
    forward, backward, weight_grad = (seconds.of(contents) for seconds in directions.values())
    return ChunkSeconds(forward, backward - weight_grad, weight_grad, contents.chunk_padding)
