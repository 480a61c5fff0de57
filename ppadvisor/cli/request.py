"""What `plan`, `explain` and `sweep` ask for: one table of options, and how their values become specifications.

The table is the only list of them: command-line options, keys of a job file and axes of a sweep derive from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from ppadvisor.cli.options import CommaList, OneOf, Quantity
from ppadvisor.units import (
    parse_bandwidth,
    parse_batch,
    parse_count,
    parse_memory,
    parse_sequence_length,
    parse_tflops,
)

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

COUNT = Quantity("count", parse_count)
BANDWIDTH = Quantity("bandwidth", parse_bandwidth)
NAME = click.STRING
ATTENTION = OneOf("attention kernel", ("flash", "eager"))
LOSS = OneOf("loss", ("native", "fused", "torch"))


def parse_from_zero(text: str, what: str) -> int:
    """A number that counts from 0, unlike any other: a ZeRO stage, a pipeline stage."""
    return 0 if text.strip() == "0" else parse_count(text, what)


class Input(NamedTuple):
    """One option: its flag, its type, what it says."""

    flag: str
    type: click.ParamType[Any]
    help: str
    pin: str = ""
    """The quantity of a plan that it pins; pins take comma lists."""

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def quantity(self) -> str:
        """What the answers call it."""
        return self.pin or QUANTITIES.get(self.name, self.name)


class Switch(NamedTuple):
    """An option that is on, off, or left to its default."""

    flag: str
    help: str

    @property
    def off(self) -> str:
        return f"--no-{self.flag.removeprefix('--')}"

    def option(self, command: CommandT) -> CommandT:
        """The command with it."""
        return click.option(f"{self.flag}/{self.off}", self.name, default=None, help=self.help)(command)

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")


MODEL_INPUTS = (
    Input("--model", NAME, "Preset name, config.json (or its directory), or our TOML."),
    Input("--layers", COUNT, "Own model: transformer layers."),
    Input("--hidden", COUNT, "Own model: hidden size."),
    Input("--heads", COUNT, "Own model: attention heads."),
    Input("--kv-heads", COUNT, "Own model: key/value heads (default: heads)."),
    Input("--head-dim", COUNT, "Own model: width of a head (default: hidden / heads)."),
    Input("--ffn", COUNT, "Own model: feed-forward width (default: 4 hidden)."),
    Input("--vocab", COUNT, "Own model: vocabulary."),
    Input("--experts", COUNT, "Own model: routed experts."),
    Input("--experts-per-token", COUNT, "Own model: experts a token visits."),
    Input("--expert-ffn", COUNT, "Own model: width of an expert (default: ffn)."),
)
MODEL_SWITCHES = (
    Switch("--gated-mlp", "Own model: gated feed-forward (default: yes)."),
    Switch("--tied-embeddings", "Own model: output layer shares the embedding (default: no)."),
)
CLUSTER_INPUTS = (
    Input("--cluster", NAME, "Cluster preset, or a cluster file (also of `calibrate`)."),
    Input("--gpu", NAME, "GPU preset."),
    Input("--gpus", COUNT, "Number of GPUs."),
    Input("--gpus-per-node", COUNT, "GPUs in one node (default: as the preset's system)."),
    Input("--intra-node-bandwidth", BANDWIDTH, "Per GPU and direction in a node: 450GB/s or 3600Gb/s."),
    Input("--inter-node-bandwidth", BANDWIDTH, "Per GPU and direction between nodes: 50GB/s or 400Gb/s."),
    Input("--gpu-memory", Quantity("memory", parse_memory), "Memory as a program sees it: 79.1GiB."),
    Input("--gpu-tflops", Quantity("tflops", parse_tflops), "Dense peak in TFLOP/s at the training precision."),
    Input("--hbm-bandwidth", BANDWIDTH, "Memory bandwidth of the GPU: 3.35TB/s."),
)
TRAINING_INPUTS = (
    Input("--seq-len", Quantity("tokens", parse_sequence_length), "Tokens of a sequence: 8192 or 8k."),
    Input(
        "--global-batch",
        Quantity("batch", parse_batch),
        "Sequences of a step, or tokens: 1024 or 4Mtok (default: d b m, where pinned).",
    ),
    Input("--framework", NAME, "Trainer (default: megatron)."),
    Input("--stack", NAME, "Software stack, what kernels reach (default: the trainer's)."),
    Input("--precision", OneOf("precision", ("bf16", "fp16", "fp32", "fp8")), "Matrix products (default: bf16)."),
    Input("--optimizer", NAME, "Optimizer (default: adam)."),
    Input("--grad-precision", OneOf("precision", ("fp32", "bf16", "fp16")), "Accumulated gradients (default: fp32)."),
    Input("--attention", ATTENTION, "Attention kernel (default: flash)."),
    Input("--loss", LOSS, "Cross entropy (default: the trainer's)."),
)
TRAINING_SWITCHES = (
    Switch("--fp8-weights", "With fp8: weights kept in fp8 alone (default: no)."),
    Switch("--dropout", "Dropout in the layers (default: no)."),
    Switch("--fused-norm", "Norms in one kernel, not in fp32 steps (default: yes)."),
    Switch("--sequence-parallel", "Divide norms and residuals over t (default: yes)."),
)
PIN_INPUTS = (
    Input("--pp", COUNT, "Pipeline stages p.", "pipeline_parallel"),
    Input("--tp", COUNT, "Tensor parallel t.", "tensor_parallel"),
    Input("--dp", COUNT, "Data parallel d.", "data_parallel"),
    Input("--cp", COUNT, "Context parallel c.", "context_parallel"),
    Input("--ep", COUNT, "Expert parallel e.", "expert_parallel"),
    Input("--etp", COUNT, "Expert tensor parallel (1 and t are searched).", "expert_tensor_parallel"),
    Input("--vp", COUNT, "Virtual stages v of a rank.", "virtual_stages"),
    Input("--micro-batch", COUNT, "Micro-batch size b.", "micro_batch_size"),
    Input("--microbatches", COUNT, "Micro-batches m of a step.", "num_microbatches"),
    Input("--schedule", NAME, "Order of work.", "schedule"),
    Input("--recompute", NAME, "none, selective, full, full:block:4, selective:mlp+moe_act.", "recompute"),
    Input("--zero", Quantity("ZeRO stage", parse_from_zero), "ZeRO stage 0 to 3.", "optimizer_sharding"),
)

QUANTITIES = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
    "experts": "num_experts",
    "expert_ffn": "moe_ffn_hidden_size",
    "gpus": "num_gpus",
    "intra_node_bandwidth": "intra_node_bandwidth_bytes_per_s",
    "inter_node_bandwidth": "inter_node_bandwidth_bytes_per_s",
    "gpu_memory": "gpu_memory_bytes",
    "gpu_tflops": "gpu_peak_flops_per_s",
    "hbm_bandwidth": "hbm_bandwidth_bytes_per_s",
    "seq_len": "sequence_length",
    "global_batch": "global_batch_size",
    "grad_precision": "gradient_precision",
}
"""Names in answers of the inputs that pin nothing, where they differ from the option's."""

INPUTS: tuple[Input, ...] = (*MODEL_INPUTS, *CLUSTER_INPUTS, *TRAINING_INPUTS, *PIN_INPUTS)
SWITCHES: tuple[Switch, ...] = (*MODEL_SWITCHES, *TRAINING_SWITCHES)


def request_options(
    *, axes: bool, kinds: Mapping[str, click.ParamType[Any]] | None = None
) -> Callable[[CommandT], CommandT]:
    """Add every option of the table to a command; with `axes` each takes a comma list, else only the pins do.

    `kinds` are the types of inputs that differ here, by their names.
    """

    def decorate(command: CommandT) -> CommandT:
        for switch in reversed(SWITCHES):
            command = switch.option(command)
        for entry in reversed(INPUTS):
            kind = CommaList(entry.type) if axes or entry.pin else entry.type
            kind = (kinds or {}).get(entry.name, kind)
            command = click.option(entry.flag, entry.name, type=kind, help=entry.help)(command)
        return command

    return decorate


def flag_of(name: str) -> str:
    """`seq_len` -> `--seq-len`."""
    return f"--{name.replace('_', '-')}"


def given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the table that were given."""
    names = [*(entry.name for entry in INPUTS), *(switch.name for switch in SWITCHES)]
    return {name: values[name] for name in names if values.get(name) is not None}
