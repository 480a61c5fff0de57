"""The best split of one plan: the engine's own seconds and bytes of every stage, put to `balance`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from ppadvisor.engine.balance import (
    SAME,
    BoolArray,
    FloatArray,
    IntArray,
    Split,
    aligned_chunks,
    best_split,
    round_s,
)
from ppadvisor.engine.evaluate import quick_steps_s
from ppadvisor.engine.inputs import PlanInputs, layout_of
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.partition import Layout, Stages, stages_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.step_time import layer_passes, stage_times
from ppadvisor.engine.tables import layers_of_ranks, table_of
from ppadvisor.specs.plan import PlanSpec

Objective = Literal["time", "memory"]

MOST_CHOICES = 250_000
"""Runs of layers that a stage may hold, at most: models of 500 layers; beyond, one layer more or less hardly counts."""

NEAR = 0.002
"""Share by which a split must be ahead of another to be preferred to a simpler one."""


def with_split(plan: PlanSpec, split: Split) -> PlanSpec:
    """The plan with other layers on its stages, in model order."""
    ranks = layers_of_ranks(plan.schedule, split, plan.virtual_stages)
    return plan.changed(layers_per_chunk=split, layers_per_stage=ranks)


def balanced_plan(problem: Problem, plan: PlanSpec, *, margin: float, objective: Objective = "time") -> PlanSpec | None:
    """The plan with its best split; None where no split fits into memory, or a rank holds two copies of the model.

    `time`: the heaviest rank as light as can be with every rank within the memory (the middle estimate within margin x
    capacity, the conservative one within the capacity); of those the most even (the least sum of squares of the ranks'
    times), then the lowest peak, then the heavy ranks first, which the ranks behind them make up for while the pipeline
    fills and drains. `memory`: the lowest peak first, then the heaviest rank, then the most even.

    Exact by the engine's closed forms where a rank holds one stage (v = 1). With v > 1 the ranks' totals are exact
    where the layers are of one kind, and those of mean layers elsewhere; their chunks are put in step in two ways
    (`aligned_chunks`), and beside these stands the exact least of the heaviest chunk: the first of the three is taken,
    unless a quick replay finds another clearly faster. None, too, where there are more than MOST_CHOICES to look at.

    The heaviest rank is what counts in the steady state, links and the first and last micro-batches are left out.
    Measured on 240 random plans of 17 published models (p 2..16, v 1..5, m p..8 p, memory without limit), replayed: 3 %
    shorter steps than the even split on average, longer in 17; as long on average as the fastest of the five or so
    splits of `candidate_splits`, from 6 % shorter to 4 % longer, the longer ones mostly at m = p. So replay both.
    """
    (costs,) = _costs(problem, (plan,), margin)
    splits = costs.best(objective) if costs else []
    return with_split(plan, fastest(problem, plan, splits)) if splits else None


def faster_plans(
    problem: Problem, plans: Sequence[PlanSpec], *, margin: float, thorough: bool = False
) -> list[PlanSpec | None]:
    """`balanced_plan` of each plan where a quick replay has it clearly ahead of the plan as it is, else None.

    Made for a search, in which most plans have a good split already. These are told by the seconds of ranks and chunks
    alone, unless `thorough`: with few micro-batches it also matters where the heaviest rank stands.
    """
    costs = zip(plans, _costs(problem, plans, margin), strict=True)
    tried = [[plan.layers_per_chunk, *(_ahead(of_plan, thorough) if of_plan else ())] for plan, of_plan in costs]
    chosen = _fastest_of_each(problem, plans, tried)
    found = zip(plans, chosen, strict=True)
    return [None if split == plan.layers_per_chunk else with_split(plan, split) for plan, split in found]


def _ahead(costs: _Costs, thorough: bool) -> list[Split]:
    """The splits of a plan that its ranks or chunks say to be ahead of its own; with `thorough` all that are best."""
    limits = np.array(costs.round_s(costs.plan.layers_per_chunk)) * (1 - NEAR)
    if not thorough and costs.least_s() > limits[1]:
        return []
    return [split for split in costs.best("time") if thorough or (costs.round_s(split) <= limits).any()]


def fastest(problem: Problem, plan: PlanSpec, splits: Sequence[Split]) -> Split:
    """The first of some splits of a plan that no other is clearly ahead of, by a quick replay."""
    return _fastest_of_each(problem, (plan,), (splits,))[0]


def _fastest_of_each(problem: Problem, plans: Sequence[PlanSpec], splits: Sequence[Sequence[Split]]) -> list[Split]:
    """`fastest` of several plans, replayed together."""
    several = [with_split(plan, one) for plan, of in zip(plans, splits, strict=True) if len(of) > 1 for one in of]
    seconds = iter(quick_steps_s(problem, table_of(*several)).tolist() if several else ())
    chosen = []
    for of_plan in splits:
        times = [next(seconds) for _ in of_plan] if len(of_plan) > 1 else [0.0]
        near = zip(of_plan, times, strict=True)
        chosen.append(next(split for split, time_s in near if time_s <= min(times) * (1 + NEAR)))
    return chosen


def _costs(problem: Problem, plans: Sequence[PlanSpec], margin: float) -> list[_Costs | None]:
    """Of each plan; None where a rank holds two copies of the model, or all of one, or there is too much to look at."""
    found: list[_Costs | None] = [None] * len(plans)
    if problem.model.num_layers**2 > MOST_CHOICES:
        return found
    shapes: dict[tuple[int, ...], list[int]] = {}
    for index, plan in enumerate(plans):
        if plan.pipeline_parallel > 1:
            shapes.setdefault(_placement(plan).shape, []).append(index)
    for indices in shapes.values():
        for index, one in zip(indices, _costs_of_shape(problem, [plans[i] for i in indices], margin), strict=True):
            found[index] = one if one.inputs.copies[0] == 1 else None
    return found


def _costs_of_shape(problem: Problem, plans: Sequence[PlanSpec], margin: float) -> list[_Costs]:
    """Of plans with as many ranks and chunks, whose times are found together."""
    inputs = PlanInputs.of(problem, table_of(*plans), every_stage=True)
    layouts = [layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages) for plan in plans]
    empty = [Layout((0,) * len(one.split), one.placement, one.spreads_vocabulary) for one in layouts]
    bare = replace(inputs, stages=stages_of(problem.model, empty, every_stage=True))
    times = stage_times(bare)
    passes = [layer_passes(inputs, kind).values() for kind in inputs.kinds]
    layer_s = np.stack([sum((part.forward + part.backward for part in parts), np.zeros(1)) for parts in passes], axis=1)
    return [
        _Costs(inputs.row(row), bare.row(row).stages, plan, margin, (times.forward + times.backward)[row], layer_s[row])
        for row, plan in enumerate(plans)
    ]


def _placement(plan: PlanSpec) -> IntArray:
    """(ranks, chunks): the stage, in model order."""
    return np.array(layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement)


@dataclass(frozen=True)
class _Choices:
    """What a rank may hold: `contents` (contents, kinds), and which of them n layers from i on are."""

    contents: FloatArray
    held: IntArray
    """(layers + 1, sizes): index into `contents`."""
    known: BoolArray
    """(layers + 1, sizes): whether a rank may hold so many from there."""


@dataclass(frozen=True)
class _Costs:
    """What the stages of one plan cost."""

    inputs: PlanInputs
    """One row."""
    bare: Stages
    """With embedding, head and prediction layers, and no other layer."""
    plan: PlanSpec
    margin: float
    end_s: FloatArray
    """(ranks, chunks): what a chunk takes without layers."""
    layer_s: FloatArray
    """(kinds,): forward and backward of one layer."""

    @cached_property
    def placement(self) -> IntArray:
        """(ranks, chunks): the stage, in model order."""
        return _placement(self.plan)

    @cached_property
    def before(self) -> IntArray:
        """(layers + 1, kinds): layers of each kind before layer i."""
        kinds, kind_of_layer = self.inputs.problem.model.layer_kinds()
        counted = np.array(kind_of_layer)[:, None] == np.arange(len(kinds))
        return np.concatenate([np.zeros((1, len(kinds)), dtype=np.int64), counted.cumsum(axis=0)])

    def of_chunks_s(self, split: Split) -> FloatArray:
        """Seconds of each chunk of each rank, (ranks, chunks)."""
        ends = np.cumsum((0, *split))
        stage_s = (self.before[ends[1:]] - self.before[ends[:-1]]) @ self.layer_s
        return np.asarray(stage_s[self.placement] + self.end_s)

    def round_s(self, split: Split) -> tuple[float, float]:
        """Seconds of the heaviest rank, and of the heaviest chunks together."""
        return round_s(self.of_chunks_s(split))

    @cached_property
    def enough(self) -> int:
        """Layers a rank at most, in less time than the heaviest of the present split: enough where that fits."""
        present_s, _ = self.round_s(self.plan.layers_per_chunk)
        return min(len(self.before) - 1, int(present_s / self.layer_s.min() + SAME))

    def least_s(self) -> float:
        """The least that the heaviest rank takes, whatever the memory."""
        ranks = self._layers_in_order if self.plan.virtual_stages == 1 else self._mean_layers
        choices = ranks(self.enough)
        seconds = self._seconds(choices)
        split = best_split(np.broadcast_to(choices.known, seconds.shape), [(np.maximum, seconds)])
        if split is None:
            return 0.0
        starts = np.cumsum((0, *split[:-1]))
        return float(seconds[np.arange(len(split)), starts, list(split)].max())

    def best(self, objective: Objective) -> list[Split]:
        """The best split, or several to replay, the simplest first; none where nothing fits.

        Those with few layers on each rank are found sooner, and are the best where they are no slower than now.
        """
        splits = self._best_of_few(self.enough, objective) if objective == "time" else []
        if not splits or self.round_s(splits[0])[0] > self.round_s(self.plan.layers_per_chunk)[0]:
            return self._best_of_few(len(self.before) - 1, objective)
        return splits

    def _best_of_few(self, most: int, objective: Objective) -> list[Split]:
        """The best splits with at most so many layers a rank."""
        if self.plan.virtual_stages == 1:
            in_order = self._layers_in_order(most)
            split = self._best_of_ranks(in_order, self._bytes_of_each(in_order), objective)
            return [split] if split else []
        means = self._mean_layers(most)
        used = self._bytes_of_each(means)
        totals = self._best_of_ranks(means, used, objective)
        if totals is None:
            return []
        mean_s = float(self.before[-1] @ self.layer_s) / len(self.before[1:])
        found: list[Split] = []
        for below_ends in (True, False):
            stages = np.zeros(self.placement.size, dtype=np.int64)
            stages[self.placement] = aligned_chunks(totals, self.end_s, mean_s, below_ends=below_ends)
            found.append(tuple(stages.tolist()))
        if objective == "time":
            found += self._best_chunks(max(found[0]) + 1, used)
        return list(dict.fromkeys(found))

    def _runs(self, most: int) -> tuple[IntArray, BoolArray]:
        """Of layers i .. i + n - 1 those of each kind, (layers + 1, sizes, kinds), and whether there are so many."""
        starts, sizes = np.arange(len(self.before))[:, None], np.arange(most + 1)
        after = np.minimum(starts + sizes, len(self.before) - 1)
        return self.before[after] - self.before[starts], starts + sizes < len(self.before)

    def _layers_in_order(self, most: int) -> _Choices:
        """One stage a rank: what it holds is a run of layers."""
        runs, known = self._runs(most)
        base = len(self.before) ** np.arange(runs.shape[2])
        names, held = np.unique(runs @ base, return_inverse=True)
        contents = names[:, None] // base % len(self.before)
        return _Choices(contents.astype(np.float64), held.reshape(known.shape), known & (np.arange(most + 1) >= 1))

    def _mean_layers(self, most: int) -> _Choices:
        """Several stages a rank: it holds so many mean layers, one in each stage at least."""
        sizes = np.arange(most + 1)
        shape = (len(self.before), most + 1)
        contents = sizes[:, None] * self.before[-1] / len(self.before[1:])
        known = sizes >= self.plan.virtual_stages
        return _Choices(contents, np.broadcast_to(sizes, shape), np.broadcast_to(known, shape))

    def _seconds(self, choices: _Choices) -> FloatArray:
        """Of each rank with each run of layers, (ranks, layers + 1, sizes)."""
        return np.asarray((self.end_s.sum(axis=1)[:, None] + choices.contents @ self.layer_s)[:, choices.held])

    def _bytes_of_each(self, choices: _Choices) -> FloatArray:
        """Memory of each rank with each content, held against the capacity, (ranks, contents)."""
        ranks, contents = len(self.placement), choices.contents
        every = self._used_bytes(np.repeat(np.arange(ranks), len(contents)), np.tile(contents, (ranks, 1)))
        return every.reshape(ranks, -1)

    def _best_of_ranks(self, choices: _Choices, used_bytes: FloatArray, objective: Objective) -> Split | None:
        """The exact best of what follows from the contents of each rank."""
        seconds, used = self._seconds(choices), used_bytes[:, choices.held]
        allowed = choices.known & (used <= self.inputs.problem.cluster.gpu.memory_bytes)
        heaviest, even, peak = (np.maximum, seconds), (np.add, seconds**2), (np.maximum, used)
        return best_split(allowed, [heaviest, even, peak] if objective == "time" else [peak, heaviest, even])

    def _best_chunks(self, most: int, of_means: FloatArray) -> list[Split]:
        """The exact least of the heaviest chunk, with at most so many layers a chunk."""
        runs, known = self._runs(most)
        end_s = np.zeros(self.placement.size)
        end_s[self.placement] = self.end_s
        seconds = runs @ self.layer_s + end_s[:, None, None]
        allowed = np.broadcast_to(known & (np.arange(most + 1) >= 1), seconds.shape)
        split = best_split(allowed, [(np.maximum, seconds), (np.add, seconds**2)])
        return [split] if split and self._fits(split, of_means) else []

    def _fits(self, split: Split, of_means: FloatArray) -> bool:
        """Whether each rank has room for what it holds, its chunks taken as alike; `of_means`: of so many mean layers.

        Where all layers are of one kind each of them is a mean one.
        """
        ends = np.cumsum((0, *split))
        of_stages = self.before[ends[1:]] - self.before[ends[:-1]]
        contents = of_stages[self.placement].sum(axis=1).astype(np.float64)
        rank, number = np.arange(len(contents)), contents.sum(axis=1).astype(np.int64)
        alike = contents.shape[1] == 1 and number.max() < of_means.shape[1]
        used = of_means[rank, number] if alike else self._used_bytes(rank, contents)
        return bool((used <= self.inputs.problem.cluster.gpu.memory_bytes).all())

    def _used_bytes(self, rank: IntArray, contents: FloatArray) -> FloatArray:
        """Memory of some ranks with layers of each kind on them (n, kinds), held against the capacity: (n,)."""
        bare = self.bare
        held = bare.chunk_layers[:, rank] + contents[None, :, None, :] / self.placement.shape[1]
        grid = Stages(
            rank[None],
            np.ones((1, len(rank)), dtype=np.int64),
            bare.chunk_count[:, rank],
            held,
            bare.chunk_embedding[:, rank],
            bare.chunk_head[:, rank],
            bare.chunk_hands_over[:, rank],
            bare.chunk_takes_over[:, rank],
            bare.adjacent,
            bare.far,
        )
        memory = memory_table(replace(self.inputs, stages=grid), keep_terms=False)
        used: FloatArray = np.maximum(memory.total / self.margin, memory.high)[0]
        return used
