"""Interleaved 1F1B: each rank holds v chunks of the model, so that a micro-batch goes round the ranks v times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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


def group_problem(p: int, m: int, group: int) -> str | None:
    """Why a micro-batch group of N = `group` is not legal, or None. Source: Megatron-Core, schedules.py:1160-1180."""
    if not p <= group <= m:
        return f"a micro-batch group N needs p <= N <= m: got p = {p}, N = {group}, m = {m}"
    if 0 < m % group < p:
        return f"a micro-batch group N needs m mod N = 0 or >= p = {p}: got m = {m}, N = {group}, remainder {m % group}"
    return None


def group_size(p: Ints, m: Ints) -> IntArray:
    """N, the micro-batches that pass a chunk before the rank turns to the next: the smallest legal one.

    p where p divides m (Megatron's default); otherwise the first of p + 1, p + 2, ..., m with m mod N = 0 or ≥ p. With
    m < p none is legal and m is returned, as torch does. Torch takes m/⌊m/p⌋ where that is whole, and then it is this.

    >>> group_size(4, np.array([3, 8, 9, 10, 14])).tolist()
    [3, 4, 5, 5, 5]
    """
    ranks, batches = np.broadcast_arrays(np.asarray(p, dtype=np.int64), np.asarray(m, dtype=np.int64))
    group: IntArray = np.minimum(ranks, batches)
    all_ranks, all_batches, found = ranks.reshape(-1), batches.reshape(-1), group.reshape(-1)
    open_ = np.flatnonzero(_leaves_too_few(all_batches, found, all_ranks))
    while len(open_):
        found[open_] += 1
        open_ = open_[_leaves_too_few(all_batches[open_], found[open_], all_ranks[open_])]
    return found.reshape(group.shape)


def _leaves_too_few(m: IntArray, group: IntArray, p: IntArray) -> NDArray[np.bool_]:
    """Where the last group is neither whole nor of p micro-batches at least."""
    left = m % group
    return (left > 0) & (left < p)


def constraint(p: int, m: int, v: int) -> str | None:
    """At least as many micro-batches as ranks: then N = m is legal, if nothing smaller."""
    if m >= p:
        return None
    problem = group_problem(p, m, int(group_size(p, m)))
    return problem and f"num_microbatches must be at least pipeline_parallel, {p}: got {m} ({problem})"


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """`order_with_group` with N = `group_size(p, m)`."""
    return order_with_group(p, m, v, int(group_size(p, m)))


def order_with_group(p: int, m: int, v: int, group: int) -> tuple[RankOrder, ...]:
    """Rank r: w chunk forwards, then one and one chunk backward in turn, then w backwards.

    w = min(2·(p − r − 1) + (v − 1)·N, m·v). N micro-batches pass chunk 0, then chunk 1, ...; backwards likewise from
    the last chunk. Source: Megatron-Core `get_schedule_table`, schedules.py:953-1016; torch's Interleaved1F1B is the
    same with its own N. Not checked: `group_problem`.
    """
    chunk, batch = chunk_turns(m, v, group)
    work = np.concatenate(
        [chunk_actions(Kind.FORWARD, chunk, batch), chunk_actions(Kind.BACKWARD, v - 1 - chunk, batch)]
    )
    turn = np.arange(m * v)
    orders = []
    for rank in range(p):
        warmup = min(2 * (p - rank - 1) + (v - 1) * group, m * v)
        pair = np.concatenate([turn - warmup, turn])
        orders.append(RankOrder(work[np.argsort(pair, kind="stable")]))
    return tuple(orders)


def bubble_fraction(p: Ints, m: Ints, v: Ints = 2) -> FloatArray:
    """Idle share of the pipeline's time, equal chunks and free links: (p − 1)/(m·v + p − 1), whatever N. Exact.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2, who print (p − 1)/(m·v), idle over ideal time. With
    m < p, which torch runs, (v − 1)·(p − m) more chunks are waited for. p = 8, m = 32, v = 2, 106.5 for 96 of work:

    >>> round(106.5 * (1 - float(bubble_fraction(8, 32, 2))), 9)
    96.0
    """
    work = np.asarray(m) * v
    return over(1 - work / (work + p - 1 + (np.asarray(v) - 1) * np.maximum(0, np.asarray(p) - m)))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: min(m·v, (v − 1)·N + 2·(p − r − 1) + 1)/v, the warm-up and one more, in chunks
    of 1/v. N = `group_size(p, m)`.

    Source: Megatron-Core as in `order_with_group`; recorded from its own execution at p = 4, m = 8, v = 2:

    >>> (2 * in_flight_microbatches(4, 8, 2, rank=np.arange(4))).tolist()
    [11.0, 9.0, 7.0, 5.0]
    """
    return over(in_flight_chunks(p, m, v, rank, group_size(p, m)) / v)


def in_flight_chunks(p: Ints, m: Ints, v: Ints, rank: Ints, group: Ints) -> FloatArray:
    """Chunk forwards held at the peak with a group of N = `group`: see `in_flight_microbatches`."""
    warmup = (np.asarray(v) - 1) * group + 2 * (np.asarray(p) - rank - 1)
    return over(np.minimum(np.asarray(m) * v, warmup + 1))


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links: (m·v + p − 1)·(F + B), whatever N. Exact.

    Source: as `bubble_fraction`. Measured: equal to the replay in 7,600 cases (p 1..8, v 1..4, every legal N, F and B
    ten times apart). Found by two other simulators at p = 8, m = 32, v = 2, F = I = W = 0.5 a chunk:

    >>> float(makespan_s(8, 32, 2, 0.5, 0.5, 0.5))
    106.5
    """
    return over(_equal_chunks_s(p, m, v, group_size(p, m), forward_s, np.asarray(backward_s) + weight_grad_s, 0.0))


def _equal_chunks_s(
    p: Ints, m: Ints, v: Ints, group: IntArray, forward_s: Floats, backward_s: Floats, handoff_s: Floats
) -> FloatArray:
    """(m·v + p − 1)·(F + B) + 2·(p − 1)·x + (v − 1)·{[p·x − (N − p)·F]⁺ + [p·x − (R − p)·B]⁺}.

    Equal chunks and hand-offs x ≤ min(F, B); R is the size of the last group. Exact: links show in the first pass and
    the last, and where a rank waits for the first micro-batch of a group to come round; else computing hides them.
    """
    ranks, again, link_s = np.asarray(p), np.asarray(v) - 1, np.asarray(handoff_s)
    last = (np.asarray(m) - 1) % group + 1
    slots = np.asarray(m) * v + ranks - 1 + again * np.maximum(0, ranks - m)
    first_s = np.maximum(0, ranks * link_s - np.maximum(0, group - ranks) * forward_s)
    last_s = np.maximum(0, ranks * link_s - np.maximum(0, last - ranks) * backward_s)
    return over(slots * np.add(forward_s, backward_s) + 2 * (ranks - 1) * link_s + again * (first_s + last_s))


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess between the bounds, for ranking.

    m·max C + (p − 1)·c + X: C = F + B of a whole rank, c that of the mean chunk of the ranks but the heaviest, which
    so waits only while the pipeline fills and drains; X is what links of the mean length x add to equal chunks,
    2·(p·v − 1)·x for N = p (`_equal_chunks_s`): Megatron and torch overlap these hand-offs with computing. Exact for
    equal chunks and links up to min(F, B), elsewhere no bound. Measured error on 936 random model-like cases (p 2..16,
    v 2..4, m 1..8 p; embedding in the first chunk, a head of up to 0.6 ranks in the last, 3 in 10 with a rank or chunk
    up to 50 % heavier, slow links at node borders): median −0.2 %, 95 % within 4.3 %, all within −14..+12 %; where p
    does not divide m, 95 % within 8.2 %, all within −17..+10 %. On chunks that differ tenfold 95 % within 16 %, all
    within −29..+20 %. Source: own derivation. With equal chunks and free links it is `makespan_s`:

    >>> stages = StageTotals.of(np.full(8, 1.0), np.full(8, 2.0))
    >>> float(pipeline_time_s(8, 32, 2, stages))
    106.5
    """
    chunk = ChunkTotals.known(totals, v).usual(p, v)
    group, times_s = group_size(p, m), (chunk.forward_s, chunk.backward_s)
    mean_s = np.asarray(totals.handoff_sum_s) / np.maximum(np.asarray(p) * v - 1, 1)
    links_s = _equal_chunks_s(p, m, v, group, *times_s, mean_s) - _equal_chunks_s(p, m, v, group, *times_s, 0.0)
    lower_s, upper_s = _bounds_s(p, m, v, group, totals)
    guess_s = m * np.asarray(totals.rank_max_s) + (np.asarray(p) - 1) * chunk.all_s + links_s
    return over(np.clip(guess_s, lower_s, upper_s))


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies, for any chunks and links (not blocking).

    Above, for any F, B and x ≤ min(F, B), x no less than any link: what equal chunks and links take, and m times what
    all chunks together are above F and B, as no path through the dependency graph passes an action twice; the smaller
    of two, F and B the most or the least of any chunk. Below: the longest of three paths, `_longest_path_s`. Own
    derivation. Measured: both hold in all of 3,600 random cases, with log-normal times (σ = 1.2) too; on the model-like
    ones of `pipeline_time_s` the lower is 3.0 % below the replay on average (19 % at worst), the upper 6.5 % above
    (30 %). Plain `StageTotals` stand for ranks whose chunks are equal.

    Equal chunks, with links too, leave nothing between them:

    >>> chunk_s = np.full((8, 2), 0.5)
    >>> totals = ChunkTotals.of_chunks(chunk_s, 2 * chunk_s, np.full(15, 0.1), weight_grad_s=chunk_s)
    >>> [round(float(time_s), 9) for time_s in pipeline_time_bounds_s(8, 32, 2, totals)]
    [109.5, 109.5]
    """
    return _bounds_s(p, m, v, group_size(p, m), totals)


def _bounds_s(p: Ints, m: Ints, v: Ints, group: IntArray, totals: StageTotals) -> Bounds:
    known, link_s = ChunkTotals.known(totals, v), np.asarray(totals.handoff_max_s)

    def equal_s(chunk: ChunkTimes) -> FloatArray:
        forward_s, backward_s = np.maximum(chunk.forward_s, link_s), np.maximum(chunk.backward_s, link_s)
        return _equal_chunks_s(p, m, v, group, forward_s, backward_s, link_s)

    heavy_s, light_s = equal_s(known.heaviest), equal_s(known.lightest)
    above_s = m * (totals.rank_sum_s - np.asarray(p) * v * known.lightest.all_s)
    return Bounds(_longest_path_s(p, m, v, group, known), np.minimum(heavy_s, light_s + above_s))


def _longest_path_s(p: Ints, m: Ints, v: Ints, group: IntArray, totals: ChunkTotals) -> FloatArray:
    ranks, batches, least_s = np.asarray(p), np.asarray(m), totals.lightest.all_s
    links_s = np.asarray(totals.handoff_sum_s)
    one_round_s = np.maximum(0.0, links_s - ranks * (np.asarray(v) - 1) * totals.handoff_max_s)
    paths = (
        # the heaviest rank does all its work
        batches * totals.rank_max_s,
        # through the first chunks to the last rank, which does all its work, and back through the first chunks
        batches * totals.rank_last_s + (ranks - 1) * least_s + 2 * one_round_s,
        # the first micro-batch through all, the last rank's work till the last one, and that back through all
        totals.rank_sum_s + 2 * links_s + (batches - group) * totals.rank_last_s + (group - 1) * least_s,
    )
    return over(np.maximum(np.maximum(paths[0], paths[1]), paths[2]))


SCHEDULE = Schedule(
    id="interleaved-1f1b",
    title="Interleaved 1F1B",
    source="Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2; Megatron-Core schedules.py",
    constraint=constraint,
    order=order,
    placement=looped_placement,
    bubble_formula="(p-1)/(m*v+p-1)",
    in_flight_formula="min(m*v, (v-1)*N+2*(p-r-1)+1)/v",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(minimum=2, maximum=None),
    formula_symbols=lambda p, m, _v: {"N": int(group_size(p, m))},
)
