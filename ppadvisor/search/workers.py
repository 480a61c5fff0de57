"""Work shared out to processes, the results in the order of the work: nobody can tell from them how many worked."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from ppadvisor.errors import PpadvisorError

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2
"""Items that a process holds: with one it would wait for the next between two."""


@dataclass
class _Worker:
    """A process, our end of the pipe to it, and the items that it has."""

    process: BaseProcess
    connection: Connection
    has: deque[int] = field(default_factory=deque)


@contextmanager
def _told_of_its_death() -> Iterator[None]:
    """A worker that is gone closes its pipe."""
    try:
        yield
    except (EOFError, ConnectionError):
        raise PpadvisorError("a process of the sweep was ended from outside, perhaps for its memory") from None


@dataclass
class _Shared(Generic[T, R]):
    """Items on their way out, results on their way in."""

    items: Iterator[tuple[int, T]]
    results: dict[int, R] = field(default_factory=dict)

    def feed(self, worker: _Worker) -> None:
        """Give the worker as much as it may hold."""
        while len(worker.has) < AHEAD:
            index, item = next(self.items, (-1, None))
            if index < 0:
                return
            with _told_of_its_death():
                worker.connection.send(item)
            worker.has.append(index)

    def take(self, worker: _Worker) -> None:
        """The next result of the worker; what its function raised is raised here."""
        with _told_of_its_death():
            result, error = worker.connection.recv()
        if error is not None:
            raise error
        self.results[worker.has.popleft()] = result


def ordered_map(function: Callable[[T], R], items: Iterable[T], jobs: int) -> Generator[R, None, None]:
    """`map` with `jobs` processes, which end with the generator or with this process, however it ends.

    Function, items and results go through pipes, so they must be what pickle takes. With one job there are no others.
    An item is not asked for before a process can take it.
    """
    others = iter(items)
    first = list(islice(others, jobs))
    if len(first) < 2:
        yield from map(function, chain(first, others))
        return
    shared: _Shared[T, R] = _Shared(enumerate(chain(first, others)))
    with _started(function, len(first)) as workers:
        for worker in workers:
            shared.feed(worker)
        upcoming = 0
        while any(worker.has for worker in workers):
            ready = wait([worker.connection for worker in workers if worker.has])
            for worker in workers:
                if worker.connection in ready:
                    shared.take(worker)
                    shared.feed(worker)
            while upcoming in shared.results:
                yield shared.results.pop(upcoming)
                upcoming += 1


@contextmanager
def _started(function: Callable[[T], R], jobs: int) -> Iterator[list[_Worker]]:
    # Not forked: a fork beside the thread of a progress bar may hang.
    context = get_context("spawn")
    workers: list[_Worker] = []
    try:
        with _interrupts_held():
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, function), daemon=True)
                process.start()
                theirs.close()
                workers.append(_Worker(process, ours))
        yield workers
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: those that start here inherit that they do not hear it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _work(connection: Connection, function: Callable[[T], R]) -> None:
    """Answer until the other end closes, as it does when that process dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us ends us
    while True:
        try:
            item = connection.recv()
            try:
                answer: tuple[R | None, Exception | None] = (function(item), None)
            except Exception as error:
                answer = (None, error)
            connection.send(answer)
        except (EOFError, OSError):
            return
