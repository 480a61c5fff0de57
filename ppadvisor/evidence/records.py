"""A measured run as a record: one JSON object a line, ours or the user's own. Units stand in the names."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ppadvisor.errors import InputError
from ppadvisor.evidence import Label
from ppadvisor.evidence.consistency import check_consistent
from ppadvisor.specs.cluster import Precision
from ppadvisor.specs.files import read_text
from ppadvisor.specs.kinds import NonNegativeInt, PositiveFloat, PositiveInt
from ppadvisor.specs.model import Normalization, PositionalEmbedding
from ppadvisor.specs.recomputation import Recompute, RecomputeMethod
from ppadvisor.specs.training import Attention, GradientPrecision
from ppadvisor.specs.validation import describe_problem

SHIPPED = "measured_runs.jsonl.gz"
MAX_BYTES = 100_000_000

CALIBRATING_SHARE = 4
"""One configuration in so many calibrates."""

Usable = Literal["memory", "memory_partial", "activation", "oom", "bubble", "time", "time_partial"]
Scope = Literal["max", "first_stage", "last_stage", "first_or_last", "middle_stage", "rank_0"]
Texts = tuple[str, ...]
Times = tuple[Annotated[float, Field(ge=0)], ...]


def label_of(group: str) -> Label:
    """The label of a configuration, from its key alone, so that nobody can choose it by looking at errors.

    The first byte of the key's SHA-256, modulo CALIBRATING_SHARE: 0 calibrates, the others test.
    """
    first = hashlib.sha256(group.encode()).digest()[0]
    return "calibrates" if first % CALIBRATING_SHARE == 0 else "tests"


class Told(BaseModel):
    """A frozen, strict part of a record; there are hundreds of records in a file, and pydantic reads them at once."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Source(Told):
    """Where the numbers stand."""

    key: str
    """Short name, by which scores are told apart."""
    title: str
    where: str
    table: str | None = None
    file: str | None = None
    commit: str | None = None


class RecordMoe(Told):
    """Routed experts, as `MoeSpec`."""

    num_experts: PositiveInt
    experts_per_token: PositiveInt
    moe_ffn_hidden_size: PositiveInt
    num_shared_experts: NonNegativeInt = 0
    shared_expert_ffn_hidden_size: PositiveInt | None = None
    first_dense_layers: NonNegativeInt = 0


class RecordMla(Told):
    """Multi-head latent attention, as `MlaSpec`."""

    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class RecordModel(Told):
    """The transformer, as far as sources state it."""

    name: str
    num_layers: PositiveInt
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    num_query_groups: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt | None = None
    """As stated, before any padding."""
    gated_mlp: bool
    tied_embeddings: bool
    normalization: Normalization
    positional_embedding: PositionalEmbedding
    max_position_embeddings: PositiveInt | None = None
    moe: RecordMoe | None = None
    mla: RecordMla | None = None


class RecordCluster(Told):
    """The machines."""

    gpu: str | None = None
    """Id of a GPU preset."""
    num_gpus: PositiveInt | None = None
    gpus_per_node: PositiveInt | None = None
    inter_node_gb_per_s_per_gpu: PositiveFloat | None = None
    """10^9 bytes/s in one direction."""
    interconnect: str | None = None
    device: Literal["gpu", "cpu"] = "gpu"
    """`cpu`: layers were tried without a GPU, which measures no GPU."""


class RecordTraining(Told):
    """The training run."""

    sequence_length: PositiveInt | None = None
    global_batch_size: PositiveInt | None = None
    """Sequences in one optimizer step."""
    framework: str
    precision: Precision | Literal["mxfp8", "nvfp4"] | None = None
    gradient_precision: GradientPrecision | None = None
    optimizer: str
    optimizer_sharding: Literal["none", "zero1", "zero2", "zero3"] | None = None
    fsdp_ranks: PositiveInt | None = None
    attention: Attention | None = None
    dropout: bool | None = None
    cross_entropy_fusion: bool | None = None


class RecordPlan(Told):
    """How the GPUs were divided and in what order they worked."""

    pipeline_parallel: PositiveInt
    tensor_parallel: PositiveInt
    data_parallel: PositiveInt | None = None
    context_parallel: PositiveInt = 1
    expert_parallel: PositiveInt = 1
    virtual_stages: PositiveInt | None = None
    micro_batch_size: PositiveInt | None = None
    num_microbatches: PositiveInt | None = None
    schedule: str | None = None
    recompute: Recompute | None = None
    recompute_modules: Texts | None = None
    recompute_method: RecomputeMethod | None = None
    recompute_num_layers: PositiveInt | None = None
    sequence_parallel: bool | None = None
    layers_per_stage: tuple[NonNegativeInt, ...] | None = None
    """Transformer layers of each rank, all its chunks together."""


class Measured(Told):
    """What was measured."""

    step_time_s: PositiveFloat | None = None
    step_time_is: Literal["printed", "derived"] | None = None
    model_tflops_per_gpu: PositiveFloat | None = None
    hardware_tflops_per_gpu: PositiveFloat | None = None
    implied_hardware_tflops_per_gpu: PositiveFloat | None = None
    mfu: PositiveFloat | None = None
    hfu: PositiveFloat | None = None
    tokens_per_s_per_gpu: PositiveFloat | None = None
    samples_per_s_per_gpu: PositiveFloat | None = None
    peak_allocated_gib: PositiveFloat | None = None
    """torch's max allocated."""
    peak_reserved_gib: PositiveFloat | None = None
    """torch's max reserved."""
    peak_process_gib: PositiveFloat | None = None
    """nvidia-smi."""
    peak_unspecified_gib: PositiveFloat | None = None
    """A peak whose definition the source does not give."""
    activation_gib: PositiveFloat | None = None
    """The peak less what stays between steps."""
    static_allocated_gib: PositiveFloat | None = None
    min_rank_allocated_gib: PositiveFloat | None = None
    peak_by_stage_gib: Times | None = None
    peak_scope: Scope | None = None
    """Which rank the peak is of."""
    out_of_memory: bool | None = None
    bubble_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    bubble_is: Literal["computed", "timed"] | None = None
    """computed: inside the ranks' own spans, by the authors, from profiled passes; timed: 1 − mean busy share."""
    stage_forward_s: Times | None = None
    stage_backward_s: Times | None = None
    stage_vocabulary_s: Times | None = None
    t_f_s: PositiveFloat | None = None
    t_b_s: PositiveFloat | None = None
    t_w_s: PositiveFloat | None = None
    t_comm_s: PositiveFloat | None = None


class Record(Told):
    """One measured run. What a source does not say is left out."""

    id: str
    group: str
    """Key of the configuration: equal keys are one configuration, across sources."""
    label: Label = Field(default_factory=lambda data: label_of(data.get("group", "")))
    """Whether it may calibrate a constant or tests the predictions; where it is left out, by `label_of`."""
    source: Source
    model: RecordModel
    cluster: RecordCluster
    training: RecordTraining
    plan: RecordPlan
    measured: Measured
    usable_for: tuple[Usable, ...]
    """`_partial`: an input of the prediction is unknown, or there is a caveat."""
    assumed: Texts = ()
    """Paths of fields that the source does not state."""
    resolution: str | None = None
    notes: str | None = None
    flags: Texts = ()

    @model_validator(mode="after")
    def _consistent(self) -> Record:
        check_consistent(self)
        return self


Check = Callable[[Record], object]
"""What raises InputError for a record that does not do."""

PARTS: dict[str, type[Told]] = {
    "": Record,
    "source": Source,
    "model": RecordModel,
    "model.moe": RecordMoe,
    "model.mla": RecordMla,
    "cluster": RecordCluster,
    "training": RecordTraining,
    "plan": RecordPlan,
    "measured": Measured,
}
"""Where in a record which keys are known."""


def shipped_records() -> tuple[Record, ...]:
    """The records that come with the package."""
    data = (resources.files("ppadvisor.evidence") / "data" / SHIPPED).read_bytes()
    return parse_records(gzip.decompress(data).decode(), SHIPPED)


def repeats_in(records: Iterable[Record]) -> frozenset[str]:
    """Ids of the records with flag `repeat` that print the numbers of an earlier one again, to be counted once."""
    seen, repeats, told = set(), set(), {"model", "cluster", "training", "plan", "measured"}
    for record in records:
        numbers = record.source.key, record.model_dump_json(include=told)
        if "repeat" in record.flags and numbers in seen:
            repeats.add(record.id)
        seen.add(numbers)
    return frozenset(repeats)


def read_records(paths: Iterable[Path], check: Check | None = None) -> tuple[Record, ...]:
    """A user's own records. InputError for a file that cannot be read, one without records, and a wrong line."""
    records: dict[str, Record] = {}
    for path in paths:
        for record in parse_records(read_text(path, MAX_BYTES), str(path), check):
            if record.id in records:
                raise InputError(f"{path}: id: {record.id!r} stands in an earlier file too")
            records[record.id] = record
    return tuple(records.values())


def parse_records(text: str, where: str, check: Check | None = None) -> tuple[Record, ...]:
    """The records of JSON lines; empty lines are passed over. InputError that names file, line and field."""
    records: dict[str, Record] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{where}, line {number}"
        record = _parse(line, place, check)
        if record.id in records:
            raise InputError(f"{place}: id: {record.id!r} stands in the file twice")
        records[record.id] = record
    if not records:
        raise InputError(f"{where}: holds no record; needs one JSON object a line")
    return tuple(records.values())


def _parse(line: str, place: str, check: Check | None) -> Record:
    try:
        record = Record.model_validate_json(line)
        if check is not None:
            check(record)
        return record
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise InputError(f"{place}: {error.errors()[0]['msg']}") from None
        unknown = next((one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"), ())
        part = PARTS[".".join(map(str, unknown[:-1]))]
        raise InputError(describe_problem(error, place, tuple(part.model_fields))) from None
