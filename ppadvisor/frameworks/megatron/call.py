"""Which command of a script trains, on how many GPUs, with which options.

Source: PyTorch's `torchrun --help` (--nproc-per-node, --nnodes), Slurm's srun and sbatch (--nodes, --ntasks-per-node).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ppadvisor.errors import InputError
from ppadvisor.frameworks.megatron.options import by_flag
from ppadvisor.frameworks.shell import Call, Field, Note, Script

FEWEST_OPTIONS = 3
"""A command with fewer of Megatron's options is another program's."""

SBATCH = re.compile(
    r"^#SBATCH\s+--?(nodes|N|ntasks-per-node|gpus-per-node|gres)[= ]\s*(?:gpu:)?(?:\w+:)?(\d{1,7})", re.M
)


@dataclass(frozen=True)
class TrainingCall:
    """The call that trains."""

    options: tuple[Field, ...]
    environment: Mapping[str, str]
    num_gpus: int | None
    notes: tuple[Note, ...]


def training_call(script: Script, text: str, file: str) -> TrainingCall:
    """The command with the most of Megatron's options. InputError where none has some."""
    notes = list(script.notes)
    best = max(script.calls, key=_known_options, default=None)
    if best is None or _known_options(best) < FEWEST_OPTIONS:
        return _without_a_call(script, text, file, notes)
    before, options = _split(best)
    if not best.certain:
        notes.append(Note(best.line, "whether this call runs depends on what is not known here; it is taken"))
    others = [call for call in script.calls if call is not best and _known_options(call) >= FEWEST_OPTIONS]
    notes += [Note(call.line, f"another call of Megatron, not looked at; line {best.line} is") for call in others]
    gpus = gpus_started(before, text, script)
    return TrainingCall(options, best.environment, gpus, tuple(notes))


def _known_options(call: Call) -> int:
    flags = {word.text.partition("=")[0] for word in call.words if word.text.startswith("--")}
    return len(flags & by_flag().keys())


def _without_a_call(script: Script, text: str, file: str, notes: list[Note]) -> TrainingCall:
    """Options that stand in variables only, for a call in another file."""
    found: list[Field] = []
    names = []
    for name in script.variables.values:
        words = script.text_of(name)
        if sum(word.text.partition("=")[0] in by_flag() for word in words) >= FEWEST_OPTIONS:
            names.append(name)
            found += words
    if not found:
        raise InputError(f"{file}: no call of Megatron-LM, and no variable that holds its options")
    notes.append(Note(1, f"no call of Megatron in this file: the options of {', '.join(names)} are taken"))
    environment = {name: value for name in script.variables.values if (value := script.variables.scalar(name))}
    return TrainingCall(tuple(found), environment, _slurm(text), tuple(notes))


def _split(call: Call) -> tuple[Sequence[Field], tuple[Field, ...]]:
    """(the launcher's words, the options behind the training script)."""
    for index, word in enumerate(call.words):
        if word.text.endswith(".py"):
            return call.words[:index], call.words[index + 1 :]
    first = next((i for i, word in enumerate(call.words) if word.text.partition("=")[0] in by_flag()), 0)
    return call.words[:first], call.words[first:]


def gpus_started(launcher: Sequence[Field], text: str, script: Script) -> int | None:
    """Processes by the launcher's words, the batch job's lines or WORLD_SIZE; None where nobody says."""
    return _launched(launcher) or _slurm(text) or _world_size(script)


def _launched(words: Sequence[Field]) -> int | None:
    """Processes that the launcher starts: torchrun's, else srun's."""
    nodes = _number(words, "--nnodes", "-N", "--nodes")
    of_node = _number(words, "--nproc-per-node", "--nproc_per_node", "--ntasks-per-node", "--gpus-per-node")
    torchrun = any(word.text.rpartition("/")[2] in ("torchrun", "torch.distributed.run") for word in words)
    torchrun = torchrun or any("torch.distributed.launch" in word.text for word in words)
    if of_node and (nodes or torchrun):
        return of_node * (nodes or 1) if nodes or not _mentions(words, "--nnodes") else None
    return None if torchrun else _number(words, "-n", "--ntasks")


def _mentions(words: Sequence[Field], flag: str) -> bool:
    return any(word.text.partition("=")[0] == flag for word in words)


def _number(words: Sequence[Field], *flags: str) -> int | None:
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name not in flags:
            continue
        if not equals and index + 1 < len(words):
            value = words[index + 1].text
        if re.fullmatch(r"\d{1,7}", value):
            return int(value)
    return None


def _slurm(text: str) -> int | None:
    """`#SBATCH --nodes=4` and `--ntasks-per-node=8`, or the GPUs of a node."""
    found = {name: int(number) for name, number in SBATCH.findall(text)}
    nodes = found.get("nodes") or found.get("N")
    of_node = found.get("ntasks-per-node") or found.get("gpus-per-node") or found.get("gres")
    return nodes * of_node if nodes and of_node else None


def _world_size(script: Script) -> int | None:
    value = script.variables.scalar("WORLD_SIZE") or ""
    return int(value) if re.fullmatch(r"[1-9]\d{0,6}", value) else None
