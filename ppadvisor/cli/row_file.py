"""`--resume FILE`: rows that are kept one by one, so that a sweep that was ended at any moment goes on.

The file is a csv or JSON lines file like any other, and no other files stand beside it. It is read before it is gone on
with: each line has to be the row of its point, byte for byte, of this question and this version of the model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ppadvisor.errors import InputError
from ppadvisor.report.sweep_rows import LINE_FORMS, LineForm, file_columns, file_values, read_row
from ppadvisor.search.sweep import AxisValue, SweepQuestion, SweepRow

OPTION = "--resume"
SYNC_S = 1.0
"""What a power failure may cost: rows reach the disk this often. A killed process loses none."""

Places = Sequence[Mapping[str, AxisValue]]
"""The axis values of each point, in order."""


@dataclass
class RowFile:
    """A file that grows by whole rows."""

    path: Path
    form: LineForm
    question: SweepQuestion
    file: BinaryIO
    kept: list[SweepRow] = field(default_factory=list)
    """The rows that it held when it was opened."""
    was_there: bool = True
    synced_s: float = field(default_factory=time.monotonic)

    def append(self, row: SweepRow) -> None:
        """Add a row. InputError where the disk refuses; what is in the file stays."""
        self._write(self.form.line(file_values(row, self.question)))
        if time.monotonic() - self.synced_s > SYNC_S:
            self.sync()

    def sync(self) -> None:
        """Wait until the rows are on the disk."""
        try:
            os.fsync(self.file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from None
        self.synced_s = time.monotonic()

    def begin(self) -> None:
        """The head, where the file is empty."""
        if not self.file.tell():
            self._write(self.form.head(file_columns(self.question)))

    def _write(self, text: str) -> None:
        end = self.file.tell()
        try:
            left = memoryview(text.encode())
            while left:  # a disk that is nearly full takes a part
                left = left[self.file.write(left) :]
        except OSError as error:
            self.file.truncate(end)
            raise cannot_write(self.path, error) from None


def cannot_write(path: Path, error: OSError) -> InputError:
    """The error for a file that the system refuses."""
    return InputError(f"{OPTION}: cannot write {str(path)!r}: {error.strerror}")


def line_form_of(path: Path) -> str:
    """The form that the name of a file asks for."""
    name = path.suffix.removeprefix(".")
    if name not in LINE_FORMS:
        endings = " or ".join(f".{known}" for known in LINE_FORMS)
        raise InputError(f"{OPTION}: got {str(path)!r}; needs a name that ends in {endings}")
    return name


@contextmanager
def open_row_file(path: Path, question: SweepQuestion, places: Places) -> Iterator[RowFile]:
    """The file with the rows that it holds, ready for those that follow. InputError where it is not of this sweep."""
    form = LINE_FORMS[line_form_of(path)]
    there = path.exists()
    if there and not path.is_file():
        raise InputError(f"{OPTION}: {str(path)!r} is no regular file: it cannot be read back")
    try:
        # unbuffered: a row is with the system before the next point is asked for
        file = path.open("r+b" if there else "x+b", buffering=0)
    except OSError as error:
        raise cannot_write(path, error) from None
    with file:
        _lock(file, path)
        rows = RowFile(path, form, question, file, was_there=there)
        rows.kept, end = _read(rows, places)
        file.truncate(end)
        file.seek(end)
        try:
            rows.begin()
        except InputError:
            if not there:
                path.unlink(missing_ok=True)
            raise
        try:
            yield rows
        finally:
            rows.sync()


def _lock(file: BinaryIO, path: Path) -> None:
    """Two sweeps in one file would mix their rows; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be locked this way
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{OPTION}: another sweep is writing {str(path)!r}; give each its own file") from None


def _read(rows: RowFile, places: Places) -> tuple[list[SweepRow], int]:
    """(the whole rows, where they end). InputError for what is not of this sweep, which is left as it is."""
    text = rows.file.read()
    *whole, torn = text.split(b"\n")
    lines = [_decoded(line, rows.path) + "\n" for line in whole]
    head = rows.form.head(file_columns(rows.question))
    if head and lines and lines.pop(0) != head:
        raise _foreign(rows.path, 1, "its columns are not those of this sweep (its axes, or its version)")
    first = 2 if head else 1
    if len(lines) > len(places):
        raise _foreign(rows.path, first + len(places), f"this sweep has {len(places):,} points")
    found = []
    for number, (line, at) in enumerate(zip(lines, places, strict=False), first):
        try:
            found.append(read_row(rows.form, line, at, rows.question))
        except ValueError as error:
            raise _foreign(rows.path, number, str(error)) from None
    if torn:
        begins: str | None = head
        if whole or not head:
            begins = rows.form.begins(dict(places[len(found)])) if len(found) < len(places) else None
        _check_torn(rows, torn, begins, first + len(found))
    return found, len(text) - len(torn)


def _check_torn(rows: RowFile, torn: bytes, begins: str | None, number: int) -> None:
    """A last line without its end is what a killed sweep leaves, and goes; anything else is somebody's text."""
    expected = (begins or "").encode()
    size = min(len(expected), len(torn))
    if begins is None or torn[:size] != expected[:size]:
        raise _foreign(rows.path, number, "it is no row of this sweep, not even the beginning of one")


def _decoded(line: bytes, path: Path) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InputError(f"{OPTION}: {str(path)!r} is no text; it is left as it is") from None


def _foreign(path: Path, line: int, why: str) -> InputError:
    return InputError(f"{OPTION}: {str(path)!r} is not of this sweep and is left as it is: line {line}: {why}")
