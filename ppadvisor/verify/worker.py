"""One rank of a pipeline that torch runs, its work a sleep: the process that `processes` starts.

Its standard input is a pipe from who started it and never written to: when that process is gone, so is this one.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from ppadvisor.verify.job import EMPTY_STEPS, ActionDone, Folder, Job, RankDone, StepDone
from ppadvisor.verify.sleeping import WIDTH, Sleeper, sleeping_layer, timed_stage
from ppadvisor.verify.torch_engine import torch_module
from ppadvisor.verify.torch_orders import schedule_on

IMPORTED_LATE = ("torch.distributed.pipelining", "torch.distributed.pipelining.schedules")
"""Otherwise imported when they are first needed, which is in the middle of the work."""
NO_LIMIT = timedelta(days=1)
"""How long a rank waits for another one: who started them knows better when to give up."""


def end_with_parent(folder: Path) -> None:
    """End this process as soon as its standard input has no other end, and remove the files that nobody else will."""

    def watch() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock a thread must not hold at the end
        shutil.rmtree(folder, ignore_errors=True)  # other ranks do so too; the last one leaves nothing
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def first_in_line() -> Iterator[bool]:
    """Run before ordinary processes, so that a busy machine does not count; False where the system does not let it.

    Not for longer than the steps take: what computes for a second, an import, would hold up all others.
    """
    try:
        before = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):
        yield False
        return
    yield True
    os.sched_setscheduler(0, before, os.sched_param(0))


def made_schedule(job: Job, folder: Folder, stages: list[Any]) -> Any:
    """Torch's own schedule, or its runtime with our order loaded."""

    def loss(output: Any, _target: Any) -> Any:
        return output.square().sum()  # the gradient of a mere sum is one number, spread out, which cannot be sent

    if job.schedule is not None:
        return schedule_on(stages, job.schedule, job.num_microbatches, loss_fn=loss)
    runtime = torch_module("torch.distributed.pipelining.schedules")._PipelineScheduleRuntime
    made = runtime(stages, job.num_microbatches, loss_fn=loss)
    made._load_csv(str(folder.order), format="compute_only")
    return made


class Rank:
    """One rank at work."""

    def __init__(self, job: Job, folder: Folder, rank: int) -> None:
        self.torch = torch_module()
        self.sleeper, self.done = Sleeper(), list[ActionDone]()
        self.first, self.last = (stage in job.stages_of_ranks[rank] for stage in (0, job.num_stages - 1))
        self.batch = self.torch.zeros(job.num_microbatches, WIDTH)
        stages = [
            timed_stage(stage, job.num_stages, sleeping_layer(job.stages[stage], self.sleeper), self.sleeper, self.done)
            for stage in sorted(job.stages_of_ranks[rank])
        ]
        self.schedule = made_schedule(job, folder, stages)

    def step(self, *, works: bool) -> StepDone:
        """One step, which all ranks begin together."""
        self.sleeper.works = works
        self.done.clear()
        self.torch.distributed.barrier()
        given = [self.batch] if self.first else []
        target = {"target": self.batch} if self.last else {}
        begin_s = time.monotonic()
        self.schedule.step(*given, **target, return_outputs=False)
        return StepDone(begin_s=begin_s, end_s=time.monotonic(), actions=tuple(self.done))


def main(path: str, of_rank: str) -> None:
    """Run all steps of the rank and write down what it did."""
    folder, rank = Folder(Path(path)), int(of_rank)
    end_with_parent(folder.path)
    job = Job.model_validate_json(folder.job.read_text(encoding="utf-8"))
    torch = torch_module()
    torch.set_num_threads(1)
    for module in IMPORTED_LATE:
        torch_module(module)
    with first_in_line() as realtime:  # before gloo starts its threads, which are then first in line too
        meeting = torch.distributed.FileStore(str(folder.meeting), job.ranks)
        torch.distributed.init_process_group("gloo", store=meeting, rank=rank, world_size=job.ranks, timeout=NO_LIMIT)
        steps = list(all_steps(Rank(job, folder, rank), job, folder if rank == 0 else None))
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    done = RankDone(empty=tuple(steps[1:EMPTY_STEPS]), steps=tuple(steps[EMPTY_STEPS:]), realtime=realtime)
    folder.done(rank).write_text(done.model_dump_json(), encoding="utf-8")


def all_steps(rank: Rank, job: Job, folder: Folder | None) -> Iterator[StepDone]:
    """The empty steps and those with work; in the folder, if it is told to, the rank keeps count."""
    for number in range(EMPTY_STEPS + job.steps):
        yield rank.step(works=number >= EMPTY_STEPS)
        if folder is not None:
            with folder.progress.open("ab") as progress:
                progress.write(b".")
