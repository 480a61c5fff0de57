"""A plan as YAML that overrides Megatron-Bridge's plain GPT recipe, read again before it is handed out.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d, recipes/gpt/h100/vanilla_gpt.py (the recipe), training/utils/
omegaconf_utils.py (how YAML overrides it), docs/megatron-lm-to-megatron-bridge.md (names).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Given, Launch
from ppadvisor.frameworks.megatron.arguments import Arguments, parse
from ppadvisor.frameworks.megatron.launch_model import Flag, model_flags
from ppadvisor.frameworks.megatron.launch_plan import parallel_flags, training_flags
from ppadvisor.frameworks.megatron.patterns import layer_pattern
from ppadvisor.frameworks.megatron.read_back import unsaid
from ppadvisor.frameworks.megatron_bridge.config import bridge_configuration
from ppadvisor.frameworks.megatron_bridge.document import Bridge, plain_objects
from ppadvisor.frameworks.megatron_bridge.keys import ELSEWHERE, LISTS_AS_TEXT, RENAMED_IN_MODEL, SAME_IN_MODEL
from ppadvisor.frameworks.omegaconf import document_of
from ppadvisor.frameworks.shell import Field
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

NAME = "the overrides"
RECIPE = "vanilla_gpt_pretrain_1gpu_h100_bf16_config"
COMMENT_COLUMN = 52
PRECISION_CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
PROVIDERS = (
    "megatron.bridge.models.gpt_provider.GPTModelProvider",
    "megatron.bridge.models.mla_provider.MLAModelProvider",
)
"""Of plain attention, and of latent attention."""
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

COMMENTS = {
    "model.kv_channels": "width of an attention head",
    "model.vocab_size": "before padding",
    "model.pipeline_model_parallel_layout": "E embedding, t layer, m prediction layer, L head and loss, | next stage",
    "model.microbatch_group_size_per_vp_stage": "p does not divide m",
    "model.recompute_num_layers": "uniform: layers of a group; block: layers of each virtual stage",
    "model.moe_layer_freq": "0: a dense layer",
    "model.attention_backend._args_": "unfused",
    "model.window_size": "keys before a token's own",
    "model.window_attn_skip_freq": "0: the layer attends to everything",
    "model.attention_dropout": "0.1 by default",
    "ddp.use_distributed_optimizer": "ZeRO 1",
    "ddp.overlap_grad_reduce": "the step time counts on it",
    "model.should_pad_vocab": "to a multiple of 128 t",
}

BY_A_CLASS = ("attention_backend",)
"""Keys of `model` whose value is no plain one; `auto`, the default, finds flash attention by itself."""

Line = tuple[str, str]
"""(key, value as YAML)."""


def launch(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec, *, one_connection: bool
) -> Launch:
    """The YAML, and what it does not say. RefusedError where Megatron-Core would refuse it."""
    lines = list(_lines(model, training, plan))
    text = "\n".join(_yaml(lines))
    bridge = Bridge(plain_objects(document_of(text, NAME)), {}, cluster.num_gpus)
    read = bridge_configuration(bridge, NAME, Given(one_connection=one_connection))
    if read.broken:
        raise RefusedError(f"Megatron-Bridge does not run this plan: {read.broken[0].message}")
    missing = tuple(unsaid(model, training, plan, read, trainer="Megatron-Bridge"))
    told = [f"# not said, Megatron-Bridge has no field for it: {text}" for text in missing]
    head = list(_head(model, training, plan, cluster))
    return Launch("\n".join([head[0], *told, *head[1:], text]) + "\n", read, missing)


def _head(model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec) -> Iterator[str]:
    name = " ".join(model.name.split())
    yield f"# {name}: {training.sequence_length} tokens a sequence, {plan.schedule}, {cluster.num_gpus} GPUs"
    yield "# Overrides of the plain GPT recipe; data, tokenizer, learning rate, iterations and rotary base are yours:"
    yield f"#   config = process_config_with_overrides({RECIPE}(), config_filepath=FILE)"
    yield "#   pretrain(config=config, forward_step_func=forward_step)"


def _lines(model: ModelSpec, training: TrainingSpec, plan: PlanSpec) -> Iterator[Line]:
    """Section by section, in the order of Megatron's options."""
    flags = [
        *model_flags(model, training.sequence_length),
        *parallel_flags(model, training, plan),
        *training_flags(model, training, plan),
    ]
    arguments = _parsed(flags)
    yield ("model._target_", PROVIDERS[model.mla is not None])
    yield from _model(arguments)
    yield ("dataset.seq_length", str(training.sequence_length))
    for key, dest in ELSEWHERE.items():
        if dest in arguments.given:
            yield (
                key,
                _as_dtype(str(arguments.value(dest))) if dest.endswith("_dtype") else str(arguments.value(dest)),
            )
    yield from _shared(arguments)
    yield from _precision(training)


def _parsed(flags: Iterable[Flag]) -> Arguments:
    return parse([Field(text, 0) for one in flags for text in (one.name, *one.values)])


def _model(arguments: Arguments) -> Iterator[Line]:
    keys = {key: key for key in SAME_IN_MODEL} | RENAMED_IN_MODEL
    for dest in arguments.given:
        key = next((key for key, value in keys.items() if value == dest), None)
        if key is not None and key not in BY_A_CLASS:
            yield (f"model.{key}", _text(key, arguments.value(dest)))
        yield from _otherwise(dest, arguments)


def _otherwise(dest: str, arguments: Arguments) -> Iterator[Line]:
    """What Bridge says in other words than the command line."""
    value = arguments.value(dest)
    if dest == "seq_length":
        yield ("model.seq_length", str(value))
    elif dest == "vocab_size":
        yield ("model.should_pad_vocab", "true")
    elif dest == "swiglu":
        yield ("model.gated_linear_unit", "true")
        yield ("model.activation_func", "silu")
    elif dest == "untie_embeddings_and_output_weights":
        yield ("model.share_embeddings_and_output_weights", "false")
    elif dest == "attention_backend" and value == "unfused":
        yield ("model.attention_backend._target_", "megatron.core.transformer.enums.AttnBackend")
        yield ("model.attention_backend._args_", "[3]")
    elif dest == "window_size":
        yield ("model.window_size", f"[{str(value).replace(',', ', ')}]")


def _text(key: str, value: object) -> str:
    """A value as YAML writes it; a pattern of layers is a list, a layout text with signs in it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if key in LISTS_AS_TEXT and not str(value).isdigit():
        return f"[{', '.join(map(str, layer_pattern(str(value)) or ()))}]"
    return f'"{value}"' if key == "pipeline_model_parallel_layout" else str(value)


def _as_dtype(name: str) -> str:
    return DTYPES.get(name, "torch.float32")


def _shared(arguments: Arguments) -> Iterator[Line]:
    sharded = "use_distributed_optimizer" in arguments.given
    yield ("ddp.use_distributed_optimizer", str(sharded).lower())
    yield ("optimizer.use_distributed_optimizer", str(sharded).lower())
    for name in ("overlap_grad_reduce", "overlap_param_gather"):
        if name in arguments.given:
            yield (f"ddp.{name}", "true")


def _precision(training: TrainingSpec) -> Iterator[Line]:
    """One name where a recipe of precision says it all, else its fields."""
    base = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}.get(training.precision)
    reduced = training.gradient_precision or "fp32"
    if training.precision != "fp8" and (base, reduced) in (("bf16", "fp32"), ("fp16", "fp16")):
        yield ("mixed_precision", f"{base}_mixed")
        return
    yield ("mixed_precision._target_", PRECISION_CLASS)
    if base is None:
        yield ("mixed_precision.fp32", "true")
        return
    yield (f"mixed_precision.{base}", "true")
    for name in ("params_dtype", "pipeline_dtype"):
        yield (f"mixed_precision.{name}._target_", DTYPES[base])
        yield (f"mixed_precision.{name}._call_", "false")
    yield ("mixed_precision.grad_reduce_in_fp32", str(reduced == "fp32").lower())
    if training.precision == "fp8":
        yield ("mixed_precision.fp8", "hybrid")
        yield ("mixed_precision.fp8_recipe", "delayed")
        yield ("mixed_precision.fp8_param_gather", str(training.fp8_weights).lower())


def _yaml(lines: Iterable[Line]) -> Iterator[str]:
    """Dotted keys as sections, each opened once."""
    opened: tuple[str, ...] = ()
    for key, value in sorted(lines, key=lambda line: _order(line[0])):
        *sections, name = key.split(".")
        for depth, section in enumerate(sections):
            if opened[: depth + 1] != tuple(sections[: depth + 1]):
                yield f"{'  ' * depth}{section}:"
        opened = tuple(sections)
        indent, comment = "  " * len(sections), "" if value == "false" else COMMENTS.get(key, "")
        text = f"{indent}{name}: {value}"
        if comment and len(text) > COMMENT_COLUMN:
            yield f"{indent}# {comment}"
            yield text
        else:
            yield f"{text:<{COMMENT_COLUMN}}  # {comment}" if comment else text


def _order(key: str) -> int:
    """Sections in the order in which a reader asks for them; within one as they come."""
    return ("model", "train", "dataset", "optimizer", "ddp", "mixed_precision").index(key.partition(".")[0])
