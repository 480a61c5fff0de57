"""How `verify --run` ends when it cannot go on: one line, the right exit code, and no process or file left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppadvisor.verify.job import Job, StageSeconds
from ppadvisor.verify.processes import RankProcesses
from ppadvisor.verify.torch_engine import TORCH_VERSION, UnverifiableError, installed_version

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (installed_version() or "").startswith(f"{TORCH_VERSION}."), reason=f"runs on torch {TORCH_VERSION}"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
RANKS = 3
PATIENCE_S = 60.0


def workers(folder: Path) -> dict[int, int]:
    """Rank -> process, of those whose files are in this folder."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode().split("\0")
        except OSError:  # it has just ended
            continue
        if "-P" in words and any(word.startswith(str(folder)) for word in words):
            found[int(words[-2])] = int(place.parent.name)
    return found


def until_gone(folder: Path) -> None:
    """Wait for the last worker to end; those that notice by themselves need a moment."""
    give_up_s = time.monotonic() + 5
    while workers(folder):
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, with all its workers started."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    asked = f"verify --run --schedule zb-h1 --pp {RANKS} --microbatches 16 --unit 300ms"
    process = subprocess.Popen(
        [sys.executable, "-m", "ppadvisor", *asked.split()],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    give_up_s = time.monotonic() + PATIENCE_S
    while len(workers(tmp_path)) < RANKS:
        assert process.poll() is None
        assert time.monotonic() < give_up_s
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)]
)
def test_interrupted(running: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    """Ctrl-C, and a request to end."""
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, stdout) == (exit_code, "")
    assert stderr == "ppadvisor: note: interrupted; what was started has been ended, and nothing was compared\n"
    until_gone(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_killed_rank(running: subprocess.Popen[str], tmp_path: Path) -> None:
    """The others are ended at once, and the killed one is named."""
    os.kill(workers(tmp_path)[1], signal.SIGKILL)
    stdout, stderr = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, stdout) == (2, "")
    assert stderr == "ppadvisor: error: rank 1 was killed; nothing was compared\n"
    until_gone(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_itself_is_killed(running: subprocess.Popen[str], tmp_path: Path) -> None:
    """Nobody is left to end the ranks, so they end by themselves and take the files along."""
    running.kill()
    running.communicate(timeout=PATIENCE_S)
    until_gone(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process does not fail: after the limit all are ended, and it is said which are not at their end."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    times = StageSeconds(forward_s=0.01, input_grad_s=0.01, weight_grad_s=0.01)
    job = Job(
        schedule="1f1b",
        num_stages=2,
        num_microbatches=2,
        stages_of_ranks=((0,), (1,)),
        stages=(times, times),
        steps=1,
    )
    with RankProcesses(job, "", 0.1) as ranks:
        ranks.processes[1].send_signal(signal.SIGSTOP)
        ranks.start_limit_s = 1.0
        with pytest.raises(UnverifiableError, match="does not go on; not at their end: rank 0, 1"):
            list(ranks.steps())
    until_gone(tmp_path)


def test_a_rank_that_fails_says_why() -> None:
    """The last line of what it printed; here torch refuses the numbers."""
    times = StageSeconds(forward_s=0.01, input_grad_s=0.01, weight_grad_s=0.01)
    job = Job(
        schedule="1f1b",
        num_stages=2,
        num_microbatches=1,
        stages_of_ranks=((0,), (1,)),
        stages=(times, times),
        steps=1,
    )
    why = "failed with exit code 1: ValueError: Number of micro"
    with RankProcesses(job, "", 0.1) as ranks, pytest.raises(UnverifiableError, match=why):
        list(ranks.steps())
