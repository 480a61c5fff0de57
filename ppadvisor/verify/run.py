"""`verify --run`: the schedule executed by real processes whose work is a sleep, against the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ppadvisor.errors import InputError
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES
from ppadvisor.schedules.base import Kind
from ppadvisor.schedules.replay import Replay, replay
from ppadvisor.units import format_seconds
from ppadvisor.verify.compare_run import compared
from ppadvisor.verify.job import Job, StageSeconds
from ppadvisor.verify.processes import RankProcesses
from ppadvisor.verify.results import RunReport
from ppadvisor.verify.torch_engine import UnverifiableError, require_torch
from ppadvisor.verify.torch_orders import executed_words
from ppadvisor.verify.work import Times, Work, as_torch_divides

MAX_RANKS = 8
"""More processes than that on the cores of one machine measure the machine."""
MAX_RUN_S = 3600.0
UNIT_S, STEPS, TOLERANCE = 0.05, 3, 0.06
RUNTIME = "its list-driven runtime (_PipelineScheduleRuntime)"

LONG_S = 60.0
"""Of a run that takes longer it is said beforehand."""

Progress = Callable[[Iterable[int], str, int], Iterable[int]]


def unwatched(steps: Iterable[int], _what: str, _count: int) -> Iterable[int]:
    """No progress bar."""
    return steps


def unsaid(_text: str) -> None:
    """Nobody listens."""


def verify_run(
    work: Work,
    *,
    unit: float = UNIT_S,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
    progress: Progress = unwatched,
    say: Callable[[str], None] = unsaid,
) -> RunReport:
    """Run the work and compare. `unit`: seconds of the mean forward. UnverifiableError where it cannot be run."""
    require_torch()
    if unit <= 0:
        raise InputError("--unit: a mean forward must sleep for some time; got 0")
    _check_runs(work)
    scale = unit / float(work.times.forward_s.mean())
    times = work.times.scaled(scale)
    predicted = replayed(work, as_torch_divides(work, times))
    _check_length(predicted.makespan_s, steps, say)
    own = runs_itself(work)
    order = "".join(f"{','.join(words)}\n" for words in work.words)
    with RankProcesses(_job(work, times, steps, own=own), order, predicted.makespan_s) as ranks:
        for _ in progress(ranks.steps(), f"steps of {format_seconds(predicted.makespan_s)}", ranks.num_steps):
            pass
        done = ranks.results()
    return compared(
        work,
        predicted,
        done,
        tolerance=tolerance,
        engine=TORCH_NAMES[work.schedule.id] if own else RUNTIME,
        unit_s=unit,
        time_scale=None if work.plan is None else scale,
        notes=_notes(work, times, predicted, own=own),
    )


def replayed(work: Work, times: Times) -> Replay:
    """The order of work against these times, free links: what is sent here is a few bytes."""
    return replay(
        work.orders,
        work.placement,
        forward_s=times.forward_s,
        backward_s=times.input_grad_s + times.weight_grad_s,
        input_grad_s=times.input_grad_s,
        weight_grad_s=times.weight_grad_s,
    )


def runs_itself(work: Work) -> bool:
    """Whether torch has a schedule that executes this very order."""
    size = (work.pipeline_parallel, work.num_microbatches, work.virtual_stages)
    try:
        return work.schedule.id in TORCH_NAMES and executed_words(work.schedule.id, *size) == work.words
    except ValueError:
        return False


def _check_runs(work: Work) -> None:
    """UnverifiableError for what would measure the machine, or what torch's engine gets wrong."""
    if work.pipeline_parallel > MAX_RANKS:
        raise UnverifiableError(f"--run starts a process a rank: at most {MAX_RANKS}, got p {work.pipeline_parallel}")
    check_losses(work)


def check_losses(work: Work) -> None:
    """UnverifiableError for an order whose losses torch's engine would mix up."""
    last = work.placement == work.placement.max()
    for order, on_rank in zip(work.orders, last, strict=True):
        losses = order.microbatch[(order.kind == Kind.FORWARD) & on_rank[order.chunk]].tolist()
        if losses != sorted(losses):
            raise UnverifiableError("torch's engine finds a loss by its place, and this order has them out of turn")


def _check_length(step_s: float, steps: int, say: Callable[[str], None]) -> None:
    all_s = step_s * steps
    if all_s > MAX_RUN_S:
        raise UnverifiableError(
            f"{steps} steps of {format_seconds(step_s)} are more than {format_seconds(MAX_RUN_S)}; give fewer "
            "--microbatches, fewer --steps or a shorter --unit"
        )
    if all_s > LONG_S:
        say(f"{steps} steps of {format_seconds(step_s)} take {format_seconds(all_s)}; fewer --microbatches take less")


def _job(work: Work, times: Times, steps: int, *, own: bool) -> Job:
    kinds = np.stack([times.forward_s, times.input_grad_s, times.weight_grad_s], axis=-1).reshape(-1, 3)
    in_model_order = kinds[np.argsort(work.placement, axis=None)].tolist()
    names = tuple(StageSeconds.model_fields)
    return Job(
        schedule=work.schedule.id if own else None,
        num_stages=len(in_model_order),
        num_microbatches=work.num_microbatches,
        stages_of_ranks=tuple(map(tuple, work.placement.tolist())),
        stages=tuple(StageSeconds(**dict(zip(names, seconds, strict=True))) for seconds in in_model_order),
        steps=steps,
    )


def _notes(work: Work, times: Times, predicted: Replay, *, own: bool) -> tuple[str, ...]:
    """What a reader must know."""
    notes = ["stage work is a sleep, hand-offs are a few bytes: the order of work is what is put to the test"]
    if work.schedule.id in TORCH_NAMES and not own:
        notes.append(f"torch's own {TORCH_NAMES[work.schedule.id]} does not do this order; it was loaded as a list")
    if work.schedule.asynchronous:
        notes.append("the schedule is made to go on without an end; here it begins and ends empty, as does its replay")
    if work.plan is not None and work.num_microbatches != work.plan.num_microbatches:
        notes.append(f"{work.num_microbatches} micro-batches were run of the plan's {work.plan.num_microbatches}")
    plain_s = replayed(work, times).makespan_s
    if abs(predicted.makespan_s / plain_s - 1) > 1e-6:
        notes.append(
            "torch does the first stage's input gradient with its weight gradient; otherwise the step would take "
            f"{format_seconds(plain_s)}"
        )
    return tuple(notes)
