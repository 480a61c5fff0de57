"""The formulas of what a backward works with and leaves: layers in work, what waits for weights, what was sent."""

from __future__ import annotations

from ppadvisor.engine.explain_stage import StageView
from ppadvisor.engine.expressions import Formula
from ppadvisor.engine.layer_work import (
    half_that_needs_more,
    halves_in_work,
    last_matrix_bytes,
    last_product_bytes,
    repeated_by_half,
    shared_experts_bytes,
    tensors_in_work,
    work_by_half,
)
from ppadvisor.engine.memory_waiting import freed_tail_per_chunk, let_go_per_chunk, received_gradient, waiting_per_layer
from ppadvisor.engine.recomputation import group_layers, layer_input_bytes, repeated_for_weights, weight_groups
from ppadvisor.engine.split_work import (
    input_step_bytes,
    repeats_before,
    repeats_of_last,
    used_gradients,
    weight_step_bytes,
)
from ppadvisor.specs.model import LayerKind

KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198"
TORCH = "torch 2.13 torch/distributed/pipelining"


def waiting_activations(view: StageView) -> Formula:
    """What waits for its weight gradient; on torch's first stage, whose whole backward waits, what was saved."""
    inputs = view.plan.inputs
    whole = view.plan.problem.framework.whole_backward_on_first
    text, values = view.stash(
        lambda chunk: 0.0 if whole and chunk.embedding else chunk.waiting, "w", "S_w", waiting_per_layer(inputs)
    )
    first, more = view.stash(
        lambda chunk: chunk.waiting if whole and chunk.embedding else 0.0, "w", "A", view.whole_layers
    )
    text, values = " + ".join(filter(None, [text, first])), values | more
    functions = freed_tail_per_chunk, received_gradient, let_go_per_chunk
    tails, received, let_go = (found(inputs)[0, view.stage] for found in functions)
    counted = [0.0 if whole and chunk.embedding else chunk.waiting for chunk in view.chunks]
    every = [chunk.waiting for chunk in view.chunks]
    for name, each, counts in ("Z", tails, counted), ("G_r", received, counted), ("A_r", let_go, every):
        less = float(sum(count * each[chunk.index] for count, chunk in zip(counts, view.chunks, strict=True)))
        if less:
            text, values = f"{text} - {name}", {**values, name: less}
    source = (
        "S_w: all that was saved and the gradients that the weight gradients need (table of tensors that wait); w: "
        f"{view.plan.schedule.title}, {view.plan.schedule.source}"
    )
    source += "; A_r: of recomputed layers, made again" if "A_r" in values else ""
    source += "; G_r: received, counted with the hand-off buffers" if "G_r" in values else ""
    source += f"; first stage: {TORCH}/stage.py:1018, all of its backward is done then" if first else ""
    return view.plan.formula(text or "w * n * S_w", source, values, alive=bool(text))


def final_norm_text(view: StageView) -> str:
    """Elements of a token that the final norm and the output layer keep of their inputs."""
    over = view.plan.over_sequence
    return f"(h{over} + h)" if over and view.plan.problem.framework.keeps_gathered_inputs else f"2 * h{over}"


def waiting_head(view: StageView) -> Formula:
    """The head until its weight gradient."""
    waits = sum(chunk.waiting * chunk.head for chunk in view.chunks)
    frees = view.plan.problem.framework.frees_in_input_gradient
    hidden = f"h{view.plan.over_sequence}" if frees else final_norm_text(view)
    text = f"w_head * {view.plan.element} * T * ({hidden} + {view.plan.logits})"
    source = "own count: what the head keeps of its input, and the gradient of the logits, until its weight gradient"
    return view.plan.formula(text, source, {"w_head": waits}, alive=waits > 0)


def sent_outputs(view: StageView) -> Formula:
    """Outputs of the stage until their backward."""
    framework = view.plan.problem.framework
    source = "a sent output lives until its backward, unless the trainer frees it (Megatron-Core schedules.py:171)"
    sent, values = view.kept((chunk for chunk in view.chunks if chunk.head < 1 and not chunk.hands_over), waiting=True)
    received = ""
    if framework.keeps_received_inputs and view.plan.estimate.plan.tensor_parallel == 1:
        received, more = view.kept(chunk for chunk in view.chunks if chunk.embedding < 1)
        values |= more
        source += ", and so does what was received (DeepSpeed runtime/pipe/engine.py:607)"
    kept = f"({sent} + {received})" if sent and received else sent or received
    if framework.keeps_input_gradients:
        source += "; sending keeps nothing longer, NCCL lets go of what has arrived (ProcessGroupNCCL.cpp, shelves)"
    text = f"{kept or 'k'} * {view.plan.element} * T * h{view.plan.over_boundary}"
    return view.plan.formula(text, source, values, alive=not framework.frees_sent_outputs and bool(kept))


def sent_gradients(view: StageView) -> Formula:
    """Input gradients that stay to the end of the step in torch's engine."""
    values = {f"sent{chunk.number}": chunk.sent for chunk in view.chunks if chunk.sent}
    count = f"({' + '.join(values)})" if len(values) > 1 else next(iter(values), "sent")
    text = f"{count} * {view.plan.element} * T * h{view.plan.over_sequence}"
    source = (
        "torch leaves what a split backward sends in the .grad of the receive buffer until the next step: "
        f"{TORCH}/_backward.py:257-261, stage.py:613-622"
    )
    alive = view.plan.problem.framework.keeps_input_gradients and bool(values)
    return view.plan.formula(text, source, values, alive=alive)


def recomputed_layer(view: StageView) -> Formula:
    """What the layer in work makes again."""
    inputs, choice = view.plan.inputs, view.plan.estimate.plan.recomputation
    source = f"the layer in work, its forward repeated; Chen et al. 2016, arXiv 1604.06174; {KORTHIKANTI}, section 5"
    at_work = view.memory.moment == "layer_backward"
    if choice.kind != "full":
        of_kind = inputs.kinds[view.largest_kind(halves_in_work(inputs)[0])]
        made = repeated_by_half(inputs, of_kind, choice)
        half = int(half_that_needs_more(made, work_by_half(inputs, of_kind, choice))[0])
        values, name = {"Q_f": float(made[0][0]), "Q_a": float(made[1][0])}, ("Q_f", "Q_a")[half]
        return view.plan.formula(name, source, values, alive=at_work and values[name] > 0)
    chunk = _in_weights(view)
    if chunk is not None and at_work:
        return _piled(view, chunk)
    kind = view.largest_kind(view.whole_layers)
    whole, group = view.plan.symbol("A", kind), view.of_stage(group_layers(inputs))
    text = f"{whole} - I" if group == 1 else f"g * {whole} - I"
    values = {whole: float(view.whole_layers[0, kind]), "I": float(layer_input_bytes(inputs)[0]), "g": group}
    return view.plan.formula(text, source, values, alive=at_work and group > 0)


def _in_weights(view: StageView) -> int | None:
    """The chunk whose weight gradients run at the peak and repeat its layers."""
    under_way = view.plan.inputs.stash.under_way if view.plan.inputs.stash else None
    if under_way is None:
        return None
    running = (under_way.weight_grad + under_way.first_weight_grad) * repeated_for_weights(view.plan.inputs)
    return int(running[0, view.stage].argmax()) if running[0, view.stage].any() else None


def _piled(view: StageView, chunk: int) -> Formula:
    """What the weight gradients of a chunk's recomputed layers pile up."""
    inputs = view.plan.inputs
    before, last, used = (
        float(found(inputs)[0, view.stage, chunk]) for found in (repeats_before, repeats_of_last, used_gradients)
    )
    groups = weight_groups(inputs)[inputs.stages.chunk_layers[0, view.stage, chunk] > 0]
    many = " or ".join(f"{count:g}" for count in sorted(set(groups.tolist())))
    source = (
        f"each of a layer's {many} groups of weights repeats it, and what none reads stays till the stage is done: "
    )
    source += f"{TORCH}/_backward.py:288-347, torch/utils/checkpoint.py:1086-1110"
    return view.plan.formula("A_b + A_e - G_u", source, {"A_b": before, "A_e": last, "G_u": used})


def layer_backward_work(view: StageView) -> Formula:
    """Gradients of the layer in work: in its backward, or in the step of a split one that runs at the peak."""
    step = _step(view)
    text, values, source = step or _backward(view)
    return view.plan.formula(text, source, values, alive=view.memory.moment == "layer_backward")


def _step(view: StageView) -> tuple[str, dict[str, float], str] | None:
    """Of the step of a split backward that runs at the peak; None: a whole backward."""
    inputs = view.plan.inputs
    stash = inputs.stash
    under_way = stash.under_way if stash else None
    if under_way is None:
        return None
    running = [(name, int(values[0, view.stage].argmax())) for name, values in vars(under_way).items()]
    running = [(name, chunk) for name, chunk in running if getattr(under_way, name)[0, view.stage, chunk]]
    if not running:
        return None
    ((name, chunk),) = running
    if view.chunks[chunk].embedding and view.plan.problem.framework.whole_backward_on_first:
        return None if name != "input_grad" else ("0", {}, f"first stage: nothing is done, {TORCH}/stage.py:1018")
    return _input_step(view, chunk) if name == "input_grad" else _weight_step(view, chunk, name)


def _kind_of(view: StageView, chunk: int, per_kind: list[float]) -> int:
    """The kind of layer of a chunk that needs most."""
    layers = view.chunks[chunk].layers
    return max(range(len(per_kind)), key=lambda index: per_kind[index] * (layers[index] > 0))


def _input_step(view: StageView, chunk: int) -> tuple[str, dict[str, float], str]:
    """Input gradient of a layer."""
    inputs, problem = view.plan.inputs, view.plan.problem
    index = _kind_of(view, chunk, [float(input_step_bytes(inputs, kind)[0]) for kind in inputs.kinds])
    assert problem.framework.input_step_work is not None
    moments = problem.framework.input_step_work(problem.model, problem.training, inputs.kinds[index])
    tensors = max(moments, key=lambda moment: float(inputs.tensor_bytes(moment)[0]))
    alive = [tensor for tensor in tensors if inputs.tensor_bytes((tensor,))[0] > 0]
    source = f"an input gradient frees nothing ({TORCH}/_backward.py:247-254); put aside, and in work: "
    return " + ".join(map(view.plan.tensor, alive)), {}, source + ", ".join(tensor.name for tensor in alive)


def _weight_step(view: StageView, chunk: int, name: str) -> tuple[str, dict[str, float], str]:
    inputs, weight = view.plan.inputs, view.plan.problem.training.weight_bytes
    matrices = 1 if name == "first_weight_grad" else 2
    per_kind = [float(weight_step_bytes(inputs, kind, matrices)[0]) for kind in inputs.kinds]
    index = _kind_of(view, chunk, per_kind)
    matrix, waits = _matrix(view, inputs.kinds[index]), waiting_per_layer(inputs) - view.whole_layers
    aside = per_kind[index] - matrices * weight * matrix
    values = {"W": matrix, "G_w": float(waits[0, index]), "freed": float(waits[0, index]) - aside}
    many = "the first micro-batch's, a matrix" if matrices == 1 else "two matrices' at once"
    source = f"weight gradients: {many}, of what waits attention's gone: {TORCH}/_backward.py:325-339"
    return f"{matrices} * {weight} * W + G_w - freed", values, source


def _matrix(view: StageView, kind: LayerKind) -> float:
    """Elements of the feed-forward's last matrices of a layer on one rank."""
    return float(last_matrix_bytes(view.plan.inputs, kind)[0]) / view.plan.problem.training.weight_bytes


def _backward(view: StageView) -> tuple[str, dict[str, float], str]:
    plan, inputs = view.plan, view.plan.inputs
    kind = inputs.kinds[view.largest_kind(halves_in_work(inputs)[1])]
    choice = plan.estimate.plan.recomputation
    halves = work_by_half(inputs, kind, choice)
    attention = int(half_that_needs_more(repeated_by_half(inputs, kind, choice), halves)[0])
    product = float(last_product_bytes(inputs, kind)[0])
    if not attention and 0 < product >= float(halves[0][0]):
        return _last_product(view, kind)
    tensors = [t for t in tensors_in_work(inputs, kind, attention=bool(attention)) if inputs.tensor_bytes((t,))[0] > 0]
    text = " + ".join(plan.tensor(t) for t in tensors)
    whole = sum(float(inputs.tensor_bytes((t,))[0]) for t in tensors)
    source = f"own count of what a layer's backward holds: {', '.join(t.name for t in tensors)}"
    if attention:
        text, source = f"{text} - freed", f"{source}; freed: what the feed-forward had saved"
    return text, {"freed": whole - float(halves[1][0])}, source


def _last_product(view: StageView, kind: LayerKind) -> tuple[str, dict[str, float], str]:
    """The gradient of the feed-forward's last matrix, and what is alive beside it."""
    plan, problem = view.plan, view.plan.problem
    assert problem.framework.last_product_work is not None
    beside = problem.tensors(problem.framework.last_product_work, kind)
    beside = tuple(t for t in beside if plan.inputs.tensor_bytes((t,))[0] > 0)
    text = " + ".join([f"{problem.training.weight_bytes} * W", *(plan.tensor(t) for t in beside)])
    values = {"W": _matrix(view, kind)}
    source = "the gradient of the feed-forward's last matrix, before it is added to the accumulated one, beside: "
    source += ", ".join(t.name for t in beside)
    shared = float(shared_experts_bytes(plan.inputs, kind)[0])
    if shared:
        text, values, source = f"{text} - freed", {**values, "freed": shared}, f"{source}; freed: of shared experts"
    return text, values, source
