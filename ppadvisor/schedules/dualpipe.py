"""DualPipe: two pipelines of the same ranks run against each other, with split backwards and paired F and B."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import Bounds, FloatArray, Floats, Ints, RankOrder, Schedule, StageTotals, over
from ppadvisor.schedules.patterns import (
    Folded,
    dual_idle_s,
    dual_idle_sent_at_once_s,
    dual_phases,
    folded_bounds_s,
    folded_guess_s,
    two_way_placement,
)


def constraint(p: int, m: int, v: int) -> str | None:
    """Even p, even m ≥ 2p, as DeepSeek's code asserts."""
    if p % 2:
        return f"pipeline_parallel must be even: got {p}"
    least = f"num_microbatches must be even and at least 2 x pipeline_parallel, {2 * p}: got {m}"
    return least if m % 2 or m < 2 * p else None


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Half of the micro-batches from rank 0 down (chunk 0), half from the last rank up (chunk 1).

    Source: DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1; the steps are those of the repository DualPipe,
    dualpipe.py. The second half of the ranks mirrors the first. A pair is run as F, then B, both results sent after it.
    """
    orders = []
    for rank in range(p):
        work = dual_phases(p // 2, min(rank, p - 1 - rank), m // 2)
        actions = work.actions.copy()
        actions[:, 1] ^= int(rank >= p // 2)
        actions[:, 2] += actions[:, 1] * (m // 2)
        orders.append(RankOrder(actions, work.paired))
    return tuple(orders)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal stages and free links, F = I = W: (p − 2)/(3·m + p − 2). Exact.

    Source: DeepSeek-AI 2024, table 2: (p/2 − 1)·(F&B + B − 3W) of idle time; with F&B = F + B = 3 and W = 1 that is
    p − 2. Published picture, p = 8, m = 20: 66 slots.

    >>> float(60 / (1 - bubble_fraction(8, 20)))
    66.0
    """
    return over(1 - 3.0 * np.asarray(m) / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def published_idle_s(p: Ints, pair_s: Floats, backward_s: Floats, weight_grad_s: Floats) -> FloatArray:
    """Idle seconds of each rank as DeepSeek prints them: (p/2 − 1)·(F&B + B − 3W), `pair_s` being F&B, B the whole.

    With F&B = F + B `makespan_s` leaves just as much where W ≤ I = F. Where F < I it leaves less, by min(F, (p/2 − 1)·
    (I − F)), as the first turn of the middle ranks is not paired; where F > I more, by (p/2 − 1)·(F − I); and more
    where W > I.

    >>> float(published_idle_s(8, 3.0, 2.0, 1.0))
    6.0
    """
    return over((np.asarray(p) / 2 - 1) * (np.asarray(pair_s) + backward_s - 3 * np.asarray(weight_grad_s)))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: p + 1 on every rank, of both directions together. Exact. I lets go of nothing.

    Source: DeepSeek-AI 2024, table 2.

    >>> in_flight_microbatches(8, 20, 1, rank=np.arange(8)).tolist()
    [9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0]
    """
    return over(np.asarray(p) + 1.0, m, v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links: m·(F + I + W) + `dual_idle_s` of p/2. Exact.

    Source: as `bubble_fraction`.

    >>> float(makespan_s(8, 20, 1, 1.0, 1.0, 1.0))
    66.0
    """
    work_s = np.asarray(m) * (np.asarray(forward_s) + backward_s + weight_grad_s)
    return over(work_s + dual_idle_s(np.asarray(p) // 2, forward_s, backward_s, weight_grad_s), v)


def makespan_sent_at_once_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """`makespan_s` if what a pair's forward makes left before its backward: the replay of the order without its pairs.

    >>> float(makespan_sent_at_once_s(8, 20, 1, 1.0, 1.0, 1.0))
    63.0
    """
    work_s = np.asarray(m) * (np.asarray(forward_s) + backward_s + weight_grad_s)
    return over(work_s + dual_idle_sent_at_once_s(np.asarray(p) // 2, forward_s, backward_s, weight_grad_s), v)


def _plans(p: Ints, m: Ints) -> Folded:
    return Folded(
        p, m, 1, copies=2, split=True, excess=0.25, links=0.8, makespan_s=lambda f, b, w: makespan_s(p, m, 1, f, b, w)
    )


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal stages and links: a guess between the bounds; see `folded_guess_s`.

    Fitted on, and measured on other, random model-like stages (p 2..16, m 2p..8p, the head up to 60 % and the embedding
    up to 15 % of a stage on top, slow links at node borders): 95 % within 5.4 % of the replay, all within −10..+7.3 %;
    on stages that differ tenfold 95 % within 13 %, all within −27..+18 %.
    """
    return over(folded_guess_s(_plans(p, m), totals), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `folded_bounds_s`.

    Measured: both hold in all of 720 random cases, with log-normal times (σ = 1.2) too; on the model-like ones of
    `pipeline_time_s` the lower is 6 % below the replay on average (26 % at worst), the upper 29 % above (62 %).
    """
    lower_s, upper_s = folded_bounds_s(_plans(p, m), totals)
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="dualpipe",
    title="DualPipe",
    source="DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1, and the repository DualPipe, dualpipe.py",
    constraint=constraint,
    order=order,
    placement=two_way_placement,
    bubble_formula="(p-2)/(3*m+p-2)",
    in_flight_formula="p+1",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    splits_backward=True,
    parameter_copies=2,
)
