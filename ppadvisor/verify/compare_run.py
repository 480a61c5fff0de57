"""A run beside the replay of its order: the step, its bubble, each rank, and what the engine itself takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ppadvisor.frameworks.torchtitan.operations import operations
from ppadvisor.schedules.base import Kind, RankOrder
from ppadvisor.schedules.replay import Replay, replay
from ppadvisor.verify.job import RankDone
from ppadvisor.verify.measured import MeasuredStep, empty_step_s, median_step, steps_of
from ppadvisor.verify.results import EngineCost, RunReport, RunRow, RunTerm
from ppadvisor.verify.torch_engine import installed_version
from ppadvisor.verify.work import Work

SLACK = 1e-3
"""By so much a measured time may be below the predicted: a clock is read at other moments. No work ends early."""


def compared(
    work: Work,
    predicted: Replay,
    done: Sequence[RankDone],
    *,
    tolerance: float,
    engine: str,
    unit_s: float,
    time_scale: float | None,
    notes: tuple[str, ...],
) -> RunReport:
    """The report on the step of median time."""
    steps = steps_of(done)
    step = median_step(steps)
    terms, rows = _terms(predicted, step, tolerance), _rows(work, predicted, step, tolerance)
    return RunReport(
        agrees=all(term.agrees for term in terms) and all(row.agrees for row in rows),
        tolerance_fraction=tolerance,
        torch_version=installed_version() or "",
        engine=engine,
        plan=work.plan,
        schedule=work.schedule.id,
        pipeline_parallel=work.pipeline_parallel,
        virtual_stages=work.virtual_stages,
        num_microbatches=work.num_microbatches,
        rows=rows,
        disagreements=tuple(_disagreements(terms, rows, tolerance)),
        notes=(*notes, *_notes(terms, done)),
        terms=terms,
        engine_cost=_engine_cost(work, predicted, step, empty_step_s(done)),
        unit_s=unit_s,
        time_scale=time_scale,
        steps_s=tuple(one.step_s for one in steps),
        realtime=all(rank.realtime for rank in done),
    )


def _within(difference: float, tolerance: float) -> bool:
    return -SLACK <= difference <= tolerance


def _terms(predicted: Replay, step: MeasuredStep, tolerance: float) -> tuple[RunTerm, ...]:
    bubble = 1.0 - sum(step.work_s) / (len(step.ranks) * step.step_s)
    slower = step.step_s / predicted.makespan_s - 1.0
    emptier = (1.0 - predicted.bubble_fraction) / (1.0 - bubble) - 1.0
    return (
        RunTerm(
            name="step_time_s",
            predicted=predicted.makespan_s,
            measured=step.step_s,
            difference_fraction=slower,
            agrees=_within(slower, tolerance),
        ),
        RunTerm(
            name="bubble_fraction",
            predicted=predicted.bubble_fraction,
            measured=bubble,
            difference_fraction=emptier,
            agrees=_within(emptier, tolerance),
        ),
    )


def _rows(work: Work, predicted: Replay, step: MeasuredStep, tolerance: float) -> tuple[RunRow, ...]:
    rows = []
    for rank, (order, actions) in enumerate(zip(work.orders, step.ranks, strict=True)):
        told = operations(RankOrder(order.actions), work.placement[rank])  # of a pair both words, as they are done
        differences = sum(one != other for one, other in zip_longest(told, [action.word for action in actions]))
        end_s, predicted_end_s = actions[-1].end_s, float(predicted.end_s[rank][-1])
        later = (end_s - predicted_end_s) / predicted.makespan_s
        work_s, predicted_work_s = step.work_s[rank], float(predicted.busy_s[rank])
        longer = (work_s - predicted_work_s) / predicted.makespan_s
        row = RunRow(
            rank=rank,
            num_operations=len(actions),
            num_differences=differences,
            predicted_work_s=predicted_work_s,
            work_s=work_s,
            predicted_end_s=predicted_end_s,
            end_s=end_s,
            work_difference_fraction=longer,
            end_difference_fraction=later,
            agrees=not differences and _within(longer, tolerance) and _within(later, tolerance),
        )
        rows.append(row)
    return tuple(rows)


def _disagreements(terms: Sequence[RunTerm], rows: Sequence[RunRow], tolerance: float) -> Iterator[str]:
    allowed = f"allowed 0 to +{tolerance * 100:g} %"
    for term in terms:
        if not term.agrees:
            what = {"step_time_s": "step time", "bubble_fraction": "bubble, as the share of work"}[term.name]
            yield f"{what}: {term.difference_fraction * 100:+.1f} %, {allowed}"
    for row in rows:
        if row.num_differences:
            yield f"rank {row.rank}, order: {row.num_differences} places of {row.num_operations} differ"
        elif not row.agrees:
            work, end = row.work_difference_fraction, row.end_difference_fraction
            yield f"rank {row.rank}: work {work * 100:+.1f} %, end {end * 100:+.1f} % of a step later, {allowed}"


def _notes(terms: Sequence[RunTerm], done: Sequence[RankDone]) -> Iterator[str]:
    """What the numbers may suffer from."""
    if not all(rank.realtime for rank in done):
        yield "the system does not let these processes run before others: on a busy machine they come late"
    if not terms[0].agrees and terms[0].difference_fraction > 0:
        yield "what the engine takes for an action does not depend on --unit: with a longer one it counts less"


def _engine_cost(work: Work, predicted: Replay, step: MeasuredStep, empty_s: float) -> EngineCost:
    measured = step.mean_times(work.placement)
    again = replay(
        work.orders,
        work.placement,
        forward_s=measured[Kind.FORWARD],
        backward_s=measured[Kind.BACKWARD],
        input_grad_s=measured[Kind.INPUT_GRAD],
        weight_grad_s=measured[Kind.WEIGHT_GRAD],
    )
    return EngineCost(
        empty_step_s=empty_s,
        empty_action_s=empty_s / max(map(len, step.ranks)),
        replayed_s=again.makespan_s,
        between_s=step.step_s - again.makespan_s,
        inside_s=again.makespan_s - predicted.makespan_s,
    )
