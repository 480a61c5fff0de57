"""ZB-V: two chunks a rank, down the ranks and up again, so that zero bubbles need no more memory than 1F1B."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTimes,
    ChunkTotals,
    FloatArray,
    Floats,
    Ints,
    Kind,
    RankOrder,
    Schedule,
    StageTotals,
    VirtualStages,
    no_constraint,
    over,
)
from ppadvisor.schedules.patterns import wave_placement
from ppadvisor.schedules.split_backward import (
    EqualChunks,
    Path,
    equal_chunk_bounds_s,
    equal_chunk_guess_s,
    extremes,
    longest_s,
)

KINDS = (Kind.FORWARD, Kind.INPUT_GRAD, Kind.WEIGHT_GRAD)


def _work(text: str, times: int) -> list[int]:
    """`F0 I1` and so on, that many times: each as 2·(place in KINDS) + chunk."""
    return [2 * "FIW".index(word[0]) + int(word[1]) for word in text.split()] * times


def _rank_order(p: int, m: int, rank: int) -> RankOrder:
    """Written for at least 2·p − 1 micro-batches; what would be done for absent ones is left out."""
    batches = max(m, 2 * p - 1)
    work = [
        *_work("F0", 2 * (p - rank) - 1),
        *_work("F1 F0", rank),
        *_work("F1 I1 W1", p - rank),
        *_work("F0 I0 W0 F1 I1 W1", batches - 2 * p + rank + 1),
        *_work("I0 W0 F1 I1 W1", p - rank - 1),
        *_work("I0 I1", rank),
        *_work("I0 W0", p - rank),
        *_work("W1", rank),
        *_work("W0", rank),
    ]
    code = np.array(work)
    actions = np.stack([np.array(KINDS)[code // 2], code % 2, np.zeros_like(code)], axis=1).astype(np.int32)
    for one in range(6):
        rows = np.flatnonzero(code == one)
        actions[rows, 2] = np.arange(len(rows))
    return RankOrder(actions[actions[:, 2] < m])


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Rank r: 2·(p − r) − 1 forwards down, r pairs up and down, then six actions of both chunks in turn.

    Source: Qi et al. 2024, arXiv 2401.10241, on ZB-V; op for op torch 2.13 `ScheduleZBVZeroBubble`.
    """
    return tuple(_rank_order(p, m, rank) for rank in range(p))


def bubble_fraction(p: Ints, m: Ints, v: Ints = 2) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal chunks, free links: (p − 1)/(6·m + p − 1), 2·m ≥ 3·p − 1.

    Exact; for smaller m the idle time is (p − 1) + (3·p − 1 − 2·m) chunks. In each rank's own span it is 0 for m ≥
    2·p − 1: the rest is that they start one after the other. Source: Qi et al. 2024, arXiv 2401.10241, for ZB-V, for
    the zero; torch's order, replayed by another program, for the rest. Of that at p = 4, m = 8:

    >>> round(float(bubble_fraction(4, 8)), 4)
    0.0588
    """
    return over(1 - 6.0 * np.asarray(m) / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak, each chunk until its W: min(2·m, 2·p, m + 1 + r)/2. Exact.

    Source: Qi et al. 2024, arXiv 2401.10241, on ZB-V: the memory of 1F1B, p. Measured on torch's own execution at
    p = 4, m = 8, in chunks:

    >>> (2 * in_flight_microbatches(4, 8, 2, rank=np.arange(4))).tolist()
    [8.0, 8.0, 8.0, 8.0]
    """
    batches = np.asarray(m)
    return over(np.minimum(np.minimum(2 * batches, 2 * np.asarray(p)), batches + 1 + rank) / 2, v)


def _idle_units(p: Ints, m: Ints) -> FloatArray:
    """Chunk actions for which each rank idles where F = I = W."""
    return over(np.asarray(p) - 1.0 + np.maximum(0.0, 3.0 * np.asarray(p) - 1 - 2.0 * np.asarray(m)))


def _many_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """The longest for m ≥ 2·p − 1; hand-offs while they are short."""
    ranks, each = np.asarray(p), 2 * np.asarray(m)
    hops = ranks - 1
    return (
        Path(each, each + 1, each + ranks - 2, 3 * hops),
        Path(each + 1, each, each + ranks - 2, 3 * hops),
        Path(each, each + hops, each, 5 * hops),
        Path(each, each + 2 * hops, each - 2 * hops, 6 * hops),
        Path(each + 2 * hops - 1, each - hops + 1, each, 3 * hops),
        Path(each + 2 * hops - 1, each + 1, each - 2 * hops, 5 * hops),
        Path(each + 2 * hops, each - hops, each - 1, 3 * hops),
        Path(each + 2 * hops, each, each - 2 * hops - 1, 5 * hops),
    )


def _few_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """The longest for m ≤ p."""
    ranks, batches = np.asarray(p), np.asarray(m)
    each, hops, again = 2 * batches, ranks - 1, batches - 1
    middle = 2 * ranks - 1 + batches
    return (
        Path(2 * ranks, each + 2 * hops, each, 4 * hops),
        Path(middle, middle, each, 4 * hops),
        Path(each + 2 * hops, each + 2 * hops - 3 * again, each - again, 4 * hops),
        Path(each + 2 * hops, each + 2 * hops - 2 * again, each - 2 * again, 4 * hops),
    )


def _some_paths(p: Ints, m: Ints) -> tuple[Path, ...]:
    """Of those for p < m < 2·p − 1 the two that are alike for all p and m, and what F = I = W takes."""
    ranks, each = np.asarray(p), 2 * np.asarray(m)
    hops, third = ranks - 1, each + _idle_units(p, m) / 3
    return (
        Path(each, each + 2 * hops, each - 2 * (np.asarray(m) - ranks), 4 * hops),
        Path(each + 2 * hops, each, each - 2 * hops - 1, 4 * hops),
        Path(third, third, third, 4 * hops),
    )


def _equal_s(p: Ints, m: Ints, chunk: ChunkTimes, handoff_s: Floats = 0.0) -> FloatArray:
    few_s, some_s, many_s = (
        longest_s(paths, chunk, handoff_s) for paths in (_few_paths(p, m), _some_paths(p, m), _many_paths(p, m))
    )
    batches, ranks = np.asarray(m), np.asarray(p)
    several_s = np.where(batches >= 2 * ranks - 1, many_s, np.where(batches <= ranks, few_s, some_s))
    return over(np.where(ranks > 1, several_s, 2 * batches * chunk.all_s))


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links, I = `backward_s`, W = `weight_grad_s`.

    2·m·(F + I + W) + the longest of eight, such as (p − 1)·I, (p − 2)·W + I, (2·p − 3)·F − (p − 2)·I, for m ≥ 2·p − 1;
    of four for m ≤ p: both exact for all times, own derivation. Between them exact for F = I = W; for I 0.9 to 2.2 F
    and W 0.5 to 1.2 F −2.3..+0.7 %, 0.2 % on average.
    Source: for F = I = W torch's order, replayed by another program: at p = 4, m = 8, and with 0.5 at p = 8, m = 32:

    >>> float(makespan_s(4, 8, 2, 1.0, 1.0, 1.0)), float(makespan_s(8, 32, 2, 0.5, 0.5, 0.5))
    (51.0, 99.5)
    """
    return over(_equal_s(p, m, ChunkTimes(forward_s, backward_s, weight_grad_s)), v)


def _bound_s(p: Ints, m: Ints, chunk: ChunkTimes, edge: int) -> FloatArray:
    """`_equal_s` where that is exact, elsewhere equal F, I and W, as the shortest (0) or the longest (1) of them."""
    batches, ranks = np.asarray(m), np.asarray(p)
    exact = (batches <= ranks) | (batches >= 2 * ranks - 1)
    alike_s = (6.0 * batches + _idle_units(p, m)) * extremes(chunk)[edge]
    return over(np.where(exact, _equal_s(p, m, chunk), alike_s))


def _plans(p: Ints, m: Ints) -> EqualChunks:
    return EqualChunks(
        p,
        m,
        2,
        at_least_s=lambda chunk: _bound_s(p, m, chunk, 0),
        at_most_s=lambda chunk: _bound_s(p, m, chunk, 1),
        usual_s=lambda chunk, handoff_s: _equal_s(p, m, chunk, handoff_s),
        hidden=0.5,
    )


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess, see `equal_chunk_guess_s`.

    Measured error on 264 random model-like cases (p 2..16, m p/2..8 p, W 0.3 to 0.5 of a backward; embedding, a head of
    up to 0.6 ranks, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median −0.1 %, 95 %
    within 5.2 %, all within −9..+7 %; from m = 2 p on 95 % within 3.7 %, all within −5..+7 %. On chunks that
    differ tenfold 95 % within 16 %, all within −22..+2 %.
    """
    return over(equal_chunk_guess_s(_plans(p, m), ChunkTotals.known(totals, 2)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `equal_chunk_bounds_s`.

    Measured: both hold in all 528 random cases, with log-normal times (σ = 1.2) too; on the model-like ones the lower
    is 6 % below the replay on average (24 % at worst), the upper 15 % above (54 %).
    """
    lower_s, upper_s = equal_chunk_bounds_s(_plans(p, m), ChunkTotals.known(totals, 2))
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="zb-v",
    title="ZB-V",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv 2401.10241; torch 2.13 ZBVZeroBubble",
    constraint=no_constraint,
    order=order,
    placement=wave_placement,
    bubble_formula="(p-1+max(0, 3*p-1-2*m))/(6*m+p-1+max(0, 3*p-1-2*m))",
    in_flight_formula="min(2*m, 2*p, m+1+r)/2",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(minimum=2, maximum=2),
    splits_backward=True,
)
