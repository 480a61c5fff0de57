"""The balanced split is the best there is: against every split of small problems, one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest

from ppadvisor.engine.balance import aligned_chunks, best_split, round_s
from ppadvisor.engine.balanced import Objective, balanced_plan, with_split
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.plan import PlanSpec
from tests.problems import cluster, model, plan, problem

Split = tuple[int, ...]

PLAIN = plan((2, 2, 3), num_microbatches=12)
TWO_CHUNKS = plan(
    (2, 2, 3), virtual_stages=2, schedule="interleaved-1f1b", layers_per_chunk=(1, 1, 1, 1, 1, 2), num_microbatches=12
)


def every_split(layers: int, stages: int) -> Iterator[Split]:
    """Every way to put the layers on the stages, none empty."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield tuple(after - before for before, after in pairwise((0, *cuts, layers)))


def costs_of(cost: np.ndarray, split: Split) -> list[float]:
    """What each stage of a split costs."""
    return [float(cost[k, sum(split[:k]), size]) for k, size in enumerate(split)]


@pytest.mark.parametrize("seed", range(60))
def test_no_split_is_better(seed: int) -> None:
    """Of all allowed splits: the least maximum, then the least sum, then the least second maximum, then front-heavy."""
    rng = random.Random(seed)
    layers = rng.randint(2, 9)
    stages = rng.randint(1, layers)
    shape = (stages, layers + 1, layers + 1)
    # few values: ties are the rule, and the sums of whole numbers are exact
    draw = np.random.default_rng(seed)
    first, summed, second = (draw.integers(1, 5, shape).astype(float) for _ in range(3))
    allowed = (draw.random(shape) < 0.9) & (np.arange(layers + 1) >= 1)
    splits = [s for s in every_split(layers, stages) if all(costs_of(allowed.astype(float), s))]
    found = best_split(allowed, [(np.maximum, first), (np.add, summed), (np.maximum, second)])
    if not splits:
        assert found is None
        return

    def key(split: Split) -> tuple[float, float, float, list[int]]:
        sizes = [-size for size in split]
        return max(costs_of(first, split)), sum(costs_of(summed, split)), max(costs_of(second, split)), sizes

    assert found == min(splits, key=key)


def test_a_split_that_is_not_the_best_is_noticed() -> None:
    """The comparison above tells a split from the best where one layer stands on the wrong side of one boundary."""
    seconds = np.repeat((np.arange(8.0) + np.array([0.0, 0.0, 1.5])[:, None])[:, None], 8, axis=1)
    found = best_split(np.broadcast_to(np.arange(8) >= 1, seconds.shape), [(np.maximum, seconds)])
    assert found is not None
    assert max(costs_of(seconds, found)) == min(max(costs_of(seconds, s)) for s in every_split(7, 3)) == 3.0
    moved = (found[0] + 1, found[1] - 1, found[2])
    assert max(costs_of(seconds, moved)) > 3.0


@pytest.mark.parametrize("seed", range(40))
def test_chunks_in_step_take_no_more_than_the_heaviest_rank(seed: int) -> None:
    """With a head alone: totals are kept, no chunk is empty, and a round takes what the heaviest rank takes.

    That is the least that any chunks of these totals can take.
    """
    rng = random.Random(seed)
    ranks, chunks = rng.randint(2, 6), rng.randint(2, 5)
    head = rng.uniform(0, 4)
    most = chunks + int(head) + rng.randint(1, 6)
    end_s = np.zeros((ranks, chunks))
    end_s[-1, -1] = head
    totals = [rng.randint(chunks, most) for _ in range(ranks - 1)]
    totals.append(max(chunks, most - int(np.ceil(head))))
    totals[rng.randrange(ranks - 1)] = most
    layers = aligned_chunks(totals, end_s, 1.0)
    assert layers.sum(axis=1).tolist() == totals
    assert layers.min() >= 1
    heaviest_s, whole_s = round_s(layers + end_s)
    assert whole_s == pytest.approx(heaviest_s)


def small(name: str, memory_gib: float = 80.0, vocab_size: int = 60_000) -> Problem:
    """Seven layers of unlike kinds with a large vocabulary, on GPUs of a given size."""
    machines = cluster(3, gpus_per_node=8, memory_bytes=int(memory_gib * 2**30))
    return problem(model(name, num_layers=7, vocab_size=vocab_size), machines=machines, global_batch_size=12)


def every_plan(layers: int, of: PlanSpec) -> list[PlanSpec]:
    """The plan with every split of its stages."""
    stages = of.pipeline_parallel * of.virtual_stages
    return [with_split(of, split) for split in every_split(layers, stages)]


def measured(of: Problem, one: PlanSpec) -> tuple[float, float, float]:
    """(heaviest rank's seconds, sum of squares, bytes held against the capacity) as the engine's answer has them."""
    estimate = estimate_plan(of, one, margin=0.9)
    seconds = [stage.forward_s + stage.backward_s for stage in estimate.time.stages]
    used = max(max(stage.total_bytes / 0.9, stage.conservative_bytes) for stage in estimate.memory.stages)
    return max(seconds), sum(s * s for s in seconds), used


@pytest.mark.parametrize("name", ["gpt", "windowed", "moe", "mla-mtp"])
@pytest.mark.parametrize("objective", ["time", "memory"])
def test_no_split_of_a_plan_is_better(name: str, objective: Objective) -> None:
    """Every split of 7 layers on 3 stages, estimated one by one: none is better in what was asked for."""
    of = small(name)
    start = PLAIN
    found = balanced_plan(of, start, margin=0.9, objective=objective)
    assert found is not None
    mine, others = measured(of, found), [measured(of, one) for one in every_plan(7, start)]
    if objective == "time":
        assert mine[:2] == pytest.approx(min(other[:2] for other in others), rel=1e-8)
    else:
        assert mine[2] == pytest.approx(min(other[2] for other in others), rel=1e-8)


def test_memory_bars_what_does_not_fit() -> None:
    """As the memory shrinks the split gives way, each still the fastest of those that fit, until none does."""
    roomy = small("gpt", vocab_size=5000)
    # activations weigh more than weights
    start = PLAIN.changed(micro_batch_size=16)
    all_plans = [measured(roomy, one) for one in every_plan(7, start)]
    found = set()
    for limit in sorted({used for _, _, used in all_plans}):
        one = balanced_plan(small("gpt", (limit + 2) / 2**30, vocab_size=5000), start, margin=0.9)
        assert one is not None
        found.add(one.layers_per_chunk)
        fitting = [seconds for seconds, _, used in all_plans if used <= limit + 1]
        assert measured(roomy, one)[0] == pytest.approx(min(fitting), rel=1e-8)
    assert len(found) > 1
    least = min(used for _, _, used in all_plans)
    for one in (start, TWO_CHUNKS.changed(micro_batch_size=16)):
        assert balanced_plan(small("gpt", least / 2**31, vocab_size=5000), one, margin=0.9) is None


@pytest.mark.parametrize("name", ["gpt", "windowed", "moe", "mla-mtp"])
def test_ranks_of_several_chunks(name: str) -> None:
    """v = 2, every split of 7 layers on 3 ranks: the heaviest rank is the lightest possible where layers are alike.

    With several kinds of layer it is within one layer of that.
    """
    of = small(name)
    start = TWO_CHUNKS
    found = balanced_plan(of, start, margin=0.9)
    assert found is not None
    assert sum(found.layers_per_chunk) == 7
    assert min(found.layers_per_chunk) >= 1
    least = min(measured(of, one)[0] for one in every_plan(7, start))
    if len(of.model.layer_kinds()[0]) == 1:
        assert measured(of, found)[0] == pytest.approx(least, rel=1e-8)
    else:
        assert measured(of, found)[0] <= 1.3 * least


def test_two_copies_and_no_pipeline_are_left_alone() -> None:
    """A rank that holds two copies of the model, and a pipeline of one rank, have no split to choose."""
    of = problem(num_gpus=4)
    assert balanced_plan(of, plan((3, 3, 3, 3), schedule="dualpipe", num_microbatches=8), margin=0.9) is None
    assert balanced_plan(of, plan((12,), data_parallel=4), margin=0.9) is None
