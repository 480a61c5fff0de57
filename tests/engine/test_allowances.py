"""What the process holds beyond the tensors, and buffers that only some trainers keep: worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import ALLOWANCES, BETWEEN_STEPS, TERMS, communicator_groups, memory_table, together
from ppadvisor.engine.memory_activations import (
    head_activations_bytes,
    logits_bytes,
    sent_outputs_bytes,
    spread_head_bytes,
)
from ppadvisor.engine.memory_states import step_blocks_bytes
from ppadvisor.frameworks import FRAMEWORKS
from ppadvisor.specs.assumptions import Assumptions
from tests.engine.memory_cases import memory_of
from tests.engine.test_memory_terms import by_moment
from tests.problems import model, plan, problem, table_of

T, H, V = 2048, 512, 5000
"""Tokens of a micro-batch, hidden size and vocabulary of the small models."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ends_of_a_range_add_up_like_independent_errors(framework: str) -> None:
    """The conservative end is the middle plus the root of the sum of squares of what each allowance may be above it."""
    of = problem(model("llama"), framework=framework)
    table = memory_table(
        PlanInputs.of(of, table_of([plan([6, 6], data_parallel=2)]), every_stage=True), keep_terms=True
    )
    squares = np.sum([side**2 for side in table.above.values()], axis=0)
    np.testing.assert_allclose(table.high, table.total + squares**0.5, rtol=1e-12)
    assert set(table.below) == set(ALLOWANCES)
    assert all((side >= 0).all() for side in (*table.below.values(), *table.above.values()))
    assert together({"a": np.array([3.0]), "b": np.array([4.0])}) == [5.0]


def test_eager_layers_lose_a_share_of_what_comes_and_goes() -> None:
    """Aleph Alpha's and DeepSpeed's trainers: 0.3 of what is not there between steps; the others 0.07 of all."""
    assumed = Assumptions()
    for framework in FRAMEWORKS:
        of = problem(model("llama"), framework=framework)
        terms = memory_of(of, plan([6, 6])).terms
        static = sum(terms[name] for name in BETWEEN_STEPS)
        allocated = sum(terms[name] for name, _ in TERMS)
        if framework in ("scaling", "deepspeed"):
            expected = assumed.eager_overhead.value * (allocated - static)
        else:
            expected = assumed.allocator_overhead.value * allocated
        np.testing.assert_allclose(terms["allocator_overhead"], expected, rtol=1e-12)


def test_gathered_logits_are_not_divided() -> None:
    """Aleph Alpha's output layer gathers V logits a token on each of t = 4 ranks; the generic one keeps V / 4."""
    one = plan([6, 6], tensor_parallel=4)
    of = problem(model("llama"), framework="scaling", sequence_parallel=False)
    _, last = by_moment(logits_bytes, of, one)
    # 16 bytes in the loss, 6 in the output layer's backward, 2 of the other buffer at every other moment
    assert last == [2 * T * V, 16 * T * V, 6 * T * V, 2 * T * V, 2 * T * V]
    divided = problem(model("llama"), loss="torch", sequence_parallel=False)
    assert by_moment(logits_bytes, divided, one)[1] == [0, 14 * T * V / 4, 4 * T * V / 4, 0, 0]


def test_deepspeeds_last_stage_never_lets_go_of_its_logits() -> None:
    """Megatron-DeepSpeed: fp32 logits in two buffers, 8 bytes at every moment, 14 in the loss, 10 in its backward."""
    of = problem(model("gpt"), framework="deepspeed", loss="native", sequence_parallel=False)
    first, last = by_moment(logits_bytes, of, plan([6, 6], tensor_parallel=2))
    assert first == [0] * 5
    assert last == [bytes_of * T * V / 2 for bytes_of in (8, 14, 10, 8, 8)]


def test_deepspeed_keeps_what_it_received_and_what_it_sent() -> None:
    """t = 1: input and its copy, and the output, of each micro-batch in flight; t = 2: half of the output alone."""
    of = problem(model("gpt"), framework="deepspeed", sequence_parallel=False)
    boundary = 2 * T * H
    found = by_moment(sent_outputs_bytes, of, plan([4, 4, 4]))
    assert [stage[0] for stage in found] == [3 * boundary, 2 * 2 * boundary, 1 * boundary]
    found = by_moment(sent_outputs_bytes, of, plan([4, 4, 4], tensor_parallel=2))
    assert [stage[0] for stage in found] == [3 * boundary / 2, 2 * boundary / 2, 0]


@pytest.mark.parametrize(("buckets", "flattened"), [(1.0, 5e8), (4.0, 2e9)])
def test_deepspeeds_flat_gradients(buckets: float, flattened: float) -> None:
    """16-bit gradients: 2 P / d, and the buckets or all of P; fp32 ones: 2 P and the table in fp32. Others: nothing."""
    large = {"hidden_size": 8192, "head_dim": 1024, "ffn_hidden_size": 32768}
    of = problem(model("gpt", **large), framework="deepspeed", precision="fp16", gradient_precision="fp16")
    inputs = PlanInputs.of(of, table_of([plan([6, 6], data_parallel=4)]), every_stage=True)
    parameters = inputs.parameters[0][0]
    expected = 2 * parameters / 4 + 2 * np.minimum(parameters, flattened)
    np.testing.assert_allclose(step_blocks_bytes(inputs, buckets)[0], expected, rtol=1e-12)
    of = problem(model("gpt", **large), framework="deepspeed", precision="bf16", gradient_precision="fp32")
    inputs = PlanInputs.of(of, table_of([plan([6, 6], data_parallel=4)]), every_stage=True)
    expected = 2 * inputs.parameters[0][0] + 4 * 8192 * V
    np.testing.assert_allclose(step_blocks_bytes(inputs, buckets)[0], expected, rtol=1e-12)
    of = problem(model("gpt", **large), framework="megatron")
    inputs = PlanInputs.of(of, table_of([plan([6, 6])]), every_stage=True)
    assert not step_blocks_bytes(inputs, buckets).any()


def test_groups_that_two_libraries_make() -> None:
    """p = 2, t = 2, d = 2: three groups; with DeepSpeed beside Megatron those of t and d exist twice."""
    one = plan([6, 6], tensor_parallel=2, data_parallel=2)
    counted = {
        name: float(communicator_groups(PlanInputs.of(problem(framework=name), table_of([one]), every_stage=True))[0])
        for name in ("megatron", "deepspeed")
    }
    assert counted == {"megatron": 3, "deepspeed": 5}


def test_a_norm_in_fp32_steps_keeps_more_and_moves_more() -> None:
    """4 bytes an element for each of two norms: fp32 in place of the 16-bit input, and the value before the weight."""
    fused, plain = (problem(model("llama"), fused_norm=is_fused) for is_fused in (True, False))
    one = plan([12])
    stash = [memory_of(of, one).terms["saved_activations"][0, 0] for of in (fused, plain)]
    assert stash[1] - stash[0] == 12 * 2 * 4 * T * H
    large = plan([12], micro_batch_size=64, num_microbatches=1)
    times = [estimate_plan(of, large, margin=0.9).time.step_time_s for of in (fused, plain)]
    assert times[1] > times[0]


def test_the_final_norm_stays_as_it_was() -> None:
    """What the head keeps of its norm does not hang on the layers' kernels."""
    one = plan([12])
    kept = [by_moment(head_activations_bytes, problem(model("llama"), fused_norm=f), one) for f in (True, False)]
    assert kept[0] == kept[1]


def test_ranks_hold_buffers_for_a_head_that_is_spread() -> None:
    """Vocabulary parallelism, one meeting, p = 4: 11 T h in a layer's backward and 24 in the head's own steps, the
    softmax of a rank's logits in fp32, on the first rank 2 T h for each of 5 micro-batches in flight; 1F1B: nothing.
    """
    of = problem(model("gpt"))
    found = by_moment(spread_head_bytes, of, plan([3] * 4, schedule="1f1b-vocab-2"))
    hidden, softmax = T * H, 4 * T * V / 4
    assert found[2] == [11 * hidden + softmax, 24 * hidden, 24 * hidden, 11 * hidden + softmax, 0]
    kept = [alive * 2 * hidden for alive in (5, 5, 5, 5, 0)]
    assert found[0][:3] == [one + more for one, more in zip(found[2], kept, strict=True)][:3]
    assert not np.any(by_moment(spread_head_bytes, of, plan([3] * 4)))
