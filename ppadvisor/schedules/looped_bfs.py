"""Looped BFS (breadth-first pipeline parallelism): GPipe on ranks that hold v chunks each, chunk after chunk."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTotals,
    FloatArray,
    Floats,
    Ints,
    Kind,
    RankOrder,
    Schedule,
    StageTotals,
    VirtualStages,
    chunk_actions,
    chunk_turns,
    looped_placement,
    no_constraint,
    over,
)


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """All micro-batches through chunk 0, then through chunk 1, ...; then all backwards in exactly the reverse order.

    Source: torch 2.13 `ScheduleLoopedBFS`. Within a chunk the micro-batches could go backward in forward order too:
    time and memory are the same.
    """
    chunk, batch = chunk_turns(m, v, group=m)
    backwards = chunk_actions(Kind.BACKWARD, chunk, batch)[::-1]
    return (RankOrder(np.concatenate([chunk_actions(Kind.FORWARD, chunk, batch), backwards])),) * p


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal chunks and free links: (p − 1)/(m·v + p − 1) for m ≥ p.

    In general 1 − m·v/(m + p − 1 + (v − 1)·max(m, p)): with m < p each round but the last waits for the first
    micro-batch to come round. Exact. Source: Lamy-Poirier 2023, arXiv 2211.05953. Of torch's order, p = 4:

    >>> [round(float(bubble_fraction(4, m, 2)), 6) for m in (2, 8)]
    [0.555556, 0.157895]
    """
    batches = np.asarray(m)
    return over(1 - batches * v / (batches + p - 1 + (np.asarray(v) - 1) * np.maximum(batches, p)))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: m on every rank (all m·v chunk forwards come before the first backward).

    Source: as `bubble_fraction`. Measured on torch's own execution at p = 4, m = 8, v = 2 (16 chunks):

    >>> in_flight_microbatches(4, 8, 2, rank=np.arange(4)).tolist()
    [8.0, 8.0, 8.0, 8.0]
    """
    return over(m, p, v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links: (m + p − 1 + (v − 1)·max(m, p))·(F + B).

    Exact for every p, m, v, F and B. Source: as `bubble_fraction`. Torch's own timetable, p = 4, m = 8, v = 2:

    >>> float(makespan_s(4, 8, 2, 1.0, 2.0))
    57.0
    """
    back_s = np.asarray(backward_s) + weight_grad_s
    return over(_phase_s(p, m, v, forward_s, 0.0) + _phase_s(p, m, v, back_s, 0.0))


def _phase_s(p: Ints, m: Ints, v: Ints, chunk_s: Floats, handoff_s: Floats) -> FloatArray:
    """All forwards, or all backwards, of equal chunks f and links x ≤ f: m·f + (p − 1)·h + (v − 1)·max(m·f, p·h).

    h = f + x. Exact: a rank begins a chunk when it is done with the one before and the first micro-batch came round.
    """
    hop_s = np.asarray(chunk_s) + handoff_s
    work_s = np.asarray(m) * chunk_s
    return over(work_s + (np.asarray(p) - 1) * hop_s + (np.asarray(v) - 1) * np.maximum(work_s, p * hop_s))


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess between the bounds, for ranking.

    Forwards, and backwards likewise: m·max F + (p − 1)·(f + x) + (v − 1)·[p·(f + x) − m·max F/v]⁺, max F of a whole
    rank, f the mean chunk of the ranks but the heaviest, x the mean link. That is low where another rank holds the
    heaviest chunk of another round, which totals do not tell: (v − 1)/(2·v) of what the upper bound is above it is
    added. Exact for equal chunks and links up to min(F, B), elsewhere no bound. Measured error on 1,248 random
    model-like cases (p 2..16, v 1..4, m 1..8 p; embedding in the first chunk, a head of up to 0.6 ranks in the last, 3
    in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median −0.1 %, 95 % within 3.9 %, all
    within −11..+8 %. On chunks that differ tenfold 95 % within 18 %, all within −21..+33 %. Source: own derivation.
    With equal chunks and free links it is `makespan_s`:

    >>> stages = StageTotals.of(np.full(4, 2.0), np.full(4, 4.0))
    >>> float(pipeline_time_s(4, 8, 2, stages))
    57.0
    """
    ranks, again = np.asarray(p), np.asarray(v) - 1
    chunk = ChunkTotals.known(totals, v).usual(p, v)
    mean_s = np.asarray(totals.handoff_sum_s) / np.maximum(ranks * v - 1, 1)
    guess_s = np.zeros(())
    for rank_s, chunk_s in ((totals.forward_max_s, chunk.forward_s), (totals.backward_max_s, chunk.backward_s)):
        work_s, hop_s = np.multiply(m, rank_s), chunk_s + mean_s
        guess_s = guess_s + work_s + (ranks - 1) * hop_s + again * np.maximum(0.0, ranks * hop_s - work_s / v)
    lower_s, upper_s = pipeline_time_bounds_s(p, m, v, totals)
    guess_s = np.clip(guess_s, lower_s, upper_s)
    return over(guess_s + (upper_s - guess_s) * again / (2 * (again + 1)))


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies, for any chunks and links (not blocking).

    Above, for any F, B and x ≤ min(F, B), x no less than any link: what equal chunks and links take, and m times what
    all chunks together are above F and B, as no path through the dependency graph passes an action twice; the smaller
    of two, F and B the most or the least of any chunk. Below: the longer of two paths, `_longest_path_s`. Own
    derivation. Measured: both hold in all of 5,280 random cases, with log-normal times (σ = 1.2) too; on the model-like
    ones of `pipeline_time_s` the lower is 2.6 % below the replay on average (16 % at worst), the upper 3.7 % above
    (24 %). Plain `StageTotals` stand for ranks whose chunks are equal.

    Equal chunks and free links leave nothing between them:

    >>> chunk_s = np.ones((4, 2))
    >>> totals = ChunkTotals.of_chunks(chunk_s, 2 * chunk_s, np.zeros(7), weight_grad_s=chunk_s)
    >>> [float(time_s) for time_s in pipeline_time_bounds_s(4, 8, 2, totals)]
    [57.0, 57.0]
    """
    known, link_s = ChunkTotals.known(totals, v), np.asarray(totals.handoff_max_s)
    heavy_s, light_s = (
        _phase_s(p, m, v, np.maximum(chunk.forward_s, link_s), link_s)
        + _phase_s(p, m, v, np.maximum(chunk.backward_s, link_s), link_s)
        for chunk in (known.heaviest, known.lightest)
    )
    above_s = m * (totals.rank_sum_s - np.asarray(p) * v * known.lightest.all_s)
    return Bounds(_longest_path_s(p, m, v, known), np.minimum(heavy_s, light_s + above_s))


def _longest_path_s(p: Ints, m: Ints, v: Ints, totals: ChunkTotals) -> FloatArray:
    ranks, batches, least_s = np.asarray(p), np.asarray(m), totals.lightest.all_s
    links_s = np.asarray(totals.handoff_sum_s)
    one_round_s = np.maximum(0.0, links_s - ranks * (np.asarray(v) - 1) * totals.handoff_max_s)
    # the rank with the heaviest forwards does them all, between the first chunks before it and the last behind it; so
    # does the one with the heaviest backwards
    heaviest_s = batches * np.add(totals.forward_max_s, totals.backward_max_s)
    heaviest_s = heaviest_s + (ranks - 1) * least_s + 2 * one_round_s
    # one micro-batch through all, the others once on the last chunk and once on the first
    through_s = totals.rank_sum_s + 2 * links_s + (batches - 1) * least_s
    return over(np.maximum(heaviest_s, through_s))


SCHEDULE = Schedule(
    id="looped-bfs",
    title="Looped BFS",
    source="Lamy-Poirier 2023, Breadth-First Pipeline Parallelism, arXiv 2211.05953; torch 2.13 ScheduleLoopedBFS",
    constraint=no_constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="1-m*v/(m+p-1+(v-1)*max(m, p))",
    in_flight_formula="m",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(maximum=None),
    loss_waits=True,
)
