"""The words of a call as Megatron's parser takes them: by full names only, each value with the line it stands on.

Source: NVIDIA/Megatron-LM d98e8a64, arguments.py:120-160 (`allow_abbrev=False`, unknown options are an error), and the
documentation of Python's argparse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ppadvisor.errors import nearest
from ppadvisor.frameworks.configuration import Broken, Outcome
from ppadvisor.frameworks.megatron.options import Option, Scalar, by_flag, options, table_of
from ppadvisor.frameworks.shell import Field

MEGATRON = "ppadvisor.frameworks.megatron"
SOURCE = "arguments.py:128 (argparse, allow_abbrev=False)"
MODEL_OPTIMIZER = (
    *("--export-model-type", "--export-legacy-megatron", "--export-te-mcore-model", "--export-default-te-spec"),
    *("--export-force-local-attention", "--export-kv-cache-quant", "--export-real-quant-cfg", "--export-quant-cfg"),
    *("--finetune-hf-dataset", "--finetune-data-split", "--finetune-data-files"),
)
"""megatron/post_training/arguments.py: pretrain_gpt.py takes them where NVIDIA's Model Optimizer can be imported."""

MOST_HINTS = 20
"""Unknown options for which the nearest name is looked up; a file with more is no call of Megatron."""

Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True)
class Given:
    """An option that the file gives."""

    value: Value
    flag: str
    line: int
    """Where the value stands; of an option without a value, the option."""
    unknown: str = ""
    """Why the value is not known."""


@dataclass
class Arguments:
    """The options that were given, by dest; Megatron's defaults hold for the others."""

    given: dict[str, Given] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)
    repeated: list[tuple[str, int]] = field(default_factory=list)
    """(flag, line) of what is said again, and otherwise."""
    unseen: list[Field] = field(default_factory=list)
    """Words that may be options, and that only a shell would know."""
    environment: Mapping[str, str] = field(default_factory=dict)
    package: str = MEGATRON
    """Whose options these are: Megatron's, or those of a fork."""

    def value(self, dest: str) -> Value:
        """What holds: given, or Megatron's default. None too where what is given is not known."""
        if dest in self.given:
            return self.given[dest].value
        option = table_of(self.package).get(dest) or options()[dest]
        default = option.default
        return tuple(default) if isinstance(default, list) else default

    def line(self, dest: str) -> int | None:
        """Where it stands, None where it is a default or stands nowhere in the file."""
        return (self.given[dest].line or None) if dest in self.given else None


def parse(words: Sequence[Field], environment: Mapping[str, str] | None = None, package: str = MEGATRON) -> Arguments:
    """Take the words behind the training script."""
    arguments, flags = Arguments(environment=environment or {}, package=package), by_flag(package)
    at, flag = 0, ""
    while at < len(words):
        word = words[at]
        at += 1
        # --$NAME is an option that is not known, --name=$VALUE one whose value is not
        if word.unknown and not (word.text.startswith("--") and "=" in word.text):
            arguments.unseen.append(word)
            at = _behind_values(words, at)
            continue
        name, equals, rest = word.text.partition("=")
        option = flags.get(name) if _looks_like_option(word) else None
        if option is None:
            behind = at
            while at < len(words) and not _looks_like_option(words[at]):
                at += 1
            alone = _looks_like_option(word)
            arguments.broken.append(
                _unrecognised(word, name, flags if len(arguments.broken) < MOST_HINTS else {})
                if alone
                else _left_over([word, *words[behind:at]], flag)
            )
            continue
        flag = name
        taken = [Field(rest, word.line, word.unknown)] if equals else _values(option, words, at)
        at += 0 if equals else len(taken)
        _take(arguments, option, name, word, taken)
    return arguments


def _behind_values(words: Sequence[Field], at: int) -> int:
    """Past known words that may be values of an option which is not known."""
    while at < len(words) and not words[at].unknown and not _looks_like_option(words[at]):
        at += 1
    return at


def _looks_like_option(word: Field) -> bool:
    """argparse: a dash in front, no blank in it, and no negative number."""
    text = word.text
    if not text.startswith("-") or len(text) < 2 or " " in text.partition("=")[0]:
        return False
    return not text[1:].replace(".", "", 1).isdigit()


def _values(option: Option, words: Sequence[Field], at: int) -> list[Field]:
    most = {"": 1, "0": 0, "+": len(words), "*": len(words)}.get(option.nargs)
    if most is None:
        most = int(option.nargs)
    taken: list[Field] = []
    for word in words[at : at + most]:
        # a word that nobody knows may be anything; behind the first value of a list it is told, not taken
        if _looks_like_option(word) or (word.unknown and taken and option.nargs in ("+", "*")):
            break
        taken.append(word)
    return taken


def _unrecognised(word: Field, name: str, flags: Mapping[str, Option]) -> Broken:
    close = nearest(name, flags) if flags and name.startswith("--") else None
    tail = f"; did you mean {close}?" if close else ""
    if name in MODEL_OPTIMIZER:
        tail = "; only where NVIDIA's Model Optimizer is installed beside Megatron"
    message = f"unrecognized argument {_short(word.text)}{tail}"
    return Broken("unknown_option", Outcome.REJECTED, message, (_short(name),), word.line, SOURCE)


def _left_over(words: Sequence[Field], flag: str) -> Broken:
    """Words that no option takes: mostly a value with blanks whose quotes were lost in an expansion."""
    text = _short(" ".join(word.text for word in words))
    behind = f' behind {flag}; a value with blanks needs its array expanded in quotes, "${{ARGS[@]}}"' if flag else ""
    message = f"unrecognized arguments {text}{behind}"
    return Broken("left_over_words", Outcome.REJECTED, message, (flag,) if flag else (), words[0].line, SOURCE)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _take(arguments: Arguments, option: Option, flag: str, word: Field, taken: list[Field]) -> None:
    """Keep the value of an option, or the problem with it."""
    line = taken[0].line if taken else word.line
    unknown = next((value.unknown for value in taken if value.unknown), "")
    problem = "" if unknown else _problem(option, flag, taken)
    if problem:
        arguments.broken.append(Broken("option_value", Outcome.REJECTED, problem, (flag,), line, SOURCE))
        unknown = problem
    value: Value = None
    if not unknown:
        values = tuple(_converted(option, one.text) for one in taken)
        single = option.nargs in ("", "0")
        value = (values[0] if values else option.value_of_flag(flag)) if single else values
    before = arguments.given.get(option.dest)
    if before is not None and before.value != value:
        arguments.repeated.append((flag, line))
    arguments.given[option.dest] = Given(value, flag, line, unknown)


def _problem(option: Option, flag: str, taken: list[Field]) -> str:
    """What argparse would say to the values, or nothing."""
    needs = {"": 1, "0": 0, "+": None, "*": None}.get(option.nargs, int(option.nargs) if option.nargs.isdigit() else 0)
    if option.nargs == "+" and not taken:
        return f"{flag}: expected at least one argument"
    if needs is not None and len(taken) != needs:
        return f"{flag}: takes {needs or 'no'} value{'s' if needs > 1 else ''}, got {len(taken) or 'none'}"
    for one in taken:
        if option.type in ("int", "float") and _number(option.type, one.text) is None:
            return f"{flag}: got {one.text[:40]!r}, needs {'a whole number' if option.type == 'int' else 'a number'}"
        if option.choices and one.text not in option.choices:
            return f"{flag}: got {one.text[:40]!r}, allowed: {', '.join(option.choices)}"
    return ""


def _number(kind: str, text: str) -> int | float | None:
    if len(text) > 40:
        return None
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _converted(option: Option, text: str) -> Scalar:
    if option.type in ("int", "float"):
        return _number(option.type, text)
    return text
