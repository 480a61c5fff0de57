"""A configuration of Megatron-Bridge, from YAML or from the overrides of a call, as one document of dotted keys.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d, scripts/training/run_recipe.py (options of the call), training/config.py
(sections), and megatron/training/config/yaml_utils.py of Megatron-LM (how objects are saved).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ppadvisor.errors import InputError
from ppadvisor.frameworks.megatron.call import LOOKED_AT, gpu_words, gpus_started, openly_taken, refuse_printed
from ppadvisor.frameworks.megatron_bridge.keys import ATTENTION_BACKENDS, DTYPES
from ppadvisor.frameworks.omegaconf import (
    MAX_BYTES,
    OVERRIDE,
    Document,
    Entry,
    override,
    read_document,
    resolved,
    set_values,
)
from ppadvisor.frameworks.shell import Call, Field, Note, Script, read_script
from ppadvisor.specs.files import read_text

MAX_SCRIPT_BYTES = 300_000
FEWEST_OVERRIDES = 2
"""A command with fewer values of Bridge's sections is another program's."""

SECTIONS = (
    *("model", "train", "optimizer", "ddp", "scheduler", "dataset", "logger", "tokenizer", "checkpoint", "dist", "rng"),
    *("comm_overlap", "mixed_precision", "validation", "profiling", "peft", "ft", "straggler", "nvrx_straggler"),
    *("rerun_state_machine", "tensor_inspect", "inprocess_restart", "env_vars", "optimizer_config_override_provider"),
)
"""Of a configuration (ConfigContainer)."""
ITS_OWN = ("train.", "ddp.", "mixed_precision", "comm_overlap.")
"""Sections that no other trainer has by these names beside a `model`."""

OPTIONS = {
    ("-tp", "--tensor_model_parallel_size"): "model.tensor_model_parallel_size",
    ("-pp", "--pipeline_model_parallel_size"): "model.pipeline_model_parallel_size",
    ("-cp", "--context_parallel_size"): "model.context_parallel_size",
    ("-vp", "--virtual_pipeline_model_parallel_size"): "model.virtual_pipeline_model_parallel_size",
    ("-ep", "--expert_model_parallel_size"): "model.expert_model_parallel_size",
    ("-etp", "--expert_tensor_parallel_size"): "model.expert_tensor_parallel_size",
    ("-gb", "--global_batch_size"): "train.global_batch_size",
    ("-mb", "--micro_batch_size"): "train.micro_batch_size",
    ("-sl", "--seq_length"): "dataset.seq_length",
}
"""Options of run_recipe.py that stand for a key."""


@dataclass(frozen=True)
class Bridge:
    """What a file says."""

    document: Document
    environment: Mapping[str, str]
    num_gpus: int | None = None
    notes: tuple[Note, ...] = ()
    recipe: str = ""
    """The recipe that it overrides, empty where it says the whole, or does not name one."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user defined without effect -> why."""
    of_a_call: bool = False
    """Whether Hydra takes the overrides, which refuses a key that is not there; of YAML it is passed over."""

    @property
    def whole(self) -> bool:
        """Whether this is a saved configuration: of what it leaves out Bridge's own defaults hold."""
        return any(key in self.document for key in ("model._target_", "model._builder_"))


def recognises(path: Path, text: str) -> bool:
    """Whether a file is Bridge's: sections that are its own beside `model`, overrides in a script, or its classes."""
    if "megatron.bridge" in text and "_target_" in text:
        return True
    if is_yaml(path, text):
        sections = set(re.findall(r"^(\w+):", text, re.M))
        return bool(sections & {"train", "ddp", "mixed_precision", "comm_overlap"}) and "model" in sections
    front = "|".join(SECTIONS)
    found = re.findall(rf"(?:^|[\s\"'])[+]{{0,2}}((?:{front})\.\w+(?:\.\w+)*)=", text)
    return "run_recipe.py" in text or any(key.startswith(ITS_OWN) for key in found)


def is_yaml(path: Path, text: str) -> bool:
    """By its name; of a pipe, whose name says nothing, by a section on a line of its own."""
    suffix = path.suffix.lower()
    return suffix in (".yaml", ".yml") or (not suffix and re.search(r"^(model|train):\s*$", text, re.M) is not None)


def read_bridge(path: Path, variables: Mapping[str, str]) -> Bridge:
    """Read a file. InputError for what is neither YAML of Bridge nor a script with its overrides."""
    text = read_text(path, MAX_BYTES)
    if is_yaml(path, text):
        document = plain_objects(read_document(path, variables))
        _check_sections(document, path)
        environment = {key.removeprefix("env_vars."): str(entry.value) for key, entry in document.items()
                       if key.startswith("env_vars.")}  # fmt: skip
        return Bridge(document, environment)
    if len(text) > MAX_SCRIPT_BYTES:
        raise InputError(f"{path}: {len(text):,} characters, needs a script of at most {MAX_SCRIPT_BYTES:,}")
    return read_overrides(text, str(path), variables)


def _check_sections(document: Document, path: Path) -> None:
    known = [key for key in document if key.partition(".")[0] in SECTIONS]
    if not known:
        raise InputError(f"{path}: no section of Megatron-Bridge; known: {', '.join(SECTIONS[:8])}, ...")


def read_overrides(text: str, file: str, variables: Mapping[str, str]) -> Bridge:
    """The overrides of a script's call, or of a variable that holds them."""
    script = read_script(text, file, {name: value for name, value in variables.items() if "." not in name})
    found = _of_a_call(script, file) or _of_a_variable(script, file)
    document = _document(found.words)
    document = resolved({**document, **set_values(document, variables)})
    named = (
        found.words[at + 1].text for at, word in enumerate(found.words[:-1]) if word.text in ("--recipe", "--model")
    )
    gpus = gpus_started(found.launcher, text, script)
    assumed = script.assumed((*found.words, *gpu_words(found.launcher, script)))
    return Bridge(
        document,
        found.environment,
        gpus,
        (*script.notes, *found.notes, *assumed, *_unread(found.words)),
        next(named, ""),
        script.variables.unread(LOOKED_AT),
        of_a_call=True,
    )


def _unread(words: Sequence[Field]) -> Iterator[Note]:
    """Words that may override something, and that nobody knows here."""
    for word in words:
        if word.unknown and OVERRIDE.fullmatch(word.text) is None:
            yield Note(word.line, f"{word.unknown}; overrides in it are not seen")
        elif word.text.startswith("~"):
            yield Note(word.line, f"{word.text[:60]}: what it takes away is not followed")


@dataclass(frozen=True)
class _Found:
    """Words with overrides among them."""

    words: Sequence[Field]
    launcher: Sequence[Field]
    environment: Mapping[str, str]
    notes: tuple[Note, ...] = ()


def _of_a_call(script: Script, file: str) -> _Found | None:
    """The command with the most overrides. InputError where none of them ever runs."""
    found = [call for call in script.calls if _overrides(call.words) >= FEWEST_OVERRIDES]
    calls = [call for call in found if not call.prints]
    running = [call for call in calls if not call.unreached]
    if calls and not running:
        raise InputError(f"{file}:{calls[0].line}: this call of Megatron-Bridge never runs: {calls[0].unreached}")
    call = max(running, key=lambda one: (not one.uncalled, _overrides(one.words)), default=None)
    if call is None:
        refuse_printed(found, "Megatron-Bridge", file)
        return None
    told = () if call.certain else (Note(call.line, openly_taken(call)),)
    return _Found(call.words, _launcher(call), call.environment, told)


def _of_a_variable(script: Script, file: str) -> _Found:
    """The variable with the most overrides, for a call that is put together elsewhere."""
    words, name = _variable(script, file)
    script.variables.read.add(name)
    started = [call.words for call in script.calls if gpus_started(call.words, "", script)]
    environment = {name: value for name in script.variables.values if (value := script.variables.peek(name))}
    note = Note(words[0].line, f"no call of Megatron-Bridge in this file: the overrides of {name} are taken")
    return _Found(words, started[-1] if started else (), environment, (note,))


def _overrides(words: Sequence[Field]) -> int:
    keys = [match[2] for word in words if (match := OVERRIDE.fullmatch(word.text))]
    return sum(key.partition(".")[0] in SECTIONS for key in keys)


def _launcher(call: Call) -> Sequence[Field]:
    """The words in front of the training script."""
    at = next((i for i, word in enumerate(call.words) if word.text.endswith(".py")), 0)
    return (*call.launcher, *call.words[:at])


def _variable(script: Script, file: str) -> tuple[Sequence[Field], str]:
    """The variable with the most overrides, and its name."""
    held = [(_overrides(words), name, words) for name in script.variables.values if (words := script.text_of(name))]
    number, name, words = max(held, key=lambda one: one[0], default=(0, "", []))
    if number < FEWEST_OVERRIDES:
        raise InputError(f"{file}: no call of Megatron-Bridge, and no variable that holds its overrides (model.x=1)")
    return words, name


def _document(words: Sequence[Field]) -> Document:
    """Options first, since overrides behind them win."""
    document: Document = {}
    keys = {option: key for names, key in OPTIONS.items() for option in names}
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name in keys and (equals or index + 1 < len(words)):
            taken = Field(value, word.line, word.unknown) if equals else words[index + 1]
            found = override(f"{keys[name]}={taken.text}", taken.line, taken.unknown)
            document |= dict([found]) if found else {}
    for word in words:
        found = override(word.text, word.line, word.unknown)
        if found and found[0].partition(".")[0] in SECTIONS:
            document[found[0]] = found[1]
    return plain_objects(document)


def plain_objects(document: Document) -> Document:
    """Saved objects as the value they stand for: a dtype, an attention backend, `model.transformer.x` as `model.x`."""
    flat = {key.replace("model.transformer.", "model.", 1): entry for key, entry in document.items()}
    for key in [key for key in flat if key.endswith("._target_")]:
        above = key.removesuffix("._target_")
        beside = {name for name in flat if name.startswith(f"{above}.")}
        if beside <= {f"{above}.{name}" for name in ("_target_", "_call_", "_args_", "_partial_")}:
            arguments = flat.get(f"{above}._args_")
            name = str(flat[key].value).rpartition(".")[2]
            value = arguments.value[0] if arguments and isinstance(arguments.value, list) and arguments.value else name
            flat[above] = replace(flat[key], value=value)
    return {key: _plain(key, entry) for key, entry in flat.items()}


def _plain(key: str, entry: Entry) -> Entry:
    if not isinstance(entry.value, str | int) or isinstance(entry.value, bool):
        return entry
    if key.endswith("_dtype"):
        name = str(entry.value).removeprefix("torch.")
        return replace(entry, value=DTYPES.get(name, name))
    if key == "model.attention_backend":
        name = str(entry.value).removeprefix("AttnBackend.")
        return replace(entry, value=ATTENTION_BACKENDS.get(int(name), name) if name.isdigit() else name)
    return entry
