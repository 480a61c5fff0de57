"""Memory that torch allocates while a backward runs, storage by storage."""

from __future__ import annotations

from typing import Any

import pytest

from ppadvisor.verify.memory_ledger import storage_key
from tests.frameworks.counted import LayerCase
from tests.live.saved import stack

torch: Any = pytest.importorskip("torch", reason="compares with torch, which is not installed")
weak: Any = pytest.importorskip("torch.multiprocessing.reductions")
dispatch: Any = pytest.importorskip("torch.utils._python_dispatch")


class Allocated(dispatch.TorchDispatchMode):  # type: ignore[misc] # torch may be missing, so it has no types here
    """Bytes of the storages that operations made and that are alive, and the most that there were after any."""

    def __init__(self, own: set[Any]) -> None:
        super().__init__()
        self.own, self.peak = own, 0
        self.made: dict[Any, tuple[Any, int]] = {}

    def add(self, tensor: Any) -> None:
        memory = tensor.untyped_storage()
        if storage_key(tensor) not in self.own:
            self.made[storage_key(tensor)] = (weak.StorageWeakRef(memory), memory.nbytes())

    def now(self) -> int:
        self.made = {name: (memory, size) for name, (memory, size) in self.made.items() if not memory.expired()}
        return sum(size for _, size in self.made.values())

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        self.peak = max(self.peak, self.now())
        return result


def backward_work(case: LayerCase, layers: int) -> int:
    """The most that is alive in the backward of some layers, less what was when it began.

    That is gradients, less what has been freed by then. Of activations alone: the gradients of weights stand with the
    parameters, and are not asked for.
    """
    module, x = stack(case, layers)
    allocated = Allocated({storage_key(tensor) for tensor in (*module.parameters(), *module.buffers())})
    with allocated:
        output = module(x)
    allocated.add(x)
    allocated.peak = before = allocated.now()
    gradient = torch.empty_like(output)
    allocated.add(gradient)
    with allocated:
        torch.autograd.grad([output], [x], [gradient])
    return allocated.peak - before
