"""The 839 options of the pinned Megatron-LM: names, types, choices, defaults, from `options.tsv`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Option:
    """One option of Megatron's parser."""

    flags: tuple[str, ...]
    dest: str
    """The name of its value in Megatron's own code, and in YAML."""
    type: str
    """flag, int, float, str, bool, or a reader of Megatron's own (of which we read the text)."""
    nargs: str
    """Empty: one value; 0: none; +, * or a number."""
    choices: tuple[str, ...]
    default: Scalar | list[Scalar]

    @property
    def takes_value(self) -> bool:
        return self.nargs != "0"

    @property
    def flag(self) -> str:
        """The name to print."""
        return self.flags[0]

    def value_of_flag(self, flag: str) -> bool:
        """What an option without a value sets: the opposite of its default; `--no-x` of a pair sets False."""
        if len(self.flags) == 2 and self.flags[1] == f"--no-{self.flags[0].removeprefix('--')}":
            return flag == self.flags[0]
        return self.default is not True


def options() -> dict[str, Option]:
    """Every option by its dest, in the order of Megatron's parser."""
    return table_of("ppadvisor.frameworks.megatron")


@cache
def table_of(package: str) -> dict[str, Option]:
    """The options that a package lists in its `options.tsv`: Megatron's own, or those of a fork."""
    path = resources.files(package) / "options.tsv"
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return {row[1]: _option(row) for row in rows}


def flag_of(dest: str) -> str:
    """What to type for a value: the first flag of its option."""
    return options()[dest].flag


@cache
def by_flag(package: str = "ppadvisor.frameworks.megatron") -> dict[str, Option]:
    """Every option by each of its flags."""
    return {flag: option for option in table_of(package).values() for flag in option.flags}


def _option(row: list[str]) -> Option:
    flags, dest, kind, nargs, choices, default = row
    return Option(
        flags=tuple(flags.split()),
        dest=dest,
        type=kind,
        nargs=nargs,
        choices=tuple(choices.split("|")) if choices else (),
        default=json.loads(default) if default else None,
    )
