"""A document of Megatron-Bridge as Megatron-LM's options.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d, models/transformer_config.py (finalize), models/gpt_provider.py,
training/config.py (validate), training/mixed_precision.py, recipes/common.py (what recipes set).
"""

from __future__ import annotations

from ppadvisor.frameworks.megatron.options import options
from ppadvisor.frameworks.megatron.translated import Words, pattern_text
from ppadvisor.frameworks.megatron_bridge.keys import (
    ELSEWHERE,
    LISTS_AS_TEXT,
    PRECISIONS,
    RENAMED_IN_MODEL,
    SAME_IN_MODEL,
    unmodelled_in_model,
)
from ppadvisor.frameworks.omegaconf import Document, Entry, below, known
from ppadvisor.frameworks.shell import Field

LAYERS = {"embedding": "E", "decoder": "t", "transformer": "t", "mtp": "m", "loss": "L"}
"""megatron.core.transformer.enums.LayerType in the letters of a layout."""
SEQUENCE = ("dataset.seq_length", "dataset.sequence_length", "model.seq_length")
SHARDED = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
FSDP = ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp")
PRECISION = "mixed_precision"


def options_of(document: Document) -> tuple[Field, ...]:
    """The words of a command line that makes Megatron-LM train the same."""
    words = Words()
    for key, dest in {**{key: key for key in (*SAME_IN_MODEL, *unmodelled_in_model())}, **RENAMED_IN_MODEL}.items():
        entry = document.get(f"model.{key}")
        if entry is not None:
            words.say(dest, _as_on_a_command_line(key, entry))
    for key, dest in ELSEWHERE.items():
        if key in document and not (dest.endswith("_dtype") and document[key].value == options()[dest].default):
            words.say(dest, document[key])
    _layers(document, words)
    _batch(document, words)
    _precision(document, words)
    _switches(document, words)
    return tuple(words.fields)


def _as_on_a_command_line(key: str, entry: Entry) -> Entry:
    if key in LISTS_AS_TEXT:
        return Entry(pattern_text(entry.value), entry.line, entry.unknown)
    if key == "pipeline_model_parallel_layout" and isinstance(entry.value, list):
        return Entry(_layout(entry.value), entry.line, entry.unknown)
    return entry


def _layout(stages: list[object]) -> str:
    """[[embedding, decoder], [decoder, loss]] as Et|tL; a name that is none of a layer keeps its own first letter."""
    rows = [stage if isinstance(stage, list) else [stage] for stage in stages]
    return "|".join("".join(LAYERS.get(str(layer).lower(), str(layer)[:1].upper()) for layer in row) for row in rows)


def _layers(document: Document, words: Words) -> None:
    """What the command line says otherwise, or needs another switch for."""
    groups, latent = document.get("model.num_query_groups"), is_latent(document)
    if groups is not None and groups.value is not None and not latent:
        words.take("group_query_attention", True, groups.line)
    if latent and "model.multi_latent_attention" not in document:
        words.take("multi_latent_attention", True)
    shared = document.get("model.share_embeddings_and_output_weights")
    if shared is not None and isinstance(shared.value, bool):
        words.take("untie_embeddings_and_output_weights", not shared.value, shared.line)
    gated = document.get("model.gated_linear_unit")
    if gated is not None and gated.value is True:
        words.take("swiglu", True, gated.line)
    window = document.get("model.window_size")
    if window is not None and isinstance(window.value, list):
        words.take("window_size", ",".join(map(str, window.value)), window.line)
    _expert_tensor_parallel(document, words)


def is_latent(document: Document) -> bool:
    """A config of latent attention has it on by default, and is told by its ranks."""
    said = document.get("model.multi_latent_attention")
    ranks = document.get("model.kv_lora_rank")
    return said.value is True if said is not None else ranks is not None and ranks.value is not None


def _expert_tensor_parallel(document: Document, words: Words) -> None:
    """transformer_config.py, finalize: 1 where experts are divided and nobody says; Megatron-LM takes t."""
    said = known(document, ("model.expert_tensor_parallel_size",))
    divided = document.get("model.expert_model_parallel_size")
    if said is None and divided is not None and isinstance(divided.value, int) and divided.value > 1:
        words.take("expert_tensor_parallel_size", 1)


def _batch(document: Document, words: Words) -> None:
    """The dataset owns the sequence length; the table of positions, where there is one, is as long."""
    length = known(document, SEQUENCE)
    if length is not None:
        words.say("seq_length", length)
        words.say("max_position_embeddings", length)


def precision_of(document: Document) -> dict[str, Entry]:
    """The fields of mixed precision as they are set: those of the recipe that is named, the file's over them."""
    named = document.get(PRECISION)
    name = named.value if named is not None and isinstance(named.value, str) else None
    line = named.line if named is not None else 0
    values = PRECISIONS.get(name.replace("-", "_"), {}) if name else {}
    found = {field: Entry(value, line) for field, value in values.items()}
    found |= {key: entry for key, entry in below(document, PRECISION) if not key.startswith("_")}
    if found:
        return {"grad_reduce_in_fp32": Entry(True, line)} | found
    alone = {key: entry for key in ("bf16", "fp16", "fp8", "fp4") if (entry := document.get(f"model.{key}"))}
    return alone | {"grad_reduce_in_fp32": document.get("ddp.grad_reduce_in_fp32", Entry(False, 0))}


def _precision(document: Document, words: Words) -> None:
    """Precision of the whole overwrites that of model and gradients (mixed_precision.py, setup)."""
    fields = precision_of(document)
    for name in ("bf16", "fp16", "fp8", "fp4", "fp8_param_gather", "fp4_param_gather", "first_last_layers_bf16"):
        if name in fields and fields[name].value is not False:
            words.say(name, fields[name])
    reduced = fields["grad_reduce_in_fp32"]
    if _on(fields, "bf16"):
        words.take("grad_reduce_in_bf16", reduced.value is False, reduced.line)
    elif _on(fields, "fp16"):
        words.take("accumulate_allreduce_grads_in_fp32", reduced.value is True, reduced.line)


def _on(document: Document, key: str) -> bool:
    return key in document and document[key].value is True


def _switches(document: Document, words: Words) -> None:
    """One switch in two sections: either turns on both (config.py, _validate_and_sync_...)."""
    sharded = next((document[key] for key in (*SHARDED, *FSDP) if _on(document, key)), None)
    if sharded is not None:
        words.say("use_distributed_optimizer", sharded)
    for dest, keys in (("use_megatron_fsdp", FSDP), ("use_torch_fsdp2", ("dist.use_torch_fsdp2",))):
        on = next((document[key] for key in keys if _on(document, key)), None)
        if on is not None:
            words.say(dest, on)
    if _on(document, "model.cpu_offloading") and "model.cpu_offloading_num_layers" in document:
        words.say("cpu_offloading_num_layers", document["model.cpu_offloading_num_layers"])
    overlap = document.get("comm_overlap.tp_comm_overlap")
    if overlap is not None and overlap.value is True and _divided(document):
        words.say("tp_comm_overlap", overlap)


def _divided(document: Document) -> bool:
    """comm_overlap.py: without sequence parallelism over t above 1 the overlap is switched off with a warning."""
    t = document.get("model.tensor_model_parallel_size")
    return t is not None and t.value not in (None, 1) and _on(document, "model.sequence_parallel")
