"""What differs between two configurations: fields that memory and time depend on, and options as the files say them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import printable
from ppadvisor.frameworks.configuration import Configuration, Said
from ppadvisor.search.compare import differences
from ppadvisor.search.diff_results import FieldChanged, OptionChanged, Part
from ppadvisor.search.judge import Subject
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec

RECOMPUTATION = {"recompute", "recompute_modules", "recompute_method", "recompute_num_layers"}
EXPERT_LAYERS = {"first_dense_layers", "layer_period", "layer_offset"}
SHARED_EXPERTS = {"num_shared_experts", "shared_expert_ffn_hidden_size"}

Values = Mapping[str, Any]
Asked = tuple[Subject, Problem | None]


def changed_fields(base: Asked, head: Asked, options: Iterable[OptionChanged]) -> tuple[FieldChanged, ...]:
    """Fields of plan, training run, model, machines, then margin and assumptions; what one side lacks is left out."""
    says = {one.field: (one.option, one.head_line) for one in reversed(tuple(options))}
    found = []
    before, after = _parts(*base), _parts(*head)
    for part in before:
        for name, (one, other) in differences(part, before[part], after[part]):
            field = name.removeprefix(f"{part}.")
            if before[part] is None or after[part] is None or _says_nothing(field, one, other):
                continue
            option, line = says.get(field.rpartition(".")[2], (None, None))
            found.append(
                FieldChanged(part=cast(Part, part), field=field, base=one, head=other, option=option, line=line)
            )
    another_gpu = any(one.field == "gpu.model" for one in found)
    return tuple(
        one for one in found if not (another_gpu and one.field.startswith("gpu.") and one.field != "gpu.model")
    )


def _says_nothing(field: str, one: Any, other: Any) -> bool:
    """Not given, none, not so: one thing in two words. Chunks in another number: the virtual stages say it."""
    if field == "layers_per_chunk":
        return len(one or ()) != len(other or ())
    return not (one or other)


def changed_options(base: Configuration, head: Configuration) -> tuple[OptionChanged, ...]:
    """Options that one file gives and the other does not, or otherwise, by the lines of HEAD.

    None of two trainers, whose names mean different things, nor where one is a plan, which has no options.
    """
    if base.framework != head.framework or not (base.options and head.options):
        return ()
    unseen = {flag for side in (base, head) for one in side.remarks if one.kind == "not_modelled" for flag in one.flags}
    names = [name for name in {**head.options, **base.options} if _value(base, name) != _value(head, name)]
    found = [_option(name, base.options.get(name), head.options.get(name), unseen) for name in names]
    return tuple(sorted(found, key=lambda one: (one.head_line is None, one.head_line or 0)))


def _value(side: Configuration, name: str) -> str | None:
    said = side.options.get(name)
    return None if said is None else said.value


def _option(name: str, base: Said | None, head: Said | None, unseen: set[str]) -> OptionChanged:
    field = next((one.says for one in (head, base) if one is not None), None)
    return OptionChanged(
        option=printable(name),
        base=None if base is None else printable(base.value),
        head=None if head is None else printable(head.value),
        base_line=None if base is None else base.line,
        head_line=None if head is None else head.line,
        effect="not_modelled" if name in unseen else "modelled" if field else "other",
        field=field,
    )


def _parts(subject: Subject, problem: Problem | None) -> dict[str, Values | None]:
    """The values of each part, in one way of saying them."""
    configuration, cluster = subject.configuration, subject.cluster
    plan, model = configuration.plan, configuration.model
    return {
        "plan": None if plan is None else _plan(plan),
        "training": _training(configuration, problem),
        "model": None if model is None else _model(model),
        "cluster": {"num_gpus": configuration.num_gpus} if cluster is None else _cluster(cluster),
        "margin": {"margin_fraction": subject.margin},
        "assumptions": None
        if problem is None
        else {name: one.value for name, one in vars(problem.assumptions).items()},
    }


def _plan(plan: PlanSpec) -> Values:
    """Recomputation in one word; chunks only where they say more than the stages."""
    chunks = {"layers_per_chunk"} if plan.virtual_stages == 1 else set()
    values = plan.as_dict(RECOMPUTATION | chunks)
    return {**values, "recompute": plan.recomputation.text}


def _training(configuration: Configuration, problem: Problem | None) -> Values | None:
    """With the trainer's own choice where the run leaves it open, and sequence parallelism where it does something."""
    training, plan = configuration.training, configuration.plan
    if training is None:
        return None
    values = training.as_dict()
    if plan is not None:
        values["sequence_parallel"] = training.sequence_parallel and plan.tensor_parallel > 1
    if problem is not None:
        trainer = problem.framework
        values["stack"] = training.stack or trainer.stack
        values["loss"] = training.loss or trainer.default_loss
        values["gradient_precision"] = trainer.gradient_precision(training)
    return values


def _model(model: ModelSpec) -> Values:
    """Which layers have experts or a window by their numbers, shared experts as the one that they act as."""
    values = model.as_dict(("sliding_window_period",))
    values["norm_bias"] = model.has_norm_bias
    layers = range(model.num_layers)
    windowed = model.sliding_window is not None
    values["full_attention_layers"] = [n for n in layers if windowed and model.attention_window(n) is None]
    values["mla"] = values["mla"] or {}
    values["moe"] = {}
    if model.moe is not None:
        experts = model.moe.as_dict(EXPERT_LAYERS | SHARED_EXPERTS)
        experts["shared_experts_ffn_hidden_size"] = model.moe.shared_experts_ffn_hidden_size
        values["moe"] = {**experts, "moe_layers": [n for n in layers if model.is_moe_layer(n)]}
    return values


def _cluster(cluster: ClusterSpec) -> Values:
    """The GPU by its name, and by its numbers, which may have been changed under the same name."""
    values = cluster.as_dict()
    return {**values, "gpu": {"model": cluster.gpu.name, **values["gpu"]}}
