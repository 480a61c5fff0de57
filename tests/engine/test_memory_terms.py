"""Memory term by term and moment by moment, each worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory_activations import (
    embedding_activations_bytes,
    head_activations_bytes,
    logits_bytes,
    saved_activations_bytes,
    sent_outputs_bytes,
)
from ppadvisor.engine.memory_axes import Term, in_table
from ppadvisor.engine.memory_states import (
    autograd_gradients_bytes,
    gathered_parameters_bytes,
    main_gradients_bytes,
    weight_gradient_buffers_bytes,
)
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import drops
from ppadvisor.engine.split_work import recomputed_layer_bytes
from ppadvisor.frameworks.profile import Tensor
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from tests.engine.memory_cases import every_framework, memory_of, term
from tests.problems import MOE, model, plan, problem, table_of


def by_moment(function: Callable[[PlanInputs], Term], of: Problem, one: PlanSpec) -> list[list[float]]:
    """A term of each stage at each of MOMENTS."""
    inputs = PlanInputs.of(of, table_of([one]), every_stage=True)
    values = in_table(function(inputs), inputs.stages.count.shape)
    return [[float(value) for value in stage] for stage in values[0]]


@pytest.mark.parametrize(("schedule", "in_flight"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8])])
def test_the_stash_comes_and_goes(schedule: str, in_flight: list[int]) -> None:
    """All in flight while a layer or the head works, one less in the embedding's backward, none at the optimizer."""
    of = problem(model("llama"))
    one = term(of, "saved_activations", plan([3] * 4, schedule="gpipe", num_microbatches=1))
    found = by_moment(saved_activations_bytes, of, plan([3] * 4, schedule=schedule))
    for stage, count in enumerate(in_flight):
        *at_work, embedding, optimizer = found[stage]
        assert at_work == pytest.approx([count * one[stage]] * 3, rel=1e-12)
        assert optimizer == 0
        if stage == 0:  # where the embedding is
            assert embedding == pytest.approx((count - 1) * one[stage], rel=1e-12)


T, H = 2 * 2048 / 2, 512
"""Tokens of a rank (two sequences, c = 2) and hidden size of the plans below; t = 4 with sequence parallelism."""
AT_WORK = {"tensor_parallel": 4, "context_parallel": 2, "micro_batch_size": 2}


def test_what_the_ends_keep() -> None:
    """Token ids and dropout mask on the first stage, the final norm on the last, of each micro-batch in flight."""
    of, one = problem(model("gpt"), dropout=True), plan([6, 6], **AT_WORK)
    first, last = by_moment(embedding_activations_bytes, of, one)
    assert first == [2 * T * (8 + H / 4)] * 3 + [T * (8 + H / 4), 0]
    assert last == [0] * 5
    first, last = by_moment(head_activations_bytes, of, one)
    assert first == [0] * 5
    # 1F1B has one in flight there, whose logits are counted apart
    assert last[:3] == [2 * 2 * T * H / 4] * 3
    assert last[4] == 0


def test_gpipe_keeps_every_loss() -> None:
    """With 8 micro-batches in flight on the last stage 7 losses wait: 6 bytes for each of T V / t logits."""
    of, one = problem(model("llama"), sequence_parallel=False), plan([6, 6], schedule="gpipe", **AT_WORK)
    _, last = by_moment(head_activations_bytes, of, one)
    norm, losses = 8 * 2 * 2 * T * H, 7 * 6 * T * 5000 / 4
    assert last[:3] == [norm + losses] * 3


def test_sent_outputs_live_until_their_backward_unless_they_are_freed() -> None:
    """T h of 16 bit for each micro-batch in flight where a stage sends; Megatron frees them after the send.

    NVIDIA/Megatron-LM core/pipeline_parallel/schedules.py:171, deallocate_output_tensor.
    """
    one = plan([4, 4, 4], **AT_WORK)
    found = by_moment(sent_outputs_bytes, problem(model("llama")), one)
    assert [stage[0] for stage in found] == [3 * 2 * T * H / 4, 2 * 2 * T * H / 4, 0]
    found = by_moment(sent_outputs_bytes, problem(model("llama"), framework="megatron"), one)
    assert found == [[0] * 5] * 3


@every_framework
def test_recomputation_works_on_one_layer_at_a_time(framework: str) -> None:
    """While a layer's backward runs, what its forward keeps is there again, less what was never dropped; else not.

    Of eager attention, where what is dropped is alive at the layer's worst moment.
    """
    of = problem(model("llama"), framework=framework, attention="eager")
    kept = {
        recompute: term(of, "saved_activations", plan([12], recompute=recompute))[0] / 12
        for recompute in ("none", "selective", "full")
    }
    for recompute, of_layer in kept.items():
        (found,) = by_moment(recomputed_layer_bytes, of, plan([12], recompute=recompute))
        assert found[0] == pytest.approx(kept["none"] - of_layer, rel=1e-12)
        assert found[1:] == [0] * 4


@pytest.mark.parametrize(("zero", "a_parameter"), [(0, 0), (1, 0), (2, 4), (3, 4 + 2 * 2)])
def test_sharded_states_are_whole_where_they_are_in_work(zero: int, a_parameter: int) -> None:
    """ZeRO-2: the whole fp32 gradient of one layer; ZeRO-3: also the 16-bit weights of it and of the next one."""
    of = problem(model("llama"))
    layer = 2 * H + 2 * H * 512 + 2 * H * 128 + 3 * H * 1792
    for d, many in ((1, 0), (4, 1)):
        one = plan([6, 6], data_parallel=d, optimizer_sharding=zero)
        for stage in by_moment(gathered_parameters_bytes, of, one):
            assert stage == [many * a_parameter * layer] * 4 + [0]


@pytest.mark.parametrize(("framework", "at"), [("megatron", [0, 0, 0, 0, 1]), ("deepspeed", [1, 1, 1, 1, 1])])
def test_the_fp32_copy_of_16_bit_gradients(framework: str, at: list[int]) -> None:
    """4 bytes a parameter, over d = 2 from ZeRO-1 on: Megatron frees it after the step, DeepSpeed keeps it; or none."""
    half = problem(model("llama"), framework=framework, precision="bf16", gradient_precision="bf16")
    for zero, ways in ((0, 1), (1, 2)):
        one = plan([6, 6], data_parallel=2, optimizer_sharding=zero)
        dense = PlanInputs.of(half, table_of([one]), every_stage=True).parameters[0][0]
        expected = [[alive * 4 * float(stage) / ways for alive in at] for stage in dense]
        assert by_moment(main_gradients_bytes, half, one) == expected
    full = problem(model("llama"), framework=framework, precision="bf16", gradient_precision="fp32")
    assert by_moment(main_gradients_bytes, full, one) == [[0] * 5] * 2


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed"])
def test_deepspeed_keeps_autograds_gradients(framework: str) -> None:
    """bf16_optimizer.py: `update_hp_grads` adds `lp.grad` to the fp32 one and leaves it, 2 bytes a parameter, whole."""
    one = plan([6, 6], data_parallel=2, optimizer_sharding=1)
    for gradient, each in (("fp32", 2), ("bf16", 0)):
        of = problem(model("llama"), framework=framework, precision="bf16", gradient_precision=gradient)
        parameters = PlanInputs.of(of, table_of([one]), every_stage=True).parameters[0][0]
        kept = each if framework == "deepspeed" else 0
        assert by_moment(autograd_gradients_bytes, of, one) == [[kept * float(stage)] * 5 for stage in parameters]
    exact = problem(model("llama"), framework=framework, precision="fp32")
    assert by_moment(autograd_gradients_bytes, exact, one) == [[0] * 5] * 2


def test_megatrons_gradient_buffers_are_one_of_each_shape() -> None:
    """Transformer Engine: 16 bit for each matrix shape of a layer, one expert standing for all, and for the head's."""
    of = problem(model("moe"), framework="megatron")
    first, last = by_moment(weight_gradient_buffers_bytes, of, plan([6, 6], tensor_parallel=2, expert_parallel=2))
    dense = 2 * H * 512 / 2 + 2 * H * 128 / 2 + 3 * H * 1792 / 2
    assert first == [2 * dense] * 5  # the dense layer is the larger: its experts are 512 wide
    vocabulary = 5120  # 5000 padded to a multiple of 128 t
    moe = 2 * H * 512 / 2 + 2 * H * 128 / 2 + H * 8 + 3 * H * 512 + 3 * H * 512 / 2
    assert last == [2 * (moe + H * vocabulary / 2)] * 5


def test_the_head_gathers_its_input_under_sequence_parallelism() -> None:
    """T h of 16 bit beside the logits, at the loss and in the head's backward, on the last stage alone."""
    one = plan([6, 6], **AT_WORK)
    with_, without = (
        by_moment(logits_bytes, problem(model("llama"), sequence_parallel=parallel), one) for parallel in (True, False)
    )
    assert with_[0] == without[0] == [0] * 5
    logits = T * 5000 / 4
    assert without[1] == [0, 14 * logits, 4 * logits, 0, 0]
    assert with_[1] == [0, 14 * logits + 2 * T * H, 4 * logits + 2 * T * H, 0, 0]


def test_a_large_vocabulary_binds_the_last_stage() -> None:
    """With a vocabulary of a million the loss's moments on the last stage are the peak; with a small one stage 0's."""
    peaks = {}
    for vocab_size in (1000, 1_000_000):
        of = problem(model("llama", vocab_size=vocab_size), sequence_length=4096)
        memory = estimate_plan(of, plan([3] * 4), margin=0.9).memory
        peaks[vocab_size] = (memory.binding_stage, memory.stages[memory.binding_stage].moment)
    assert peaks[1000] == (0, "layer_backward")
    assert peaks[1_000_000] == (3, "loss")


@pytest.mark.parametrize(("loss", "per_logit"), [("native", 6), ("fused", 2), ("torch", 14)])
def test_logits_take_the_bytes_of_the_loss(loss: str, per_logit: int) -> None:
    """At the loss's worst moment: 2 (16-bit logits) + 4 (fp32) native, 2 fused, 2 + 4 + 4 + 4 in plain torch.

    Times the logits of one micro-batch, s b V / t.
    """
    of = problem(model("llama", vocab_size=1_000_000), loss=loss, sequence_parallel=False)
    stage = estimate_plan(of, plan([6, 6], tensor_parallel=2, micro_batch_size=2), margin=0.9).memory.stages[-1]
    if stage.moment == "loss":
        assert stage.terms["logits"] == per_logit * 2048 * 2 * 1_000_000 / 2
    else:
        assert (loss, stage.moment) == ("fused", "head_backward")


@every_framework
def test_only_pipelines_have_receive_buffers(framework: str) -> None:
    """Two tensors of s b h / (c t) in 16 bit where p > 1 (with sequence parallelism), none where p = 1."""
    of = problem(model("llama"), framework=framework)
    one = {"tensor_parallel": 2, "context_parallel": 2, "micro_batch_size": 4}
    assert term(of, "handoff_buffers", plan([12], **one)) == [0]
    assert term(of, "handoff_buffers", plan([6, 6], **one)) == [2 * 2 * 2048 * 4 * 512 / (2 * 2)] * 2


def test_unbalanced_experts_widen_the_conservative_end_only() -> None:
    """Assuming 1.5 times the mean tokens on the fullest rank raises the conservative end, not the middle estimate."""
    of = problem(model("moe"))
    balanced = replace(of.assumptions.expert_load_factor, high=1.0)
    calm = replace(of, assumptions=replace(of.assumptions, expert_load_factor=balanced))
    one = plan([6, 6], expert_parallel=4, data_parallel=4)
    first, second = (estimate_plan(x, one, margin=0.9).memory for x in (calm, of))
    assert first.peak_bytes == second.peak_bytes
    assert first.conservative_bytes < second.conservative_bytes


def widening(recompute: str) -> float:
    """Bytes that an uneven routing adds to the first stage of 4, 3 MoE layers each, 4 micro-batches in flight."""
    of = problem(model("moe", moe=MOE.changed(first_dense_layers=0)))
    one = plan([3] * 4, expert_parallel=4, data_parallel=4, num_microbatches=8)
    one = one.changed(**PlanSpec.recomputation_fields(parse_recomputation(recompute)))
    return float(memory_of(of, one).above["unbalanced"][0, 0])


def test_what_is_made_again_is_unbalanced_only_in_work() -> None:
    """4 micro-batches hold the dispatched tokens of 3 layers each: 12 times what the layer in work has."""
    of_layer = widening("none") / 12
    assert widening("selective:moe") == pytest.approx(of_layer)
    assert widening("full") == pytest.approx(of_layer)
    assert widening("full:uniform:2") == pytest.approx(2 * of_layer)
    assert widening("full:block:1") == pytest.approx((8 + 1) * of_layer)


@pytest.mark.parametrize("framework", ["megatron", "generic"])
def test_what_was_never_saved_is_not_freed(framework: str) -> None:
    """With feed-forward and attention core made again, attention's backward finds nothing freed of the feed-forward.

    The layer in work then holds the larger of two sums, each of what is made again and what its backward needs.
    """
    of = problem(model("llama"), framework=framework, attention="eager")
    one = plan([12], recompute="selective", recompute_modules=("mlp", "core_attn"))
    inputs = PlanInputs.of(of, table_of([one]), every_stage=True)
    (kind,) = inputs.kinds
    work = of.framework.backward_work(of.model, of.training, kind)
    saved = of.framework.saved_tensors(of.model, of.training, kind)
    again = [t for t in saved if drops(one.recomputation, t)]

    def size(tensors: list[Tensor], half: int) -> float:
        return sum(float(inputs.tensor_bytes((t,))[0]) for t in tensors if t.attention_share == half)

    kept = [t for t in saved if t not in again]
    assert not [t for t in again if t.attention_share not in (0, 1)]
    freed = sum((1 - t.attention_share) * float(inputs.tensor_bytes((t,))[0]) for t in kept)
    feed_forward = size(again, 0) + sum(float(inputs.tensor_bytes((t,))[0]) for t in work if t.attention_share < 1)
    attention = size(again, 1) + sum(float(inputs.tensor_bytes((t,))[0]) for t in work if t.attention_share > 0) - freed
    table = memory_of(of, one)
    held = table.terms["recomputed_layer"][0, 0] + table.terms["layer_backward_work"][0, 0]
    assert held == pytest.approx(max(feed_forward, attention))
    assert attention > feed_forward


def test_weights_in_fp8_alone_have_no_16_bit_original() -> None:
    """4 bytes a weight become 2: the fp8 copy and its transpose stay, the 16-bit weight goes; no other tensor moves."""
    one = plan([3] * 4)
    beside, alone = (
        memory_of(problem(model("llama"), framework="megatron", precision="fp8", fp8_weights=kept), one).terms
        for kept in (False, True)
    )
    assert alone["weights"] * 2 == pytest.approx(beside["weights"])
    assert {name for name in beside if not np.allclose(beside[name], alone[name])} == {
        "weights",
        "allocator_overhead",  # a share of the tensors
    }
