"""Where answers go: a file is replaced whole or left as it was."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from ppadvisor.cli.output import view_of, write
from ppadvisor.errors import InputError
from tests.cli.conftest import Cli


def test_a_file_gets_what_stdout_would(cli: Cli, tmp_path: Path) -> None:
    """`--output` writes the same bytes as stdout and leaves stdout empty."""
    target = tmp_path / "bubble.json"
    shown = cli("bubble", "--pp", "8", "--target", "5%", "--format", "json")
    written = cli("bubble", "--pp", "8", "--target", "5%", "--format", "json", "--output", str(target))
    assert written.stdout == ""
    assert target.read_bytes() == shown.stdout.encode()
    assert os.listdir(tmp_path) == ["bubble.json"]


def test_a_failure_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last step fails, the file holds what it held, nothing is left beside it, and the error is one line."""
    target = tmp_path / "plan.json"
    target.write_text("earlier")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match=r"--output: cannot write .*plan\.json': No space left on device"):
        write("later", target)
    assert target.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize("name", ["", "missing/plan.json", "file/plan.json", "x" * 300])
def test_a_place_that_cannot_be_written(cli: Cli, tmp_path: Path, name: str) -> None:
    """A directory, a missing directory, a file used as one, a name too long: one line, exit 2."""
    (tmp_path / "file").write_text("")
    result = cli("bubble", "--pp", "8", "--target", "5%", "--output", f"{tmp_path}/{name}")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ppadvisor: error: --output: ")
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["file"]


def test_mode_and_link_of_the_file_stay(tmp_path: Path) -> None:
    """Replacing keeps the permissions of the file and writes through a symbolic link."""
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("earlier")
    target.chmod(0o640)
    link.symlink_to(target)
    write("later", link)
    assert link.is_symlink()
    assert target.read_text() == "later"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """A named pipe (or a device such as /dev/null) gets the text and stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write("text\n", pipe)
    reader.join(timeout=10)
    assert received == ["text\n"]
    assert pipe.is_fifo()


def test_what_is_no_terminal_gets_80_plain_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pipe and a file get 80 columns without colour, whatever COLUMNS says; a terminal its own, less NO_COLOR."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (view_of(None).width, view_of(None).color) == (80, False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert (view_of(None).width, view_of(None).color) == (200, True)
    assert (view_of(tmp_path / "file").width, view_of(tmp_path / "file").color) == (80, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert (view_of(None).width, view_of(None).color) == (200, False)


def test_half_a_surrogate_pair_is_still_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text that UTF-8 cannot hold, as a broken file may bring it, is written as JSON escapes it."""
    write('{"name": "\ud800"}', tmp_path / "plan.json")
    write('{"name": "\ud800"}', None)
    assert (tmp_path / "plan.json").read_bytes() == b'{"name": "\\ud800"}'
    assert capsys.readouterr().out == '{"name": "\\ud800"}'
