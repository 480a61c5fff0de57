"""The formula of every part of a step's time, of the bubble, of the utilisation and of the traffic between stages.

The formulas say in text what `engine.step_time` and `engine.communication` compute; a test evaluates each text.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppadvisor.engine.communication import (
    Links,
    data_parallel_bytes_per_parameter,
    data_parallel_overlap,
    data_parallel_s,
    gathered_pieces,
    group_bandwidth,
    key_value_width,
    tensor_parallel_bandwidth,
    tensor_parallel_pairs,
    tied_embedding_s,
)
from ppadvisor.engine.compute import embedding_compute, head_compute
from ppadvisor.engine.explain_inputs import PlanView
from ppadvisor.engine.expressions import Formula
from ppadvisor.engine.inputs import FloatArray
from ppadvisor.engine.memory_states import (
    gradient_bytes_per_parameter,
    main_gradient_bytes_per_parameter,
    optimizer_bytes_per_parameter,
)
from ppadvisor.engine.recomputation import weight_groups
from ppadvisor.engine.step_time import WORK_PARTS, equal_stages_s, optimizer_s

MEGATRON = "Narayanan et al. 2021, arXiv 2104.04473"
ZERO = "Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054"
SHOEYBI = "Shoeybi et al. 2019, arXiv 1909.08053"

DATA_PARALLEL = "(d*c - 1) / (d*c) * u * P / W_dp + latency"


def bubble(view: PlanView) -> Formula:
    """The schedule's closed form for equal stages and free links."""
    return view.formula(view.schedule.bubble_formula, f"{view.schedule.title}: {view.schedule.source}")


def utilization(view: PlanView) -> Formula:
    """Model FLOPs over what the GPUs could do in a step."""
    time = view.estimate.time
    values = {"F": time.model_flops, "peak": view.problem.peak_flops_per_s, "step": time.step_time_s}
    return view.formula("F / (gpus * peak * step)", "model FLOPs as Megatron-LM counts them (training.py)", values)


def _bandwidth(view: PlanView, span: int) -> float:
    """Usable bandwidth of a group whose ranks lie within `span` consecutive ranks."""
    links, node = Links.of(view.inputs), view.problem.cluster.gpus_per_node
    return float(links.for_span(np.array([float(span)]), node)[0])


def _per_layer(
    view: PlanView, symbol: str, part: str, layers: FloatArray | None = None
) -> tuple[str, dict[str, float]]:
    """`L * C` over the kinds of layer of the whole model, from the passes of one layer; `L_r` of some of its layers."""
    seconds = [float((passes[part].forward + passes[part].backward)[0]) for passes in view.passes]
    count = "L" if layers is None else "L_r"
    return view.layers(view.layers_of_kind() if layers is None else layers, symbol, np.array(seconds), count=count)


def _compute(view: PlanView) -> Formula:
    text, values = _per_layer(view, "C", "compute")
    ends = {"C_embedding": embedding_compute(view.inputs), "C_head": head_compute(view.inputs)}
    values |= {name: float((end.forward + end.backward)[0]) for name, end in ends.items()}
    source = "per matrix product the longer of FLOPs / (peak e) and bytes / (HBM e); table of one layer's compute"
    return view.formula(f"m * ({text} + C_embedding + C_head) / p", source, values)


def _recompute(view: PlanView) -> Formula:
    text, values = _per_layer(view, "R", "recompute", view.recomputed_of_kind())
    choice = view.estimate.plan.recomputation
    whole = "a layer's whole forward" if choice.kind == "full" else "nothing"
    what = "the forward of " + ", ".join(choice.modules) if choice.modules else whole
    source = f"recompute {choice.text} repeats {what}; Korthikanti et al. 2022, arXiv 2205.05198, section 5"
    again = view.repeated_of_kind()
    if again.any():
        groups = weight_groups(view.inputs)
        seconds = np.array([float(passes["recompute"].backward[0]) for passes in view.passes])
        more, more_values = view.layers(again, "R_g", seconds * groups, count="L_g")
        text, values = f"({text} + {more})", values | more_values
        many = " or ".join(f"{count:g}" for count in sorted(set(groups[again > 0].tolist())))
        source += f"; a split backward repeats it for the input gradient and for each of {many} groups of weights: "
        source += "torch 2.13 torch/distributed/pipelining/_backward.py:288-347"
    return view.formula(f"m * {text} / p", source, values, alive=choice.kind != "none")


def _tensor_parallel(view: PlanView) -> Formula:
    counts = view.layers_of_kind()
    values: dict[str, float] = {
        "W_tp": float(tensor_parallel_bandwidth(view.inputs)[0]),
        "latency": view.problem.assumptions.collective_latency_s.value,
    }
    reductions = []
    for index, kind in enumerate(view.inputs.kinds):
        symbol = view.symbol("L", index)
        reductions.append(f"{2 * int(tensor_parallel_pairs(view.inputs, kind)[0])} * {symbol}")
        values[symbol] = float(counts[index])
    many = reductions[0] if len(reductions) == 1 else f"({' + '.join(reductions)})"
    text = f"m * {many} * (2 * (t-1) / t * {view.element} * T * h / W_tp + latency) / p"
    source = f"all-reduces (or gather and scatter) of T h, forward and backward of a layer; {SHOEYBI}, section 3"
    return view.formula(text, source, values, alive=view.estimate.plan.tensor_parallel > 1)


def _context_parallel(view: PlanView) -> Formula:
    plan, assumed = view.estimate.plan, view.problem.assumptions
    values = {
        "L": float(view.layers_of_kind().sum()),
        "kv": float(key_value_width(view.inputs)[0]),
        "o_cp": assumed.context_parallel_overlap.value,
        "W_cp": _bandwidth(view, plan.context_parallel * plan.tensor_parallel),
        "latency": assumed.collective_latency_s.value,
    }
    text = f"m * L * 3 * (1 - o_cp) * ((c-1) * {view.element} * T * kv / W_cp + latency) / p"
    source = "keys and values round a ring, their gradients too: Liu et al. 2023, arXiv 2310.01889"
    return view.formula(text, source, values, alive=plan.context_parallel > 1)


def _expert_parallel(view: PlanView) -> Formula:
    text, values = _per_layer(view, "X", "expert_parallel")
    source = "two all-to-alls a MoE layer and direction, spread over both link tiers (engine.collectives)"
    return view.formula(f"m * {text} / p", source, values, alive=any(values[name] for name in values if "X" in name))


def _pipeline(view: PlanView) -> dict[str, float]:
    """Seconds of the pipeline, from no waiting at all to what the replay says."""
    terms = view.estimate.time.terms
    even = float(equal_stages_s(view.inputs, view.times)[0])
    return {
        "busy": sum(terms[f"{part}_s"] for part in WORK_PARTS),
        "even": even,
        "free": even + terms["imbalance_s"],
        "span": view.estimate.time.pipeline_s,
    }


def _how(view: PlanView) -> str:
    """Where the pipeline's time is from."""
    return "order of work replayed" if view.estimate.time.replayed else f"array form of {view.schedule.title}"


def _bubble(view: PlanView) -> Formula:
    source = f"fill and drain of {view.schedule.title} with equal stages and free links: {view.schedule.source}"
    return view.formula("even - busy", source, _pipeline(view))


def _imbalance(view: PlanView) -> Formula:
    return view.formula("free - even", f"{_how(view)} with the stages as they are", _pipeline(view))


def _handoff(view: PlanView) -> Formula:
    source = f"{_how(view)} with the links between stages; volume: {MEGATRON}, section 3.2"
    return view.formula("span - free", source, _pipeline(view))


def _data_parallel(view: PlanView) -> Formula:
    inputs, assumed = view.inputs, view.problem.assumptions
    gradient = gradient_bytes_per_parameter(inputs)
    stage = int(np.argmax(data_parallel_s(inputs, gradient)[0]))
    stride = inputs.plans.tensor_parallel.astype(np.float64)
    expert_stride = inputs.expert_ways.astype(np.float64)
    values: dict[str, float] = {
        "o_dp": float(data_parallel_overlap(inputs)),
        "latency": assumed.collective_latency_s.value,
        "u": float(data_parallel_bytes_per_parameter(inputs, gradient)[0]),
        "P": float(inputs.parameters[0][0, stage]),
        "E": float(inputs.parameters[1][0, stage]),
        "W_dp": float(group_bandwidth(inputs, inputs.sharding_ways, stride)[0]),
        "W_edp": float(group_bandwidth(inputs, inputs.expert_sharding_ways, expert_stride)[0]),
    }
    parts = []
    if inputs.sharding_ways[0] > 1:
        parts.append(DATA_PARALLEL)
    if values["E"] > 0 and inputs.expert_sharding_ways[0] > 1:
        parts.append("(z_e - 1) / z_e * u * E / W_edp + latency")
    text = f"(1 - o_dp) * ({' + '.join(parts)})" if parts else ""
    values |= {"pieces": float(gathered_pieces(inputs)[0, stage]), "t_piece": assumed.gather_piece_s.value}
    in_pieces = "pieces * t_piece" if values["pieces"] * values["t_piece"] > 0 else ""
    tied, tied_values = _tied_embedding(view)
    text = " + ".join(part for part in (text, in_pieces, tied) if part)
    source = f"the slowest stage, {stage}: gradients reduced, weights gathered; {ZERO}, section 7"
    return view.formula(text or DATA_PARALLEL, source, {**values, **tied_values}, alive=bool(text))


def _tied_embedding(view: PlanView) -> tuple[str, dict[str, float]]:
    """Both copies of a tied embedding's gradient are added up between first and last stage."""
    plan = view.estimate.plan
    if not float(tied_embedding_s(view.inputs)[0]):
        return "", {}
    ranks = plan.pipeline_parallel * plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    return "4 * h * V / t / W_tied + latency", {"W_tied": _bandwidth(view, ranks)}


def _optimizer(view: PlanView) -> Formula:
    inputs, problem = view.inputs, view.problem
    gpu, assumed = problem.cluster.gpu, problem.assumptions
    stage = int(np.argmax(optimizer_s(inputs)[0]))
    dense, expert = inputs.parameters
    sharded = view.estimate.plan.optimizer_sharding >= 1
    own, all_of_them = ("P / (d*c)" if sharded else "P"), "P"
    if problem.model.moe:
        own, all_of_them = f"({own} + {'E / z_e' if sharded else 'E'})", "(P + E)"
    gradient = gradient_bytes_per_parameter(inputs)
    states = optimizer_bytes_per_parameter(inputs) + main_gradient_bytes_per_parameter(inputs)
    each = f"(2 * {states} + {gradient} + {problem.training.weight_bytes})"
    return view.formula(
        f"({each} * {own} + {gradient} * {all_of_them}) / W_hbm",
        f"the slowest stage, {stage}: states read and written, gradients read and cleared, weights written",
        {
            "P": float(dense[0, stage]),
            "E": float(expert[0, stage]),
            "W_hbm": gpu.hbm_bandwidth_bytes_per_s * assumed.hbm_efficiency.value,
        },
    )


def _overhead(view: PlanView) -> Formula:
    assumed = view.problem.assumptions.step_overhead_s
    source = f"{assumed.provenance}: {assumed.source}"
    return view.formula("step_overhead_s", source, {"step_overhead_s": assumed.value})


TIME_FORMULAS: dict[str, Callable[[PlanView], Formula]] = {
    "compute": _compute,
    "recompute": _recompute,
    "tensor_parallel": _tensor_parallel,
    "context_parallel": _context_parallel,
    "expert_parallel": _expert_parallel,
    "bubble": _bubble,
    "imbalance": _imbalance,
    "handoff": _handoff,
    "data_parallel": _data_parallel,
    "optimizer": _optimizer,
    "overhead": _overhead,
}
"""One for every name in `engine.step_time` WORK_PARTS, IDLE_PARTS and STEP_PARTS."""


def _handoff_volume(view: PlanView) -> Formula:
    text = f"{view.element} * T * h{view.over_sequence}"
    return view.formula(text, f"{MEGATRON}, section 3.2", alive=view.estimate.plan.pipeline_parallel > 1)


def _handoff_of_stage(view: PlanView) -> Formula:
    chunks = " * v" if view.estimate.plan.virtual_stages > 1 else ""
    text = f"2{chunks} * {view.element} * T * h{view.over_sequence}"
    source = "one activation on, one gradient back" + (", for each chunk" if chunks else "")
    return view.formula(text, source, alive=view.estimate.plan.pipeline_parallel > 1)


def _tensor_parallel_of_stage(view: PlanView) -> Formula:
    text = f"L / p * 4 * 2 * (t-1) / t * {view.element} * T * h"
    source = f"four all-reduces a layer; {SHOEYBI}, section 3"
    return view.formula(text, source, alive=view.estimate.plan.tensor_parallel > 1)


def _tensor_parallel_instead(view: PlanView) -> Formula:
    text = f"L * 4 * 2 * (p*t - 1) / (p*t) * {view.element} * T * h"
    source = "the same, had the p t ranks been tensor parallel and not a pipeline"
    return view.formula(text, source, alive=view.estimate.plan.pipeline_parallel > 1)


TRAFFIC: dict[str, Callable[[PlanView], Formula]] = {
    "handoff_one_way": _handoff_volume,
    "handoff_both_ways": _handoff_of_stage,
    "tensor_parallel_of_a_stage": _tensor_parallel_of_stage,
    "tensor_parallel_instead_of_pipeline": _tensor_parallel_instead,
}
"""Bytes that one rank sends for one micro-batch."""
