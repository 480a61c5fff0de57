"""Under torchrun: which rank this process is, how all of them meet, and that one of them speaks where they fail."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from ppadvisor.errors import EXIT_USAGE, InputError
from ppadvisor.verify.torch_engine import UnverifiableError, installed_version, torch_module

LOOK_S = 1.0
"""How often a rank looks whether its launcher is there."""
MEETING_S = 60.0
"""How long ranks wait for each other at first."""
MESSAGE_S = 1800.0
"""How long a rank waits for a message: far longer than a step."""


class Launcher(NamedTuple):
    """What torchrun, or who else starts a process a rank, says in the environment."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @property
    def speaks(self) -> bool:
        """The rank that prints the answer."""
        return self.rank == 0


def launcher() -> Launcher | None:
    """This process as a rank; None where RANK and WORLD_SIZE are not both set."""
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank is None or size is None:
        return None
    local, locals_ = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    found = Launcher(rank, size, rank if local is None else local, size if locals_ is None else locals_)
    if not (0 <= found.rank < found.world_size and 0 <= found.local_rank < found.local_world_size):
        raise InputError(f"RANK {rank} of WORLD_SIZE {size}, LOCAL_RANK {local} of LOCAL_WORLD_SIZE {locals_}: not so")
    return found


def launched() -> Launcher:
    """This process as a rank. InputError where it is none."""
    here = launcher()
    if here is None:
        raise InputError(
            "--layers runs in a process a stage: torchrun --nproc-per-node P -m ppadvisor verify PLAN.json --layers"
        )
    return here


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}: got {text!r} in the environment, needs a whole number")
    return int(text)


class Machine(NamedTuple):
    """What a rank computes on."""

    name: str
    memory_bytes: int | None
    """What the driver shows of a GPU; None: it is a CPU."""

    @property
    def is_gpu(self) -> bool:
        return self.memory_bytes is not None


@dataclass(frozen=True)
class Met:
    """All ranks are there."""

    launcher: Launcher
    device: Any
    """torch's device of this rank."""
    group: Any
    """The CPUs of the ranks: what they tell each other beside the pipeline's messages."""

    @property
    def machine(self) -> Machine:
        if self.device.type == "cpu":
            return Machine("CPU", None)
        found = torch_module("torch.cuda").get_device_properties(self.device)
        return Machine(found.name, found.total_memory)

    def gathered(self, value: Any) -> list[Any]:
        """The value of every rank, on every rank."""
        values: list[Any] = [None] * self.launcher.world_size
        with told_by(self.launcher):
            torch_module("torch.distributed").all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Until all ranks have come to this point."""
        with told_by(self.launcher):
            torch_module("torch.distributed").barrier(group=self.group)


@contextmanager
def told_by(here: Launcher) -> Iterator[None]:
    """What torch finds wrong, want of memory or of a neighbour, as an UnverifiableError that names the rank."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise UnverifiableError(f"rank {here.rank}: {first_line(error)}") from None


@contextmanager
def met(here: Launcher) -> Iterator[Met]:
    """The process group of all ranks, on GPUs over NCCL where torch has them, else on CPUs over gloo."""
    _end_with_launcher()
    torch, distributed = torch_module(), torch_module("torch.distributed")
    device, store = _device(torch, here), _store(here)
    _check_alike(store, here, device.type)
    if sys.platform == "linux" and here.local_world_size == here.world_size:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of a host may lead elsewhere
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with told_by(here):
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=distributed.PrefixStore("ppadvisor/group", store),
            rank=here.rank,
            world_size=here.world_size,
            timeout=timedelta(seconds=MESSAGE_S),
        )
        group = distributed.new_group(backend="gloo")
    yield Met(here, device, group)
    distributed.destroy_process_group()  # not after a failure: it would wait for who is gone


def _end_with_launcher() -> None:
    """A rank whose launcher is gone, also by a signal that torchrun passes on to nobody, would compute for nobody."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK_S)
        os._exit(EXIT_USAGE)  # amid torch's work, where no exception would be heard

    threading.Thread(target=watch, daemon=True).start()


def _device(torch: Any, here: Launcher) -> Any:
    """The GPU of this rank, or the CPU where torch has none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if here.local_rank >= count:
        raise UnverifiableError(f"rank {here.rank} needs GPU {here.local_rank} of its machine, which has {count}")
    return torch.device("cuda", here.local_rank)


def _store(here: Launcher) -> Any:
    """Where ranks leave each other words. UnverifiableError where it cannot be reached."""
    distributed = torch_module("torch.distributed")
    where = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}
    missing = [name for name, value in where.items() if not value]
    if missing:
        raise InputError(f"RANK and WORLD_SIZE are set, but not {' and '.join(missing)}: start it with torchrun")
    serves = here.rank == 0 and not _agent_serves()
    port = _number("MASTER_PORT")
    try:
        store = distributed.TCPStore(
            where["MASTER_ADDR"],
            port,
            None,
            serves,
            timedelta(seconds=MEETING_S),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        at = f"{where['MASTER_ADDR']}:{port}"
        raise UnverifiableError(f"rank {here.rank} cannot meet the others at {at}: {first_line(error)}") from None
    return distributed.PrefixStore(f"ppadvisor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _agent_serves() -> bool:
    """torchrun itself keeps the store, which then outlives any rank."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _check_alike(store: Any, here: Launcher, kind: str) -> None:
    """UnverifiableError unless all ranks come, and all with a GPU or all without."""
    keys = [f"device/{rank}" for rank in range(here.world_size)]
    store.set(keys[here.rank], kind)
    try:
        store.wait(keys, timedelta(seconds=MEETING_S))
    except RuntimeError:
        missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not store.check([key]))
        raise UnverifiableError(f"after {MEETING_S:g} s not there: rank {missing}") from None
    kinds = [store.get(key).decode() for key in keys]
    if len(set(kinds)) > 1:
        without = ", ".join(str(rank) for rank, one in enumerate(kinds) if one == "cpu")
        raise UnverifiableError(f"torch finds no GPU on rank {without}, but on others")


def have_met() -> bool:
    """Whether this process has a process group that others wait in."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed is not None and distributed.is_initialized())


def says_why(here: Launcher) -> bool:
    """Whether this rank, which has failed, is to say so: the first that does, for others fail because of it."""
    if installed_version() is None:
        return here.speaks
    if _agent_serves():
        with suppress(Exception):  # who cannot ask the others speaks
            return bool(_store(here).add("said", 1) == 1)
    return True


def first_line(error: BaseException) -> str:
    """What torch says of an error, without where in its own code it stood.

    >>> first_line(RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer\\nfrom there"))
    'Connection closed by peer'
    """
    lines = re.sub(r"^\[[^]]*\]", "", str(error).strip()).strip().splitlines()
    return lines[0].partition("Exception raised from")[0].strip() if lines else type(error).__name__
