"""The processes of `verify --run`: started together, watched, and all ended, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ppadvisor.verify.job import EMPTY_STEPS, Folder, Job, RankDone
from ppadvisor.verify.torch_engine import UnverifiableError

WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ppadvisor.verify.worker import main; main(*sys.argv[2:])"
)
"""What each runs: code from where this process has it, whether installed or not."""
LOOK_S = 0.05
"""Between two looks at the processes."""
START_LIMIT_S = 60.0
"""To import torch and find each other, on a busy machine, for each rank that shares a core."""
STEP_LIMIT_S = 20.0
"""What a step may take beside its work."""
WIDOWED = "Connection closed by peer"
"""What gloo says on a rank whose neighbour is gone."""
SLOWEST = 4.0
"""What takes so many times as long as predicted has come to a stop."""
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Asked to end: then the processes and the files are taken along. What no process can hear of (SIGKILL) they notice."""


class RankProcesses:
    """A process a rank; leaving the context ends those that are left."""

    def __init__(self, job: Job, order: str, step_s: float) -> None:
        self.job = job
        self.start_limit_s = START_LIMIT_S * max(1.0, job.ranks / (os.cpu_count() or 1))
        self.step_limit_s = STEP_LIMIT_S + SLOWEST * step_s
        self._temporary = _made_folder()
        self.folder = Folder(Path(self._temporary.name))
        self._order = order
        self.processes: list[subprocess.Popen[bytes]] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> RankProcesses:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, _end) for number in ENDING}
        try:
            self.folder.job.write_text(self.job.model_dump_json(), encoding="utf-8")
            self.folder.order.write_text(self._order, encoding="utf-8")
            for rank in range(self.job.ranks):
                self.processes.append(self._started(rank))
        except OSError as error:
            self._stop()
            raise UnverifiableError(f"cannot start the processes: {error}") from None
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        told = [json.dumps(sys.path), str(self.folder.path), str(rank)]
        alone = {"OMP_NUM_THREADS": "1"} | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
        with self.folder.said(rank).open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, *told],
                env={**os.environ, **alone},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end them
            )

    def _stop(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._temporary.cleanup()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def steps(self) -> Iterator[int]:
        """Each step as it is done, until all ranks have ended. UnverifiableError where one fails or none goes on."""
        seen, give_up_s = 0, time.monotonic() + self.start_limit_s
        while True:
            codes = [process.poll() for process in self.processes]
            self._check(codes, time.monotonic() > give_up_s)
            done = self.folder.progress.stat().st_size if self.folder.progress.exists() else 0
            yield from range(seen, done)
            if done > seen:
                seen, give_up_s = done, time.monotonic() + self.step_limit_s
            if all(code == 0 for code in codes):
                return
            time.sleep(LOOK_S)

    @property
    def num_steps(self) -> int:
        return EMPTY_STEPS + self.job.steps

    def _check(self, codes: list[int | None], late: bool) -> None:
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            ends = {rank: self._how(rank, codes[rank] or 0) for rank in failed}
            # who was killed is the cause, else who failed for another reason than want of a neighbour
            rank = min(ends, key=lambda one: ((codes[one] or 0) > 0, WIDOWED in ends[one]))
            raise UnverifiableError(f"rank {rank} {ends[rank]}; nothing was compared")
        if late:
            missing = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
            raise UnverifiableError(f"the pipeline does not go on; not at their end: rank {missing}; all were ended")

    def _how(self, rank: int, code: int) -> str:
        """How a process ended."""
        if code == -signal.SIGKILL:  # then it had no time to say why
            return "was killed"
        lines = self.folder.said(rank).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line] or lines  # what is said last may be a warning
        last = f": {errors[-1].removeprefix(f'[rank{rank}]:').strip()}" if errors else ""
        return (f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}") + last

    def results(self) -> list[RankDone]:
        """What the ranks wrote down, after `steps`."""
        files = [self.folder.done(rank) for rank in range(self.job.ranks)]
        return [RankDone.model_validate_json(file.read_text(encoding="utf-8")) for file in files]


def _made_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="ppadvisor-verify-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UnverifiableError(f"no folder for what the processes tell each other: {error}") from None


def _end(number: int, _frame: FrameType | None) -> None:
    """Asked to end: end as for any other exit, so that the processes and files go too."""
    raise SystemExit(128 + number)
