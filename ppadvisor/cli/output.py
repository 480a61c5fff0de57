"""Where the answer goes: whole to stdout or whole into a file, never half of it."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ppadvisor.errors import InputError
from ppadvisor.report.rows import Column, Row, View, render_rows

UNENCODABLE = "backslashreplace"
"""Half of a surrogate pair (a broken name in a file) becomes \\ud800, which is how JSON writes it."""

T = TypeVar("T")


def with_progress(items: Iterable[T], what: str, count: int | None, done: int = 0) -> Iterable[T]:
    """The items, counted on stderr where someone looks at it; `done` of the `count` were there before.

    Without a count nobody knows how many there are.
    """
    return _counted(items, what, count, done) if sys.stderr.isatty() else items


def _counted(items: Iterable[T], what: str, count: int | None, done: int) -> Iterator[T]:
    """With a bar, the rate and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(TextColumn):
        """Items a second, or seconds an item."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            if not speed:
                return Text("")
            return Text(f"{speed:.3g}/s" if speed >= 1 else f"{1 / speed:.3g} s each")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(""), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=count, completed=done)
        for item in items:
            yield item
            progress.advance(task)


def view_of(output: Path | None) -> View:
    """The terminal's width and colour where the answer goes to a terminal; 80 columns without colour elsewhere."""
    if output is not None or sys.stdout is None or not sys.stdout.isatty():
        return View()
    import shutil

    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return View(width=shutil.get_terminal_size().columns, color=not plain)


def check_places(places: Mapping[str, Path | None]) -> None:
    """InputError before any work is done: two files in one place, or a folder that is not there."""
    taken: dict[Path, str] = {}
    for option, path in places.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            raise InputError(f"{option}: cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise InputError(f"{other} and {option} both name {str(path)!r}; give each its own file")


def write_rows(
    columns: Sequence[Column],
    rows: Sequence[Row],
    format: str,
    output: Path | None,
    *,
    title: str = "",
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Rows in one of FORMATS, to where the user wants them: the whole output of most commands."""
    view = view_of(output)
    write(render_rows(columns, rows, format, width=view.width, color=view.color, title=title, extra=extra), output)


def write(text: str | bytes, output: Path | None, option: str = "--output") -> None:
    """The text (or bytes) to stdout, or in place of the file; InputError where that fails, the file then as it was."""
    if output is None:
        _to_stdout(text if isinstance(text, str) else text.decode())
        return
    try:
        if output.exists() and not output.is_file():
            # A device or a pipe is written to; putting a file in its place would destroy it. A directory fails here.
            output.write_bytes(_encoded(text))
        else:
            _replace(output.resolve(), text)
    except OSError as error:
        raise InputError(f"{option}: cannot write {str(output)!r}: {error.strerror}") from None


def _encoded(text: str | bytes) -> bytes:
    return text.encode("utf-8", errors=UNENCODABLE) if isinstance(text, str) else text


def _replace(path: Path, text: str | bytes) -> None:
    # In the same directory, since only within one file system is the replacement a single step. The name is one that
    # neither another process has nor one that was killed has left.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(_encoded(text))
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _to_stdout(text: str) -> None:
    if sys.stdout is None:
        raise InputError("standard output is closed; give --output FILE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal gets what it can show; a pipe the same bytes under any locale.
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors=UNENCODABLE, newline="\n")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()  # the reader had enough; the exit code still says what the answer was
    except OSError as error:
        silence_stdout()
        raise InputError(f"standard output: cannot write: {error.strerror}") from None


def silence_stdout() -> None:
    """Point stdout at nothing, so that Python's last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
