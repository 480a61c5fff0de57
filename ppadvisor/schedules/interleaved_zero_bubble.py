"""Interleaved zero bubble: interleaved 1F1B with the backward split, so that weight gradients fill the waits."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTimes,
    ChunkTotals,
    FloatArray,
    Floats,
    IntArray,
    Ints,
    Kind,
    RankOrder,
    Schedule,
    StageTotals,
    VirtualStages,
    chunk_actions,
    chunk_turns,
    looped_placement,
    over,
)


def rounds(p: Ints, m: Ints) -> IntArray:
    """Groups of micro-batches, max(1, ⌊m/p⌋); each of m/rounds passes a chunk before the rank turns to the next."""
    return np.asarray(np.maximum(1, np.asarray(m) // p), dtype=np.int64)


def constraint(p: int, m: int, v: int) -> str | None:
    """Groups of equal size. Source: torch 2.13 `ScheduleInterleavedZeroBubble`."""
    groups = int(rounds(p, m))
    if m % groups == 0:
        return None
    return f"num_microbatches must be a multiple of max(1, num_microbatches // pipeline_parallel) = {groups}: got {m}"


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Rank r: w chunk forwards, then forward, input gradient and, r turns late, weight gradient; then what is left.

    w = min(p − r − 1 + (v − 1)·N, m·v), N micro-batches a group. Source: torch 2.13 `_get_1f1b_rank_ops`. With v = 1 it
    has the time and memory of ZB-H1 in Qi et al. 2024, arXiv 2401.10241, section 2.1.
    """
    group = m // int(rounds(p, m))
    chunk, batch = chunk_turns(m, v, group)
    back = v - 1 - chunk
    work = np.concatenate(
        [
            chunk_actions(Kind.FORWARD, chunk, batch),
            chunk_actions(Kind.INPUT_GRAD, back, batch),
            chunk_actions(Kind.WEIGHT_GRAD, back, batch),
        ]
    )
    turn = np.arange(m * v)
    orders = []
    for rank in range(p):
        warmup = min(p - rank - 1 + (v - 1) * group, m * v)
        turns = np.concatenate([turn - warmup, turn, np.minimum(turn + rank, m * v)])
        orders.append(RankOrder(work[np.argsort(turns, kind="stable")]))
    return tuple(orders)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time for F = I = W, equal chunks and free links: (p − 1)/(3·m·v + p − 1) for m ≥ p.

    Exact, with `makespan_s` for m < p too; for other times take `makespan_s`. Of torch's order at p = 4, m = 8:

    >>> [round(float(bubble_fraction(4, 8, v)), 6) for v in (1, 2)]
    [0.111111, 0.058824]
    """
    return over(1 - 3 * np.asarray(m) * v / makespan_s(p, m, v, 1.0, 1.0, 1.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: min(m·v, (v − 1)·N + p)/v on every rank, each let go at its weight gradient.

    Source: as `order`: the warm-up, one more, and the r that wait for their weight gradient. Measured on torch's own
    execution at p = 4, m = 8, v = 2 (8 chunks):

    >>> in_flight_microbatches(4, 8, 2, rank=np.arange(4)).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    group = np.asarray(m) // rounds(p, m)
    return over(np.minimum(np.asarray(m) * v, (np.asarray(v) - 1) * group + p) / v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links, I = `backward_s`, W = `weight_grad_s`.

    m·v·(F + I + W) + (p − 1)·(F + I) − (min(m, p) − 1)·min(F, I, W) + (v − 1)·(d·F + [d·I − m·W]⁺), d = [p − m]⁺; that
    is m·v·(F + I + W) + (p − 1)·max(F, I, F + I − W) for m ≥ p: ZB-H1's bubble of a chunk, divided by v. Exact for
    m ≥ p, for v = 1, and for F = I = W; elsewhere up to 12 % low (0.6 % on average, times up to three times apart).
    Source: Qi et al. 2024, arXiv 2401.10241, table 1 for v = 1; otherwise own derivation. Torch's timetable says:

    >>> float(makespan_s(4, 8, 2, 1.0, 1.0, 1.0))
    51.0
    """
    ranks, batches, again = np.asarray(p), np.asarray(m), np.asarray(v) - 1
    smallest_s = np.minimum(np.minimum(forward_s, backward_s), weight_grad_s)
    missing = np.maximum(0, ranks - batches)
    ends_s = (ranks - 1) * (forward_s + np.asarray(backward_s)) - (np.minimum(batches, ranks) - 1) * smallest_s
    round_s = missing * forward_s + np.maximum(0.0, missing * np.asarray(backward_s) - batches * weight_grad_s)
    return over(batches * v * (forward_s + np.asarray(backward_s) + weight_grad_s) + ends_s + again * round_s)


def _equal_chunks_s(p: Ints, m: Ints, v: Ints, chunk: ChunkTimes, handoff_s: Floats) -> FloatArray:
    """No less than equal chunks and hand-offs x take, where x ≤ min(F, I) and 2·x ≤ W:

    m·v·(F + I + W) + (p − 1)·max(F + 3·x, I + 2·x, F + I − W + 4·x) + (v − 1)·[p·x − (N − p)·F]⁺, exact for m ≥ 2·p.
    For m < p a hand-off counts as work of its sender, and no weight gradient fills a wait.
    """
    ranks, batches, again = np.asarray(p), np.asarray(m), np.asarray(v) - 1
    forward_s, input_s, weight_s = map(np.asarray, chunk)
    link_s, ahead = np.asarray(handoff_s), batches // rounds(p, m) - ranks
    hop_s = forward_s + input_s + 2 * link_s
    few_s = (ranks - 1 - again * ahead) * hop_s + 2 * batches * v * link_s
    ends_s = np.maximum(np.maximum(forward_s + 3 * link_s, input_s + 2 * link_s), hop_s - weight_s + 2 * link_s)
    many_s = (ranks - 1) * ends_s + again * np.maximum(0.0, ranks * link_s - ahead * forward_s)
    return over(batches * v * chunk.all_s + np.where(ahead < 0, few_s, many_s))


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess between the bounds, for ranking.

    m·max[max C, v·(F + I + 2·x·(p − 1)/p), v·(F + I + max x)] + E: C = F + I + W of a whole rank; F, I, W the mean
    chunk of the ranks but the heaviest, x the mean link, which the weight gradient hides while it is long enough; E
    what equal chunks take beside their work (`_equal_chunks_s`). Exact for equal chunks and links up to
    min(F, I, W/2) where m ≥ 2·p (without links m ≥ p), elsewhere no bound. Measured error on 1,248 random model-like
    cases (p 2..16, v 1..4, m 1..8 p, W 0.3 to 0.5 of a backward; embedding in the first chunk, a head of up to 0.6
    ranks in the last, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median +0.6 %,
    95 % within 5.8 %, all within −12..+20 %; for m < p 95 % within 5.9 %, all within −3..+14 %. On chunks that differ
    tenfold 95 % within 21 %, all within −29..+35 %. Source: own derivation. With equal chunks and free links it is
    `makespan_s`:

    >>> stages = StageTotals.of(np.full(4, 2.0), np.full(4, 4.0))
    >>> float(pipeline_time_s(4, 8, 2, stages))
    51.0
    """
    ranks, chunk = np.asarray(p), ChunkTotals.known(totals, v).usual(p, v)
    mean_s = np.asarray(totals.handoff_sum_s) / np.maximum(ranks * v - 1, 1)
    few_s = makespan_s(p, m, v, *chunk) + 2 * (ranks * v - 1) * mean_s
    ends_s = np.where(ranks > m, few_s, _equal_chunks_s(p, m, v, chunk, mean_s)) - m * np.multiply(v, chunk.all_s)
    wait_s = np.maximum(2 * mean_s * (ranks - 1) / ranks, totals.handoff_max_s)
    period_s = np.maximum(totals.rank_max_s, v * (chunk.forward_s + np.asarray(chunk.input_grad_s) + wait_s))
    lower_s, upper_s = pipeline_time_bounds_s(p, m, v, totals)
    return over(np.clip(m * period_s + ends_s, lower_s, upper_s))


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies, for any chunks and links (not blocking).

    Above, for any F, I, W and x ≤ min(F, I, W/2), x no less than any link: what equal chunks and links take at most,
    and m times what all chunks together are above F, I and W, as no path through the dependency graph passes an action
    twice; the smaller of two, F, I and W the most or the least of any chunk. Below: the longest of five paths,
    `_longest_path_s`. Own derivation. Measured: both hold in all of 4,896 random cases, with log-normal times (σ = 1.2)
    too; on the model-like ones of `pipeline_time_s` the lower is 2.9 % below the replay on average (19 % at worst), the
    upper 8.3 % above (39 %). Plain `StageTotals` stand for ranks whose chunks are equal, with a weight gradient of half
    the backward.

    Equal chunks and free links leave nothing between them where m ≥ p:

    >>> chunk_s = np.ones((4, 2))
    >>> totals = ChunkTotals.of_chunks(chunk_s, 2 * chunk_s, np.zeros(7), weight_grad_s=chunk_s)
    >>> [float(time_s) for time_s in pipeline_time_bounds_s(4, 8, 2, totals)]
    [51.0, 51.0]
    """
    known, link_s = ChunkTotals.known(totals, v), np.asarray(totals.handoff_max_s)
    floor_s = ChunkTimes(link_s, link_s, 2 * link_s)
    heavy_s, light_s = (
        _equal_chunks_s(p, m, v, ChunkTimes(*map(np.maximum, chunk, floor_s)), link_s)
        for chunk in (known.heaviest, known.lightest)
    )
    above_s = m * (totals.rank_sum_s - np.asarray(p) * v * known.lightest.all_s)
    return Bounds(_longest_path_s(p, m, v, known), np.minimum(heavy_s, light_s + above_s))


def _longest_path_s(p: Ints, m: Ints, v: Ints, totals: ChunkTotals) -> FloatArray:
    hops, batches = np.asarray(p) - 1, np.asarray(m)
    least, most = totals.lightest, totals.heaviest
    there_s = np.asarray(least.forward_s)
    back_s = there_s + least.input_grad_s
    links_s = np.asarray(totals.handoff_sum_s)
    one_round_s = np.maximum(0.0, links_s - (hops + 1) * (np.asarray(v) - 1) * totals.handoff_max_s)
    last_s = batches * totals.rank_last_s
    paths = (
        # the heaviest rank: through the first chunks to it, and once to the last rank and back while it might go on
        batches * totals.rank_max_s + np.maximum(0, hops * np.minimum(there_s, back_s - most.forward_s) + one_round_s),
        # through the first chunks to the last rank, which does all its work
        last_s + hops * there_s + one_round_s,
        # which does it but for the last p weight gradients, and back through the first chunks
        last_s + hops * back_s - (hops + 1) * np.asarray(most.weight_grad_s) + least.weight_grad_s + 2 * one_round_s,
        # any rank as if it were the first: once to the last rank and back, less the forwards it does meanwhile
        batches * totals.rank_min_s + hops * (back_s - most.forward_s) + 2 * one_round_s,
        # one micro-batch through all
        totals.rank_sum_s - (hops + 1) * v * np.asarray(most.weight_grad_s) + least.weight_grad_s + 2 * links_s,
    )
    longest_s = paths[0]
    for path_s in paths[1:]:
        longest_s = np.maximum(longest_s, path_s)
    return over(longest_s)


SCHEDULE = Schedule(
    id="interleaved-zero-bubble",
    title="Interleaved zero bubble",
    source="torch 2.13 ScheduleInterleavedZeroBubble; for v = 1 ZB-H1 of Qi et al. 2024, arXiv 2401.10241, section 2",
    constraint=constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1+v*max(0, p-m)+(v-1)*max(0, p-2*m))/(3*m*v+p-1+v*max(0, p-m)+(v-1)*max(0, p-2*m))",
    in_flight_formula="min(m*v, (v-1)*N+p)/v",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(maximum=None),
    splits_backward=True,
    formula_symbols=lambda p, m, _v: {"N": m // int(rounds(p, m))},
)
