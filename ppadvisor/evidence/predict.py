"""What we predict of a measured run, in the words and for the ranks that were measured. Bytes, seconds, fractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.evaluate import VERDICTS, estimate_plan, quick_step_times, verdict_of
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory import (
    ALLOWANCES,
    BETWEEN_STEPS,
    OUTSIDE_TORCH,
    TERMS,
    MemoryTable,
    memory_table,
    together,
)
from ppadvisor.engine.pipeline import MOST_ACTIONS, Pipeline, pipeline_of, timed_pipeline
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Verdict
from ppadvisor.engine.tables import table_of
from ppadvisor.errors import InputError
from ppadvisor.evidence import KindName
from ppadvisor.evidence.cases import Case
from ppadvisor.evidence.records import Scope
from ppadvisor.evidence.trainers import READ_ON_ONE_NODE
from ppadvisor.specs.plan import PlanSpec

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "allocated": ALLOWANCES,
    "reserved": OUTSIDE_TORCH,
    "process": (),
    "activation": (*ALLOWANCES, *BETWEEN_STEPS),
    "static": (*ALLOWANCES, *(name for name, _ in TERMS if name not in BETWEEN_STEPS)),
}
"""Of each quantity of memory, the terms that are no part of it."""

LOWEST_RANK = "lowest rank"

LARGEST = 3
"""Terms that a row names."""


@dataclass(frozen=True)
class Prediction:
    """A predicted value; of memory also the stage that it stands on."""

    value: float
    terms: Mapping[str, float]
    """The largest terms, largest first."""
    stage: int | None = None
    verdict: Verdict | None = None
    low: float | None = None
    """The range that the assumptions leave open, where they have a part in the value."""
    high: float | None = None


def _largest(terms: Mapping[str, float]) -> dict[str, float]:
    ranked = sorted(terms.items(), key=lambda item: -item[1])
    return dict(ranked[:LARGEST])


def memory_of(problem: Problem, plan: PlanSpec) -> MemoryTable:
    """Memory of every stage.

    In flight by the closed forms; of a split backward by the order itself, which tells what waits.
    """
    if schedules.get(plan.schedule).splits_backward:
        return memory_table(pipeline_of(problem, plan).inputs, keep_terms=True)
    return memory_table(PlanInputs.of(problem, table_of(plan), every_stage=True), keep_terms=True)


@dataclass(frozen=True)
class Footprint:
    """Memory of every stage of a case, from which each quantity is taken."""

    case: Case

    @cached_property
    def table(self) -> MemoryTable:
        return memory_of(self.case.problem, self.case.plan)

    def terms(self, quantity: str) -> dict[str, FloatArray]:
        """The terms that the quantity adds up, (stages,) each."""
        left_out = LEFT_OUT[quantity]
        return {name: values[0] for name, values in self.table.terms.items() if name not in left_out}

    def peak(self, quantity: str, scope: Scope) -> Prediction:
        """The highest value among the stages that were measured."""
        terms = self.terms(quantity)
        total = sum(terms.values(), np.zeros(self.case.plan.pipeline_parallel))
        stages = _stages(scope, len(total))
        if quantity == "process" and scope == "max" and self.case.record.source.key in READ_ON_ONE_NODE:
            stages = stages[: self._stages_of_a_node]
        stage = max(stages, key=lambda stage: total[stage])
        return self._with_range(self._at(total, terms, stage), terms)

    def of_one(self, stage: int | None) -> Prediction:
        """torch's maximum on this stage; None: on the one where it is lowest."""
        terms = self.terms("allocated")
        total = sum(terms.values(), np.zeros(self.case.plan.pipeline_parallel))
        return self._at(total, terms, int(np.argmin(total)) if stage is None else stage)

    def _with_range(self, prediction: Prediction, terms: Mapping[str, FloatArray]) -> Prediction:
        """The prediction with what the allowances among its terms leave open."""
        if prediction.stage is None or not set(ALLOWANCES).intersection(terms):
            return prediction
        stage = prediction.stage

        def width(side: Mapping[str, FloatArray]) -> float:
            mine = {name: size for name, size in side.items() if name in terms or name not in ALLOWANCES}
            return float(together(mine)[0, stage])

        below, above = width(self.table.below), width(self.table.above)
        return replace(prediction, low=prediction.value - below, high=prediction.value + above)

    @property
    def _stages_of_a_node(self) -> int:
        """Stages that the first node holds a rank of."""
        plan, node = self.case.plan, self.case.problem.cluster.gpus_per_node
        return -(-node // (plan.tensor_parallel * plan.context_parallel * plan.data_parallel))

    def runs_out(self) -> Prediction:
        """1.0 where the run is not expected to fit: without a margin, against what the driver shows."""
        peak, high = self.table.total[0], self.table.high[0]
        capacity = self.case.problem.cluster.gpu.memory_bytes
        index = int(verdict_of(np.array([peak.max()]), np.array([high.max()]), capacity, 1.0)[0])
        shown = self._at(peak, self.terms("process"), int(np.argmax(peak)))
        return Prediction(float(index > 0), shown.terms, shown.stage, VERDICTS[index])

    @staticmethod
    def _at(total: FloatArray, terms: Mapping[str, FloatArray], stage: int) -> Prediction:
        return Prediction(float(total[stage]), _largest({k: float(v[stage]) for k, v in terms.items()}), stage)


def _stages(scope: Scope, number: int) -> tuple[int, ...]:
    """The stages of which the highest was measured."""
    one: dict[Scope, tuple[int, ...]] = {
        "first_stage": (0,),
        "rank_0": (0,),
        "last_stage": (number - 1,),
        "first_or_last": (0, number - 1),
        "middle_stage": (number // 2,),
    }
    return one.get(scope, tuple(range(number)))


def memory(case: Case, quantity: str) -> Prediction:
    """`allocated`, `reserved`, `process`, `activation` or `static` of the ranks that were measured."""
    return Footprint(case).peak(quantity, case.record.measured.peak_scope or "max")


def part(case: Case, quantity: str) -> Prediction:
    """`static` (weights, gradients, optimizer) of the ranks that were measured; torch's maximum of a stage, by number.

    `lowest rank` is that of the stage where it is lowest.
    """
    if quantity == "static":
        return memory(case, quantity)
    return Footprint(case).of_one(None if quantity == LOWEST_RANK else int(quantity))


def out_of_memory(case: Case, _: str) -> Prediction:
    """Whether the run fits."""
    return Footprint(case).runs_out()


def step_time(case: Case, _: str) -> Prediction:
    """Seconds of one optimizer step."""
    step = quick_step_times(case.problem, case.plan)
    return Prediction(float(step.step[0]), _largest({name: float(values[0]) for name, values in step.terms.items()}))


def bubble(case: Case, _: str) -> Prediction:
    """Idle share of the pipeline's whole span; where the authors computed it, what they computed."""
    if case.record.measured.bubble_is == "computed" and not schedules.get(case.plan.schedule).asynchronous:
        return _computed_bubble(case)
    time = estimate_plan(case.problem, case.plan, margin=1.0).time
    idle = {name: value for name, value in time.terms.items() if name in ("bubble_s", "imbalance_s", "handoff_s")}
    return Prediction(time.bubble_fraction, _largest(idle))


def _computed_bubble(case: Case) -> Prediction:
    """(cost − m (F + B + W)) / cost with one F, B and W for all stages; the cost is the longest span of a rank.

    So computes Zero Bubble Pipeline Parallelism (Qi et al. 2024, arXiv 2401.10241, table 5) from its profile: with the
    times that it prints, equal on all stages, a replay gives its numbers to the last digit. Uneven stages, embedding
    and head, are no part of it.
    """
    pipeline = _of_equal_stages(case)
    without, with_links = (pipeline.replayed(links=links) for links in (False, True))
    if without is None or with_links is None:
        raise InputError("too many micro-batches to replay them one by one")
    free, whole = without.bubble_in_span_fraction, with_links.bubble_in_span_fraction
    busy = float(with_links.busy_s.mean())
    idle = [busy * share / (1.0 - share) for share in (free, whole)]
    return Prediction(whole, _largest({"bubble_s": idle[0], "handoff_s": idle[1] - idle[0]}))


def _of_equal_stages(case: Case) -> Pipeline:
    """The pipeline as if every stage were the one in the middle; without orders where they would be too long."""
    plan, pipeline = case.plan, timed_pipeline(case.problem, case.plan)
    if plan.pipeline_parallel * plan.virtual_stages * plan.num_microbatches > MOST_ACTIONS // 2:
        return pipeline
    times, middle = pipeline.times, plan.pipeline_parallel // 2

    def equal(of_stages: FloatArray) -> FloatArray:
        return np.broadcast_to(of_stages[:, middle : middle + 1], of_stages.shape)

    times = replace(
        times,
        forward=equal(times.forward),
        backward=equal(times.backward),
        weight_grad=equal(times.weight_grad),
        repeats=equal(times.repeats),
    )
    return replace(pipeline, times=times).of_microbatches(plan.num_microbatches)


PREDICTORS: dict[KindName, Callable[[Case, str], Prediction]] = {
    "memory": memory,
    "activation": memory,
    "parts": part,
    "oom": out_of_memory,
    "bubble": bubble,
    "time": step_time,
}
"""Kind of `validate` -> what predicts it."""
