"""One run as DeepSpeed sees it after its own defaults: batch, precision, stages. None where a number does not follow.

Source: microsoft/DeepSpeed commit 38327e07, deepspeed/runtime/config.py:936-983 (batch), runtime/engine.py,
get_data_types (precision of gradients), runtime/pipe/module.py:125-187 (stages).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ppadvisor.frameworks.configuration import Given
from ppadvisor.frameworks.deepspeed.split import METHODS, split_of
from ppadvisor.frameworks.places import Places
from ppadvisor.frameworks.profile import Split

BATCH, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
STAGE, STAGES = "zero_optimization.stage", "pipeline.stages"
PARTITION, INTERVAL = "pipeline.partition", "pipeline.activation_checkpoint_interval"
ACCUMULATION = "data_types.grad_accum_dtype"
NUM_STAGES, TOPOLOGY, METHOD = "PipelineModule(num_stages=...)", "PipelineModule(topology=...)", "partition_method"
"""What the program says, not the file."""

DTYPES = {
    **dict.fromkeys(("torch.float16", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("torch.float32", "fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("torch.bfloat16", "bf16", "bfloat16"), "bf16"),
}
"""Names of data types (config.py:101-106) -> ours."""
OURS = {text: counted for counted, text in METHODS.items()}
MEGATRON = {"type:transformer": (0, 0)}
"""Megatron-DeepSpeed's own (gpt_model.py:463): the class of its layers; another word counts its embedding class."""


@dataclass(frozen=True)
class Run:
    """The options with the number of GPUs and what the program says beside."""

    data: Mapping[str, Any]
    places: Places
    world: int
    given: Given
    CHECKS_IN: ClassVar[str] = "config.py"

    def value(self, name: str) -> Any:
        """As the file gives it, `section.key`; None where it is silent or `auto`."""
        found: Any = self.data
        for key in name.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return None if found == "auto" else found

    def is_auto(self, name: str) -> bool:
        return self.data.get(name) == "auto"

    def gives(self, name: str) -> bool:
        return tuple(name.split(".")) in self.places

    def whole(self, name: str) -> int | None:
        """A whole number, also one written as 5e8 or, where DeepSpeed converts, as text."""
        value = self.value(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if name == STAGE and isinstance(value, str) and value in ("0", "1", "2", "3"):
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def on(self, name: str) -> bool:
        return self.value(name) is True

    def option(self, name: str) -> str:
        """An option as the file has it."""
        return name

    def line(self, name: str) -> int | None:
        return self.places.get(tuple(name.split(".")))

    @cached_property
    def p(self) -> int:
        """What the user says; else what stands beside in the file, which DeepSpeed does not read."""
        in_file = self.whole(STAGES)
        return self.given.pipeline_parallel or (in_file if in_file and in_file > 0 else 1)

    @cached_property
    def t(self) -> int:
        return self.given.tensor_parallel or 1

    @cached_property
    def d(self) -> int | None:
        """Replicas, None where the GPUs are no multiple of one."""
        return self.world // (self.p * self.t) if self.world % (self.p * self.t) == 0 else None

    @cached_property
    def sizes(self) -> tuple[int | None, int | None, int | None]:
        """(batch, micro-batch, accumulation steps) as DeepSpeed completes them, before it compares them."""
        batch, micro, steps = (self.whole(name) for name in (BATCH, MICRO, STEPS))
        waits = any(self.is_auto(name) for name in (BATCH, MICRO, STEPS))
        if self.d is None or (waits and self._is_open(batch, micro, steps)):
            return batch, micro, steps
        if batch is not None and micro is not None and steps is None:
            steps = batch // micro // self.d if micro else None
        elif batch is not None and micro is None:
            steps = 1 if steps is None else steps
            micro = batch // self.d // steps if steps else None
        elif batch is None and micro is not None:
            steps = 1 if steps is None else steps
            batch = micro * steps * self.d
        return batch, micro, steps

    @staticmethod
    def _is_open(*values: int | None) -> bool:
        """Whether more than one is missing: what `auto` stands for does not follow from the others."""
        return sum(value is None for value in values) > 1

    @property
    def batch(self) -> int | None:
        return self.sizes[0]

    @property
    def b(self) -> int | None:
        return self.sizes[1]

    @property
    def m(self) -> int | None:
        return self.sizes[2]

    @cached_property
    def consistent(self) -> bool:
        """Batch = micro-batch x steps x d, and all of them positive."""
        batch, b, m = self.sizes
        if batch is None or b is None or m is None or self.d is None:
            return False
        return min(batch, b, m) > 0 and batch == b * m * self.d

    @cached_property
    def zero(self) -> int:
        """ZeRO stage; `true` is the old way to say 1."""
        value = self.value("zero_optimization")
        return int(value) if isinstance(value, bool) else self.whole(STAGE) or 0

    @cached_property
    def precision(self) -> str:
        """Of the model."""
        if self.on("fp16.enabled"):
            return "fp16"
        return "bf16" if self.on("bf16.enabled" if "bf16" in self.data else "bfloat16.enabled") else "fp32"

    @cached_property
    def accumulation(self) -> str:
        """Of the accumulated gradients: given, else fp32 for bf16 without ZeRO, else the model's."""
        given = DTYPES.get(str(self.value(ACCUMULATION)))
        if given:
            return given
        return "fp32" if self.precision == "bf16" and not self.zero else self.precision

    @cached_property
    def interval(self) -> int:
        """Layers between two kept inputs; 0 recomputes nothing."""
        return max(self.whole(INTERVAL) or 0, 0)

    @cached_property
    def method(self) -> str | None:
        """How layers are divided, as the user says it, else as the file notes it."""
        noted = self.value(PARTITION)
        return self.given.partition_method or (noted if isinstance(noted, str) else None)

    @cached_property
    def counted(self) -> tuple[int, int]:
        """Whether embedding and head count as a layer; neither where the method says nothing that is known."""
        method = self.method or ""
        if method in OURS:
            return OURS[method]
        words = {*method.removeprefix("type:").lower().split("|")}
        if method.startswith("type:") and words == {"transformer", "embedding"}:
            # the class of a tied head is the embedding's
            return 1, int(bool(self.given.model and self.given.model.tied_embeddings))
        return MEGATRON.get(method.lower(), (0, 0))

    @property
    def method_is_known(self) -> bool:
        method = (self.method or "").lower()
        words = {*method.removeprefix("type:").split("|")}
        return method in OURS or method in MEGATRON or words == {"transformer", "embedding"}

    @cached_property
    def layers_per_stage(self) -> Split | None:
        if self.given.model is None:
            return None
        layers = self.given.model.num_layers
        return split_of(layers, self.p, *self.counted) if self.p <= layers else None
