"""V-Min: two chunks a rank in a V, with the least memory that leaves no rank idle in between where F = I = W."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import (
    Bounds,
    ChunkTimes,
    ChunkTotals,
    FloatArray,
    Floats,
    Ints,
    RankOrder,
    Schedule,
    StageTotals,
    VirtualStages,
    no_constraint,
    over,
)
from ppadvisor.schedules.patterns import wave_placement
from ppadvisor.schedules.split_backward import EqualChunks, equal_chunk_bounds_s, equal_chunk_guess_s
from ppadvisor.schedules.v_blocks import limited_plans, min_block, min_limit, min_s
from ppadvisor.schedules.v_shape import block_order, idle_units


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """`min_block` repeated, each action as early as memory allows; see `block_order`."""
    return block_order(m, min_block(p))


def bubble_fraction(p: Ints, m: Ints, v: Ints = 2) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal chunks and free links: idle/(6·m + idle), see `idle_units`.

    6·p − 7 − 6·⌊(p + 1)/3⌋, about 4·p, for p > 2 and m ≥ 2·p. Exact for p ≤ 10, beyond see `idle_units`. At p = 8, m =
    32, a whole stage's F = I = W = 1: 107.5 for 96 of work, as the authors' own search; another program finds 109.

    >>> round(float(96 / (1 - bubble_fraction(8, 32))), 6)
    107.5
    """
    idle = idle_units(p, m, min_limit(p))
    return over(idle / (6.0 * np.asarray(m) + idle), v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak, each chunk until its W: min(m, ⌊(p + 1)/3⌋ + 1) on every rank. Exact.

    Source: see `min_limit`. "1/3" of 1F1B is what it comes to as p grows. Found by two other programs at p = 8:

    >>> float(in_flight_microbatches(8, 32, 2, rank=0))
    4.0
    """
    return over(np.minimum(m, min_limit(p)), v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links, I = `backward_s`, W = `weight_grad_s`.

    In the long run 2·m·max(F + I + W, 3·I, 3·F): any F or I above the mean costs time. See `min_s` for the rest. Exact
    for F = I = W and p ≤ 10; for I 0.8 to 2.2 F and W 0.4 to 1.2 F −1..+2 % from m = 2 p on, with fewer −12..+4 %.
    At p = 8, m = 32, F = I = W = 1/2, as `bubble_fraction`:

    >>> float(makespan_s(8, 32, 2, 0.5, 0.5, 0.5))
    107.5
    """
    return over(min_s(p, m, ChunkTimes(forward_s, backward_s, weight_grad_s)), v)


def _plans(p: Ints, m: Ints) -> EqualChunks:
    return limited_plans(p, m, min_limit(p), 0.75, lambda chunk, handoff_s: min_s(p, m, chunk, handoff_s))


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess, see `equal_chunk_guess_s`.

    Measured error on 264 random model-like cases (p 2..16, m p/2..8 p, W 0.3 to 0.5 of a backward; embedding, a head of
    up to 0.6 ranks, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median −0.6 %, 95 %
    within 9.7 %, all within −11..+12 %; from m = 2 p on 95 % within 10 %, all within −7..+12 %. On chunks that
    differ tenfold 95 % within 17 %, all within −31..+16 %.
    """
    return over(equal_chunk_guess_s(_plans(p, m), ChunkTotals.known(totals, 2)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `equal_chunk_bounds_s`, `limited_plans`.

    Measured: both hold in all 528 random cases, with log-normal times (σ = 1.2) too; on the model-like ones the lower
    is 18 % below the replay on average (48 % at worst), the upper 24 % above (65 %).
    """
    lower_s, upper_s = equal_chunk_bounds_s(_plans(p, m), ChunkTotals.known(totals, 2))
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="v-min",
    title="V-Min",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362",
    constraint=no_constraint,
    order=order,
    placement=wave_placement,
    bubble_formula="idle/(6*m+idle)",
    in_flight_formula="min(m, limit)",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    virtual_stages=VirtualStages(minimum=2, maximum=2),
    formula_symbols=lambda p, m, _v: {"limit": int(min_limit(p)), "idle": float(idle_units(p, m, min_limit(p)))},
    splits_backward=True,
)
