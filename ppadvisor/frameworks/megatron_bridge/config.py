"""A configuration of Megatron-Bridge (saved YAML, YAML or a call that overrides a recipe) in our words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import OF_A_SCRIPT, Configuration, Given, Remark
from ppadvisor.frameworks.megatron.config import configuration
from ppadvisor.frameworks.megatron.translated import COMMAND_LINE_RULES, in_names_of, renamed
from ppadvisor.frameworks.megatron_bridge import VERSION as VERSION
from ppadvisor.frameworks.megatron_bridge import checks
from ppadvisor.frameworks.megatron_bridge.document import Bridge, read_bridge
from ppadvisor.frameworks.megatron_bridge.document import recognises as recognises
from ppadvisor.frameworks.megatron_bridge.keys import names_by_flag
from ppadvisor.frameworks.megatron_bridge.translate import PRECISION, SEQUENCE, SHARDED, options_of
from ppadvisor.frameworks.omegaconf import Document, Entry, known
from ppadvisor.specs.load import model_of_hf

FRAMEWORK = "megatron-bridge"
TAKES = (*OF_A_SCRIPT, "model")
CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"

NEEDED = {
    "model.tensor_model_parallel_size": ("model.tensor_model_parallel_size",),
    "model.pipeline_model_parallel_size": ("model.pipeline_model_parallel_size",),
    "train.global_batch_size": ("train.global_batch_size", "train.step_batch_size_schedule"),
    "train.micro_batch_size": ("train.micro_batch_size",),
    "dataset.seq_length": SEQUENCE,
}
"""What a recipe would say, and what nothing can be said without."""
DROPOUT = ("hidden_dropout", "attention_dropout")
LEFT_TO_THE_RECIPE = (
    *("context_parallel_size", "virtual_pipeline_model_parallel_size", "sequence_parallel", "recompute_granularity"),
    *DROPOUT,
)
"""Keys of `model` that change memory or time and are taken by Bridge's default where an override does not say them."""


def read(path: Path, given: Given) -> Configuration:
    """Read a file. InputError for what cannot be read, and for an override without the numbers that decide."""
    return bridge_configuration(read_bridge(path, given.variables), str(path), given)


def bridge_configuration(bridge: Bridge, file: str, given: Given) -> Configuration:
    """What a file says, judged by Megatron-Core's rules and Bridge's own."""
    given = _with_model(bridge, given)
    document, assumed = _with_recipe(bridge, file, given)
    with in_names_of(names_by_flag()):
        found = configuration(
            options_of(document),
            bridge.environment,
            given,
            file,
            in_file=bridge.num_gpus,
            notes=bridge.notes,
            without=COMMAND_LINE_RULES,
        )
    found = renamed(found, names_by_flag())
    # a saved configuration says all that there is, meant or not
    remarks = [one for one in found.remarks if one.flags != (CONNECTION,)]
    remarks = [one for one in remarks if one.kind != "no_effect" or not (bridge.whole or _of_a_command_line(one))]
    return replace(
        found,
        framework=FRAMEWORK,
        judged=(*checks.RULES, *found.judged),
        broken=(*checks.broken(document, bridge), *found.broken),
        remarks=(*assumed, *checks.remarks(document), *remarks),
        unread=bridge.unread,
    )


def _of_a_command_line(remark: Remark) -> bool:
    """Options that only exist to say the same on Megatron-LM's command line."""
    return "--" in "".join(remark.flags)


def _with_model(bridge: Bridge, given: Given) -> Given:
    """The model that a Hugging Face id names, where a preset stands for it and the file gives no sizes."""
    named = known(bridge.document, ("model.hf_model_id", "checkpoint.hf_source_path"))
    if given.model is not None or named is None or "model.num_layers" in bridge.document:
        return given
    return replace(given, model=model_of_hf(str(named.value)))


def _with_recipe(bridge: Bridge, file: str, given: Given) -> tuple[Document, list[Remark]]:
    """What every recipe of Bridge sets; the rest of it is Python, and not read."""
    document = dict(bridge.document)
    if bridge.whole:
        return document, []
    missing = [key for key, keys in NEEDED.items() if known(document, keys) is None]
    sizes = [key for key in ("model.num_layers", "model.hidden_size") if key not in document]
    if missing:
        raise InputError(
            f"{file}: {', '.join(missing)}: left to {bridge.recipe or 'the recipe that it overrides'}, which is Python "
            f"and not read; --define {missing[0]}=N says it"
        )
    if sizes and given.model is None:
        raise InputError(
            f"{file}: the model is that of {bridge.recipe or 'a recipe'}: give --model (also a config.json)"
        )
    own = not sizes
    return document, [*_by_every_recipe(document, own_model=own), *_by_default(document)]


def _by_every_recipe(document: Document, *, own_model: bool) -> Iterator[Remark]:
    """recipes/common.py and optimizer_utils.py: bf16_mixed, and a distributed optimizer; models/*_bridge.py: a model
    from Hugging Face has no dropout.
    """
    unsaid = {f"model.{key}": Entry(0, 0) for key in DROPOUT if f"model.{key}" not in document}
    if unsaid and not own_model:
        document |= unsaid
        text = f"{' and '.join(unsaid)}: not in the file; 0 is taken, as of models from Hugging Face"
        yield Remark("assumed", text, tuple(unsaid))
    if not any(key.partition(".")[0] == PRECISION for key in document) and "model.bf16" not in document:
        document[PRECISION] = Entry("bf16_mixed", 0)
        yield Remark("assumed", "mixed_precision is not in the file; bf16_mixed is taken, as recipes set", (PRECISION,))
    if not any(key in document for key in SHARDED):
        document[SHARDED[0]] = Entry(True, 0)
        text = f"{SHARDED[0]} is not in the file; true is taken, as recipes set"
        yield Remark("assumed", text, (SHARDED[0],))


def _by_default(document: Document) -> Iterator[Remark]:
    without_effect = {
        "sequence_parallel": document["model.tensor_model_parallel_size"].value == 1,
        "virtual_pipeline_model_parallel_size": document["model.pipeline_model_parallel_size"].value == 1,
    }
    left = [key for key in LEFT_TO_THE_RECIPE if f"model.{key}" not in document and not without_effect.get(key)]
    if left:
        keys = ", ".join(left)
        text = f"of model {keys} are not in the file; Bridge's defaults are taken, the recipe may set others"
        yield Remark("assumed", text, tuple(f"model.{key}" for key in left))
