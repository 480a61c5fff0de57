"""Questions that cannot be meant: each is an InputError that says why."""

from __future__ import annotations

from typing import Any

import pytest

from ppadvisor.errors import InputError
from ppadvisor.search.api import make_problem, plan
from ppadvisor.search.pins import Pins
from ppadvisor.specs.load import load_gpu
from tests.problems import cluster, model, problem
from tests.search.asked import ask

BAD_PINS: list[tuple[Pins, dict[str, Any], tuple[str, ...]]] = [
    (Pins(pipeline_parallel=(16,)), {}, ("pipeline_parallel", "16", "12 layers")),
    (
        Pins(pipeline_parallel=(4,), tensor_parallel=(8,)),
        {},
        ("16 GPUs", "pipeline_parallel = 4", "tensor_parallel = 8"),
    ),
    (Pins(tensor_parallel=(3,)), {}, ("16 GPUs", "tensor_parallel = 3")),
    (Pins(data_parallel=(5,)), {}, ("16 GPUs", "data_parallel = 5")),
    (Pins(num_microbatches=(7,)), {}, ("num_microbatches", "7", "B = 64")),
    (Pins(micro_batch_size=(3,)), {}, ("micro_batch_size", "3", "B = 64")),
    (
        Pins(num_microbatches=(7,), micro_batch_size=(2,), data_parallel=(2,)),
        {},
        ("num_microbatches", "7", "B = 64", "d = 2", "m is 16"),
    ),
    (Pins(expert_parallel=(2,)), {}, ("expert_parallel", "2", "gpt", "no experts")),
    (Pins(expert_tensor_parallel=(2,)), {}, ("expert_tensor_parallel", "2", "no experts")),
    (Pins(schedule=("zigzag",)), {}, ("schedule", "'zigzag'", "1f1b")),
    (Pins(schedule=("gpype",)), {}, ("did you mean 'gpipe'",)),
    (Pins(schedule=("gpipe",)), {"framework": "megatron"}, ("'gpipe'", "megatron", "1f1b", "generic")),
    (Pins(optimizer_sharding=(3,)), {"framework": "megatron"}, ("optimizer_sharding", "3", "megatron", "0, 1")),
    (Pins(recompute=("some",)), {}, ("recompute", "'some'", "selective")),
    (Pins(virtual_stages=(2,), schedule=("1f1b",)), {}, ("virtual_stages", "2", "1f1b: 1")),
    (Pins(schedule=("naive",), num_microbatches=(8,)), {}, ("num_microbatches", "8", "naive", "m = 1")),
    (Pins(schedule=("none",), pipeline_parallel=(4,)), {}, ("schedule = none", "pipeline_parallel = 4")),
    (Pins(schedule=("1f1b",), pipeline_parallel=(1,)), {}, ("schedule = 1f1b", "pipeline_parallel = 1")),
    (Pins(data_parallel=(16,)), {"global_batch_size": 24}, ("global_batch_size 24", "16")),
    (Pins(tensor_parallel=(0,)), {}, ("tensor_parallel", "0", "at least 1")),
    (Pins(optimizer_sharding=(-1,)), {}, ("optimizer_sharding", "-1", "at least 0")),
    (Pins(micro_batch_size=()), {}, ("micro_batch_size", "nothing")),
]


@pytest.mark.parametrize(("pins", "run", "words"), BAD_PINS, ids=[repr(pins.given()) for pins, _, _ in BAD_PINS])
def test_pins_that_cannot_be_meant(pins: Pins, run: dict[str, Any], words: tuple[str, ...]) -> None:
    """Each is an InputError that names what was pinned, the numbers it contradicts and what is allowed."""
    of = problem(**run)
    with pytest.raises(InputError) as error:
        plan(of.model, of.cluster, of.training, pins=pins)
    for word in words:
        assert word in str(error.value)


def test_expert_pins_that_do_not_divide_are_told_why() -> None:
    """e that does not divide the ranks of a stage: the message says what it must divide."""
    with pytest.raises(InputError, match=r"expert_parallel = 3.*must divide tensor x context x data parallel"):
        ask(problem(model("moe")), Pins(expert_parallel=(3,)))


def test_a_precision_that_the_gpu_lacks() -> None:
    """bf16 on a V100 is refused with what the V100 has."""
    machines = cluster(8).changed(gpu=load_gpu("v100-sxm-32gb"))
    with pytest.raises(InputError, match=r"bf16.*V100.*allowed: .*fp16"):
        plan(model(), machines, problem().training)


def test_a_sequence_longer_than_its_positions() -> None:
    """Learned positions end somewhere: 4096 of them and a sequence of 8192 contradict each other."""
    with pytest.raises(InputError, match=r"8192.*gpt.*4096"):
        ask(problem(sequence_length=8192))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("optimizer", "adma", r"unknown optimizer 'adma'; did you mean 'adam"),
        ("framework", "megatrn", r"unknown framework 'megatrn'; did you mean 'megatron'"),
    ],
)
def test_unknown_names_of_the_training_run(field: str, value: str, message: str) -> None:
    """An unknown optimizer or framework is answered with the nearest."""
    of = problem()
    with pytest.raises(InputError, match=message):
        make_problem(of.model, of.cluster, of.training.changed(**{field: value}))


def test_an_unknown_sort_key() -> None:
    """So is an unknown sort key."""
    with pytest.raises(InputError, match=r"unknown sort key 'peak'; did you mean 'peak_bytes'"):
        ask(problem(), sort="peak")
