"""One job as torchtitan sees it after its own defaults: sizes, batch, stages. None where a number does not follow.

Source: pytorch/torchtitan commit 238fa995, train.py:195-215 (batch), distributed/parallel_dims.py:35-61 (sizes),
distributed/pipeline_parallel.py:54-123 (stages).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from ppadvisor.frameworks.places import Places
from ppadvisor.frameworks.profile import Split
from ppadvisor.frameworks.torchtitan.options import NoDefault, default_of
from ppadvisor.frameworks.torchtitan.split import own_split
from ppadvisor.specs.model import ModelSpec

PARALLELISM = "parallelism."
REPLICATE, SHARD = PARALLELISM + "data_parallel_replicate_degree", PARALLELISM + "data_parallel_shard_degree"
T, P, C = (PARALLELISM + f"{name}_parallel_degree" for name in ("tensor", "pipeline", "context"))
E, ETP = PARALLELISM + "expert_parallel_degree", PARALLELISM + "expert_tensor_parallel_degree"
SCHEDULE, CSV = PARALLELISM + "pipeline_parallel_schedule", PARALLELISM + "pipeline_parallel_schedule_csv"
MICROBATCH, PER_STAGE = (
    PARALLELISM + "pipeline_parallel_microbatch_size",
    PARALLELISM + "pipeline_parallel_layers_per_stage",
)
MODULES = PARALLELISM + "module_fqns_per_model_part"
LESS = tuple(PARALLELISM + f"pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
RESHARD = PARALLELISM + "fsdp_reshard_after_forward"
LOCAL, GLOBAL, SEQ = "training.local_batch_size", "training.global_batch_size", "training.seq_len"
CONVERTERS = "model.converters"

SCHEDULES = {
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved-1f1b",
    "gpipe": "gpipe",
    "loopedbfs": "looped-bfs",
    "interleavedzerobubble": "interleaved-zero-bubble",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipev",
}
"""Names of torch's schedules (get_schedule_class, without regard to case) -> ours."""
TORCH_NAMES = ("1F1B", "Interleaved1F1B", "GPipe", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
FROM_CSV = ("pipelineschedulesingle", "pipelineschedulemulti")
"""Of these the order of work stands in a file of its own."""
ONE_STAGE = ("1f1b", "gpipe", "pipelineschedulesingle")
V_SHAPED = ("zbvzerobubble", "dualpipev")


@dataclass(frozen=True)
class Job:
    """The options with the number of GPUs and the model."""

    given: Mapping[str, Any]
    """`section.option` -> value, of those that the file gives."""
    places: Places
    world: int
    model: ModelSpec | None
    attention: str = "sdpa"
    CHECKS_IN: ClassVar[str] = "torchtitan"
    """The kernel of the flavor: sdpa, flex or varlen."""
    named: str = ""
    """`model.name` where it is torchtitan's own."""

    def value(self, name: str) -> Any:
        """As given, else the default; None where there is none."""
        default = default_of(name)
        return self.given.get(name, None if isinstance(default, NoDefault) else default)

    def whole(self, name: str) -> int | None:
        """A whole number, None where there is none."""
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str:
        value = self.value(name)
        return value if isinstance(value, str) else ""

    def on(self, name: str) -> bool:
        return self.value(name) is True

    def words(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        return tuple(str(one) for one in value) if isinstance(value, list) else ()

    def option(self, name: str) -> str:
        """An option as the file has it."""
        return name

    def line(self, name: str) -> int | None:
        """Where an option stands, None where it is a default."""
        return self.places.get(tuple(name.split(".")))

    def size(self, name: str) -> int:
        """A degree; what is none counts as 1 and breaks a rule of its own."""
        value = self.whole(name)
        return value if value is not None and value > 0 else 1

    @cached_property
    def t(self) -> int:
        return self.size(T)

    @cached_property
    def p(self) -> int:
        return self.size(P)

    @cached_property
    def c(self) -> int:
        return self.size(C)

    @cached_property
    def e(self) -> int:
        return self.size(E)

    @cached_property
    def replicate(self) -> int:
        return self.size(REPLICATE)

    @cached_property
    def etp(self) -> int:
        """Without expert parallelism experts are divided over t as all else is."""
        return self.t if self.e == 1 else self.size(ETP)

    @cached_property
    def shard(self) -> int | None:
        """-1 takes what the other degrees leave; None where they leave no whole number or another than is given."""
        given, others = self.whole(SHARD), self.replicate * self.c * self.t * self.p
        left = self.world // others if self.world % others == 0 else None
        return left if given in (-1, left) else None

    @cached_property
    def d(self) -> int | None:
        return None if self.shard is None else self.shard * self.replicate

    @property
    def sharded(self) -> bool:
        """Whether FSDP is applied at all."""
        return (self.shard or 1) * self.c > 1

    @cached_property
    def local(self) -> int | None:
        value = self.whole(LOCAL)
        return value if value is not None and value > 0 else None

    @cached_property
    def batch(self) -> int | None:
        """B: given, else one pass of every replica."""
        given = self.whole(GLOBAL)
        if given is not None and given >= 0:
            return given or None
        return self.local * self.d if self.local and self.d else None

    @cached_property
    def b(self) -> int | None:
        """A micro-batch: of the pipeline where there is one, else all that a rank is given at once."""
        if self.p == 1:
            return self.local
        value = self.whole(MICROBATCH)
        return value if value is not None and value > 0 else None

    @cached_property
    def passes(self) -> int | None:
        """Times that a step fills the pipeline: its gradient accumulation."""
        if not (self.local and self.d and self.batch):
            return None
        whole = self.local * self.d
        return self.batch // whole if self.batch % whole == 0 else None

    @cached_property
    def m_of_pass(self) -> int | None:
        """Micro-batches of one pass."""
        return self.local // self.b if self.local and self.b and self.local % self.b == 0 else None

    @cached_property
    def schedule(self) -> str:
        """torch's name in small letters."""
        return self.text(SCHEDULE).lower()

    @cached_property
    def less(self) -> tuple[int, int]:
        """Layers that embedding and head count as."""
        first, last = (self.whole(name) for name in LESS)
        return first or 0, last or 0

    @cached_property
    def modules(self) -> list[list[str]] | None:
        """The modules of each stage where the file lists them."""
        value = self.value(MODULES)
        if not isinstance(value, list) or not all(isinstance(stage, list) for stage in value):
            return None
        return [[str(name) for name in stage] for stage in value]

    @cached_property
    def num_stages(self) -> int | None:
        """Stages of all ranks together; None where the model is not known."""
        if self.modules is not None:
            return len(self.modules)
        per_stage = self.whole(PER_STAGE)
        if per_stage is None:
            return self.p * (1 if self.schedule in ONE_STAGE else 2)
        if self.model is None or per_stage < 1:
            return None
        return -(-(self.model.num_layers + sum(self.less)) // per_stage)

    @cached_property
    def v(self) -> int | None:
        stages = 1 if self.p == 1 else self.num_stages
        return stages // self.p if stages and stages % self.p == 0 else None

    @cached_property
    def layers_per_chunk(self) -> Split | None:
        """Layers of each stage in model order; None where torchtitan builds none, or a stage holds none."""
        if self.model is None or self.v is None:
            return None
        if self.p == 1:
            return (self.model.num_layers,)
        if self.modules is not None:
            return tuple(len(set(layers_of(stage, self.model.num_layers))) for stage in self.modules)
        counted = self.model.num_layers + sum(self.less)
        if min(self.less) < 0 or self.p * self.v > counted:
            return None
        return own_split(self.model.num_layers, self.p * self.v, *self.less)


def layers_of(stage: list[str], num_layers: int) -> list[int]:
    """The layers that a stage's list of modules keeps; a name that no layer has keeps none."""
    numbers = (name.removeprefix("layers.") for name in stage if name.startswith("layers."))
    return [int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 7 and int(n) < num_layers]
