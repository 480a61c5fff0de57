"""Words in front of a command that start it otherwise: `exec`, `nohup`, `env A=1`, `sudo`, `command`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ppadvisor.frameworks.shell.variables import Field

OUTSIDE = ("exec", "nohup", "env", "sudo", "coproc")
"""What follows is a program, no function or builtin."""
INSIDE = ("command", "builtin")
"""What follows is no function."""
SET = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S | re.ASCII)
ALONE: Mapping[str, tuple[str, ...]] = {
    "command": ("-p", "--"),
    "exec": ("-c", "-l", "-cl", "--"),
    "sudo": ("-E", "-H", "-n", "-S", "-EH", "-HE", "--preserve-env", "--"),
    "env": ("--",),
}
"""Options of each that take no word."""
WITH_A_WORD: Mapping[str, tuple[str, ...]] = {"exec": ("-a",), "sudo": ("-u", "-g"), "env": ("-u", "-C")}


@dataclass
class Before:
    """What the words in front say."""

    outside: bool = False
    inside: bool = False
    """`command`, `builtin`: a function of that name is not meant."""
    replaces: bool = False
    """`exec`: the script ends with the command."""
    cleared: bool = False
    """`env -i`: nothing of the environment is handed on."""
    asks: bool = False
    """`command -v`: it is only asked what the command is."""


def without_prefixes(words: list[Field]) -> tuple[list[Field], Before, dict[str, str]]:
    """(the command, what stood in front, what `env` adds to its environment)."""
    before, environment = Before(), dict[str, str]()
    while words and not words[0].unknown and words[0].text in (*OUTSIDE, *INSIDE):
        name = words[0].text
        before.outside |= name in OUTSIDE
        before.inside |= name in INSIDE
        before.replaces |= name == "exec"
        words = _behind_options(name, words[1:])
        if name == "command" and words and words[0].text in ("-v", "-V", "-pv", "-pV"):
            before.asks = True
            return words, before, environment
        if name == "env":
            words = _of_env(words, before, environment)
    return words, before, environment


def _behind_options(name: str, words: list[Field]) -> list[Field]:
    while words and words[0].text in (*ALONE.get(name, ()), *WITH_A_WORD.get(name, ())):
        words = words[1 + (words[0].text in WITH_A_WORD.get(name, ())) :]
    return words


def _of_env(words: list[Field], before: Before, environment: dict[str, str]) -> list[Field]:
    while words:
        match = SET.fullmatch(words[0].text)
        if match and not words[0].unknown:
            environment[match[1]] = match[2]
        elif words[0].text in ("-i", "-", "--ignore-environment"):
            before.cleared = True
        elif not match:
            return _behind_options("env", words)
        words = words[1:]
    return words
