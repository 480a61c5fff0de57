"""Shells that a script starts with text of its own to run: `bash -c "..."`, also behind `srun`, `timeout`, `docker`.

Source: Bash Reference Manual 5.2, 6.1 (options; $0 and the arguments behind the text).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ppadvisor.frameworks.shell.script import PRINTING
from ppadvisor.frameworks.shell.variables import Field

SHELLS = ("bash", "sh", "dash")
ELSEWHERE = ("ssh", "pdsh", "docker", "podman", "kubectl")
"""What they start has not the environment of the script."""
JOBS = ("sbatch", "ssh", "pdsh")
"""They hand text over to another machine, or another time."""
OPTION = re.compile(r"[-+][A-Za-z]+|--[a-z-]+")


@dataclass(frozen=True)
class Child:
    """A shell that is started."""

    at: int
    """Which word it is."""
    text: int | None
    """Which word it runs; None where it reads its input."""
    flags: frozenset[str]


def child_of(words: Sequence[Field]) -> Child | None:
    """The shell among the words of a command that is given text, or nothing, to run; None where there is none."""
    if words[0].text in PRINTING:
        return None
    for at, word in enumerate(words):
        if word.unknown or word.text.rpartition("/")[2] not in SHELLS:
            continue
        letters, rest = "", at + 1
        while rest < len(words) and not words[rest].unknown and OPTION.fullmatch(words[rest].text):
            option = words[rest].text
            letters += option[1:] if option[0] == "-" and option[1] != "-" else ""
            rest += 2 if option[-1] in "oO" and option[1] != "-" else 1
        flags = frozenset({"errexit"} if "e" in letters else ())
        if "c" in letters and rest < len(words):
            return Child(at, rest, flags)
        if rest >= len(words) and (at == 0 or "s" in letters or words[0].text in (*JOBS, "srun")):
            return Child(at, None, flags)
    return None


def hands_on(launcher: Sequence[Field]) -> bool:
    """Whether what stands in front of the shell hands the script's environment on."""
    texts = [word.text for word in launcher]
    return not any(text in ELSEWHERE for text in texts[:1]) and not any(
        text.startswith("--export=") and not text.startswith("--export=ALL") for text in texts
    )
