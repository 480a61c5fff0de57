"""One plan taken apart: every number of the estimate with its formula, the numbers in it, and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ppadvisor.engine.compute import attention_core, elementwise_compute, layer_compute, linear_compute
from ppadvisor.engine.explain_inputs import PlanView
from ppadvisor.engine.explain_memory import MEMORY_FORMULAS, stage_parameters
from ppadvisor.engine.explain_stage import ChunkView, StageView
from ppadvisor.engine.explain_symbols import CHUNK_SYMBOLS, SYMBOLS, of_all_chunks
from ppadvisor.engine.explain_time import TIME_FORMULAS, TRAFFIC, bubble, utilization
from ppadvisor.engine.explained import (
    BubbleExplained,
    ChunkExplained,
    InFlightExplained,
    KernelTime,
    LayerExplained,
    LayerTensor,
    LayerWeight,
    MemoryTerm,
    PlanParts,
    StageExplained,
    SymbolUsed,
    TimeTerm,
    Volume,
    Worked,
)
from ppadvisor.engine.expressions import Formula, evaluate, ratio
from ppadvisor.engine.memory_waiting import waiting_per_layer
from ppadvisor.engine.parameters import layer_weights
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import drops, saved_per_layer
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.frameworks.profile import Spread, Tensor
from ppadvisor.specs.model import LayerKind

_INDEX = "0123456789"


def explain_estimate(problem: Problem, estimate: PlanEstimate) -> PlanParts:
    """Every part of the estimate of one plan, every stage."""
    view = PlanView(problem, estimate)
    stages = [StageView(view, memory) for memory in estimate.memory.stages]
    memory = {stage.stage: _memory_formulas(stage) for stage in stages}
    time = {name: explain(view) for name, explain in TIME_FORMULAS.items()}
    traffic = {name: explain(view) for name, explain in TRAFFIC.items()}
    in_flight = {stage.stage: _in_flight(stage) for stage in stages}
    parameters = {stage.stage: stage_parameters(stage) for stage in stages}
    closed, used = bubble(view), utilization(view)
    of_stages = [formula for formulas in memory.values() for formula in formulas.values()]
    formulas = (closed, used, *time.values(), *traffic.values(), *parameters.values(), *in_flight.values(), *of_stages)
    return PlanParts(
        bubble=_bubble(view, closed),
        utilization=Worked(**_said(used), value=estimate.time.model_flops_utilization),
        time=tuple(TimeTerm(name=n, seconds=estimate.time.terms[f"{n}_s"], **_said(f)) for n, f in time.items()),
        stages=tuple(
            _stage(stage, memory[stage.stage], parameters[stage.stage], in_flight[stage.stage]) for stage in stages
        ),
        layers=tuple(_layer(view, index, kind) for index, kind in enumerate(view.inputs.kinds)),
        traffic=tuple(Volume(name=n, bytes=math.ceil(evaluate(f.substituted)), **_said(f)) for n, f in traffic.items()),
        symbols=_symbols(view, formulas),
    )


def _said(formula: Formula) -> dict[str, str]:
    """The texts of a formula, as every result carries them."""
    return {"formula": formula.formula, "substituted": formula.substituted, "source": formula.source}


def _memory_formulas(stage: StageView) -> dict[str, Formula]:
    return {name: MEMORY_FORMULAS[name](stage) for name in stage.memory.terms}


def _in_flight(stage: StageView) -> Formula:
    schedule = stage.plan.schedule
    return stage.plan.formula(schedule.in_flight_formula, schedule.source, {"r": stage.stage})


def _bubble(view: PlanView, closed: Formula) -> BubbleExplained:
    time = view.estimate.time
    return BubbleExplained(
        **_said(closed),
        ratio=ratio(closed.substituted),
        value=time.equal_stage_bubble_fraction,
        replayed=time.bubble_fraction,
    )


def _stage(view: StageView, formulas: dict[str, Formula], parameters: Formula, in_flight: Formula) -> StageExplained:
    memory = view.memory
    counted = memory.in_flight_microbatches if view.plan.estimate.time.replayed else None
    closed = InFlightExplained(**_said(in_flight), value=float(evaluate(in_flight.substituted)), counted=counted)
    return StageExplained(
        **memory.as_dict(("terms", "parameters", "in_flight_microbatches")),
        parameters=Worked(**_said(parameters), value=float(memory.parameters)),
        in_flight_microbatches=closed,
        chunks=tuple(_chunk(chunk) for chunk in view.chunks),
        terms=tuple(
            MemoryTerm(name=name, bytes=memory.terms[name], **_said(formula)) for name, formula in formulas.items()
        ),
    )


def _chunk(chunk: ChunkView) -> ChunkExplained:
    return ChunkExplained(
        chunk=chunk.index,
        stage=chunk.stage,
        num_layers=int(chunk.layers.sum()),
        in_flight=chunk.alive,
        waiting=chunk.waiting,
    )


def _layer(view: PlanView, index: int, kind: LayerKind) -> LayerExplained:
    """What one layer of a kind stores, keeps and computes on one rank."""
    compute = layer_compute(view.inputs, kind)
    splits = view.schedule.splits_backward
    return LayerExplained(
        kind=kind.title,
        num_layers=round(float(view.layers_of_kind()[index])),
        weights=tuple(_weights(view, kind)),
        saved_bytes=math.ceil(saved_per_layer(view.inputs)[0, index]),
        tensors=tuple(_tensors(view, kind)),
        forward_s=float(compute.forward[0]),
        backward_s=float(compute.backward[0]),
        kernels=tuple(_kernels(view, kind)),
        waiting_bytes=math.ceil(waiting_per_layer(view.inputs)[0, index]) if splits else 0,
        waiting=tuple(_waiting(view, kind)) if splits else (),
    )


def _weights(view: PlanView, kind: LayerKind) -> Iterable[LayerWeight]:
    for weight in layer_weights(view.problem.model, kind):
        dense, expert = view.inputs.rank_parameters((weight,))
        yield LayerWeight(
            name=weight.name,
            rows=weight.rows,
            columns=weight.cols,
            count=weight.count,
            divided=weight.shard.value,
            parameters=round(float(dense[0] + expert[0])),
        )


def _tensors(view: PlanView, kind: LayerKind) -> Iterable[LayerTensor]:
    """What the layer keeps, with what recomputation spares it."""
    problem, choice = view.problem, view.estimate.plan.recomputation
    if choice.kind == "full":
        checkpoint = Tensor("layer input (checkpoint)", view.element * problem.model.hidden_size, Spread.SEQUENCE)
        yield _tensor(view, checkpoint, kept=True)
    for tensor in problem.tensors(problem.framework.saved_tensors, kind):
        kept = choice.kind != "full" and not drops(choice, tensor)
        explained = _tensor(view, tensor, kept=kept)
        if explained.bytes:
            yield explained


def _waiting(view: PlanView, kind: LayerKind) -> Iterable[LayerTensor]:
    """What the layer holds between input gradient and weight gradient, recomputed where it was not kept."""
    for tensor in view.problem.framework.waiting_tensors(view.problem.model, view.problem.training, kind):
        explained = _tensor(view, tensor, kept=True)
        if explained.bytes:
            yield explained


def _tensor(view: PlanView, tensor: Tensor, *, kept: bool) -> LayerTensor:
    formula = view.formula(view.tensor(tensor), "")
    return LayerTensor(
        name=tensor.name,
        bytes_per_token=float(tensor.bytes_per_token),
        divided=tensor.spread.value,
        condition=tensor.when.value,
        formula=formula.formula,
        substituted=formula.substituted,
        bytes=math.ceil(view.inputs.tensor_bytes((tensor,))[0]),
        kept=kept,
    )


def _kernels(view: PlanView, kind: LayerKind) -> Iterable[KernelTime]:
    inputs = view.inputs
    passes = {w.name: linear_compute(inputs, w) for w in layer_weights(view.problem.model, kind) if w.is_matrix}
    passes["attention core"] = attention_core(inputs, kind)
    passes["norms, activation and other element-wise work"] = elementwise_compute(inputs, kind)
    for name, seconds in passes.items():
        yield KernelTime(name=name, forward_s=float(seconds.forward[0]), backward_s=float(seconds.backward[0]))


def _symbols(view: PlanView, formulas: Iterable[Formula]) -> tuple[SymbolUsed, ...]:
    """The symbols that the formulas use; the value of one that is the same in all of them."""
    values: dict[str, set[float]] = {}
    for formula in formulas:
        for name, value in formula.symbols.items():
            values.setdefault(_of_all_chunks(view, name), set()).add(value)
    order = list(SYMBOLS)
    names = sorted(values, key=lambda name: (order.index(name.rstrip(_INDEX)), name))
    return tuple(SymbolUsed(symbol=name, meaning=_meaning(view, name), value=_only(values[name])) for name in names)


def _of_all_chunks(view: PlanView, name: str) -> str:
    """The symbol under which one of a chunk is explained."""
    return of_all_chunks(name, many_kinds=len(view.inputs.kinds) > 1) if view.has_chunks else name


def _only(values: set[float]) -> float | None:
    return float(next(iter(values))) if len(values) == 1 else None


def _meaning(view: PlanView, name: str) -> str:
    base = name.rstrip(_INDEX)
    kind = f" ({view.inputs.kinds[int(name.removeprefix(base)) - 1].title})" if base != name else ""
    chunks = f"; of its chunks {base}0, {base}1, ..." if view.has_chunks and base in CHUNK_SYMBOLS else ""
    return SYMBOLS[base] + kind + chunks
