"""A plan as a train config of torchtitan, read again before it is handed out.

Source: pytorch/torchtitan commit 238fa995, torchtitan/models/llama3/train_configs/ (form), run_train.sh (call).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ppadvisor.errors import RefusedError
from ppadvisor.frameworks.configuration import Configuration, Given, Launch
from ppadvisor.frameworks.read_back import differences, plan_values, training_values
from ppadvisor.frameworks.torchtitan.config import read_toml_text
from ppadvisor.frameworks.torchtitan.flavors import FLAVORS, flavor_of, sizes
from ppadvisor.frameworks.torchtitan.plan import layers_recomputed
from ppadvisor.frameworks.torchtitan.toml_split import stage_options, torch_name
from ppadvisor.specs.cluster import ClusterSpec
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.training import TrainingSpec

NAME = "the train config"
COMMENT_COLUMN = 48
LINE = 110
COMMENTS = {
    "pipeline_parallel_first_stage_less_layers": "what the embedding counts as",
    "pipeline_parallel_last_stage_less_layers": "what norm and head count as",
    "pipeline_parallel_layers_per_stage": "makes the stages of a rank",
}
Setting = tuple[str, int | str | list[str] | list[list[str]], str]
"""Option, value, comment."""


def launch(
    model: ModelSpec, training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec, *, one_connection: bool
) -> Launch:
    """The train config, and what it does not say. RefusedError where torchtitan would refuse it."""
    flavor = flavor_of(model)
    if flavor is None:
        known = "; ".join(f"{name} {', '.join(flavors)}" for name, flavors in FLAVORS.items())
        raise RefusedError(
            f"torchtitan has no flavor with the sizes of {model.name}, and its TOML names none of its own; "
            f"--framework megatron writes any. Known: {known}"
        )
    lines = list(_config(flavor, training, plan, cluster))
    read = read_toml_text("\n".join(lines), NAME, Given(num_gpus=cluster.num_gpus))
    if read.broken:
        raise RefusedError(f"torchtitan does not run this plan: {read.broken[0].message}")
    missing = tuple(_unsaid(model, training, plan, read))
    told = [f"# not said, torchtitan has no option for it: {text}" for text in missing]
    return Launch("\n".join([lines[0], *told, *lines[1:]]) + "\n", read, missing)


def _unsaid(model: ModelSpec, training: TrainingSpec, plan: PlanSpec, read: Configuration) -> Iterator[str]:
    if read.model is None or read.training is None or read.plan is None:
        yield "the whole: no model, training run or plan follows from the options"
        return
    wanted, found = (training_values(one, plan, loss="torch") for one in (training, read.training))
    yield from differences(sizes(model), sizes(read.model), "torchtitan")
    yield from differences(wanted, found, "torchtitan")
    yield from differences(plan_values(plan), plan_values(read.plan), "torchtitan")


def _config(flavor: tuple[str, str], training: TrainingSpec, plan: PlanSpec, cluster: ClusterSpec) -> Iterator[str]:
    yield f"# torchtitan {' '.join(flavor)}: {plan.schedule}, {cluster.num_gpus} GPUs"
    yield "# for torchtitan up to commit 238fa995 (February 2026), the last that reads TOML; later ones take the same"
    yield "# names as options. Yours, behind the call or here: dataset, tokenizer, learning rate, steps, compilation"
    yield f"# {_call(cluster)}"
    yield from _section("model", _model(flavor, training))
    yield from _section("optimizer", [("name", "Adam" if training.optimizer == "adam" else "AdamW", "")])
    yield from _section("training", _training(training, plan))
    yield from _section("parallelism", _parallelism(plan))
    yield from _section("activation_checkpoint", _recomputation(plan))


def _call(cluster: ClusterSpec) -> str:
    of_node = min(cluster.num_gpus, cluster.gpus_per_node)
    nodes = cluster.num_gpus // of_node
    where = ' --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:29500"' if nodes > 1 else ""
    return f"torchrun --nnodes {nodes} --nproc-per-node {of_node}{where} -m torchtitan.train --job.config_file THIS"


def _section(name: str, settings: list[Setting]) -> Iterator[str]:
    yield ""
    yield f"[{name}]"
    for option, value, comment in settings:
        text = f"{option} = {json.dumps(value)}"
        if len(text) > LINE and isinstance(value, list):
            text = "\n".join([f"{option} = [", *(f"  {json.dumps(one)}," for one in value), "]"])
        yield f"{text:<{COMMENT_COLUMN}}  # {comment}" if comment else text


def _model(flavor: tuple[str, str], training: TrainingSpec) -> list[Setting]:
    settings: list[Setting] = [("name", flavor[0], ""), ("flavor", flavor[1], "")]
    if training.precision == "fp8":
        settings.append(("converters", ["quantize.linear.float8"], ""))
    return settings


def _training(training: TrainingSpec, plan: PlanSpec) -> list[Setting]:
    p, b, m, d = plan.pipeline_parallel, plan.micro_batch_size, plan.num_microbatches, plan.data_parallel
    local, passes = (b * m, f"{m} micro-batches x b {b}, in one pass") if p > 1 else (b, f"{m} times a step")
    settings: list[Setting] = [
        ("seq_len", training.sequence_length, ""),
        ("local_batch_size", local, passes),
        ("global_batch_size", training.global_batch_size, f"d {d} x {b * m}"),
    ]
    if training.optimizer == "adam-pure-bf16":
        settings.append(("dtype", "bfloat16", "weights and moments too"))
    if training.precision == "fp32":
        settings.append(("mixed_precision_param", "float32", ""))
    return settings


def _parallelism(plan: PlanSpec) -> list[Setting]:
    p = plan.pipeline_parallel
    settings: list[Setting] = [
        ("data_parallel_replicate_degree", 1, ""),
        ("data_parallel_shard_degree", plan.data_parallel, "weights are divided over these x c"),
        ("fsdp_reshard_after_forward", "never" if plan.optimizer_sharding == 2 else "always", ""),
        ("tensor_parallel_degree", plan.tensor_parallel, ""),
        ("context_parallel_degree", plan.context_parallel, ""),
        ("expert_parallel_degree", plan.expert_parallel, ""),
        ("expert_tensor_parallel_degree", plan.expert_tensor_parallel if plan.expert_parallel > 1 else 1, ""),
        ("pipeline_parallel_degree", p, ""),
    ]
    if p > 1:
        settings += [
            ("pipeline_parallel_schedule", torch_name(plan.schedule), ""),
            ("pipeline_parallel_microbatch_size", plan.micro_batch_size, "b"),
            *((option, value, COMMENTS.get(option, "")) for option, value in stage_options(plan)),
        ]
    return settings


def _recomputation(plan: PlanSpec) -> list[Setting]:
    """`selective` takes every nth layer: the n that recomputes what the plan does, or else the least that is more."""
    choice = plan.recomputation
    if choice.kind != "full" or (choice.method == "uniform" and choice.num_layers == 1):
        return [("mode", "full" if choice.kind == "full" else "none", "")]
    chunks, v = plan.layers_per_chunk, plan.virtual_stages
    if choice.method == "block" and choice.num_layers >= max(chunks):
        return [("mode", "full", "")]
    wanted = (choice.num_layers,) * len(chunks)
    every = range(2, max(chunks) + 1)
    exact = [n for n in every if layers_recomputed(n, plan.schedule, chunks, v) == wanted]
    # more, since with less the plan may run out of memory
    enough = [n for n in every if min(layers_recomputed(n, plan.schedule, chunks, v)) >= choice.num_layers]
    if not (exact or enough):
        return [("mode", "full", "")]
    return [
        ("mode", "selective", ""),
        ("selective_ac_option", str(exact[0] if exact else enough[-1]), "every nth layer"),
    ]
