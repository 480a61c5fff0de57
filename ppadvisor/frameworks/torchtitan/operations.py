"""The order of work in the words of torch.distributed.pipelining, as `_PipelineScheduleRuntime._load_csv` reads them.

Source: torch 2.13, torch/distributed/pipelining/schedules.py: a line a rank, operations between commas,
`<stage><F|B|I|W><micro-batch>`, a pair as `(0F3;3B1)OVERLAP_F_B`. Times are not part of it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ppadvisor.schedules.base import KIND_LETTERS, IntArray, Kind, RankOrder, Schedule

TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Our schedule id -> the name by which torch makes it."""
KNOWN = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD)


def untold(schedule: Schedule, kinds: Collection[int]) -> str | None:
    """Why torch cannot be told this schedule, whose order has these kinds of action; None where it can."""
    if schedule.parameter_copies > 1:
        return (
            f"torch.distributed.pipelining has each stage on one rank; schedule {schedule.id} keeps "
            f"{schedule.parameter_copies} copies"
        )
    unknown = [KIND_LETTERS[kind] for kind in kinds if kind not in KNOWN]
    if unknown:
        return (
            f"torch.distributed.pipelining has no operations {', '.join(unknown)} of schedule {schedule.id}; "
            "it knows F, B, I and W"
        )
    return None


def operations(order: RankOrder, stages: IntArray) -> list[str]:
    """What one rank does, in torch's words; `stages` are those of its chunks."""
    actions = order.actions.tolist()
    words = [f"{stages[chunk]}{KIND_LETTERS[kind]}{batch}" for kind, chunk, batch in actions]
    if order.paired is None:
        return words
    firsts = set(np.flatnonzero(order.paired).tolist())
    return [
        f"({word};{words[index + 1]})OVERLAP_F_B" if index in firsts else word
        for index, word in enumerate(words)
        if index - 1 not in firsts
    ]
