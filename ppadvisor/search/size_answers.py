"""From points to answers: what is fewest, cheapest, fastest, beaten by no other; and which price is still worth it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ppadvisor.search.size_results import (
    BreakEven,
    Difference,
    NoPlan,
    Question,
    SizeCandidate,
    SizePoint,
    SizeTargets,
)
from ppadvisor.specs.cluster import ClusterSpec, GpuSpec
from ppadvisor.units import format_count, format_days, format_fraction

Key = Callable[[SizePoint], tuple[float, ...]]


def within(targets: SizeTargets, days: float, cost: float | None) -> bool:
    """Whether a run of so many days and such a cost is what was wanted."""
    in_time = targets.days is None or days <= targets.days
    return in_time and (targets.budget is None or (cost is not None and cost <= targets.budget))


def answers_of(
    points: Sequence[SizePoint], candidates: Sequence[SizeCandidate], targets: SizeTargets
) -> dict[Question, int | None]:
    """The point that answers each question, None where none does."""
    meet = [point for point in points if point.meets_targets]
    surely = [point for point in meet if within(targets, point.days_high, _cost_at_slow_end(point))]
    chosen: dict[Question, tuple[Sequence[SizePoint], Key]] = {
        "fewest_that_fit": (points, _fewest),
        "fewest_that_meet": (meet, _fewest),
        "fewest_at_slow_end": (surely, _fewest),
    }
    if all(candidate.price_per_gpu_hour is not None for candidate in candidates):
        chosen["cheapest"] = (meet, lambda point: (point.cost or 0.0, point.num_gpus))
    if targets.days is None:
        chosen["fastest"] = (meet, lambda point: (point.days, point.num_gpus))
    return {question: points.index(min(among, key=key)) if among else None for question, (among, key) in chosen.items()}


def _fewest(point: SizePoint) -> tuple[float, ...]:
    return point.num_gpus, point.days


def _cost_at_slow_end(point: SizePoint) -> float | None:
    return None if point.cost is None else point.cost * point.days_high / point.days


def pareto(points: Sequence[SizePoint]) -> list[bool]:
    """Whether each point is beaten by no other: as few GPUs, days and cost, and fewer of one of them.

    Points of different candidates compare where both have a price: GPUs of different kinds are not alike.
    """
    return [not any(_beats(other, point) for other in points) for point in points]


def _beats(one: SizePoint, other: SizePoint) -> bool:
    if one.candidate != other.candidate and (one.cost is None or other.cost is None):
        return False
    ours = (one.num_gpus, one.days, one.cost or 0.0)
    theirs = (other.num_gpus, other.days, other.cost or 0.0)
    return ours != theirs and all(mine <= its for mine, its in zip(ours, theirs, strict=True))


def break_even(candidates: Sequence[SizeCandidate]) -> tuple[BreakEven, ...]:
    """Each candidate against the first, and against earlier ones that differ only in network or memory."""
    return tuple(
        found
        for index, candidate in enumerate(candidates)
        for other in range(index)
        if other == 0 or difference(candidate, candidates[other]) in ("network", "memory")
        for found in _break_even(candidates, index, other)
    )


def _break_even(candidates: Sequence[SizeCandidate], index: int, other: int) -> Iterator[BreakEven]:
    ours, theirs = candidates[index], candidates[other]
    if ours.least_gpu_hours is None or theirs.least_gpu_hours is None:
        return
    prices = (ours.price_per_gpu_hour, theirs.price_per_gpu_hour)
    yield BreakEven(
        candidate=index,
        against=other,
        differs_in=difference(ours, theirs),
        price_ratio=theirs.least_gpu_hours / ours.least_gpu_hours,
        given_ratio=None if prices[0] is None or prices[1] is None else prices[0] / prices[1],
    )


def difference(one: SizeCandidate, other: SizeCandidate) -> Difference:
    """The one thing in which two candidates differ, or that there are several."""
    ours, theirs = one.cluster, other.cluster
    if _kind(ours.gpu) != _kind(theirs.gpu):
        # another kind of GPU brings its own memory, and its own links within the node
        same_network = ours.inter_node_bandwidth_bytes_per_s == theirs.inter_node_bandwidth_bytes_per_s
        return "gpu" if same_network else "several"
    differs: dict[Difference, bool] = {
        "memory": ours.gpu.memory_bytes != theirs.gpu.memory_bytes,
        "network": _links(ours) != _links(theirs),
    }
    found = [name for name, is_so in differs.items() if is_so]
    return found[0] if len(found) == 1 else "several"


def _kind(gpu: GpuSpec) -> tuple[object, ...]:
    return gpu.name, gpu.peak_flops_per_s, gpu.hbm_bandwidth_bytes_per_s


def _links(cluster: ClusterSpec) -> tuple[float, ...]:
    return (
        cluster.gpus_per_node,
        cluster.intra_node_bandwidth_bytes_per_s,
        cluster.inter_node_bandwidth_bytes_per_s,
    )


def nearest_to_targets(
    points: Sequence[SizePoint],
    no_plan: Sequence[NoPlan],
    candidates: Sequence[SizeCandidate],
    targets: SizeTargets,
) -> str | None:
    """Where nothing meets the targets: the point that comes nearest, and what it would take."""
    if any(point.meets_targets for point in points):
        return None
    if not points:
        last = max(no_plan, key=lambda miss: miss.num_gpus, default=None)
        if last is None:
            return "no number of GPUs was left to search"
        name = candidates[last.candidate].name
        return f"there is no plan; {last.num_gpus:,} x {name}: {last.reason}"
    point = min(points, key=lambda point: _miss(point, targets))
    what = f"nearest: {point.num_gpus:,} x {candidates[point.candidate].name}"
    return f"{what} {' and '.join(_misses(point, targets))}"


def _miss(point: SizePoint, targets: SizeTargets) -> float:
    """By which factor a point misses the target that it misses most."""
    over = [point.days / targets.days] if targets.days else []
    over += [point.cost / targets.budget] if targets.budget and point.cost else []
    return max(over)


def _misses(point: SizePoint, targets: SizeTargets) -> Iterator[str]:
    if targets.days is not None and point.days > targets.days:
        able = targets.tokens * targets.days / point.days
        over = format_fraction(point.days / targets.days - 1)
        yield (
            f"takes {format_days(point.days)} days, {over} too long ({format_count(able)} tokens would be done in time)"
        )
    if targets.budget is not None and point.cost is not None and point.cost > targets.budget:
        able = targets.tokens * targets.budget / point.cost
        over = format_fraction(point.cost / targets.budget - 1)
        yield f"costs {format_count(point.cost)}, {over} too much ({format_count(able)} tokens would be paid for)"
