"""Words in front of a command that start it otherwise: `exec`, `nohup`, `env A=1`, `sudo`, `command`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ppadvisor.frameworks.shell.variables import Field

OUTSIDE = ("exec", "nohup", "env", "sudo", "coproc")
"""What follows is a program, no function or builtin."""
INSIDE = ("command", "builtin")
SET = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S | re.ASCII)


@dataclass
class Before:
    """What the words in front say."""

    outside: bool = False
    replaces: bool = False
    """`exec`: the script ends with the command."""
    cleared: bool = False
    """`env -i`: nothing of the environment is handed on."""


def without_prefixes(words: list[Field]) -> tuple[list[Field], Before, dict[str, str]]:
    """(the command, what stood in front, what `env` adds to its environment)."""
    before, environment = Before(), dict[str, str]()
    while words and not words[0].unknown and words[0].text in (*OUTSIDE, *INSIDE):
        name = words[0].text
        before.outside |= name in OUTSIDE
        before.replaces |= name == "exec"
        words = words[1:]
        while name == "env" and words:
            match = SET.fullmatch(words[0].text)
            if match and not words[0].unknown:
                environment[match[1]] = match[2]
            elif words[0].text in ("-i", "-", "--ignore-environment"):
                before.cleared = True
            elif not match:
                break
            words = words[1:]
    return words, before, environment
