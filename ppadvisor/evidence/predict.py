"""What we predict of a measured run, in the words and for the ranks that were measured. Bytes, seconds, fractions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppadvisor import schedules
from ppadvisor.engine.evaluate import VERDICTS, estimate_plan, quick_step_times, verdict_of
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.memory import ALLOWANCES, BETWEEN_STEPS, MemoryTable, memory_table, together
from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import Verdict
from ppadvisor.engine.tables import table_of
from ppadvisor.evidence import KindName
from ppadvisor.evidence.cases import Case
from ppadvisor.evidence.records import Scope
from ppadvisor.evidence.trainers import READ_ON_ONE_NODE
from ppadvisor.specs.plan import PlanSpec

OUTSIDE_TORCH = ("cuda_context", "communicator_buffers")
"""What the process holds and torch's allocator does not know."""

LEFT_OUT: dict[str, tuple[str, ...]] = {
    "allocated": ALLOWANCES,
    "reserved": OUTSIDE_TORCH,
    "process": (),
    "activation": (*ALLOWANCES, *BETWEEN_STEPS),
}
"""Of each quantity of memory, the terms that are no part of it."""

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
    """`allocated`, `reserved`, `process` or `activation` of the ranks that were measured."""
    return Footprint(case).peak(quantity, case.record.measured.peak_scope or "max")


def out_of_memory(case: Case, _: str) -> Prediction:
    """Whether the run fits."""
    return Footprint(case).runs_out()


def step_time(case: Case, _: str) -> Prediction:
    """Seconds of one optimizer step."""
    step = quick_step_times(case.problem, case.plan)
    return Prediction(float(step.step[0]), _largest({name: float(values[0]) for name, values in step.terms.items()}))


def bubble(case: Case, _: str) -> Prediction:
    """Idle share: inside the ranks' own spans where the authors computed it so, else of the pipeline's whole span."""
    time = estimate_plan(case.problem, case.plan, margin=1.0).time
    in_span = time.bubble_in_span_fraction if case.record.measured.bubble_is == "computed" else None
    idle = {name: value for name, value in time.terms.items() if name in ("bubble_s", "imbalance_s", "handoff_s")}
    return Prediction(time.bubble_fraction if in_span is None else in_span, _largest(idle))


PREDICTORS: dict[KindName, Callable[[Case, str], Prediction]] = {
    "memory": memory,
    "activation": memory,
    "oom": out_of_memory,
    "bubble": bubble,
    "time": step_time,
}
"""Kind of `validate` -> what predicts it."""
