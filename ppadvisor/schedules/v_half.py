"""V-Half: two chunks a rank in a V, with about half of the memory of 1F1B."""

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
from ppadvisor.schedules.v_blocks import half_block, half_limit, half_s, limited_plans
from ppadvisor.schedules.v_shape import block_order, idle_units


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """`half_block` repeated, each action as early as memory allows; see `block_order`."""
    return block_order(m, half_block(p))


def bubble_fraction(p: Ints, m: Ints, v: Ints = 2) -> FloatArray:
    """Idle share of the pipeline's time, F = I = W, equal chunks and free links: idle/(6·m + idle), see `idle_units`.

    3·p − 7 or, p odd, 3·p − 4, for p > 2 and m ≥ 2·p: half of 1F1B's 6·(p − 1). Exact for p ≤ 11, beyond see
    `idle_units`. Found by two other programs at p = 8, m = 32, a whole stage's F = I = W = 1: 104.5 for 96 of work.

    >>> round(float(96 / (1 - bubble_fraction(8, 32))), 6)
    104.5
    """
    idle = idle_units(p, m, half_limit(p))
    return over(idle / (6.0 * np.asarray(m) + idle), v)


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak, each chunk until its W: min(m, ⌊p/2⌋ + 1) on every rank. Exact.

    Source: see `half_limit`. "1/2" of 1F1B is what it comes to as p grows. Found by two other programs at p = 8:

    >>> float(in_flight_microbatches(8, 32, 2, rank=0))
    5.0
    """
    return over(np.minimum(m, half_limit(p)), v, rank)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal chunks and free links, I = `backward_s`, W = `weight_grad_s`.

    In the long run 2·m·max(F + I + W, 2·I + W/2, 2·F + W/2); see `half_s` for the rest. Exact for F = I = W and p ≤ 11;
    for I 0.8 to 2.2 F and W 0.4 to 1.2 F within 0.3 % from m = 1.5 p on, with fewer micro-batches −12..+4 %.
    Found by two other programs at p = 8, m = 32, F = I = W = 1/2:

    >>> float(makespan_s(8, 32, 2, 0.5, 0.5, 0.5))
    104.5
    """
    return over(half_s(p, m, ChunkTimes(forward_s, backward_s, weight_grad_s)), v)


def _plans(p: Ints, m: Ints) -> EqualChunks:
    return limited_plans(p, m, half_limit(p), 0.25, lambda chunk, handoff_s: half_s(p, m, chunk, handoff_s))


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal chunks and links: a guess, see `equal_chunk_guess_s`.

    Measured error on 264 random model-like cases (p 2..16, m p/2..8 p, W 0.3 to 0.5 of a backward; embedding, a head of
    up to 0.6 ranks, 3 in 10 with a rank or chunk up to 50 % heavier, slow links at node borders): median +0.3 %, 95 %
    within 4.5 %, all within −10..+5 %; from m = 2 p on 95 % within 2.5 %, all within −6..+5 %. On chunks that
    differ tenfold 95 % within 16 %, all within −31..+13 %.
    """
    return over(equal_chunk_guess_s(_plans(p, m), ChunkTotals.known(totals, 2)), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `equal_chunk_bounds_s`, `limited_plans`.

    Measured: both hold in all 528 random cases, with log-normal times (σ = 1.2) too; on the model-like ones the lower
    is 13 % below the replay on average (33 % at worst), the upper 27 % above (75 %).
    """
    lower_s, upper_s = equal_chunk_bounds_s(_plans(p, m), ChunkTotals.known(totals, 2))
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="v-half",
    title="V-Half",
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
    formula_symbols=lambda p, m, _v: {"limit": int(half_limit(p)), "idle": float(idle_units(p, m, half_limit(p)))},
    splits_backward=True,
)
