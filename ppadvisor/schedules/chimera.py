"""Chimera: two pipelines of the same ranks run against each other, each with its own copy of the model."""

from __future__ import annotations

import numpy as np

from ppadvisor.schedules.base import Bounds, FloatArray, Floats, Ints, RankOrder, Schedule, StageTotals, over
from ppadvisor.schedules.patterns import Folded, folded_bounds_s, folded_guess_s, two_way_placement, unit_order


def constraint(p: int, m: int, v: int) -> str | None:
    """Even p; even m, at most p or a multiple of it: whole units."""
    if p % 2:
        return f"pipeline_parallel must be even: got {p}"
    if m % 2:
        return f"num_microbatches must be even, half of them for each direction: got {m}"
    return None if m <= p or m % p == 0 else f"num_microbatches must be at most {p} or a multiple of it: got {m}"


def order(p: int, m: int, v: int) -> tuple[RankOrder, ...]:
    """Units of p micro-batches one after the other, each half down (chunk 0) and half up (chunk 1), in 1F1B each.

    With m < p one smaller unit. Source: Li & Hoefler 2021, arXiv 2107.06925, section 3: where F and B take as long the
    two fit into each other without a conflict. This is its direct concatenation; forward doubling, which takes two
    micro-batches as one, and backward halving would be other micro-batch sizes.
    """
    half = min(p, m) // 2
    unit, turn = np.divmod(np.arange(m // 2), half)
    batch = 2 * half * unit + turn
    stages = two_way_placement(p, v)
    return tuple(unit_order(p, stages[rank], turn, unit, np.stack([batch, batch + half])) for rank in range(p))


def bubble_fraction(p: Ints, m: Ints, v: Ints = 1) -> FloatArray:
    """Idle share of the pipeline's time, equal stages and free links, B = 2F: i/(3·m + i), i = (p − 2)·(1 + m/p).

    Exact for m ≥ p; i = 3·p − 4 − m for m ≤ p. Source: Li & Hoefler 2021, section 3, print (p − 2)/(3·m/2 + p − 2) for
    B = 2F and (p − 2)/(2·m + p − 2) for B = F; the first holds for one unit, m = p. Between units B > F leaves idle
    time, which they fill by doubling forwards or halving backwards. At p = m = 4:

    >>> float(bubble_fraction(4, 4)), (4 - 2) / (3 * 4 / 2 + 4 - 2)
    (0.25, 0.25)
    """
    return over(1 - np.asarray(m) * 3.0 / makespan_s(p, m, v, 1.0, 2.0))


def in_flight_microbatches(p: Ints, m: Ints, v: Ints, rank: Ints) -> FloatArray:
    """Micro-batches held at the peak: min(n, n/2 + 1 + min(r, p − 1 − r)), n = min(m, p). Exact.

    Source: Li & Hoefler 2021, their table of schemes: between p/2 + 1, on the first and last rank, and p.

    >>> in_flight_microbatches(8, 16, 1, rank=np.arange(8)).tolist()
    [5.0, 6.0, 7.0, 8.0, 8.0, 7.0, 6.0, 5.0]
    """
    unit, ranks = np.minimum(m, p), np.asarray(p)
    return over(np.minimum(unit, unit / 2 + 1 + np.minimum(rank, ranks - 1 - rank)), v)


def makespan_s(
    p: Ints, m: Ints, v: Ints, forward_s: Floats, backward_s: Floats, weight_grad_s: Floats = 0.0
) -> FloatArray:
    """Seconds from first start to last end, equal stages and free links.

    m·(F + B) + (p − 2)·max(F, B) + [p − m]⁺·min(F, B) + [m/p − 1]⁺·(p − 2)·|B − F|. Exact for every F and B; own
    derivation, equal to the replay for p 2..12, up to 5 units. Equal F and B give the slots of the paper's figure 3,
    10 at p = m = 4:

    >>> float(makespan_s(4, 4, 1, 1.0, 1.0))
    10.0
    """
    ranks, batches = np.asarray(p), np.asarray(m)
    forward, backward = np.asarray(forward_s), np.asarray(backward_s) + weight_grad_s
    fill_s = (ranks - 2) * np.maximum(forward, backward) + np.maximum(0, ranks - batches) * np.minimum(
        forward, backward
    )
    between_s = np.maximum(0.0, batches / ranks - 1) * (ranks - 2) * np.abs(backward - forward)
    return over(batches * (forward + backward) + fill_s + between_s, v)


def _plans(p: Ints, m: Ints) -> Folded:
    return Folded(
        p, m, 1, copies=2, split=False, excess=0.13, links=1.0, makespan_s=lambda f, b, w: makespan_s(p, m, 1, f, b, w)
    )


def pipeline_time_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> FloatArray:
    """Seconds from first start to last end, unequal stages and links: a guess between the bounds; see `folded_guess_s`.

    Fitted on, and measured on other, random model-like stages (p 2..16, m p..8p, the head up to 60 % and the embedding
    up to 15 % of a stage on top, slow links at node borders): 95 % within 3.3 % of the replay, all within −4.2..+4.4 %;
    on stages that differ tenfold 95 % within 12 %, all within −20..+13 %.
    """
    return over(folded_guess_s(_plans(p, m), totals), v)


def pipeline_time_bounds_s(p: Ints, m: Ints, v: Ints, totals: StageTotals) -> Bounds:
    """Seconds between which the time from first start to last end lies; see `folded_bounds_s`.

    Measured: both hold in all of 900 random cases, with log-normal times (σ = 1.2) too; on the model-like ones of
    `pipeline_time_s` the lower is 7 % below the replay on average (25 % at worst), the upper 22 % above (57 %).
    """
    lower_s, upper_s = folded_bounds_s(_plans(p, m), totals)
    return Bounds(over(lower_s, v), over(upper_s, v))


SCHEDULE = Schedule(
    id="chimera",
    title="Chimera",
    source="Li & Hoefler 2021, arXiv 2107.06925, section 3 (two pipelines, direct concatenation)",
    constraint=constraint,
    order=order,
    placement=two_way_placement,
    bubble_formula="max(3*p-4-m, (p-2)*(m/p+1))/(3*m+max(3*p-4-m, (p-2)*(m/p+1)))",
    in_flight_formula="min(min(m,p), min(m,p)/2+1+min(r, p-1-r))",
    bubble_fraction=bubble_fraction,
    in_flight_microbatches=in_flight_microbatches,
    makespan_s=makespan_s,
    pipeline_time_s=pipeline_time_s,
    pipeline_time_bounds_s=pipeline_time_bounds_s,
    parameter_copies=2,
)
