"""What stands behind the words of a record: which of our trainers its framework is, which schedule its name means.

Data, and nothing else. `ppadvisor validate --frameworks` prints TRAINERS.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppadvisor import frameworks
from ppadvisor.specs.cluster import Precision
from ppadvisor.specs.recomputation import MODULES
from ppadvisor.specs.training import Loss


@dataclass(frozen=True)
class Trainer:
    """Our profile for a record's `training.framework`, and what that trainer does where the record does not say."""

    framework: str
    """As the record names it."""
    profile: str
    """Id of our framework profile."""
    loss: Loss | None = None
    """None: the profile's own."""
    half_gradients: tuple[Precision, ...] = ()
    """Precisions in which gradients have 16 bits (else fp32 ones)."""
    dropout: bool = False
    """Dropout in models of GPT's kind (LayerNorm, no gate)."""
    sequence_parallel: bool = False
    stack: str | None = None
    """Software stack; None: the profile's own."""
    eager_stack: str | None = None
    """That of runs without flash attention, where it is another one."""
    divides_modules: bool = False
    """An even split is one of modules: the embedding, the layers, the final norm and the head, each counted as one."""
    fused_norm: bool = True
    """Norms in one kernel (a record's flag `fused_norm_kernel` says so of a run)."""
    fp8_weights: bool = False
    """Its recipes keep weights in fp8 alone, where `KEEP_16_BIT` does not say otherwise."""
    why: str = ""

    @property
    def loss_in_use(self) -> Loss:
        return self.loss or frameworks.get(self.profile).default_loss


LEGACY = "Megatron's layers before Transformer Engine, gradients in the weights' precision"

TRAINERS: tuple[Trainer, ...] = (
    Trainer("megatron", "megatron", dropout=True, sequence_parallel=True, eager_stack="megatron-2021", why="the same"),
    Trainer(
        "megatron-bridge",
        "megatron",
        sequence_parallel=True,
        half_gradients=("bf16", "fp8"),
        fp8_weights=True,
        why="a front end of Megatron-Core; its performance recipes set grad_reduce_in_fp32 = False, and with fp8 and "
        "mxfp8 fp8_param_gather",
    ),
    Trainer("nemo", "megatron", sequence_parallel=True, why="a front end of Megatron-Core"),
    Trainer("primus", "megatron", why="Megatron-Core on AMD"),
    Trainer(
        "megatron-deepspeed",
        "deepspeed",
        "native",
        half_gradients=("fp16",),
        dropout=True,
        stack="megatron-2021",
        why="DeepSpeed's pipeline engine around Megatron's layers and its vocabulary-parallel loss",
    ),
    Trainer("vocab-parallel", "zero-bubble", half_gradients=("fp16",), dropout=True, why=LEGACY),
    Trainer("zero-bubble", "zero-bubble", half_gradients=("fp16",), dropout=True, why="the same"),
    Trainer("pipeoffload", "zero-bubble", half_gradients=("fp16",), dropout=True, why=LEGACY),
    Trainer(
        "deepspeed",
        "deepspeed",
        stack="deepspeed-2021",
        half_gradients=("fp16",),
        dropout=True,
        why="ZeRO-3 around Megatron-LM's layers",
    ),
    Trainer("torchtitan", "torchtitan", why="the same"),
    Trainer("llm-foundry", "torchtitan", stack="fsdp-2023", why="FSDP around plain torch layers"),
    Trainer("llama3-internal", "torchtitan", why="FSDP, torch layers, its own pipelining"),
    # core/nn/parallel_module/pipeline_partitioning.py, pipe_partition_uniform, its default (topology_config.py:72)
    Trainer("aa-scaling", "scaling", divides_modules=True, fused_norm=False, why="the same"),
    Trainer("internevo", "generic", why="torch layers with ZeRO of its own"),
    Trainer("galvatron", "generic", why="torch layers, Megatron's tensor parallelism, its own pipelining"),
    Trainer("generic", "generic", why="the same"),
)
"""Source of the profiles: their own modules. Dropout and gradients: megatron/training/arguments.py (hidden dropout
0.1; --accumulate-allreduce-grads-in-fp32 is off under fp16 and forced under bf16)."""

UNKNOWN = "generic"
"""The trainer of a framework that is not listed: no record is left out for its name."""

KEEP_16_BIT: tuple[tuple[str, str], ...] = (("GPT-OSS", ""), ("Kimi K2", ""), ("DeepSeek-V3", "h100"))
"""(start of the model's name, of the GPU's) whose fp8 recipes keep 16-bit weights. Source: NVIDIA-NeMo/Megatron-Bridge
067f987d, training/mixed_precision.py (fp8_param_gather of each precision) and perf_recipes/, which override it."""

SCHEDULE_NAMES: dict[str, str] = {
    "zb-2p-synchronous-optimizer": "zb-2p",
    "zb-h2-synchronous-optimizer": "zb-h2",
    "zb-v-formatted": "zb-v",
    "zero-bubble": "zb-h1",
}
"""Schedules that records name differently, or in a variant that we do not tell apart."""

OFFLOADS = "PipeOffload moves activations to the host; offloading is not modelled"

NOT_MODELLED: dict[str, str] = {"po-h": OFFLOADS, "po-f": OFFLOADS}

ONE_LAYER_A_CHUNK = ("gis", "gis-h")
"""Schedules with as many chunks a rank as it has layers, where the record does not say. Source: PipeOffload's script
examples/pretrain_offload.sh, commit 39f2c186: --num-layers-per-virtual-pipeline-stage 1."""

UNSPECIFIED: dict[str, str] = {
    "zerobubble": "allocated",
    "galvatron_profile": "allocated",
    "mbridge_skills": "allocated",
    "primus": "process",
}
"""Source -> what its peak most likely is. Zero Bubble and Megatron-Bridge log torch's max allocated; Galvatron adds
model states and activations, both allocated; Primus logs the memory that the driver reports as used."""

ELSEWHERE = "allocated"
"""Of every other source: the number that trainers print most."""


MODULES_IN_NOTES: dict[str, str] = {**{name: name for name in MODULES}, "norm": "layernorm", "act": "moe_act"}
"""How notes name recomputed modules, where the record's own field is empty: `recomputed modules: mlp, core_attn`."""

READ_ON_ONE_NODE = ("bigscience_1b3", "bigscience_104b_tune", "bigscience_gpt2_v100", "bloom_104b_mem")
"""Sources whose memory was read with nvidia-smi on the first node, where they say no more. DeepSpeed places pipeline
stages outermost (runtime/pipe/topology.py), so that a node of a small run holds the first stages alone."""


def keeps_fp8_weights(trainer: Trainer, precision: str, model: str, gpu: str) -> bool:
    """Whether a run's weights are in fp8 alone, by its trainer's recipes; in nvfp4 they stay in 16 bit."""
    wide = any(model.startswith(name) and gpu.startswith(kind) for name, kind in KEEP_16_BIT)
    return trainer.fp8_weights and precision in ("fp8", "mxfp8") and not wide


def trainer_of(framework: str) -> Trainer | None:
    """The trainer of a record's framework; None for a name that is not listed."""
    return next((trainer for trainer in TRAINERS if trainer.framework == framework), None)
