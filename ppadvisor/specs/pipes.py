"""What can be read only once, kept for a second look: standard input, and pipes such as a shell's `<(command)`."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import BinaryIO
from weakref import WeakKeyDictionary

from ppadvisor.errors import InputError

STDIN = Path("-")
"""How a command line calls standard input."""

_of_stdin: WeakKeyDictionary[BinaryIO, bytes] = WeakKeyDictionary()
_of_pipes: dict[tuple[int, int], bytes] = {}
"""By device and inode, which no second pipe has while the first is open."""


def is_pipe(path: Path) -> bool:
    """Whether this is read once, and its name says nothing of what it holds."""
    if path == STDIN:
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def read_once(path: Path, max_bytes: int) -> bytes:
    """What stdin or a pipe holds, also when asked again. InputError where that is more, OSError as a file's."""
    if path == STDIN:
        stream = getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise InputError("-: standard input is closed")
        if stream not in _of_stdin:
            _of_stdin[stream] = stream.read(max_bytes + 1)
        data = _of_stdin[stream]
    else:
        status = path.stat()  # not of the open file: a named pipe opens when somebody writes into it
        key = (status.st_dev, status.st_ino)
        if key not in _of_pipes:
            with path.open("rb") as file:
                _of_pipes[key] = file.read(max_bytes + 1)
        data = _of_pipes[key]
    if len(data) > max_bytes:
        raise InputError(f"{path}: more than {max_bytes:,} bytes, needs a file of at most {max_bytes:,} bytes")
    return data


def suffix_of(text: str) -> str:
    """The suffix that a file of a configuration would have, by its first line that says something."""
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if first.startswith("{"):
        return ".json"
    return ".toml" if re.match(r"\[[\w.\"' -]+\]|[\w.\"'-]+\s*=", first) else ".yaml"
