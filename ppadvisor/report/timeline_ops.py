"""The order of work as torch.distributed.pipelining reads it: `_PipelineScheduleRuntime._load_csv(file)`."""

from __future__ import annotations

from collections.abc import Sequence

from ppadvisor.engine.timeline import Timeline
from ppadvisor.errors import InputError
from ppadvisor.frameworks.torchtitan.operations import operations, untold


def render(timeline: Timeline, about: Sequence[str] = ()) -> str:
    """One line a rank; there is no place for `about`. InputError for a schedule that torch cannot be told."""
    problem = untold(timeline.schedule, timeline.kinds)
    if problem:
        raise InputError(f"--csv: {problem}")
    stages = timeline.schedule.placement(timeline.pipeline_parallel, timeline.virtual_stages)
    return "".join(f"{','.join(operations(rank.order, stages[rank.rank]))}\n" for rank in timeline.ranks)
