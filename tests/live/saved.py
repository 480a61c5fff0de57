"""What autograd keeps of a forward, storage by storage, and what a split backward holds half-way."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ppadvisor.verify.layers import Shard, layer
from ppadvisor.verify.memory_ledger import storage_bytes, storage_key
from tests.frameworks.counted import LayerCase

torch: Any = pytest.importorskip("torch", reason="compares with torch, which is not installed")


@dataclass
class Kept:
    """What was saved: for each storage the tensor that was saved first of it, for as long as the graph holds one."""

    own: set[Any]
    held: list[weakref.ref[Any]] = field(default_factory=list)

    def pack(self, tensor: Any) -> Any:
        # the tensor itself would keep its graph alive
        copy = tensor.detach()
        # two numbers seed the dropout inside a kernel, whatever the size
        if storage_key(tensor) not in self.own and tensor.numel() > 2:
            self.held.append(weakref.ref(copy))
        return copy

    @property
    def alive(self) -> list[Any]:
        """Of each storage that the graph still holds, one tensor."""
        tensors = [tensor for tensor in (held() for held in self.held) if tensor is not None]
        return list({storage_key(tensor): tensor for tensor in reversed(tensors)}.values())[::-1]

    def listed(self) -> list[str]:
        """Each storage as shape, type and bytes, equal ones together."""
        named = Counter(
            f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}: {tensor.untyped_storage().nbytes()}"
            for tensor in self.alive
        )
        return [f"{times} x {name}" if times > 1 else name for name, times in named.items()]


def keeping(module: Any, run: Callable[[], Any]) -> tuple[Kept, Any]:
    """What is saved for backward while `run` runs, less the module's parameters and constants; and what `run` gives."""
    kept = Kept({storage_key(tensor) for tensor in (*module.parameters(), *module.buffers())})
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        output = run()
    return kept, output


def stack(case: LayerCase, layers: int = 1) -> tuple[Any, Any]:
    """Some layers of the case in a row, and an input as the stage before would send it."""
    training = case.problem().training
    module = torch.nn.Sequential(
        *(layer(case.model, training, case.kind, Shard(case.tensor_parallel)) for _ in range(layers))
    )
    shape = (case.micro_batch_size, training.sequence_length, case.model.hidden_size)
    dtype = next(module.parameters()).dtype
    return module, torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def saved(case: LayerCase) -> tuple[Kept, Any]:
    """What one layer keeps for its backward; its output, on which that hangs."""
    module, x = stack(case)
    return keeping(module, lambda: module(x))


class SplitBackward:
    """torch's own two steps through a stack of layers: gradient of the input, then those of the weights."""

    def __init__(self, case: LayerCase, layers: int) -> None:
        module, x = stack(case, layers)
        self.steps = pytest.importorskip("torch.distributed.pipelining._backward")
        self.weights, self.x = list(module.parameters()), x
        self.kept, output = keeping(module, lambda: module(x))
        self.outputs, self.gradients = [output], [torch.empty_like(output)]
        self.groups: list[dict[str, Any]] = []

    def input_step(self) -> None:
        steps, outputs = self.steps, self.outputs
        _, self.groups = steps.stage_backward_input(outputs, self.gradients, [self.x], iter(self.weights))
        self.gradients = []

    def held(self) -> int:
        """Bytes of the gradients that wait for the weights' step."""
        waiting = [gradients for group in self.groups for gradients in group.get("grads", ())]
        return storage_bytes(gradient for gradients in waiting for gradient in gradients if gradient is not None)

    def weight_step(self) -> None:
        self.steps.stage_backward_weight(iter(self.weights), self.groups)
        self.groups = []
