"""Software stacks: every constant has a range and a source; what is given comes first, then a GPU's generation."""

from __future__ import annotations

import pytest

from ppadvisor import frameworks, load_cluster, load_model
from ppadvisor.errors import InputError
from ppadvisor.evidence.trainers import TRAINERS
from ppadvisor.search.api import make_problem
from ppadvisor.specs.assumptions import DEFAULT, Assumptions
from ppadvisor.specs.load import load_gpu, load_stack, preset_names
from ppadvisor.specs.stack import ANY, StackSpec
from ppadvisor.specs.training import TrainingSpec
from ppadvisor.specs.validation import validate

every_stack = pytest.mark.parametrize("name", preset_names("stacks"))
GENERATIONS = {load_gpu(name).architecture for name in preset_names("gpus")}


@every_stack
def test_constants_are_ranges_with_a_source(name: str) -> None:
    """Each constant lies in a range that leaves something open, for a generation of a GPU, and says where from."""
    stack = load_stack(name)
    assert stack.constants
    for generation, constants in stack.constants.items():
        assert generation in {ANY, *GENERATIONS}
        for constant in constants.values():
            assert constant.low < constant.value < constant.high or constant.low == constant.value < constant.high
            assert len(constant.source) > 15


def test_every_gpu_has_a_generation() -> None:
    """So that no stack misses a preset for want of a name."""
    assert "" not in GENERATIONS


def test_every_trainer_has_a_stack() -> None:
    """The stacks that frameworks and records name are presets, and each preset is named by one of them."""
    named = {frameworks.get(name).stack for name in frameworks.FRAMEWORKS}
    named |= {stack for trainer in TRAINERS for stack in (trainer.stack, trainer.eager_stack) if stack}
    assert named == set(preset_names("stacks"))


def test_a_generation_comes_before_any_and_the_user_before_both() -> None:
    """`any` holds where the GPU's generation says nothing; what the user gave is not touched."""
    constant = {"low": 0.1, "high": 0.9, "source": "made up"}
    spec = {ANY: {"gemm_efficiency": {"value": 0.3, **constant}, "hbm_efficiency": {"value": 0.4, **constant}}}
    spec["hopper"] = {"gemm_efficiency": {"value": 0.5, **constant}}
    stack = validate(StackSpec, {"id": "own", "title": "own", "source": "made up", "constants": spec}, "own")
    on = {name: stack.applied(Assumptions(), name) for name in ("hopper", "ampere", "")}
    assert [on[name].gemm_efficiency.value for name in on] == [0.5, 0.3, 0.3]
    assert [on[name].hbm_efficiency.value for name in on] == [0.4, 0.4, 0.4]
    assert on["hopper"].gemm_efficiency.provenance == "software stack own"
    assert on["hopper"].attention_efficiency.provenance == DEFAULT
    given = stack.applied(Assumptions().changed({"gemm_efficiency": 0.7}), "hopper")
    assert (given.gemm_efficiency.value, given.gemm_efficiency.provenance) == (0.7, "given by the user")


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({ANY: {"gem_efficiency": {"value": 0.5, "low": 0.4, "high": 0.6, "source": "x"}}}, "unknown assumption"),
        ({ANY: {"gemm_efficiency": {"value": 0.7, "low": 0.4, "high": 0.6, "source": "x"}}}, "is not within"),
    ],
)
def test_wrong_stacks_are_refused(constants: dict[str, object], message: str) -> None:
    """A name that no assumption has, a value outside of its range."""
    with pytest.raises(InputError, match=message):
        validate(StackSpec, {"id": "own", "title": "own", "source": "x", "constants": constants}, "own")


def test_the_stack_is_the_frameworks_or_the_users() -> None:
    """Megatron's of today unless another one is named; the problem says which constants are whose."""
    model, cluster = load_model("llama-3.1-70b"), load_cluster("dgx-h100-superpod", 64)
    today = make_problem(model, cluster, TrainingSpec(sequence_length=4096, global_batch_size=64))
    assert today.assumptions.gemm_efficiency == load_stack("megatron").applied(Assumptions(), "hopper").gemm_efficiency
    other = make_problem(
        model, cluster, TrainingSpec(sequence_length=4096, global_batch_size=64, stack="megatron-2021")
    )
    assert other.assumptions.layer_launch_s.provenance == "software stack megatron-2021"
    with pytest.raises(InputError, match="unknown stack 'megatorn'; did you mean 'megatron'"):
        make_problem(model, cluster, TrainingSpec(sequence_length=4096, global_batch_size=64, stack="megatorn"))
