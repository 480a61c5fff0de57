"""The answer of `explain` as a person reads it: a page of short tables, each number with its formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ppadvisor.engine.explained import InFlightExplained, LayerExplained, StageExplained
from ppadvisor.report.explain_columns import (
    ASSUMPTIONS,
    CHUNKS,
    CLUSTER,
    CSV,
    FILLED,
    KERNELS,
    PARTS,
    SOURCES,
    STAGES,
    SYMBOLS,
    TENSORS,
    TERMS,
    TIMES,
    TRAFFIC,
    WAITING,
    WEIGHTS,
    result,
    words,
    worked,
)
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.plan_view import about, listed
from ppadvisor.report.prose import join_blocks, layers_text
from ppadvisor.report.rows import Column, render_rows
from ppadvisor.search.advise import short_plan
from ppadvisor.search.explain import ExplainAnswer, NothingToExplain, PlanExplanation
from ppadvisor.units import (
    format_bytes,
    format_bytes_gib,
    format_fraction,
    format_seconds,
    format_tokens_per_s,
)

Rows = list[dict[str, Any]]
Draw = Callable[[str, Sequence[Column], Rows], list[str]]
"""(title, columns, rows) -> the table as one block; nothing where there are no rows."""


def render_explanation(answer: ExplainAnswer, format: str, *, width: int, color: bool) -> str:
    """The explanation in one of FORMATS."""
    if format == "json":
        return dump_json(answer)
    if isinstance(answer, NothingToExplain):
        return render_rows(CSV, [], format) if format == "csv" else f"Nothing to explain: {answer.note}\n"
    if format == "csv":
        return render_rows(CSV, list(_csv_rows(answer)), format)

    def draw(title: str, columns: Sequence[Column], rows: Rows) -> list[str]:
        if not rows:
            return []
        return [render_rows(columns, rows, format, width=width, color=color, title=title).rstrip("\n")]

    def said(lines: list[str]) -> list[str]:
        return listed(lines) if format == "markdown" else lines

    blocks = [
        said([*about(answer), *_plan_lines(answer)]),
        said(_bubble_lines(answer)),
        *_time(answer, draw),
        *_memory(answer, draw, said),
        *(block for layer in answer.layers for block in _layer(layer, draw)),
        *_rest(answer, draw),
    ]
    return join_blocks(blocks, format, width)


def _plan_lines(answer: PlanExplanation) -> list[str]:
    memory, time, plan = answer.memory, answer.time, answer.plan
    chunks = f" (of each chunk {layers_text(plan.layers_per_chunk)})" if plan.virtual_stages > 1 else ""
    return [
        f"Plan      {short_plan(plan)}; layers per stage {layers_text(plan.layers_per_stage)}{chunks}; "
        f"ZeRO {plan.optimizer_sharding}",
        f"Memory    {memory.verdict.replace('_', ' ')}: {format_bytes_gib(memory.peak_bytes)} at stage "
        f"{memory.binding_stage}, limit {format_bytes_gib(memory.limit_bytes)} "
        f"({format_fraction(answer.margin_fraction)} of {format_bytes_gib(memory.capacity_bytes)}); "
        f"conservative {format_bytes_gib(memory.conservative_bytes)}",
        f"Step      {format_seconds(time.step_time_s)}, {format_tokens_per_s(time.tokens_per_s)}",
    ]


def _bubble_lines(answer: PlanExplanation) -> list[str]:
    bubble, used = answer.bubble, answer.model_flops_utilization
    ratio = f" = {bubble.ratio}" if bubble.ratio else ""
    how = "replayed" if answer.time.replayed else "by the schedule's array form"
    return [
        f"Bubble    equal stages, free links: {bubble.formula}{ratio} = {format_fraction(bubble.value)} "
        f"({bubble.source})",
        f"          {how}, stages and links as they are: {format_fraction(bubble.replayed)}",
        f"MFU       {worked(used.formula, used.substituted)} = {format_fraction(used.value)} ({used.source})",
    ]


def _time(answer: PlanExplanation, draw: Draw) -> Iterator[list[str]]:
    step = answer.time.step_time_s
    rows = [{**term.as_dict(), "share": term.seconds / step} for term in answer.time.terms]
    yield draw(f"Where a step of {format_seconds(step)} goes, mean over the ranks", PARTS, rows)
    yield draw("How each part of the step comes about", TIMES, [row for row in rows if row["seconds"]])


def _memory(answer: PlanExplanation, draw: Draw, said: Callable[[list[str]], list[str]]) -> Iterator[list[str]]:
    binding, capacity = answer.memory.binding_stage, answer.memory.capacity_bytes
    rows = [{**stage.as_dict(), "share": stage.total_bytes / capacity} for stage in answer.stages]
    bars = replace(FILLED, header=f"peak of {format_bytes_gib(capacity)}")
    yield draw(f"Stages, each at its highest moment; stage {binding} binds", (*STAGES, bars), rows)
    for stage in answer.stages:
        yield from _stage(stage, draw, said, binds=stage.stage == binding)
    sources = {term.name: term.as_dict() for stage in answer.stages for term in stage.terms if term.bytes}
    yield draw("Sources of the memory terms", SOURCES, list(sources.values()))


def _stage(
    stage: StageExplained, draw: Draw, said: Callable[[list[str]], list[str]], *, binds: bool
) -> Iterator[list[str]]:
    title = f"Stage {stage.stage}{', which binds' if binds else ''}: {format_bytes_gib(stage.total_bytes)}"
    rows = [{**term.as_dict(), "share": term.bytes / stage.total_bytes} for term in stage.terms if term.bytes]
    parameters, in_flight = stage.parameters, stage.in_flight_microbatches
    yield draw(f"{title}, its highest moment {words(stage.moment)}", TERMS, rows)
    if len(stage.chunks) > 1:
        chunks = [chunk.as_dict() for chunk in stage.chunks]
        columns = (*CHUNKS, WAITING) if any(chunk.waiting for chunk in stage.chunks) else CHUNKS
        yield draw(f"Chunks of stage {stage.stage} at that moment", columns, chunks)
    absent = ", ".join(words(term.name) for term in stage.terms if not term.bytes)
    lines = [
        f"Parameters on one rank: {result(parameters.formula, parameters.substituted, f'{parameters.value:,.0f}')}",
        f"Micro-batches in flight: {_in_flight(in_flight, one_chunk=len(stage.chunks) == 1)}",
    ]
    yield said([*lines, f"Nothing here or at this moment: {absent}"] if absent else lines)


def _in_flight(shown: InFlightExplained, *, one_chunk: bool) -> str:
    """The closed form; beside it what the order of work holds, where that may be another number."""
    closed = result(shown.formula, shown.substituted, f"{shown.value:.4g}")
    if shown.counted is None or (one_chunk and shown.counted == shown.value):
        return closed
    return f"closed form {closed}; read off the order of work at its highest moment {shown.counted:.4g}"


def _layer(layer: LayerExplained, draw: Draw) -> Iterator[list[str]]:
    one = f"One layer, {layer.kind}"
    kept = f"{one}: {format_bytes(layer.saved_bytes)} kept for a micro-batch on one rank"
    yield draw(kept, TENSORS, [tensor.as_dict() for tensor in layer.tensors])
    wait = f"{one}: {format_bytes(layer.waiting_bytes)} wait for the weight gradient"
    yield draw(wait, TENSORS, [tensor.as_dict() for tensor in layer.waiting])
    held = sum(weight.parameters for weight in layer.weights)
    yield draw(f"{one}: {held:,} parameters on one rank", WEIGHTS, [w.as_dict() for w in layer.weights])
    compute = f"{format_seconds(layer.forward_s)} forward, {format_seconds(layer.backward_s)} backward"
    bound = ", bound by launch" if layer.forward_s > 1.001 * sum(k.forward_s for k in layer.kernels) else ""
    yield draw(f"{one}: {compute}{bound}", KERNELS, [k.as_dict() for k in layer.kernels])


def _rest(answer: PlanExplanation, draw: Draw) -> Iterator[list[str]]:
    title = "Sent by one rank for one micro-batch: hand-offs and tensor parallelism"
    yield draw(title, TRAFFIC, [volume.as_dict() for volume in answer.traffic])
    yield draw("Numbers of the cluster", CLUSTER, [number.as_dict() for number in answer.cluster_numbers])
    yield draw("Assumptions", ASSUMPTIONS, [used.as_dict() for used in answer.assumptions])
    yield draw("Symbols", SYMBOLS, [symbol.as_dict() for symbol in answer.symbols])


def _csv_rows(answer: PlanExplanation) -> Iterable[dict[str, Any]]:
    """One row a term: those of the step, then those of each stage."""
    for part in answer.time.terms:
        yield {"part": "time", **part.as_dict()}
    for stage in answer.stages:
        for term in stage.terms:
            yield {"part": "memory", "stage": stage.stage, "moment": stage.moment, **term.as_dict()}
    for volume in answer.traffic:
        yield {"part": "traffic", **volume.as_dict()}
