"""`--resume FILE`: whatever ended a sweep, its file goes on to the same bytes; what is not its file is left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ppadvisor.cli.row_file import RowFile, open_row_file
from ppadvisor.errors import InputError
from ppadvisor.search.sweep import SweepQuestion, SweepRow
from tests.cli.conftest import Cli

COUNT = 12
QUESTION = SweepQuestion(
    question="0123456789ab",
    margin_fraction=0.9,
    assumptions={},
    fixed={"model": "gpt"},
    axes={"num_gpus": tuple(range(1, COUNT + 1))},
)
PLACES = [{"num_gpus": number} for number in QUESTION.axes["num_gpus"]]
ROWS = [
    SweepRow.model_validate(
        at | {"fits": False, "reason_code": "memory", "reason": 'stage 0, "ü", does not fit'}
        if at["num_gpus"] == 3
        else at | {"fits": True, "step_time_s": 1 / 3 + index, "layers_per_stage": (index + 1, 2), "verdict": "fits"}
    )
    for index, at in enumerate(PLACES)
]
ENDINGS = ("csv", "jsonl")


@contextmanager
def opened(path: Path, question: SweepQuestion = QUESTION) -> Iterator[RowFile]:
    """The file, for this question."""
    with open_row_file(path, question, PLACES) as file:
        yield file


def go_on(path: Path) -> int:
    """Add all rows that are not there; how many were."""
    with opened(path) as file:
        assert file.kept == ROWS[: len(file.kept)]
        for row in ROWS[len(file.kept) :]:
            file.append(row)
        return len(file.kept)


@pytest.fixture(params=ENDINGS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the rows go."""
    return tmp_path / f"rows.{request.param}"


@pytest.fixture
def whole(path: Path) -> bytes:
    """The file of a sweep that nobody ended; it is gone again."""
    assert go_on(path) == 0
    content = path.read_bytes()
    path.unlink()
    return content


def test_a_file_that_ends_anywhere_goes_on_to_the_same_bytes(path: Path, whole: bytes) -> None:
    """Cut after any byte, as a full disk or a power failure may, the file keeps its whole rows and is completed."""
    head = path.suffix == ".csv"
    for end in range(0, len(whole) + 1, 37):
        path.write_bytes(whole[:end])
        assert go_on(path) == max(whole[:end].count(b"\n") - head, 0)
        assert path.read_bytes() == whole


def test_a_whole_file_stays(path: Path, whole: bytes) -> None:
    """Where all rows are there, nothing is asked and nothing is written."""
    path.write_bytes(whole)
    path.chmod(0o640)
    assert go_on(path) == COUNT
    assert path.read_bytes() == whole
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_twenty_kills(path: Path, whole: bytes) -> None:
    """Killed at 20 random moments, a file holds whole rows and goes on to the bytes of a sweep that nobody killed."""
    moments, kept = random.Random(7), 0
    for _ in range(20):
        child = os.fork()
        if not child:
            with opened(path) as file:
                for row in ROWS[len(file.kept) :]:
                    file.append(row)
                    time.sleep(0.02)
            os._exit(0)
        time.sleep(moments.uniform(0.001, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = path.read_bytes() if path.exists() else b""
        assert whole.startswith(left)
        assert left.count(b"\n") >= kept
        kept = left.count(b"\n")
    assert kept > 0
    go_on(path)
    assert path.read_bytes() == whole


def test_a_killed_command_goes_on(cli: Cli, tmp_path: Path) -> None:
    """A real sweep, killed while it runs, ends with the bytes that `--format` prints when it is left alone."""
    path, asked = tmp_path / "rows.csv", "--model gpt2-124m --gpu a100-sxm-80gb --gpus 8 --seq-len 1k --tp 1"
    line = [*asked.split(), "--global-batch", "8:64:+8", "--pp", "2", "--micro-batch", "1", "--recompute", "none"]
    expected = cli("sweep", *line, "--format", "csv", "--jobs", "1").stdout
    command = [sys.executable, "-m", "ppadvisor", "sweep", *line, "--resume", str(path), "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (path.exists() and path.read_bytes().count(b"\n") > 2):
        time.sleep(0.001)
    process.kill()
    process.wait()
    killed = path.read_text()
    assert killed.endswith("\n")
    assert expected.startswith(killed)
    assert killed != expected
    assert cli("sweep", *line, "--resume", str(path), "--jobs", "1").exit_code == 0
    assert path.read_text() == expected


def altered(**values: object) -> SweepQuestion:
    """The question with something else in it."""
    return QUESTION.model_copy(update=values)


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (altered(question="ffffffffffff"), "it answers another question"),
        (altered(model_version="1999.1-1"), f"it is of model version {QUESTION.model_version}, and this is 1999.1-1"),
    ],
)
def test_a_file_of_another_question_is_refused(path: Path, whole: bytes, question: SweepQuestion, why: str) -> None:
    """Another question or version of the model: one line says so, and the file stays as it is."""
    path.write_bytes(whole)
    with (
        pytest.raises(InputError, match=f"is not of this sweep and is left as it is: line [12]: {why}"),
        opened(path, question),
    ):
        pass
    assert path.read_bytes() == whole


def test_other_axes_are_refused(path: Path, whole: bytes) -> None:
    """Rows of other axes are no rows of this sweep."""
    path.write_bytes(whole)
    other = altered(axes={"sequence_length": (1024, 2048)})
    places = [{"sequence_length": length} for length in (1024, 2048)]
    with pytest.raises(InputError, match="is not of this sweep"), open_row_file(path, other, places):
        pass
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ["my notes", "my notes\n", "{", '{"num_gpus": 7, ', "\x00\n", "[]\n", "1\n"])
def test_somebody_elses_text_is_left_alone(path: Path, text: str) -> None:
    """A file that no sweep wrote is not cut, however short it is."""
    if path.suffix == ".jsonl" and text == "{":
        return  # the beginning of every row
    path.write_text(text)
    with pytest.raises(InputError, match="is not of this sweep and is left as it is"), opened(path):
        pass
    assert path.read_text() == text


def test_a_changed_or_moved_row_is_refused(path: Path, whole: bytes) -> None:
    """Each row must be that of its point, byte for byte: rows that were sorted or edited do not count."""
    lines = whole.splitlines(keepends=True)
    swapped, longer = [*lines[:-2], lines[-1], lines[-2]], [*lines, lines[-1]]
    for changed in (swapped, longer, [*lines[:-1], lines[-1].replace(b",", b" ,")]):
        path.write_bytes(b"".join(changed))
        with pytest.raises(InputError, match="is left as it is"), opened(path):
            pass


def test_an_edited_number_is_refused(path: Path, whole: bytes) -> None:
    """A number that was replaced by another one, written as a sweep writes it, is not adopted."""
    edited = whole.replace(str(1 / 3).encode(), str(2 / 3).encode(), 1)
    assert edited != whole
    path.write_bytes(edited)
    with pytest.raises(InputError, match=r"line [12]: it was changed, or is not the row of this point"), opened(path):
        pass
    assert path.read_bytes() == edited


def test_two_sweeps_do_not_share_a_file(path: Path) -> None:
    """The second is refused while the first one runs, and may go on when it has ended."""
    with opened(path) as file:
        file.append(ROWS[0])
        with pytest.raises(InputError, match="another sweep is writing"), opened(path):
            pass
        file.append(ROWS[1])
    assert go_on(path) == 2


def test_a_full_disk_keeps_whole_rows(path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row no longer fits, it goes again; one line says so, and with room the sweep goes on."""

    class Full:
        """A file on a disk that takes a part of the row, and then nothing."""

        def __init__(self, file: object) -> None:
            self.file, self.room = file, 9

        def write(self, data: bytes) -> int:
            """As much as there is room for."""
            if not self.room:
                raise OSError(28, "No space left on device")
            taken = self.file.write(data[: self.room])  # type: ignore[attr-defined]
            self.room -= taken
            return int(taken)

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    with opened(path) as file:
        file.append(ROWS[0])
        monkeypatch.setattr(file, "file", Full(file.file))
        with pytest.raises(InputError, match=r"cannot write .*No space left on device"):
            file.append(ROWS[1])
    assert whole.startswith(path.read_bytes())
    assert go_on(path) == 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", ["rows.txt", "rows", "missing/rows.csv", "folder.csv"])
def test_a_place_where_rows_cannot_go(cli: Cli, tmp_path: Path, name: str) -> None:
    """A name that says no form, a folder that is not there, one in the place of the file: one line, exit 2."""
    (tmp_path / "folder.csv").mkdir()
    asked = "sweep --model gpt2-124m --gpu a100-sxm-80gb --gpus 4,8 --seq-len 1k --global-batch 32 --pp 2"
    result = cli(*asked.split(), "--resume", f"{tmp_path}/{name}")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("ppadvisor: error: --resume: ")
    assert os.listdir(tmp_path) == ["folder.csv"]


def test_a_file_in_which_nothing_could_be_asked_goes_again(cli: Cli, tmp_path: Path) -> None:
    """Where every point contradicts itself, no file is left to refuse the corrected command."""
    asked = "sweep --model gpt2-124m --gpu a100-sxm-80gb --gpus 4 --seq-len 1k --global-batch 32 --pp 3,5"
    result = cli(*asked.split(), "--resume", f"{tmp_path}/rows.csv")
    assert (result.exit_code, os.listdir(tmp_path)) == (2, [])


def test_ctrl_c_keeps_the_rows(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends with 130 and says where the rows are; the same command goes on to the whole answer."""
    asked = "sweep --model gpt2-124m --gpu a100-sxm-80gb --gpus 4 --seq-len 1k --global-batch 32 --pp 1,2,4 --jobs 1"
    path = tmp_path / "rows.jsonl"
    append = RowFile.append

    def interrupted(file: RowFile, row: SweepRow) -> None:
        append(file, row)
        if row.pipeline_parallel == 2:
            raise KeyboardInterrupt

    whole = cli(*asked.split(), "--format", "jsonl").stdout
    with monkeypatch.context() as patched:
        patched.setattr(RowFile, "append", interrupted)
        result = cli(*asked.split(), "--resume", str(path))
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == f"ppadvisor: note: interrupted: 1 of 3 points are in '{path}': the same command goes on\n"
    again = cli(*asked.split(), "--resume", str(path), "--format", "jsonl")
    assert (again.exit_code, again.stdout, path.read_text()) == (0, whole, whole)
