"""Every list of what a layer keeps against what torch's autograd was counted to keep: equal, tensor by tensor."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ppadvisor import frameworks
from ppadvisor.engine.recomputation import layer_saved
from ppadvisor.frameworks.profile import Spread, When
from ppadvisor.specs.recomputation import FULL
from tests.frameworks.counted import CASES, LayerCase, every_layer

PLAIN = ("generic", "torchtitan", "deepspeed", "scaling")
"""Profiles of trainers with plain torch layers."""
OWN_KERNELS = ("megatron", "zero-bubble")


@pytest.mark.parametrize("framework", PLAIN)
@every_layer
def test_a_layer_keeps_what_torch_saves(case: LayerCase, framework: str) -> None:
    """To the byte, for every kind of layer, at a toy's sizes and at a real model's."""
    assert case.bytes_of(case.tensors(framework=framework)) == case.counted["saved_bytes"]


@every_layer
def test_what_waits_for_the_weight_gradient_is_what_torch_holds(case: LayerCase) -> None:
    """To the byte, all that was saved and the gradients of outputs that torch holds between its two steps."""
    expected = case.counted["saved_bytes"] + case.counted["waiting_bytes"]
    assert case.bytes_of(case.tensors("waiting_tensors")) == expected


@pytest.mark.parametrize("framework", PLAIN)
@every_layer
def test_what_a_backward_works_with_is_what_torch_allocates(case: LayerCase, framework: str) -> None:
    """To the byte for dense layers with flash attention; elsewhere within so much of what one layer keeps.

    One layer at a time is in work, so of a stage of several layers the part is as many times smaller.
    """
    ours, kept = case.work_bytes(framework), case.counted["saved_bytes"]
    low, high = work_tolerance(case)
    assert low <= (ours - case.counted["work_bytes"]) / kept <= high


def work_tolerance(case: LayerCase) -> tuple[float, float]:
    """How far below and above, and why."""
    model, run = case.model, case.run
    if run.get("attention") == "eager" and run.get("dropout"):
        return -0.015, 0.05  # a mask may be freed before or after
    if model.moe:
        return -0.001, 0.17  # what shared experts and earlier products have freed by then is not taken off
    if run.get("dropout") or model.norms_per_layer > 2:
        return 0, 0.05  # nor the mask of the layer's end, nor the post-norm's input
    return (-0.02, 0) if model.mla else (0, 0)  # with very wide heads the worst moment is attention's


@every_layer
def test_a_forgotten_tensor_is_noticed(case: LayerCase) -> None:
    """With any one of the tensors left out, the list is no longer what torch counted."""
    for which, counted in (("saved_tensors", 0), ("waiting_tensors", case.counted["waiting_bytes"])):
        whole = case.tensors(which)
        for left_out in whole:
            rest = tuple(tensor for tensor in whole if tensor is not left_out)
            assert case.bytes_of(rest) != case.counted["saved_bytes"] + counted, left_out.name


@every_layer
def test_the_counts_are_of_the_tensors_listed_with_them(case: LayerCase) -> None:
    """The storages that were listed add up to the bytes that were counted; so do numbers and widths of each."""
    sizes = {"bool": 1, "bfloat16": 2, "float32": 4, "int64": 8}
    total = 0
    for line in case.counted["tensors"]:
        match = re.fullmatch(r"(?:(\d+) x )?\[([\d, ]+)\] (\w+): (\d+)", line)
        assert match
        elements = 1
        for length in match[2].split(", "):
            elements *= int(length)
        # a part of a tensor keeps the whole of it
        assert int(match[4]) >= elements * sizes[match[3]]
        total += int(match[1] or 1) * int(match[4])
    assert total == case.counted["saved_bytes"]


def test_every_way_of_dividing_a_tensor_was_counted() -> None:
    """The cases have tensors of every spread between them, each at two sizes, so that no sum is right by chance."""
    lists = (case.tensors(which) for case in CASES for which in ("saved_tensors", "waiting_tensors"))
    seen = [tensor for listed in lists for tensor in listed]
    assert {tensor.spread for tensor in seen} == set(Spread)
    assert {tensor.when for tensor in seen} == {When.ALWAYS}
    assert set(Counter(case.name[:-3] for case in CASES).values()) == {2}


@pytest.mark.parametrize("framework", OWN_KERNELS)
@every_layer
def test_a_trainers_own_kernels_keep_less(case: LayerCase, framework: str) -> None:
    """Fewer bytes than plain torch where a gate, experts or latents are, by the tensors fused away; else as many.

    Megatron-LM core/fusions/fused_bias_swiglu.py (the activated gate; of experts weighed in place, so that their output
    is not kept) and core/transformer/multi_latent_attention.py (`value.contiguous()`: without the keys beside it).
    """
    model, element = case.model, case.problem().training.activation_bytes
    listed = tuple(tensor for tensor in case.tensors(framework=framework) if tensor.when is When.ALWAYS)
    tokens = float(case.inputs().tokens[0]) / case.tensor_parallel
    less = 0.0
    if model.mla:
        less += element * model.num_attention_heads * model.mla.qk_nope_head_dim
    if model.moe:
        k, shared = model.moe.experts_per_token, model.moe.num_shared_experts
        width = k * model.moe.moe_ffn_hidden_size + shared * (model.moe.shared_expert_ffn_hidden_size or 0)
        less += element * k * model.hidden_size * case.tensor_parallel
        router = 4 * model.moe.num_experts + (28 + element) * k + 4 - 16 * model.moe.num_experts
        less += router * case.tensor_parallel
    else:
        width = model.ffn_hidden_size
    less += element * width if model.gated_mlp else 0
    assert case.bytes_of(listed) == pytest.approx(case.counted["saved_bytes"] - tokens * less, abs=1)


@every_layer
def test_full_recomputation_keeps_the_input(case: LayerCase) -> None:
    """b s h elements, whatever the layer (Korthikanti et al. 2022, section 5); torch's checkpoint is counted live."""
    inputs = case.inputs()
    elements = case.micro_batch_size * inputs.problem.training.sequence_length * case.model.hidden_size
    expected = elements * inputs.problem.training.activation_bytes
    assert layer_saved(inputs, FULL).tolist() == [[expected]]


def test_every_framework_is_held_to_the_counts() -> None:
    """No profile stands outside these tests."""
    assert {*PLAIN, *OWN_KERNELS} == set(frameworks.FRAMEWORKS)
