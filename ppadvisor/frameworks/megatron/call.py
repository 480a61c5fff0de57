"""Which command of a script trains, on how many GPUs, with which options.

Source: PyTorch's `torchrun --help` (--nproc-per-node, --nnodes), Slurm's srun and sbatch (--nodes, --ntasks-per-node).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ppadvisor.errors import InputError
from ppadvisor.frameworks.megatron.options import by_flag, flag_of
from ppadvisor.frameworks.shell import Call, Field, Note, Script

FEWEST_OPTIONS = 3
"""A command with fewer of Megatron's options is another program's."""
ALWAYS = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size")
"""Options that no default stands for (arguments.py:1300-1306, 681)."""
TRAINS = re.compile(r"(?:^|/)pretrain_\w+\.py$")
"""Megatron's own training scripts."""
OF_NODES = ("--nnodes", "-N", "--nodes")
OF_A_NODE = ("--nproc-per-node", "--nproc_per_node", "--ntasks-per-node", "--gpus-per-node")
OF_ALL = ("-n", "--ntasks")
LOOKED_AT = ("CUDA_DEVICE_MAX_CONNECTIONS",)
"""Variables of the environment that the trainer itself reads, and the rules look at."""

SBATCH = re.compile(
    r"^#SBATCH\s+--?(nodes|N|ntasks-per-node|gpus-per-node|gres)[= ]\s*(?:gpu:)?(?:\w+:)?(\d{1,7})", re.M
)


@dataclass(frozen=True)
class TrainingCall:
    """The call that trains."""

    options: tuple[Field, ...]
    line: int | None
    """Where it stands; None where the file holds the options alone."""
    environment: Mapping[str, str]
    num_gpus: int | None
    notes: tuple[Note, ...]
    unread: Mapping[str, str]
    """Variables that the user defined without effect -> why."""


def training_call(script: Script, text: str, file: str) -> TrainingCall:
    """The command with the most of Megatron's options. InputError where none has some."""
    notes = list(script.notes)
    found = [call for call in script.calls if _known_options(call) >= FEWEST_OPTIONS]
    calls = [call for call in found if not call.prints]
    running = [call for call in calls if not call.unreached]
    if calls and not running:
        raise InputError(f"{file}:{calls[0].line}: this call of Megatron-LM never runs: {calls[0].unreached}")
    best = max(running, key=lambda call: (not call.uncalled, _known_options(call)), default=None)
    if best is None:
        refuse_printed(found, "Megatron-LM", file)
        return _without_a_call(script, text, file, notes)
    before, options = _split(best)
    if not best.certain:
        notes.append(Note(best.line, openly_taken(best)))
    notes += list(dict.fromkeys(_not_looked_at(call, best) for call in running if call is not best))
    before = (*best.launcher, *before)
    gpus = gpus_started(before, text, script)
    notes += script.assumed((*options, *gpu_words(before, script)))
    return TrainingCall(options, best.line, best.environment, gpus, tuple(notes), script.variables.unread(LOOKED_AT))


def refuse_printed(calls: Sequence[Call], of: str, file: str) -> None:
    """InputError for a training script that is printed with its options, where nothing runs it."""
    printed = [call for call in calls if call.prints and any(word.text.endswith(".py") for word in call.words)]
    if printed:
        line, name = printed[0].line, printed[0].words[0].text
        raise InputError(f"{file}:{line}: this call of {of} is only printed ({name}), and no other is in the file")


def _not_looked_at(call: Call, best: Call) -> Note:
    if call.line == best.line:
        return Note(
            call.line, "Megatron is called here more than once (a loop, or a function); the first call is taken"
        )
    return Note(call.line, f"another call of Megatron, not looked at; line {best.line} is")


def openly_taken(call: Call) -> str:
    """What is said of a call of which it is open whether it runs."""
    if call.uncalled:
        return f"nothing in the file calls the function {call.uncalled}; its call is taken"
    return "whether this call runs depends on what is not known here; it is taken"


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
        _refuse_few_options(script, file)
        ended = f"; {script.ended}" if script.ended else ""
        raise InputError(f"{file}: no call of Megatron-LM, and no variable that holds its options{ended}")
    script.variables.read |= set(names)
    notes.append(Note(1, f"no call of Megatron in this file: the options of {', '.join(names)} are taken"))
    notes += script.assumed(found)
    environment = {name: value for name in script.variables.values if (value := script.variables.peek(name))}
    return TrainingCall(tuple(found), None, environment, _slurm(text), tuple(notes), script.variables.unread(LOOKED_AT))


def _refuse_few_options(script: Script, file: str) -> None:
    """InputError for a call of a training script with too few options to be a configuration, with what is missing."""
    for call in script.calls:
        at = next((i for i, word in enumerate(call.words) if TRAINS.search(word.text)), None)
        if at is None or call.prints or call.unreached:
            continue
        name, options = call.words[at].text.rpartition("/")[2], call.words[at + 1 :]
        given = {word.text.partition("=")[0] for word in options}
        if "--yaml-cfg" in given:
            file_of = next((b.text for a, b in pairwise(options) if a.text == "--yaml-cfg" and not b.unknown), "a file")
            raise InputError(f"{file}:{call.line}: {name} takes its options from --yaml-cfg {file_of}; check that file")
        missing = ", ".join(flag for flag in map(flag_of, ALWAYS) if flag not in given)
        unknown = next((f"; {word.unknown}, and options in it are not seen" for word in options if word.unknown), "")
        raise InputError(f"{file}:{call.line}: this call of {name} gives no configuration: {missing} missing{unknown}")


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


def gpu_words(launcher: Sequence[Field], script: Script) -> Iterator[Field]:
    """The words that may say how many GPUs there are."""
    flags = (*OF_NODES, *OF_A_NODE, *OF_ALL)
    for word, following in zip(launcher, [*launcher[1:], Field("", 0)], strict=True):
        name, equals, _ = word.text.partition("=")
        if name in flags:
            yield word if equals else following
    yield from script.text_of("WORLD_SIZE")


def _launched(words: Sequence[Field]) -> int | None:
    """Processes that the launcher starts: torchrun's, else srun's."""
    nodes = _number(words, *OF_NODES)
    of_node = _number(words, *OF_A_NODE)
    torchrun = any(word.text.rpartition("/")[2] in ("torchrun", "torch.distributed.run") for word in words)
    torchrun = torchrun or any("torch.distributed.launch" in word.text for word in words)
    if of_node and (nodes or torchrun):
        return of_node * (nodes or 1) if nodes or not _mentions(words, "--nnodes") else None
    return None if torchrun else _number(words, *OF_ALL)


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
