"""What is alive while torch works: every storage that an operation makes, under the name of what it is kept for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

from ppadvisor.verify.memory_parts import LOGITS, PARTS, SAVED, WAITING, WORK, Peak
from ppadvisor.verify.torch_engine import torch_module

torch: Any = torch_module()
dispatch: Any = torch_module("torch.utils._python_dispatch")

GRADIENTS = "gradients"
"""Of weights: they stay, and are not counted."""


def storage_key(tensor: Any) -> int:
    """A name for the memory of a tensor, which views of it share."""
    return int(tensor.untyped_storage()._cdata)


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the distinct storages of some tensors."""
    return sum({storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


@dataclass
class Entry:
    """One storage."""

    size: int
    label: str | None = None
    """What it is for, if not for a backward."""
    saved: int = 0
    """How many times autograd holds it."""
    reference: Any = None

    @property
    def name(self) -> str:
        """Logits keep their name while they are saved, others are then called so."""
        if self.saved and self.label != LOGITS:
            return SAVED
        return self.label or WORK


class Ledger(dispatch.TorchDispatchMode):  # type: ignore[misc] # torch may be missing, so it has no types here
    """Bytes alive by name, and their peaks, while operations run under it. Parameters, their gradients apart, are left
    out.
    """

    def __init__(self, own: Iterable[Any], parameters: Iterable[Any], is_logits: Callable[[Any], bool]) -> None:
        super().__init__()
        self.own = {storage_key(tensor) for tensor in own}
        self.without_gradient = list(parameters)
        self.is_logits = is_logits
        self.entries: dict[int, Entry] = {}
        self.bytes = dict.fromkeys((*PARTS, GRADIENTS), 0)
        self.total = 0
        self.saved_peak = 0
        self.peak = Peak()
        self.action = ""
        self.in_loss = False
        """Whether the output layer or the loss runs, or their backward has not yet come to a product of matrices."""
        self.backward = False
        self.waiting: Callable[[], Iterable[Any]] = tuple
        """The gradients that the step for the input gradient has put aside so far."""
        self._numbers = count()
        self._copies: dict[int, Any] = {}

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if self.backward and "mm" in function.__name__:
            self.in_loss = False
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        if self.total > self.peak.total:
            self._look(function.__name__)
        return result

    def add(self, tensor: Any) -> Entry | None:
        """The entry of a tensor's storage, new if it is."""
        key = storage_key(tensor)
        if key in self.own:
            return None
        entry = self.entries.get(key)
        if entry is None:
            storage = tensor.untyped_storage()
            label = LOGITS if self.in_loss and self.is_logits(tensor) else None
            entry = self.entries[key] = Entry(storage.nbytes(), label)
            entry.reference = weakref.ref(storage, lambda _: self._gone(key))
            self._count(entry, entry.size)
        return entry

    def name(self, tensors: Iterable[Any], label: str, *, over: tuple[str | None, ...] = (None,)) -> None:
        """Give storages another name, those that now have one of `over`."""
        for tensor in tensors:
            entry = self.add(tensor)
            if entry is not None and entry.label in over:
                self._count(entry, -entry.size)
                entry.label = label
                self._count(entry, entry.size)

    def pack(self, tensor: Any) -> Any:
        """Autograd saves a tensor: what it holds instead, the same memory without the graph behind it."""
        copy = tensor.detach()
        entry = self.add(tensor)
        # two numbers seed the dropout inside a kernel, whatever the size
        if entry is not None and tensor.numel() > 2:
            self._saved(entry, 1)
            number = next(self._numbers)
            self._copies[number] = weakref.ref(copy, lambda _: self._released(number, entry))
        return copy

    def _released(self, number: int, entry: Entry) -> None:
        del self._copies[number]
        self._saved(entry, -1)

    def _saved(self, entry: Entry, change: int) -> None:
        self._count(entry, -entry.size)
        entry.saved += change
        self._count(entry, entry.size)
        self.saved_peak = max(self.saved_peak, self.bytes[SAVED])

    def _count(self, entry: Entry, change: int) -> None:
        if entry.reference is None:
            return
        self.bytes[entry.name] += change
        if entry.label != GRADIENTS:
            self.total += change

    def _gone(self, key: int) -> None:
        entry = self.entries.pop(key)
        self._count(entry, -entry.size)
        entry.reference = None

    def _look(self, operation: str) -> None:
        """A peak, unless what is new turns out to be the gradient of a weight."""
        self._name_gradients()
        self.name(self.waiting(), WAITING)
        if self.total > self.peak.total:
            parts = {part: self.bytes[part] for part in PARTS}
            self.peak = Peak(self.total, parts, f"{self.action} {operation}".strip())

    def _name_gradients(self) -> None:
        """The gradients that parameters have by now; each comes once a step and stays."""
        missing = []
        for parameter in self.without_gradient:
            if parameter.grad is None:
                missing.append(parameter)
            else:
                self.name([parameter.grad], GRADIENTS, over=(None, WAITING))
        self.without_gradient = missing
