"""Launch scripts of the zero-bubble fork: what its options mean, what it refuses, and plans written for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ppadvisor
from ppadvisor.errors import RefusedError
from ppadvisor.frameworks import recognised
from ppadvisor.frameworks.configuration import Configuration, Given, Outcome
from ppadvisor.frameworks.megatron.options import by_flag
from ppadvisor.frameworks.zero_bubble.config import read_script_text
from ppadvisor.frameworks.zero_bubble.launch import launch
from ppadvisor.frameworks.zero_bubble.split import padded_split
from ppadvisor.specs.load import load_model
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from ppadvisor.specs.training import TrainingSpec
from tests.frameworks.launched import costs_the_same
from tests.frameworks.test_megatron_launch import GPUS, cluster

PLAIN = (
    "--num-layers 30 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 32000 --untie-embeddings-and-output-weights "
    "--transformer-impl local --use-legacy-models --use-flash-attn --pipeline-model-parallel-size 8 "
)
ANSWERS = json.loads((Path(__file__).parent.parent / "published" / "zero_bubble_rule_checks.json").read_text())[
    "answers"
]
ZERO = "--enable-zb-runtime --enable-zero-bubble --allow-padding-num-layers"
IN_A_V = ("zb-v", "v-half", "v-min")
SCHEDULES = (
    *(("zb-h1", 8, 1, "none"), ("zb-h2", 8, 1, "selective"), ("zb-v", 8, 2, "none"), ("v-half", 4, 2, "full")),
    *(("v-min", 4, 2, "selective:layernorm+activation+dropout"), ("gis", 4, 2, "none"), ("gis-h", 4, 2, "none")),
    *(("1f1b", 8, 1, "full:block:2"), ("interleaved-1f1b", 4, 2, "none"), ("none", 1, 1, "full")),
)


def said(options: str) -> Configuration:
    """A call with these options behind the plain ones, on 8 GPUs."""
    return read_script_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {PLAIN} {options}\n", "zb.sh", Given())


def plan_of(model: ModelSpec, schedule: str, p: int, v: int, recompute: str) -> tuple[PlanSpec, int]:
    """(a plan as the fork splits the layers, its batch)."""
    chunks = padded_split(model.num_layers, p, v)
    assert chunks is not None
    folded = schedule in IN_A_V
    plan = PlanSpec(
        pipeline_parallel=p,
        tensor_parallel=2,
        data_parallel=GPUS // (2 * p),
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        virtual_stages=v,
        micro_batch_size=1,
        num_microbatches=32,
        schedule=schedule,
        # p / 2 micro-batches in a group halve the memory (arXiv 2405.15362, GIS-H)
        microbatch_group_size=p // 2 if schedule == "gis-h" else None,
        optimizer_sharding=1,
        layers_per_stage=tuple(chunks[r] + chunks[-1 - r] if folded else sum(chunks[r::p]) for r in range(p)),
        layers_per_chunk=chunks,
        **PlanSpec.recomputation_fields(parse_recomputation(recompute)),
    )
    return plan, 32 * plan.data_parallel


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-405b", "llama-65b"])
@pytest.mark.parametrize(("schedule", "p", "v", "recompute"), SCHEDULES)
def test_the_script_says_the_plan(name: str, schedule: str, p: int, v: int, recompute: str) -> None:
    """Every schedule of the fork: what is read is the same plan, and costs the same time and memory."""
    model = load_model(name)
    plan, batch = plan_of(model, schedule, p, v, recompute)
    training = TrainingSpec(sequence_length=2048, global_batch_size=batch, framework="zero-bubble")
    written = launch(model, training, plan, cluster(), one_connection=True)
    found = read_script_text(written.text, "zb.sh", Given())
    assert (written.unsaid, found.broken, found.remarks, found.plan) == ((), (), (), plan)
    assert found.num_gpus == GPUS
    assert costs_the_same(model, training, plan, found, cluster())
    flags = [word for word in written.text.split() if word.startswith("--") and "=" not in word]
    options = flags[: flags.index("--nnodes")]
    assert set(options) <= by_flag("ppadvisor.frameworks.zero_bubble").keys()


@pytest.mark.parametrize(
    ("options", "schedule", "layers"),
    [
        # its README: p pending is ZB1P, 2 p ZB2P; layers k p - 2 leave one out on the first and last stage
        (f"{ZERO} --zero-bubble-max-pending-backward 8", "zb-h1", (3, *(4,) * 6, 3)),
        (f"{ZERO} --zero-bubble-max-pending-backward 16", "zb-h2", (3, *(4,) * 6, 3)),
        ("--enable-zb-runtime --zero-bubble-v-schedule --allow-padding-num-layers", "zb-v", (2, *(4,) * 7)),
        (
            "--enable-zb-runtime --zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup half --num-layers 32",
            "v-half",
            (4,) * 8,
        ),
        (
            "--enable-zb-runtime --zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup min --num-layers 32",
            "v-min",
            (4,) * 8,
        ),
        ("--num-layers 32 --num-layers-per-virtual-pipeline-stage 2 --interleave-group-size 8", "gis", (4,) * 8),
        ("--num-layers 32 --num-layers-per-virtual-pipeline-stage 2 --interleave-group-size 4", "gis-h", (4,) * 8),
        ("--num-layers 32 --no-pre-communication-optimization", "1f1b", (4,) * 8),
    ],
)
def test_what_options_mean(options: str, schedule: str, layers: tuple[int, ...]) -> None:
    """Schedules of the README and runtime.py, layers as `get_offset` places the padding: last, first, second stage."""
    found = said(options)
    assert found.broken == ()
    assert found.plan is not None
    assert (found.plan.schedule, found.plan.layers_per_stage) == (schedule, layers)


@pytest.mark.parametrize(
    ("options", "rule", "outcome"),
    [
        (f"{ZERO} --transformer-impl transformer_engine", "backward_not_split", Outcome.WRONG),
        (f"{ZERO} --overlap-grad-reduce", "backward_not_split", Outcome.WRONG),
        (f"{ZERO} --use-distributed-optimizer --overlap-grad-reduce", "zero_bubble", Outcome.REJECTED),
        (f"{ZERO} --enable-optimizer-post-validation", "zero_bubble", Outcome.REJECTED),
        ("--enable-zero-bubble", "layers_divide", Outcome.REJECTED),
        ("--num-layers 40 --zero-bubble-v-schedule", "layers_divide", Outcome.REJECTED),
        (f"{ZERO} --no-gradient-accumulation-fusion", "fused_gradients", Outcome.REJECTED),
        ("--num-layers 32", "first_communication", Outcome.REJECTED),
        ("--num-layers 32 --enable-zero-bubble", "first_communication", Outcome.REJECTED),
        (f"{ZERO} --num-virtual-stages-per-pipeline-rank 2", "unknown_option", Outcome.REJECTED),
        (f"{ZERO} --zero-bubble-v-schedule-mem-setup tiny --zero-bubble-v-schedule", "zero_bubble", Outcome.REJECTED),
    ],
)
def test_rules(options: str, rule: str, outcome: Outcome) -> None:
    """zbpp_utils.py, validate_arguments and WeightGradStore.is_supported: refused, or silently the whole backward."""
    assert (rule, outcome) in [(broken.rule, broken.outcome) for broken in said(options).broken]


@pytest.mark.parametrize("answer", ANSWERS, ids=[answer["options"] for answer in ANSWERS])
def test_the_forks_own_answers(answer: dict[str, Any]) -> None:
    """What validate_args of the fork itself answered to these options; and whether the model can be built then."""
    assert said(answer["options"]).accepted == (answer["accepted"] and answer.get("built", True))


def test_connections_and_tied_embeddings() -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS below 8, and embeddings that are not untied, stop it (zbpp_utils.py:73, 93-100)."""
    plain = PLAIN.replace("--untie-embeddings-and-output-weights ", "")
    text = f"export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun --nproc_per_node 8 pretrain_gpt.py {plain} {ZERO}\n"
    found = read_script_text(text, "zb.sh", Given())
    assert [broken.rule for broken in found.broken] == ["untied_embeddings", "many_connections"]


@pytest.mark.parametrize(
    ("options", "kind", "schedule"),
    [
        (ZERO, "assumed", "zb-h2"),  # auto: by the memory that is left
        ("--num-layers 32 --enable-zb-runtime --enable-1f1b-v", "not_modelled", None),
        (f"{ZERO} --cpu-offload", "not_modelled", "zb-h2"),
    ],
)
def test_what_is_not_known_is_told(options: str, kind: str, schedule: str | None) -> None:
    """A schedule without a model has no estimate; a limit that the fork finds by itself is taken as 2 p, and told."""
    found = said(options)
    assert kind in [remark.kind for remark in found.remarks]
    assert (None if found.plan is None else found.plan.schedule) == schedule


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gpt3-175b", {}, "untied embeddings only"),
        ("mixtral-8x7b", {}, "no experts of this kind; megatron would"),
        ("deepseek-v3", {}, "no latent attention; megatron would"),
        ("llama-3.1-8b", {"precision": "fp8"}, "no fp8"),
    ],
)
def test_what_the_fork_cannot_run_is_refused(name: str, changed: dict[str, Any], message: str) -> None:
    """Nothing is planned for what its legacy layers do not have; who has it is said."""
    training = TrainingSpec(sequence_length=2048, global_batch_size=64, framework="zero-bubble", **changed)
    with pytest.raises(RefusedError, match=message):
        ppadvisor.plan(load_model(name), cluster(), training)


def test_its_script_is_told_from_megatrons() -> None:
    """By options that the fork alone has; without them it is Megatron-LM's."""
    assert recognised(Path("train.sh"), f"python pretrain_gpt.py {PLAIN} {ZERO}") == "zero-bubble"
    assert recognised(Path("train.sh"), f"python pretrain_gpt.py {PLAIN}") == "megatron"
