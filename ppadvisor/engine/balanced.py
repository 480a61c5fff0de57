"""The best split of one plan: the engine's own seconds and bytes of every stage, put to `balance`."""

from __future__ import annotations

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


def with_split(plan: PlanSpec, split: Split) -> PlanSpec:
    """The plan with other layers on its stages, in model order."""
    ranks = layers_of_ranks(plan.schedule, split, plan.virtual_stages)
    return plan.model_copy(update={"layers_per_chunk": split, "layers_per_stage": ranks})


def balanced_plan(problem: Problem, plan: PlanSpec, *, margin: float, objective: Objective = "time") -> PlanSpec | None:
    """The plan with its best split; None where no split fits into memory, or a rank holds two copies of the model.

    `time`: the heaviest rank as light as can be with every rank within the memory (the middle estimate within margin x
    capacity, the conservative one within the capacity); of those the most even (the least sum of squares of the ranks'
    times), then the lowest peak, then the heavy ranks first, which the ranks behind them make up for while the pipeline
    fills and drains. `memory`: the lowest peak first, then the heaviest rank, then the most even.

    Exact by the engine's closed forms where a rank holds one stage (v = 1), and of the ranks' totals where the layers
    are of one kind; the chunks of a rank are then put in step (`aligned_chunks`). With v > 1 and several kinds of layer
    totals of mean layers are taken, or the exact least of the heaviest chunk, whichever has the lighter heaviest rank:
    the least of all splits is then only known to be no less than the mean of the ranks. None, too, where there are more
    than MOST_CHOICES to look at.
    """
    costs = _costs(problem, plan, margin)
    split = None if costs is None else costs.best(objective)
    return None if split is None else with_split(plan, split)


def faster_split(problem: Problem, plan: PlanSpec, *, margin: float, worth: float) -> PlanSpec | None:
    """`balanced_plan` where its heaviest rank, or its chunks together, are lighter by at least this share; else None.

    Made for a search, in which most plans have a good split already: these are told by the seconds alone.
    """
    costs = _costs(problem, plan, margin)
    if costs is None:
        return None
    present = np.array(round_s(costs.of_chunks_s(plan.layers_per_chunk)))
    if costs.least_s() > present[1] * (1 - worth):
        return None
    split = costs.best("time")
    if split is None or (round_s(costs.of_chunks_s(split)) > present * (1 - worth)).all():
        return None
    return with_split(plan, split)


def _costs(problem: Problem, plan: PlanSpec, margin: float) -> _Costs | None:
    """None where a rank holds two copies of the model, or all of one, or there is too much to look at."""
    inputs = PlanInputs.of(problem, table_of(plan), every_stage=True)
    choices = problem.model.num_layers**2
    if inputs.copies[0] > 1 or plan.pipeline_parallel == 1 or choices > MOST_CHOICES:
        return None
    return _Costs(inputs, plan, margin)


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
    plan: PlanSpec
    margin: float

    @cached_property
    def bare(self) -> PlanInputs:
        """The plan with its embedding, head and prediction layers, and no other layer."""
        plan = self.plan
        layout = layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages)
        empty = Layout((0,) * len(layout.split), layout.placement, layout.spreads_vocabulary)
        return replace(self.inputs, stages=stages_of(self.inputs.problem.model, [empty], every_stage=True))

    @cached_property
    def placement(self) -> IntArray:
        """(ranks, chunks): the stage, in model order."""
        plan = self.plan
        return np.array(layout_of(plan.schedule, plan.layers_per_chunk, plan.virtual_stages).placement)

    @cached_property
    def end_s(self) -> FloatArray:
        """(ranks, chunks): what a chunk takes without layers."""
        times = stage_times(self.bare)
        return np.asarray((times.forward + times.backward)[0])

    @cached_property
    def layer_s(self) -> FloatArray:
        """(kinds,): forward and backward of one layer."""
        passes = [layer_passes(self.inputs, kind).values() for kind in self.inputs.kinds]
        return np.array([sum(float((part.forward + part.backward)[0]) for part in parts) for parts in passes])

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

    def heaviest_s(self, split: Split) -> float:
        """Seconds of the heaviest rank."""
        return round_s(self.of_chunks_s(split))[0]

    @cached_property
    def enough(self) -> int:
        """Layers a rank at most, in less time than the heaviest of the present split: enough where that fits."""
        present_s = self.heaviest_s(self.plan.layers_per_chunk)
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

    def best(self, objective: Objective) -> Split | None:
        """The best split; one with few enough layers on each rank, found sooner, where it is no slower than now."""
        split = self._best_of_few(self.enough, objective) if objective == "time" else None
        if split is None or self.heaviest_s(split) > self.heaviest_s(self.plan.layers_per_chunk):
            return self._best_of_few(len(self.before) - 1, objective)
        return split

    def _best_of_few(self, most: int, objective: Objective) -> Split | None:
        """The best split with at most so many layers a rank."""
        if self.plan.virtual_stages == 1:
            return self._best_of_ranks(self._layers_in_order(most), objective)
        totals = self._best_of_ranks(self._mean_layers(most), objective)
        if totals is None:
            return None
        mean_s = float(self.before[-1] @ self.layer_s) / len(self.before[1:])
        split = np.zeros(self.placement.size, dtype=np.int64)
        split[self.placement] = aligned_chunks(totals, self.end_s, mean_s)
        found = [tuple(split.tolist())]
        if len(self.layer_s) > 1 and objective == "time":
            found += self._best_chunks(int(split.max()) + 1)
        return min(found, key=lambda one: round_s(self.of_chunks_s(one)))

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

    def _best_of_ranks(self, choices: _Choices, objective: Objective) -> Split | None:
        """The exact best of what follows from the contents of each rank."""
        seconds = self._seconds(choices)
        used = self._used_bytes(choices.contents)[:, choices.held]
        allowed = choices.known & (used <= self.inputs.problem.cluster.gpu.memory_bytes)
        heaviest, even, peak = (np.maximum, seconds), (np.add, seconds**2), (np.maximum, used)
        return best_split(allowed, [heaviest, even, peak] if objective == "time" else [peak, heaviest, even])

    def _best_chunks(self, most: int) -> list[Split]:
        """The exact least of the heaviest chunk, with at most so many layers a chunk."""
        runs, known = self._runs(most)
        end_s = np.zeros(self.placement.size)
        end_s[self.placement] = self.end_s
        seconds = runs @ self.layer_s + end_s[:, None, None]
        allowed = np.broadcast_to(known & (np.arange(most + 1) >= 1), seconds.shape)
        split = best_split(allowed, [(np.maximum, seconds), (np.add, seconds**2)])
        return [] if split is None else [split]

    def _used_bytes(self, contents: FloatArray) -> FloatArray:
        """Memory of each rank with each content, held against the capacity: (ranks, contents)."""
        bare, (ranks, chunks) = self.bare.stages, self.placement.shape
        rank = np.repeat(np.arange(ranks), len(contents))
        held = bare.chunk_layers[:, rank] + np.tile(contents, (ranks, 1))[None, :, None, :] / chunks
        grid = Stages(
            rank[None],
            np.ones((1, len(rank)), dtype=np.int64),
            held,
            bare.chunk_embedding[:, rank],
            bare.chunk_head[:, rank],
            bare.adjacent,
            bare.far,
        )
        memory = memory_table(replace(self.inputs, stages=grid), keep_terms=False)
        return np.maximum(memory.total / self.margin, memory.high).reshape(ranks, len(contents))
