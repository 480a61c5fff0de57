"""Typed reading of a Hugging Face config.json: every value is checked where it is read, every error names its key.

Nothing here knows a model family; the families are in `hf_config`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ppadvisor.errors import InputError

MAX_SIZE = 10**9
"""No size of a model is near this; a larger number is a slip of the keyboard and would only cost time and memory."""

Fields = dict[str, object]
"""Keyword arguments of ModelSpec."""

_MISSING = object()


def shown(value: object) -> str:
    """A value as it stands in the file (JSON), cut where it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class ConfigReader:
    """One config.json (or the text_config inside it) of a known family.

    `aliases` (key -> the names that published files use for it) is what transformers calls the attribute map.
    `defaults` holds what transformers' configuration class takes for an absent key. An optional key falls back to
    it always. A size that makes the model (hidden_size, ...) does so only inside a text_config, which transformers
    writes as the difference from the class; at the top level every such size is written out, so there its absence is
    a mistake.
    """

    config: Mapping[str, object]
    where: str
    family: str
    defaults: Mapping[str, int | None] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nested: bool = False

    def error(self, key: str, problem: str) -> InputError:
        """An error about one key."""
        return InputError(f"{self.where}: {key}: {problem}")

    def given(self, key: str) -> tuple[str, object]:
        """The name under which the file has `key`, and its value; two names that disagree are an error."""
        names = (*self.aliases.get(key, ()), key)
        present = [(name, self.config[name]) for name in names if name in self.config]
        if not present:
            return names[0], _MISSING
        told = [entry for entry in present if entry[1] is not None] or present[:1]  # null beside a number says nothing
        for name, value in told[1:]:
            if value != told[0][1]:
                raise self.error(name, f"got {shown(value)}, but {told[0][0]} says {shown(told[0][1])}")
        return told[0]

    def size(self, key: str) -> int:
        """A whole number > 0 that must be there."""
        name, value = self.given(key)
        if value is not _MISSING:
            return self._whole(name, value, 1)
        default = self.defaults.get(key) if self.nested else None
        if default is None:
            raise self.error(name, f"missing; {self.family} needs it (a whole number > 0)")
        return default

    def optional_size(self, key: str) -> int | None:
        """A whole number > 0, or None where the file says null or the class of the family has no value for it."""
        name, value = self.given(key)
        if value is _MISSING:
            value = self.defaults.get(key)
        return None if value is None else self._whole(name, value, 1)

    def count(self, key: str) -> int:
        """A whole number >= 0; null is 0, absent is what the class of the family has, else 0."""
        name, value = self.given(key)
        if value is _MISSING:
            return self.defaults.get(key) or 0
        return 0 if value is None else self._whole(name, value, 0)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; absent or null means `default`."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"got {shown(value)}, needs true or false")
        return value

    def whole_numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers >= 0, or None where it is absent or null."""
        value = self.config.get(key)
        if value is None:
            return None
        return tuple(self._whole(f"{key}[{i}]", entry, 0) for i, entry in enumerate(self._list(key, value)))

    def words(self, key: str, allowed: Sequence[str]) -> tuple[str, ...] | None:
        """A list of words out of `allowed`, or None where it is absent or null."""
        value = self.config.get(key)
        if value is None:
            return None
        entries = self._list(key, value)
        for i, entry in enumerate(entries):
            if entry not in allowed:
                can = " and ".join(allowed)
                raise self.error(f"{key}[{i}]", f"got {shown(entry)}; only {can} can be represented")
        return tuple(str(entry) for entry in entries)

    def mapping(self, key: str) -> Mapping[str, object]:
        """A nested object; absent or null is an empty one."""
        value = self.config.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.error(key, f"got {shown(value)}, needs an object")
        return value

    def only(self, key: str, allowed: object, why: str) -> None:
        """Refuse a value other than `allowed` of an option that changes the model in a way ModelSpec cannot hold."""
        value = self.config.get(key)
        if value is not None and value != allowed:
            raise self.error(key, f"got {shown(value)}; only {shown(allowed)} can be represented ({why})")

    def _list(self, key: str, value: object) -> Sequence[object]:
        if not isinstance(value, list | tuple):
            raise self.error(key, f"got {shown(value)}, needs a list")
        return value

    def _whole(self, key: str, value: object, least: int) -> int:
        # bool is an int in Python, and a size that was written as 4096.0 came out of a division: both are refused
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"got {shown(value)}, needs a whole number {'> 0' if least else '>= 0'}")
        if value > MAX_SIZE:
            raise self.error(key, f"got {shown(value)}, needs at most {MAX_SIZE}")
        return value
