"""One run as Megatron-LM sees it after its own defaults: sizes, batch, stages. None where a number does not follow.

Source: NVIDIA/Megatron-LM d98e8a64, arguments.py:407-448 (sizes), 676-705 (batch), 926-1018 (virtual stages),
transformer_block.py:76-201 (layers of a stage).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ppadvisor.frameworks.megatron.arguments import Arguments
from ppadvisor.frameworks.megatron.layout import layout_problem, layout_stages
from ppadvisor.frameworks.megatron.options import flag_of
from ppadvisor.frameworks.megatron.patterns import layout_is_huge
from ppadvisor.frameworks.profile import Split
from ppadvisor.specs.model import MAX_LAYERS

FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
BY_LAYERS, BY_COUNT = "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
LAYOUT = "pipeline_model_parallel_layout"


@dataclass(frozen=True)
class Run:
    """The options with the number of GPUs."""

    arguments: Arguments
    world: int
    CHECKS_IN: ClassVar[str] = "arguments.py"

    def line(self, dest: str) -> int | None:
        """Where an option stands."""
        return self.arguments.line(dest)

    def option(self, dest: str) -> str:
        """What to type for it."""
        return flag_of(dest)

    def whole(self, dest: str) -> int | None:
        """A whole number, None where there is none."""
        value = self.arguments.value(dest)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, dest: str) -> float:
        """A number with a default."""
        value = self.arguments.value(dest)
        return float(value) if isinstance(value, int | float) else 0.0

    def text(self, dest: str) -> str | None:
        value = self.arguments.value(dest)
        return value if isinstance(value, str) else None

    def on(self, dest: str) -> bool:
        """Whether a switch is on (of the value that counts in Megatron's code)."""
        return self.arguments.value(dest) is True

    def texts(self, dest: str) -> tuple[str, ...]:
        value = self.arguments.value(dest)
        return tuple(str(one) for one in value) if isinstance(value, tuple) else ()

    def gives(self, *dests: str) -> bool:
        """Whether the file gives any of these."""
        return any(dest in self.arguments.given for dest in dests)

    def _size(self, dest: str) -> int:
        value = self.whole(dest)
        return value if value is not None and value > 0 else 1

    @cached_property
    def t(self) -> int:
        return self._size("tensor_model_parallel_size")

    @cached_property
    def p(self) -> int:
        return self._size("pipeline_model_parallel_size")

    @cached_property
    def c(self) -> int:
        return self._size("context_parallel_size")

    @cached_property
    def e(self) -> int:
        return self._size("expert_model_parallel_size")

    @cached_property
    def etp(self) -> int:
        """arguments.py:577: t unless given."""
        return self.whole("expert_tensor_parallel_size") or self.t

    @cached_property
    def weight_shards(self) -> int:
        """gtp: ranks beside t that divide the weights too, which data parallelism then lacks."""
        shards = self.whole("tensor_parallel_num_weight_shards") or self.t
        return shards // self.t if shards % self.t == 0 else 1

    @property
    def model_ranks(self) -> int:
        return self.t * self.p * self.c * self.weight_shards

    @cached_property
    def d(self) -> int | None:
        """Replicas, None where the GPUs are no multiple of one."""
        return self.world // self.model_ranks if self.world % self.model_ranks == 0 else None

    @cached_property
    def layers(self) -> int | None:
        return self.whole("num_layers") or self.whole("encoder_num_layers")

    @cached_property
    def b(self) -> int | None:
        value = self.whole("micro_batch_size")
        return value if value is not None and value > 0 else None

    @cached_property
    def batch(self) -> int | None:
        """B: given, else b d (arguments.py:691-693); of a schedule its last and longest step."""
        if self.gives("global_batch_size"):
            return self.whole("global_batch_size")
        steps = self.batch_steps
        if steps:
            return steps[-1]
        return self.b * self.d * self.weight_shards if self.b and self.d else None

    @cached_property
    def batch_steps(self) -> tuple[int, ...]:
        """The batch sizes of `--step-batch-size-schedule "0:768 250B:1536"`."""
        words = (self.text("step_batch_size_schedule") or "").split()
        sizes = [word.rpartition(":")[2] for word in words]
        return tuple(int(size) for size in sizes if size.isascii() and size.isdigit() and len(size) < 10)

    @cached_property
    def m(self) -> int | None:
        """num_microbatches_calculator.py:381-391."""
        if not (self.b and self.d and self.batch):
            return None
        whole = self.b * self.d * self.weight_shards
        return self.batch // whole if self.batch % whole == 0 and self.batch >= whole else None

    @cached_property
    def counted_layers(self) -> int | None:
        """Layers with the embedding and the loss where they are counted as one."""
        return None if self.layers is None else self.layers + self.on(EMBEDDING) + self.on(LOSS)

    @cached_property
    def layout(self) -> list[str] | None:
        """The letters of each stage; None without a layout, or with one too long to write out."""
        text = self.text(LAYOUT)
        return None if text is None or layout_is_huge(text) else layout_stages(text)

    @cached_property
    def v(self) -> int | None:
        """Virtual stages of a rank as Megatron derives them; 1 is plain 1F1B, None where nothing follows."""
        if self.layout is not None:
            return len(self.layout) // self.p if len(self.layout) % self.p == 0 else None
        if self.gives(BY_COUNT):
            return self.whole(BY_COUNT)
        if self.gives(BY_LAYERS):
            size, counted = self.whole(BY_LAYERS), self.counted_layers
            if not size or not counted or counted % self.p or (counted // self.p) % size:
                return None
            return counted // self.p // size
        return None if self.text(LAYOUT) is not None else 1

    @cached_property
    def layers_per_chunk(self) -> Split | None:
        """Layers of each virtual stage in model order, None where Megatron builds none."""
        if self.layers is None or self.v is None or self.v < 1 or self.layers > MAX_LAYERS:
            return None
        if self.layout is not None:
            problem = layout_problem(
                self.text(LAYOUT) or "",
                num_layers=self.layers,
                mtp_num_layers=self.whole("mtp_num_layers") or 0,
                pipeline_parallel=self.p,
            )
            return None if problem else tuple(stage.count("t") for stage in self.layout)
        ranks = self._layers_of_ranks()
        if ranks is None or any(size % self.v or size < 1 for size in ranks):
            return None
        chunks = [size // self.v for size in ranks] * self.v
        chunks[0] -= self.on(EMBEDDING)
        chunks[-1] -= self.on(LOSS)
        return tuple(chunks) if min(chunks) >= 0 else None

    def _layers_of_ranks(self) -> list[int] | None:
        """With the embedding and the loss where they are counted."""
        counted = self.counted_layers or 0
        if not self.gives(FIRST, LAST):
            return [counted // self.p] * self.p if counted % self.p == 0 and self.p <= MAX_LAYERS else None
        given = {rank: self.whole(dest) for rank, dest in ((0, FIRST), (self.p - 1, LAST)) if self.gives(dest)}
        ends = {rank: size for rank, size in given.items() if size}
        middle, left = self.p - len(ends), counted - sum(ends.values())
        if len(ends) < len(given) or left < 0 or bool(middle) != bool(left) or (middle and left % middle):
            return None
        return [ends.get(rank, left // middle if middle else 0) for rank in range(self.p)]
