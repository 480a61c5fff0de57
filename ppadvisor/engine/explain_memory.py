"""The formula of every memory term: in symbols, with the numbers of one stage, and its source.

The formulas say in text what `engine.memory` computes; a test evaluates each text and holds it against the term.
"""

from __future__ import annotations

from collections.abc import Callable

from ppadvisor.engine.explain_stage import StageView, Worded
from ppadvisor.engine.explain_work import (
    KORTHIKANTI,
    final_norm_text,
    layer_backward_work,
    recomputed_layer,
    sent_gradients,
    sent_outputs,
    waiting_activations,
    waiting_head,
)
from ppadvisor.engine.expressions import Formula, number
from ppadvisor.engine.memory import BETWEEN_STEPS, TERMS, communicator_groups
from ppadvisor.engine.memory_activations import held_logits, receive_buffers
from ppadvisor.engine.memory_states import (
    autograd_gradients_alive,
    distinct_matrix_parameters,
    gathered_bytes_per_parameter,
    gradient_bytes_per_parameter,
    main_gradient_bytes_per_parameter,
    optimizer_bytes_per_parameter,
    weight_bytes_per_parameter,
    whole_gradients_bytes,
)
from ppadvisor.engine.recomputation import layer_input_bytes, saved_per_layer
from ppadvisor.engine.split_work import loss_under_way_bytes
from ppadvisor.specs.assumptions import Assumption
from ppadvisor.specs.recomputation import FULL

ZERO = "Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054"


def stage_parameters(view: StageView) -> Formula:
    """Parameters on one rank of the stage, routed experts included."""
    inputs = view.plan.inputs
    dense, expert = inputs.layer_parameters
    text, values = view.layer_sum("P_layer", dense + expert)
    embedding, head, mtp = (float(end[0]) for end in inputs.end_parameters)
    shared = float(inputs.shared_table[0]) if view.of_stage(inputs.both_ends) else 0.0
    ends = " + P_embedding" if view.embedding else ""
    ends += " + P_head" if view.head else ""
    ends += " + P_mtp" if view.head and mtp else ""
    ends += " - P_shared" if shared else ""
    text += f" + {view.shared(ends.removeprefix(' + '))}" if ends else ""
    source = "weight by weight, as the trainer instantiates them (table of weights)"
    values |= {"P_embedding": embedding, "P_head": head, "P_mtp": mtp, "P_shared": shared}
    return view.plan.formula(text, source, values)


def _state(view: StageView, bytes_per_parameter: int, from_stage: int, source: str, *, alive: bool = True) -> Formula:
    """A state of every parameter, divided by ZeRO from a stage on."""
    plan, sharded = view.plan, view.plan.estimate.plan.optimizer_sharding >= from_stage
    dense, expert = plan.inputs.parameters
    text = "P / (d*c)" if sharded else "P"
    if plan.problem.model.moe:
        text = f"({text} + {'E / z_e' if sharded else 'E'})"
    values = {"P": view.of_stage(dense), "E": view.of_stage(expert)}
    return plan.formula(f"{bytes_per_parameter} * {text}", source, values, alive=alive)


def _weights(view: StageView) -> Formula:
    precision = view.plan.problem.training.precision
    return _state(view, weight_bytes_per_parameter(view.plan.inputs), 3, f"{precision} weights; {ZERO}, section 3.1")


def _gradients(view: StageView) -> Formula:
    precision = view.plan.problem.framework.gradient_precision(view.plan.problem.training)
    source = f"gradients accumulated in {precision}; {ZERO}, section 3.1"
    return _state(view, gradient_bytes_per_parameter(view.plan.inputs), 2, source)


def _all_parameters(view: StageView) -> tuple[str, dict[str, float]]:
    """All of the stage's on one rank, whatever ZeRO divides: text and values."""
    dense, expert = view.plan.inputs.parameters
    text = "(P + E)" if view.plan.problem.model.moe else "P"
    return text, {"P": view.of_stage(dense), "E": view.of_stage(expert)}


def _autograd_gradients(view: StageView) -> Formula:
    parameters, values = _all_parameters(view)
    source = "16-bit gradients that stay beside the fp32 ones: DeepSpeed deepspeed/runtime/bf16_optimizer.py"
    alive = bool(autograd_gradients_alive(view.plan.inputs)[0])
    return view.plan.formula(f"{view.plan.element} * {parameters}", source, values, alive=alive)


def _whole_gradients(view: StageView) -> Formula:
    plan, inputs = view.plan, view.plan.inputs
    parameters, values = _all_parameters(view)
    text = f"{gradient_bytes_per_parameter(inputs)} * {parameters}"
    source = "whole until the step's only reduction, beside their sharded sum: FSDP2 under pipelining"
    return plan.formula(text, source, values, alive=bool(whole_gradients_bytes(inputs)))


def _optimizer_states(view: StageView) -> Formula:
    source = f"{view.plan.problem.optimizer.source}; Megatron-LM docs/user-guide/features/dist_optimizer.md"
    return _state(view, optimizer_bytes_per_parameter(view.plan.inputs), 1, source)


def _main_gradients(view: StageView) -> Formula:
    each = main_gradient_bytes_per_parameter(view.plan.inputs)
    freed = view.plan.problem.framework.frees_main_gradients
    when = "from the step to the next forward" if freed else "kept for good"
    source = f"fp32 copy of 16-bit gradients, {when}; Megatron-LM docs/user-guide/features/dist_optimizer.md"
    return _state(view, 4, 1, source, alive=each > 0 and (not freed or not view.in_pipeline))


def _gathered_parameters(view: StageView) -> Formula:
    inputs = view.plan.inputs
    dense, expert = inputs.layer_parameters
    each = int(gathered_bytes_per_parameter(inputs)[0])
    source = f"whole gradients of the layer in work from ZeRO-2 on, in ZeRO-3 two layers' weights; {ZERO}, section 5"
    largest = view.of_stage(inputs.largest_layer(dense + expert))
    text = f"{each or gradient_bytes_per_parameter(inputs)} * G"
    return view.plan.formula(text, source, {"G": largest}, alive=view.in_pipeline and each > 0)


def _weight_gradient_buffers(view: StageView) -> Formula:
    weight = view.plan.problem.training.weight_bytes
    text = f"{weight} * (D + h * V / t{view.share})" if view.head else f"{weight} * D"
    source = "a buffer for each shape of weight, kept for good: TransformerEngine get_dummy_wgrad"
    distinct = view.of_stage(distinct_matrix_parameters(view.plan.inputs))
    return view.plan.formula(text, source, {"D": distinct}, alive=view.plan.problem.framework.dummy_weight_gradients)


def _saved_activations(view: StageView) -> Formula:
    choice = view.plan.estimate.plan.recomputation
    if choice.kind == "full" and choice != FULL:
        text, values = _partly_recomputed(view)
    else:
        text, values = view.stash(lambda chunk: chunk.alive, "k", "S", saved_per_layer(view.plan.inputs))
    source = (
        f"S: table of tensors, after {KORTHIKANTI}, section 4.1; k: {view.plan.schedule.title}, "
        f"{view.plan.schedule.source}"
    )
    return view.plan.formula(text or "k * n * S", source, values, alive=bool(text))


def _partly_recomputed(view: StageView) -> Worded:
    """Layer inputs of what is recomputed, and all that the other layers save: `ki * I + kw * n * A`."""
    inputs = view.plan.inputs
    kept = {f"ki{chunk.number}": chunk.alive * chunk.kept_inputs for chunk in view.chunks}
    text = f"({' + '.join(kept)}) * I" if len(kept) > 1 else f"{next(iter(kept))} * I"
    whole, values = view.stash(lambda chunk: chunk.alive * chunk.whole_share, "kw", "A", view.whole_layers)
    values |= {**kept, "I": float(layer_input_bytes(inputs)[0])}
    return (f"{text} + {whole}" if whole else text), values


def _weight_versions(view: StageView) -> Formula:
    plan, schedule = view.plan, view.plan.schedule
    parameters, values = _all_parameters(view)
    if schedule.weight_versions is not None:
        values["versions"] = float(schedule.weight_versions(plan.estimate.plan.pipeline_parallel, view.stage))
    text = f"(versions - 1) * {weight_bytes_per_parameter(plan.inputs)} * {parameters}"
    source = f"older weights kept for the backwards still to come: {schedule.title}, {schedule.source}"
    return plan.formula(text, source, values, alive="versions" in values)


def _embedding_activations(view: StageView) -> Formula:
    dropout = view.plan.problem.training.dropout
    kept, values = view.kept(chunk for chunk in view.chunks if chunk.embedding)
    of_token = f"(8 + h{view.plan.over_sequence})" if dropout else "8"
    source = f"token ids of 8 bytes{', dropout mask of 1' if dropout else ''}; {KORTHIKANTI}, section 4.3"
    return view.plan.formula(f"{kept or 'k'} * T * {of_token}{view.share}", source, values, alive=bool(kept))


def _head_activations(view: StageView) -> Formula:
    problem = view.plan.problem
    loss = problem.framework.loss(problem.training)
    kept, values = view.kept(chunk for chunk in view.chunks if chunk.head)
    most = float(view.plan.inputs.head_in_flight[0])
    if most < sum(values.values()):
        kept, values = "k_head", {"k_head": most}
    norm = f"{kept or 'k'} * {view.plan.element} * T * {final_norm_text(view)}"
    times = f" * {1 + problem.model.mtp_num_layers}" if problem.model.mtp_num_layers else ""
    text = f"{norm} + max({kept or 'k'} - 1, 0) * {loss.saved_bytes} * T * {view.plan.logits}{times}"
    source = f"final norm's input and output; {loss.saved_bytes} bytes a kept logit; {KORTHIKANTI}, section 4.3"
    return view.plan.formula(view.shared(text), source, values, alive=bool(kept))


def _spread_head(view: StageView) -> Formula:
    plan, schedule, moment = view.plan, view.plan.schedule, view.memory.moment
    hidden = f"T * h{plan.over_sequence}"
    in_head = moment in ("loss", "head_backward")
    text = f"{schedule.head_buffers[1 if in_head else 0]} * {hidden}"
    text += "" if in_head else f" + 4 * T * {plan.logits} / p"
    values: dict[str, float] = {}
    if view.stage == 0:
        kept, values = view.kept(view.chunks)
        text += f" + {kept or 0} * {plan.element + plan.problem.training.dropout} * {hidden}"
    source = f"own count of {schedule.title}: its buffers, the softmax, embeddings in flight on the first rank"
    return plan.formula(text, source, values, alive=schedule.spreads_head and view.in_pipeline)


def _logits(view: StageView) -> Formula:
    problem = view.plan.problem
    loss = problem.framework.loss(problem.training)
    at_work = {"loss": loss.forward_bytes, "head_backward": loss.backward_bytes}
    working = view.memory.moment in at_work
    held = float(held_logits(view.plan.inputs)[0]) if view.in_pipeline else loss.kept_bytes
    alive = view.head > 0 and (working or held > 0)
    gathers = float(view.plan.inputs.sequence_ways[0]) > 1 and not problem.framework.keeps_gathered_inputs
    gathers = working and gathers
    per_logit = number(at_work.get(view.memory.moment, held))
    if problem.model.mtp_num_layers and working:
        per_logit = f"({per_logit} + {problem.model.mtp_num_layers} * {loss.saved_bytes})"
    text = f"{per_logit} * T * {view.plan.logits}"
    text += f" + {view.plan.element} * T * h" if gathers else ""
    source = f"{loss.title}: {loss.source}{'; the gathered input of the output layer' if gathers else ''}"
    values: dict[str, float] = {}
    under_way = loss_under_way_bytes(view.plan.inputs)
    if under_way is not None and view.of_stage(under_way) > 0 and view.memory.moment == "layer_backward":
        layers = max(float(next(chunk for chunk in view.chunks if chunk.head).layers.sum()), 1.0)
        values, alive = {"n_head": layers}, True
        text = f"({per_logit} + {loss.saved_bytes} + {view.plan.element} / n_head) * T * {view.plan.logits}"
        source += "; an input gradient frees nothing, so all that the loss saved is there to its end"
    return view.plan.formula(view.shared(text), source, values, alive=alive)


def _output_weight_gradient(view: StageView) -> Formula:
    buffered = view.plan.problem.framework.dummy_weight_gradients
    source = "own count: the output layer's gradient before it is accumulated, where no buffer is kept for it"
    alive = view.head > 0 and not buffered and view.memory.moment == "head_backward"
    text = f"{view.plan.problem.training.weight_bytes} * h * V / t{view.share}"
    return view.plan.formula(text, source, alive=alive)


def _embedding_gradient(view: StageView) -> Formula:
    source = "own count: the token table's dense gradient before it is accumulated"
    alive = view.embedding > 0 and view.memory.moment == "embedding_backward"
    text = f"{view.plan.problem.training.weight_bytes} * V * h / t{view.share}"
    return view.plan.formula(text, source, alive=alive)


def _handoff_buffers(view: StageView) -> Formula:
    plan = view.plan
    one = f"{plan.element} * T * h{plan.over_boundary}"
    text, source = f"2 * {one}", "a received activation and a received gradient: Megatron-Core p2p_communication.py"
    values: dict[str, float] = {}
    if plan.problem.framework.keeps_all_receive_buffers:
        received = [chunk for chunk in view.chunks if chunk.embedding < 1]
        kept, values = view.kept(received)
        waits = sum(chunk.waiting for chunk in received)
        values |= {"w": waits} if waits else {}
        count = " - ".join(["m * neighbours", *filter(None, [kept, "w" if waits else ""])])
        text = f"({count}) * {one}"
        source = "a buffer for each micro-batch and neighbour, less inputs kept anyway: torch pipelining/stage.py"
        values["neighbours"] = view.of_stage(receive_buffers(plan.inputs)) / plan.estimate.plan.num_microbatches
    alive = view.in_pipeline and plan.estimate.plan.pipeline_parallel > 1
    return plan.formula(text, source, values, alive=alive)


def _assumed(assumption: Assumption) -> str:
    return f"{assumption.provenance}: {assumption.source}"


def _allocator_overhead(view: StageView) -> Formula:
    if view.plan.problem.framework.eager_temporaries:
        eager = view.plan.problem.assumptions.eager_overhead
        names = [name for name, _ in TERMS if name not in BETWEEN_STEPS]
        transient = sum(view.memory.terms[name] for name in names)
        values = {"eager_overhead": eager.value, "transient": float(transient)}
        return view.plan.formula("eager_overhead * transient", _assumed(eager), values)
    assumed = view.plan.problem.assumptions.allocator_overhead
    values = {"allocator_overhead": assumed.value, "allocated": float(view.memory.allocated_bytes)}
    return view.plan.formula("allocator_overhead * allocated", _assumed(assumed), values)


def _step_blocks(view: StageView) -> Formula:
    plan, inputs = view.plan, view.plan.inputs
    bucket, assumed = plan.problem.framework.reduction_bucket_elements, plan.problem.assumptions.reduction_buckets
    parameters, values = _all_parameters(view)
    sharded = plan.estimate.plan.optimizer_sharding >= 1
    share = f"({'P / (d*c)' if sharded else 'P'}{' + E / z_e' if sharded and 'E' in parameters else ''})"
    ends = max(view.embedding, view.head)
    table = f"{ends:g} * h * V / t"
    values |= {"bucket": bucket, "buckets": assumed.value}
    text = (
        f"2 * {share} + max(2 * min({parameters}, buckets * max(bucket, {table})), 8 * min({table}, {share}))"
        if gradient_bytes_per_parameter(inputs) == 2
        else f"2 * {parameters} + 4 * {table}"
    )
    source = "flat copies of gradients at their reduction and the step: DeepSpeed runtime/zero/stage_1_and_2.py"
    return plan.formula(text, source, values, alive=bucket > 0)


def _cuda_context(view: StageView) -> Formula:
    assumed = view.plan.problem.assumptions.cuda_context_bytes
    return view.plan.formula("cuda_context_bytes", _assumed(assumed), {"cuda_context_bytes": assumed.value})


def _workspace(view: StageView) -> Formula:
    assumed = view.plan.problem.assumptions.workspace_bytes
    return view.plan.formula("workspace_bytes", _assumed(assumed), {"workspace_bytes": assumed.value})


def _communicator_buffers(view: StageView) -> Formula:
    assumed = view.plan.problem.assumptions.communicator_bytes
    values = {"groups": float(communicator_groups(view.plan.inputs)[0]), "communicator_bytes": assumed.value}
    return view.plan.formula("groups * communicator_bytes", _assumed(assumed), values)


MEMORY_FORMULAS: dict[str, Callable[[StageView], Formula]] = {
    "weights": _weights,
    "gradients": _gradients,
    "autograd_gradients": _autograd_gradients,
    "whole_gradients": _whole_gradients,
    "optimizer_states": _optimizer_states,
    "main_gradients": _main_gradients,
    "gathered_parameters": _gathered_parameters,
    "weight_gradient_buffers": _weight_gradient_buffers,
    "saved_activations": _saved_activations,
    "waiting_activations": waiting_activations,
    "waiting_head": waiting_head,
    "weight_versions": _weight_versions,
    "sent_outputs": sent_outputs,
    "sent_gradients": sent_gradients,
    "embedding_activations": _embedding_activations,
    "recomputed_layer": recomputed_layer,
    "layer_backward_work": layer_backward_work,
    "head_activations": _head_activations,
    "spread_head": _spread_head,
    "logits": _logits,
    "output_weight_gradient": _output_weight_gradient,
    "embedding_gradient": _embedding_gradient,
    "handoff_buffers": _handoff_buffers,
    "allocator_overhead": _allocator_overhead,
    "step_blocks": _step_blocks,
    "cuda_context": _cuda_context,
    "workspace": _workspace,
    "communicator_buffers": _communicator_buffers,
}
"""One for every name in `engine.memory.TERMS` and `ALLOWANCES`."""
