"""A plan as the bash fragment that starts Megatron-LM, read again before it is handed out.

Source: NVIDIA/Megatron-LM d98e8a64, examples/ (form of the call), arguments.py:1453-1479 (one connection); PyTorch's
`torchrun --help`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Given, Launch
from ppadvisor.frameworks.megatron.config import read_script_text
from ppadvisor.frameworks.megatron.launch_model import Flag, model_flags
from ppadvisor.frameworks.megatron.launch_plan import parallel_flags, training_flags
from ppadvisor.frameworks.megatron.read_back import unsaid
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

COMMENT_COLUMN = 52
MOST_GPUS_OF_A_HOST = 16
NAME = "the launch script"


def launch(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec, *, one_connection: bool
) -> Launch:
    """The fragment, and what it does not say. RefusedError where Megatron would refuse it."""
    lines = list(_script(model, training, plan, cluster, one_connection=one_connection))
    read = read_script_text("\n".join(lines), NAME, Given(one_connection=one_connection))
    if read.broken:
        raise RefusedError(f"Megatron-LM does not run this plan: {read.broken[0].message}")
    missing = tuple(unsaid(model, training, plan, read))
    told = [f"# not said, Megatron-LM has no option for it: {text}" for text in missing]
    return Launch("\n".join([lines[0], *told, *lines[1:]]) + "\n", read, missing)


def _script(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec, *, one_connection: bool
) -> Iterator[str]:
    name = " ".join(model.name.split())
    yield f"# {name}: {training.sequence_length} tokens a sequence, {plan.schedule}, {cluster.num_gpus} GPUs"
    yield '# yours, taken from "$@": data, tokenizer, learning rate, iterations, rotary base, initialisation'
    if one_connection and (plan.tensor_parallel > 1 or plan.context_parallel > 1):
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=1  # t or c above 1, up to Hopper"
    yield ""
    arrays = {
        "MODEL_ARGS": model_flags(model, training.sequence_length),
        "PARALLEL_ARGS": parallel_flags(model, training, plan),
        "TRAINING_ARGS": training_flags(model, training, plan),
    }
    yield from call_with(arrays, cluster)


def call_with(arrays: Mapping[str, Iterable[Flag]], cluster: ClusterSpec) -> Iterator[str]:
    """Arrays of options, and the call of the training script with all of them."""
    for name, flags in arrays.items():
        yield from _array(name, flags)
    yield from _call(cluster, " ".join(f'"${{{name}[@]}}"' for name in arrays))


def _array(name: str, flags: Iterable[Flag]) -> Iterator[str]:
    yield f"{name}=("
    for one in flags:
        words = "  " + " ".join([one.name, *map(shlex.quote, one.values)])
        if one.comment and len(words) > COMMENT_COLUMN:
            yield f"  # {one.comment}"
            yield words
        else:
            yield f"{words:<{COMMENT_COLUMN}}  # {one.comment}" if one.comment else words
    yield ")"


def _call(cluster: ClusterSpec, options: str) -> Iterator[str]:
    of_node = min(cluster.num_gpus, cluster.gpus_per_node)
    nodes = cluster.num_gpus // of_node
    yield ""
    if of_node > MOST_GPUS_OF_A_HOST:
        yield f"# {of_node} GPUs share one NVLink domain; a host has fewer: give --nnodes and --nproc-per-node by hosts"
    yield f"torchrun --nnodes {nodes} --nproc-per-node {of_node} \\"
    if nodes > 1:
        yield '  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-6000}" \\'
    yield "  pretrain_gpt.py \\"
    yield f'  {options} "$@"'
