"""A configuration of NeMo 1 (YAML of trainer, exp_manager and model) in our words.

Source: NVIDIA/NeMo 8cfedd72, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and the models that read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import OF_A_SCRIPT, Broken, Configuration, Given, Outcome, Remark
from ppadvisor.frameworks.megatron.config import configuration
from ppadvisor.frameworks.megatron.translated import COMMAND_LINE_RULES, Words, in_names_of, renamed
from ppadvisor.frameworks.nemo import VERSION as VERSION
from ppadvisor.frameworks.nemo.keys import (
    NORMS,
    POSITIONS,
    PRECISIONS,
    RENAMED,
    SAME,
    SHARDED,
    UNMODELLED,
    UNSHARDED,
    names_by_flag,
)
from ppadvisor.frameworks.omegaconf import Document, Entry, read_document
from ppadvisor.frameworks.shell import Field

FRAMEWORK = "nemo"
TAKES = (*OF_A_SCRIPT, "model")
CONNECTION = "CUDA_DEVICE_MAX_CONNECTIONS"
RULES = ("o2_for_virtual_stages", "o2_for_experts", "o2_for_fp16", "optimizer_for_experts")
GPUS = ("trainer.num_nodes", "trainer.devices")


def recognises(path: Path, text: str) -> bool:
    """Whether a file is NeMo's: a trainer of nodes and devices beside a model of Megatron's sizes."""
    sections = set(re.findall(r"^(\w+):", text, re.M))
    sizes = "encoder_seq_length" in text or "tensor_model_parallel_size" in text
    return {"trainer", "model"} <= sections and sizes and "trainer.strategy" not in text


def read(path: Path, given: Given) -> Configuration:
    """Read a file. InputError for what cannot be read."""
    document, file = read_document(path, given.variables), str(path)
    if not any(key.startswith("model.") for key in document):
        raise InputError(f"{file}: no section `model`: that is no YAML of NeMo 1")
    if any(key.startswith("trainer.strategy.") for key in document):
        raise InputError(f"{file}: a configuration of NeMo 2, whose recipes are Python; that of NeMo 1 is read")
    words, gpus = options_of(document), _gpus(document)
    with in_names_of(names_by_flag()):
        found = configuration(words, {}, given, file, in_file=gpus, notes=(), without=COMMAND_LINE_RULES)
    found = renamed(found, names_by_flag())
    return replace(
        found,
        framework=FRAMEWORK,
        judged=(*RULES, *found.judged),
        broken=(*_broken(document), *found.broken),
        remarks=(*_remarks(document), *(one for one in found.remarks if one.flags != (CONNECTION,))),
    )


def _gpus(document: Document) -> int | None:
    """Nodes times devices; None where one of them is not a number."""
    numbers = [document[key].value if key in document else None for key in GPUS]
    whole = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool) and number > 0]
    return whole[0] * whole[1] if len(whole) == len(GPUS) else None


def options_of(document: Document) -> tuple[Field, ...]:
    """The words of a command line that makes Megatron-LM train the same."""
    words = Words()
    for key, dest in {**{key: key for key in SAME}, **RENAMED}.items():
        entry = document.get(f"model.{key}")
        if entry is not None and not _says_nothing(document, key, entry):
            words.say(dest, entry)
    _layers(document, words)
    _precision(document, words)
    name = document.get("model.optim.name")
    if name is not None and name.value in SHARDED:
        words.take("use_distributed_optimizer", True, name.line)
    return tuple(words.fields)


def _says_nothing(document: Document, key: str, entry: Entry) -> bool:
    """Values that NeMo passes over: one virtual stage, how to recompute where nothing is, learned rows beyond rope."""
    if key == "virtual_pipeline_model_parallel_size":
        return bool(entry.value == 1)
    if key in ("activations_checkpoint_method", "activations_checkpoint_num_layers"):
        return _value(document, "activations_checkpoint_granularity") is None
    return False


def _value(document: Document, key: str, default: object = None) -> object:
    entry = document.get(f"model.{key}")
    return default if entry is None or entry.value is None else entry.value


def _line(document: Document, key: str) -> int:
    entry = document.get(key)
    return entry.line if entry is not None else 0


def _layers(document: Document, words: Words) -> None:
    """What NeMo calls otherwise than the command line."""
    if _value(document, "num_query_groups") is not None and not _value(document, "multi_latent_attention", False):
        words.take("group_query_attention", True, _line(document, "model.num_query_groups"))
    tied = _value(document, "share_embeddings_and_output_weights", True)
    line = _line(document, "model.share_embeddings_and_output_weights")
    words.take("untie_embeddings_and_output_weights", tied is False, line)
    if str(_value(document, "activation", "gelu")).endswith("glu"):
        words.take("swiglu", True, _line(document, "model.activation"))
    norm = str(_value(document, "normalization", "layernorm")).lower()
    words.take("normalization", NORMS.get(norm, norm), _line(document, "model.normalization"))
    positions = _value(document, "position_embedding_type", "learned_absolute")
    line = _line(document, "model.position_embedding_type")
    words.take("position_embedding_type", positions if positions in POSITIONS else "none", line)
    if not _value(document, "transformer_engine", False) and not _value(document, "use_flash_attention", False):
        words.take("transformer_impl", "local", _line(document, "model.transformer_engine"))


def _precision(document: Document, words: Words) -> None:
    """trainer.precision computes; gradients are reduced in fp32 unless grad_sync_dtype says otherwise."""
    sixteen, line = _sixteen(document), _line(document, "trainer.precision")
    if sixteen:
        words.take(sixteen, True, line)
    reduced = str(_value(document, "optim.grad_sync_dtype", "fp32"))
    halves = reduced in ("bf16", "16", "fp16") and _value(document, "optim.name") in SHARDED
    if sixteen == "bf16":
        words.take("grad_reduce_in_bf16", halves, _line(document, "model.optim.grad_sync_dtype"))
    elif sixteen == "fp16":
        words.take("accumulate_allreduce_grads_in_fp32", not halves, _line(document, "model.optim.grad_sync_dtype"))
    if _value(document, "fp8", False) is True:
        kind = "e4m3" if _value(document, "fp8_e4m3", False) else "hybrid"
        words.take("fp8", kind, _line(document, "model.fp8"))


def _sixteen(document: Document) -> str:
    """bf16, fp16, or nothing for fp32 and for what is not known."""
    entry = document.get("trainer.precision")
    return PRECISIONS.get(str(entry.value), "") if entry is not None else ""


def _broken(document: Document) -> Iterator[Broken]:
    """megatron_gpt_model.py:361-371 and megatron_base_model.py:870-881: what the model refuses when it is built."""
    o2, mixed = _value(document, "megatron_amp_O2", False) is True, "model.megatron_amp_O2"
    experts = _value(document, "expert_model_parallel_size", 1) != 1
    cases: Mapping[str, tuple[bool, str, str, str]] = {
        "o2_for_virtual_stages": (
            not o2 and _value(document, "virtual_pipeline_model_parallel_size") not in (None, 1),
            "virtual stages need model.megatron_amp_O2: true",
            "model.virtual_pipeline_model_parallel_size",
            "megatron_gpt_model.py:361",
        ),
        "o2_for_experts": (
            not o2 and experts,
            "expert parallelism needs model.megatron_amp_O2: true",
            "model.expert_model_parallel_size",
            "megatron_gpt_model.py:364",
        ),
        "o2_for_fp16": (
            o2 and _sixteen(document) == "fp16" and _value(document, "optim.name") not in SHARDED,
            "fp16 excludes model.megatron_amp_O2: true",
            "trainer.precision",
            "megatron_base_model.py:878",
        ),
        "optimizer_for_experts": (
            experts and _value(document, "optim.name") == "distributed_fused_adam",
            "expert parallelism excludes distributed_fused_adam; mcore_distributed_optim takes it",
            "model.optim.name",
            "megatron_gpt_model.py:367-372",
        ),
    }
    for rule, (holds, text, key, source) in cases.items():
        if holds:
            yield Broken(rule, Outcome.REJECTED, text, (key, mixed), _line(document, key) or None, source)


def _remarks(document: Document) -> Iterator[Remark]:
    """What is not modelled, not known, or not read."""
    for key, what in UNMODELLED.items():
        name = f"model.{key}"
        under = next((one for one in document if one == name or one.startswith(f"{name}.")), None)
        value = None if under is None else document[under].value
        if under is not None and value not in (None, False, 0, []):
            text = f"{name} changes {what}; the estimate is made without it"
            yield Remark("not_modelled", text, (name,), document[under].line or None)
    yield from _other_layers(document)
    optimizer = _value(document, "optim.name", "fused_adam")
    if optimizer not in (*SHARDED, *UNSHARDED):
        line = _line(document, "model.optim.name") or None
        yield Remark("not_modelled", f"model.optim.name: states of {optimizer} are taken as Adam's", line=line)
    if _value(document, "rampup_batch_size") is not None:
        line = _line(document, "model.rampup_batch_size") or None
        text = "model.rampup_batch_size: the estimate is that of the whole batch, behind the ramp"
        yield Remark("assumed", text, ("model.rampup_batch_size",), line)
    for key, entry in document.items():
        if entry.unknown and key.partition(".")[2] in (*SAME, *RENAMED):
            yield Remark("not_understood", f"{key}: {entry.unknown}", (key,), entry.line or None)


def _other_layers(document: Document) -> Iterator[Remark]:
    """Layers and weights that are other than Megatron-Core's with 16-bit weights."""
    if _value(document, "mcore_gpt", False) is not True:
        text = "model.mcore_gpt is not true: NeMo's own layers, taken as Megatron-Core's"
        yield Remark("not_modelled", text, ("model.mcore_gpt",), _line(document, "model.mcore_gpt") or None)
    if _value(document, "megatron_amp_O2", False) is not True and _sixteen(document):
        text = "model.megatron_amp_O2 is not true: weights stay fp32 under autocast, which the estimate takes as 16-bit"
        yield Remark("not_modelled", text, ("model.megatron_amp_O2",), _line(document, "model.megatron_amp_O2") or None)
    positions = _value(document, "position_embedding_type", "learned_absolute")
    if positions not in POSITIONS:
        text = f"model.position_embedding_type {positions}: taken as none"
        line = _line(document, "model.position_embedding_type") or None
        yield Remark("not_modelled", text, ("model.position_embedding_type",), line)
