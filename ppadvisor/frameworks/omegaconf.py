"""YAML as OmegaConf and Hydra read it: sections as dotted keys, references between them, values set from outside.

Nothing is called or imported: `_target_` is text, a resolver other than plain arithmetic makes a value unknown. Source:
OmegaConf 2.3 documentation (interpolation), Hydra 1.3 documentation (override grammar), NVIDIA/NeMo 8cfedd72
(nemo/utils/config_utils.py and the launcher: resolvers multiply, sum, divide, floor_divide).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError
from ppadvisor.specs.files import read_text, yaml_nodes, yaml_scalar, yaml_value

MAX_BYTES = 1_000_000
"""A saved configuration of Megatron-Bridge has some 50 kB."""
MOST_ENTRIES = 50_000
MOST_NESTED = 50

REFERENCE = re.compile(r"\$\{\s*(\.*[A-Za-z_][\w.]*)\s*\}")
"""`${model.num_layers}`, `${.hidden_size}`."""
CALLED = re.compile(r"\$\{\s*([A-Za-z_][\w.]*)\s*:([^${}]*)\}")
"""`${multiply:4,768}`, its references already resolved."""
OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
RESOLVERS: dict[str, Callable[[list[int]], int]] = {
    "multiply": math.prod,
    "sum": sum,
    "divide": lambda numbers: numbers[0] // numbers[1],
    "floor_divide": lambda numbers: numbers[0] // numbers[1],
}

Value = Any
"""A scalar of YAML, a list, or an empty mapping."""


@dataclass(frozen=True)
class Entry:
    """A value with the line on which it stands."""

    value: Value
    line: int
    unknown: str = ""
    """Why the value is not known."""


Document = dict[str, Entry]
"""Dotted key -> entry; lists are values, mappings are written out."""


def read_document(path: Path, variables: Mapping[str, str]) -> Document:
    """A YAML file with its references resolved; `variables` set values by their dotted keys.

    InputError for what is no YAML, has objects of Python in it, or grows beyond all measure.
    """
    document = document_of(read_text(path, MAX_BYTES), str(path))
    strange = next((key for key in variables if "." not in key and key not in document), None)
    if strange is not None:
        raise InputError(f"--define {strange}: {path} has no such value; needs section.key=VALUE")
    return resolved({**document, **set_values(document, variables)})


def document_of(text: str, file: str) -> Document:
    """The values of a text as they stand there."""
    root = yaml_nodes(text, file)
    if root is None or root.id != "mapping":
        raise InputError(f"{file}: the top level is no mapping of names to values")
    return dict(_flattened(root, (), file))


def set_values(document: Document, variables: Mapping[str, str]) -> Document:
    """`--define model.num_layers=4` over what the file says; a name without a dot may be a variable of the shell."""
    return {
        key: Entry(yaml_value(text, f"--define {key}"), document[key].line if key in document else 0)
        for key, text in variables.items()
        if "." in key or key in document
    }


def override(text: str, line: int, unknown: str = "") -> tuple[str, Entry] | None:
    """`model.num_layers=4`, `+model.x=[1,2]` or `++...` as (key, entry); None for another word, and for a deletion.

    >>> override("++train.micro_batch_size=2", 7)
    ('train.micro_batch_size', Entry(value=2, line=7, unknown=''))
    """
    match = OVERRIDE.fullmatch(text)
    if match is None or match[1] == "~":
        return None
    if unknown:
        return match[2], Entry(None, line, unknown)
    return match[2], Entry(yaml_value(match[3], match[2]), line)


def _flattened(node: Any, above: tuple[str, ...], file: str) -> Iterator[tuple[str, Entry]]:
    """Every value below a mapping; an alias is written out where it stands, within a limit."""
    for count, (keys, value) in enumerate(_leaves(node, above, file)):
        if count > MOST_ENTRIES:
            raise InputError(f"{file}: more than {MOST_ENTRIES:,} values; no configuration has so many")
        yield ".".join(keys), value


def _leaves(node: Any, above: tuple[str, ...], file: str) -> Iterator[tuple[tuple[str, ...], Entry]]:
    if len(above) > MOST_NESTED:
        raise InputError(f"{file}: nested too deeply")
    if node.id != "mapping" or not node.value:
        budget = [MOST_ENTRIES]
        yield above, Entry(_plain(node, file, len(above), budget), node.start_mark.line + 1)
        return
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            line = key.start_mark.line + 1
            raise InputError(f"{file}:{line}: a merge key (<<): which of two values holds is not told; write them out")
        yield from _leaves(value, (*above, str(key.value)), file)


def _plain(node: Any, file: str, depth: int, budget: list[int]) -> Value:
    """A node below a list as plain values."""
    budget[0] -= 1
    if depth > MOST_NESTED or budget[0] < 0:
        raise InputError(f"{file}: nested too deeply, or aliases that mean too much")
    if node.id == "scalar":
        return yaml_scalar(node, file)
    if node.id == "sequence":
        return [_plain(one, file, depth + 1, budget) for one in node.value]
    return {str(key.value): _plain(value, file, depth + 1, budget) for key, value in node.value}


def resolved(document: Document) -> Document:
    """References and arithmetic replaced by their values; what cannot be is unknown."""
    return {key: _resolved(document, key, entry, ()) for key, entry in document.items()}


def _resolved(document: Document, key: str, entry: Entry, seen: tuple[str, ...]) -> Entry:
    if not isinstance(entry.value, str) or "${" not in entry.value:
        return replace(entry, value=None, unknown="??? has to be set") if entry.value == "???" else entry
    text = entry.value
    for _ in range(MOST_NESTED):
        match = REFERENCE.search(text)
        if match is None:
            break
        found = _referred(document, key, match[1])
        if found is None or found in seen or len(seen) > MOST_NESTED:
            return replace(entry, value=None, unknown=f"{match[0]} is nowhere in the file")
        value = _resolved(document, found, document[found], (*seen, key))
        if value.unknown:
            return replace(entry, value=None, unknown=value.unknown)
        if match[0] == text:
            return replace(entry, value=value.value)
        text = text[: match.start()] + str(value.value) + text[match.end() :]
    return _calculated(entry, text)


def _referred(document: Document, key: str, name: str) -> str | None:
    """The key that a reference means: relative to its own section, or from the top, where a launcher's own section
    (`training.`) may stand in front.
    """
    dots = len(name) - len(name.lstrip("."))
    if dots:
        section = key.split(".")[:-dots]
        full = ".".join([*section, name[dots:]])
        return full if full in document else None
    if name in document:
        return name
    behind = name.partition(".")[2]
    return behind if behind in document else None


def _calculated(entry: Entry, text: str) -> Entry:
    """`${multiply:4,768}` with whole numbers."""
    for _ in range(MOST_NESTED):
        match = CALLED.search(text)
        if match is None or match[1] not in RESOLVERS:
            break
        words = [word.strip() for word in match[2].split(",")]
        if not all(re.fullmatch(r"-?\d{1,15}", word) for word in words) or len(words) < 2:
            break
        numbers = [int(word) for word in words]
        if "divide" in match[1] and numbers[1] == 0:
            break
        text = text[: match.start()] + str(RESOLVERS[match[1]](numbers)) + text[match.end() :]
    if "${" in text:
        return replace(entry, value=None, unknown=f"{text[:60]} is resolved when it runs")
    return replace(entry, value=yaml_value(text, "a reference"))


def below(document: Document, section: str) -> Iterator[tuple[str, Entry]]:
    """The entries of a section, without its name."""
    front = f"{section}."
    for key, entry in document.items():
        if key.startswith(front):
            yield key.removeprefix(front), entry


def known(document: Document, keys: Iterable[str]) -> Entry | None:
    """The first of these keys that the document has with a value, or whose value is unknown."""
    found = (document[key] for key in keys if key in document)
    return next((entry for entry in found if entry.value is not None or entry.unknown), None)
