"""The order of work as torch.distributed.pipelining reads it: `_PipelineScheduleRuntime._load_csv(file)`.

Source: torch 2.13, torch/distributed/pipelining/schedules.py: a line a rank, operations between commas,
`<stage><F|B|I|W><micro-batch>`, a pair as `(0F3;3B1)OVERLAP_F_B`. Times are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppadvisor.engine.timeline import RankTimeline, Timeline
from ppadvisor.errors import InputError
from ppadvisor.schedules.base import KIND_LETTERS, Kind

KNOWN = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD)


def render(timeline: Timeline, about: Sequence[str] = ()) -> str:
    """One line a rank; there is no place for `about`. InputError for a schedule that torch cannot be told."""
    schedule = timeline.schedule
    if schedule.parameter_copies > 1:
        raise InputError(
            f"--csv: torch.distributed.pipelining has each stage on one rank; schedule {schedule.id} keeps "
            f"{schedule.parameter_copies} copies"
        )
    unknown = [KIND_LETTERS[kind] for kind in timeline.kinds if kind not in KNOWN]
    if unknown:
        raise InputError(
            f"--csv: torch.distributed.pipelining has no operations {', '.join(unknown)} of schedule {schedule.id}; "
            "it knows F, B, I and W"
        )
    return "".join(f"{','.join(_operations(rank))}\n" for rank in timeline.ranks)


def _operations(rank: RankTimeline) -> list[str]:
    actions = rank.order.actions.tolist()
    words = [
        f"{stage}{KIND_LETTERS[kind]}{batch}"
        for stage, (kind, _, batch) in zip(rank.stage.tolist(), actions, strict=True)
    ]
    if rank.order.paired is None:
        return words
    firsts = set(np.flatnonzero(rank.order.paired).tolist())
    return [
        f"({word};{words[index + 1]})OVERLAP_F_B" if index in firsts else word
        for index, word in enumerate(words)
        if index - 1 not in firsts
    ]
