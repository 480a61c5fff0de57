"""The outputs that the README shows: text blocks that begin with a command. `python -m tests.readme` renews them."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from ppadvisor.cli.main import main

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"```text\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>.*?)```", re.DOTALL)


def output_of(command: str) -> str:
    """What the command prints to a pipe, in the folder of the README: 80 columns, no colour."""
    words = shlex.split(command.replace("\\\n", " "))
    stdout = io.StringIO()
    silent = contextlib.redirect_stderr(io.StringIO())
    with contextlib.chdir(README.parent), contextlib.redirect_stdout(stdout), silent:
        main(words[1:])
    return stdout.getvalue()


def blocks(text: str) -> list[tuple[str, str]]:
    """(command, output shown) of every block."""
    return [(match["command"], match["output"]) for match in BLOCK.finditer(text)]


def renewed(text: str, run: Callable[[str], str] = output_of) -> str:
    """The text with every block's output replaced by what its command prints."""
    return BLOCK.sub(lambda match: f"```text\n$ {match['command']}\n{run(match['command'])}```", text)


if __name__ == "__main__":
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
