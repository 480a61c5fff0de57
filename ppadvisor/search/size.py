"""Targets in, cluster out: how many GPUs of which candidate, on which network, for tokens by a date or for a budget.

Whether more GPUs fit, and how long they take, is not monotone: a number that divides layers or batch badly is worse
than a smaller one. So nothing is bisected: every count is evaluated, but for those that a lower bound rules out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ppadvisor.engine.parameters import count_active_parameters, count_parameters
from ppadvisor.errors import InputError
from ppadvisor.search.size_answers import answers_of, break_even, nearest_to_targets, pareto, within
from ppadvisor.search.size_points import (
    Ask,
    Found,
    Run,
    evaluate_count,
    fewest_by_states,
    least_days,
    what_binds,
)
from ppadvisor.search.size_results import NoPlan, SizeCandidate, SizeLosses, SizePoint, SizeReport, SizeTargets
from ppadvisor.specs.cluster import ClusterSpec

MOST_GPUS = 131_072
"""Of the counts that are searched where none are given."""
HOPELESS = 16
"""No count is searched beyond this many times the first that a lower bound leaves: none of them will do."""
DEARER = 3
"""Where there is only a budget: so many counts above it, each dearer than the one before, end the search."""


@dataclass(frozen=True)
class Candidate:
    """One kind of GPU on one network: what may be bought."""

    name: str
    cluster: ClusterSpec
    """Of one full node."""
    price: float | None
    """Money for one GPU and hour."""
    ask: Ask

    def cost(self, gpu_hours: float) -> float | None:
        """Money for so many GPU-hours; None without a price."""
        return None if self.price is None else self.price * gpu_hours


@dataclass(frozen=True)
class Wanted:
    """What is asked of every candidate."""

    targets: SizeTargets
    run: Run
    counts: tuple[int, ...] | None
    """Numbers of GPUs to search, ascending; None: see `default_counts`."""


@dataclass(frozen=True)
class Evaluated:
    """One count of one candidate."""

    candidate: int
    num_gpus: int
    result: Found | NoPlan | None
    """None where a bound rules it out."""


def default_counts(gpus_per_node: int) -> Iterator[int]:
    """Powers of two within a node, then 1, 2, 3, 4, 5, 6, 8, 10, 12, ... nodes: 2^i, 3 x 2^i and 5 x 2^i of them."""
    yield from (2**i for i in range((gpus_per_node - 1).bit_length()))
    multiples = sorted(odd * 2**i for odd in (1, 3, 5) for i in range(MOST_GPUS.bit_length()))
    yield from (nodes * gpus_per_node for nodes in multiples if nodes * gpus_per_node <= MOST_GPUS)


def search_counts(candidates: Sequence[Candidate], wanted: Wanted) -> Iterator[Evaluated]:
    """Every count of every candidate that has to be looked at, one after the other.

    Memory does not hang on the network: a candidate begins where one with the same GPUs fitted first.
    """
    fitted: list[tuple[ClusterSpec, int]] = []
    for index, candidate in enumerate(candidates):
        walk = _Walk(index, candidate, wanted)
        begin = next((first for cluster, first in fitted if _same_memory(cluster, candidate.cluster)), 0)
        for evaluated in walk.counts_from(begin):
            if isinstance(evaluated.result, Found) and walk.fewest is None:
                walk.fewest = evaluated.num_gpus
                fitted.append((candidate.cluster, evaluated.num_gpus))
            yield evaluated


def _same_memory(one: ClusterSpec, other: ClusterSpec) -> bool:
    return (one.gpu, one.gpus_per_node) == (other.gpu, other.gpus_per_node)


class _Walk:
    """The counts of one candidate, ascending, and where to stop."""

    def __init__(self, index: int, candidate: Candidate, wanted: Wanted) -> None:
        self.index, self.candidate, self.wanted = index, candidate, wanted
        self.fewest: int | None = None
        """The fewest GPUs that fit, once known."""
        self._allowed: int | None = None
        """The first count that no lower bound rules out."""
        self._costs: list[float] = []

    def counts_from(self, begin: int) -> Iterator[Evaluated]:
        """Evaluate from here on what is not ruled out."""
        given = self.wanted.counts
        for num_gpus in given or default_counts(self.candidate.cluster.gpus_per_node):
            # where all are ruled out the largest still says how far off the targets are
            is_last = given is not None and num_gpus == given[-1]
            if not is_last and (num_gpus < begin or self._is_ruled_out(num_gpus)):
                yield Evaluated(self.index, num_gpus, None)
                continue
            result = evaluate_count(self.candidate.ask, self.index, num_gpus, self.wanted.run)
            yield Evaluated(self.index, num_gpus, result)
            if given is None and self._is_enough(num_gpus, result):
                return

    def _is_ruled_out(self, num_gpus: int) -> bool:
        """By a bound on memory; of default counts, once it is known how many GPUs fit, also by one on time."""
        try:
            problem, _ = self.candidate.ask(num_gpus)
        except InputError:
            return False  # told as a point of its own
        run, targets = self.wanted.run, self.wanted.targets
        if num_gpus < fewest_by_states(problem, run.margin):
            return True
        if self.wanted.counts is not None:
            return False  # asked for by name: a point beside the targets can still be better than one shown
        days = least_days(problem, run)
        if within(targets, days, self.candidate.cost(24 * days * num_gpus)):
            self._allowed = self._allowed or num_gpus
            return False
        return self.fewest is not None

    def _is_enough(self, num_gpus: int, result: Found | NoPlan) -> bool:
        """Whether more GPUs are of no use: even the slow end of the estimate meets the date, or money runs out."""
        targets = self.wanted.targets
        if targets.days is None:
            return isinstance(result, Found) and self._is_ever_dearer(result, targets.budget or 0.0)
        if isinstance(result, Found) and result.days_high <= targets.days:
            return True
        return num_gpus > HOPELESS * max(self._allowed or num_gpus, self.fewest or num_gpus)

    def _is_ever_dearer(self, result: Found, budget: float) -> bool:
        self._costs.append(self.candidate.cost(result.gpu_hours) or 0.0)
        last = self._costs[-DEARER:]
        return len(last) == DEARER and last == sorted(last) and last[0] > budget


def size_report(
    candidates: Sequence[Candidate],
    wanted: Wanted,
    evaluated: Iterable[Evaluated],
    *,
    assumptions: dict[str, float],
) -> SizeReport:
    """The answer from all that was evaluated."""
    found = list(evaluated)
    no_plan = tuple(one.result for one in found if isinstance(one.result, NoPlan))
    points = _points(candidates, wanted.targets, found)
    told = tuple(_candidate(index, candidates[index], wanted, found, points) for index in range(len(candidates)))
    answers = answers_of(points, told, wanted.targets)
    asked = {point: [question for question, at in answers.items() if at == point] for point in range(len(points))}
    problem, pins = candidates[0].ask(candidates[0].cluster.num_gpus)
    return SizeReport(
        model=problem.model,
        total_parameters=count_parameters(problem.model),
        active_parameters=count_active_parameters(problem.model),
        training=problem.training,
        targets=wanted.targets,
        losses=SizeLosses(**vars(wanted.run.losses)),
        margin_fraction=wanted.run.margin,
        assumptions=assumptions,
        pins=pins.listed(),
        candidates=told,
        points=tuple(
            point.changed(pareto=is_pareto, answers=tuple(asked[index]))
            for index, (point, is_pareto) in enumerate(zip(points, pareto(points), strict=True))
        ),
        no_plan=no_plan,
        answers=answers,
        break_even=break_even(told),
        nearest=nearest_to_targets(points, no_plan, told, wanted.targets),
    )


def _points(candidates: Sequence[Candidate], targets: SizeTargets, evaluated: Sequence[Evaluated]) -> list[SizePoint]:
    """The points with a plan; the first of a candidate is the one that its scaling is measured by."""
    first: dict[int, Found] = {}
    points = []
    for one in evaluated:
        if isinstance(one.result, Found):
            smallest = first.setdefault(one.candidate, one.result)
            points.append(_point(one.candidate, candidates[one.candidate], targets, one.result, smallest))
    return points


def _point(index: int, candidate: Candidate, targets: SizeTargets, found: Found, smallest: Found) -> SizePoint:
    time, memory = found.estimate.time, found.estimate.memory
    cost = candidate.cost(found.gpu_hours)
    cause, share = what_binds(found.estimate)
    return SizePoint(
        candidate=index,
        num_gpus=found.num_gpus,
        fits=memory.fits,
        meets_targets=within(targets, found.days, cost),
        pareto=False,
        answers=(),
        days=found.days,
        days_low=found.days_low,
        days_high=found.days_high,
        gpu_hours=found.gpu_hours,
        cost=cost,
        goodput_fraction=found.goodput_fraction,
        checkpoint_interval_s=found.checkpoint_interval_s,
        step_time_s=time.step_time_s,
        tokens_per_s=time.tokens_per_s,
        scaling_efficiency=time.tokens_per_s_per_gpu / smallest.estimate.time.tokens_per_s_per_gpu,
        model_flops_utilization=time.model_flops_utilization,
        bubble_fraction=time.bubble_fraction,
        peak_bytes=memory.peak_bytes,
        headroom_bytes=memory.headroom_bytes,
        verdict=memory.verdict,
        plan=found.estimate.plan,
        binds=cause,
        binds_fraction=share,
        time_terms=time.terms,
        hints=found.hints,
    )


def _candidate(
    index: int, candidate: Candidate, wanted: Wanted, evaluated: Sequence[Evaluated], points: Sequence[SizePoint]
) -> SizeCandidate:
    looked_at = [one for one in evaluated if one.candidate == index]
    own = [point for point in points if point.candidate == index]
    days = wanted.targets.days
    in_time = [point.gpu_hours for point in own if days is None or point.days <= days]
    return SizeCandidate(
        name=candidate.name,
        cluster=candidate.cluster,
        price_per_gpu_hour=candidate.price,
        counts=tuple(one.num_gpus for one in looked_at if one.result is not None),
        ruled_out=tuple(one.num_gpus for one in looked_at if one.result is None),
        fewest_that_fit=min((point.num_gpus for point in own), default=None),
        fewest_that_meet=min((point.num_gpus for point in own if point.meets_targets), default=None),
        least_gpu_hours=min(in_time, default=None),
    )
