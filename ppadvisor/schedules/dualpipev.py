"""DualPipeV: DualPipe cut in half, one copy of the model in a V of two chunks a rank."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    FloatArray,
    Floats,
    Ints,
    RankOrder,
    Schedule,
    StageTotals,
    VirtualStages,
    over,
)
from ppadvisor.schedules.patterns import (
    Folded,
    dual_idle_s,
    dual_idle_sent_at_once_s,
    dual_phases,
    folded_bounds_s,
    folded_guess_s,
    wave_placement,
)


def constraint(p: int, m: int, v: int) -> str | None:
    """A micro-batch for each of the 2p stages, as torch and DeepSeek ask for."""
    return None if m >= 2 * p else f"num_microbatches must be at least 2 x pipeline_parallel, {2 * p}: got {m}"


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """DualPipe's first half of the ranks; phase 0 is chunk 0, on the way down, and phase 1 chunk 1, on the way up.

    Source: DeepSeek-AI 2025, repository DualPipe, dualpipev.py; torch 2.13 `ScheduleDualPipeV` is the same op for op. A
    pair (F and B that torch calls OVERLAP_F_B) is run as F, then B; both results are sent after it.
    """
    return tuple(dual_phases(p, rank, m) for rank in range(p))


def split_backwards(p: Ints, rank: Ints, chunk: Ints) -> FloatArray:
    """Backwards that are split, as many whatever m: p − ⌈r/2⌉ of chunk 0, p − 1 − ⌊r/2⌋ of chunk 1. Exact.

    Source: counted in `order`.
    """
    half = np.where(np.asarray(chunk) == 0, (np.asarray(rank) + 1) // 2, np.asarray(rank) // 2 + 1)
    return over(np.asarray(p) - half)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 2) -> FloatArray:
    """Idle share of the pipeline's time, equal chunks and free links, F = I = W: (p − 1)/(3·m + p − 1). Exact.

    Source: DeepSeek's README prints (PP/2 − 1)·(F&B + B − 3W) of idle time with PP = 2p stages; torch executes
    F&B = F + B, which makes it 2·(p − 1) for 6·m of work. Published picture, p = 4, m = 10: 66 slots.

    >>> float(60 / (1 - bubble_fraction(4, 10)))
    66.0
    """
    return over(1 - 6.0 * np.asarray(m) / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: p + 1/2 on every rank, 2p + 1 chunks of half a rank. Exact.

    Source: DeepSeek's README, PP + 1 for PP = 2p stages. I lets go of nothing. Measured on torch's own execution at
    p = 4, m = 8:

    >>> (2 * in_flight_microbatches(4, 8, 2, rank=np.arange(4))).tolist()
    [9.0, 9.0, 9.0, 9.0]
    """
    return over(np.asarray(p) + 0.5, m, v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links: 2·m·(F + I + W) + `dual_idle_s`. Exact.

    Source: as `bubble_fraction`. A simulator of the ops that torch executes, at p = 4, m = 8, F = I = W = 1; measured
    on torch with 50 ms for 1: 2776 ms.

    >>> float(makespan_s(4, 8, 2, 1.0, 1.0, 1.0))
    54.0
    """
    work_s = 2.0 * np.asarray(m) * (np.asarray(forward_s) + backward_s + weight_grad_s)
    return over(work_s + dual_idle_s(p, forward_s, backward_s, weight_grad_s), v)


def makespan_sent_at_once_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """`makespan_s` if what a pair's forward makes left before its backward: the replay of the order without its pairs.

    >>> float(makespan_sent_at_once_s(4, 8, 2, 1.0, 1.0, 1.0))
    51.0
    """
    work_s = 2.0 * np.asarray(m) * (np.asarray(forward_s) + backward_s + weight_grad_s)
    return over(work_s + dual_idle_sent_at_once_s(p, forward_s, backward_s, weight_grad_s), v)


def _plans(p: Ints, m: Ints) -> Folded:
    return Folded(
        p, m, 2, copies=1, split=True, excess=0.5, links=0.7, makespan_s=lambda f, b, w: makespan_s(p, m, 2, f, b, w)
    )


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess between the bounds; see `folded_guess_s`.

    Fitted on, and measured on other, random model-like chunks (p 2..16, m 2p..8p, the head up to 60 % and the embedding
    up to 15 % of a rank on top, slow links at node borders): 95 % within 5.8 % of the replay, all within −13..+6.6 %;
    on chunks that differ tenfold 95 % within 11 %, all within −16..+4 %.
    """
    return over(folded_guess_s(_plans(p, m), totals), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `folded_bounds_s`.

    Measured: both hold in all of 720 random cases, with log-normal times (σ = 1.2) too; on the model-like ones of
    `pipeline_time_s` the lower is 4 % below the replay on average (38 % at worst), the upper 50 % above (118 %).
    """
    lower_s, upper_s = folded_bounds_s(_plans(p, m), totals)
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="dualpipev",
    title="DualPipeV",
    source="DeepSeek-AI 2025, repository DualPipe, dualpipev.py; torch 2.13 ScheduleDualPipeV",
    constraint=constraint,
    order=order,
    placement=wave_placement,
    bubble_formula="(p-1)/(3*m+p-1)",
    in_flight_formula="p+1/2",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(minimum=2, maximum=2),
    splits_backward=True,
    split_backwards=split_backwards,
)
