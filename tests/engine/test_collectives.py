"""Collectives and the links that they run over: closed values by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ppadvisor.engine.collectives import all_gather_s, all_reduce_s, all_to_all_s
from ppadvisor.engine.communication import (
    Links,
    boundaries_between_nodes,
    context_parallel_pass,
    data_parallel_s,
    expert_parallel_pass,
    handoffs,
    tensor_parallel_pass,
    tied_embedding_s,
)
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import table_of as single
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.plan import PlanSpec
from tests.problems import cluster, model, plan, problem, table_of

PERFECT = Assumptions().changed(
    {
        "intra_node_efficiency": 1.0,
        "inter_node_efficiency": 1.0,
        "collective_latency_s": 0.0,
        "handoff_latency_s": 0.0,
        "data_parallel_overlap": 0.0,
        "context_parallel_overlap": 0.0,
    }
)
"""Links as fast as the datasheet says (300 and 25 GB/s), nothing hidden, so that values can be worked out by hand."""


def array(*values: float) -> FloatArray:
    """Numbers as the formulas take them."""
    return np.array(values, dtype=np.float64)


def inputs_of(of: Problem, *plans: PlanSpec) -> PlanInputs:
    """The plans with every stage."""
    return PlanInputs.of(of, table_of(plans), every_stage=True)


def test_all_gather_and_all_reduce() -> None:
    """(n-1)/n V / bw + latency, twice the volume for an all-reduce: 8 GB at 1 GB/s over 4 ranks 6 s and 12 s."""
    volume, ranks, speed = array(8e9, 8e9, 8e9), array(1, 2, 4), array(1e9, 1e9, 1e9)
    assert all_gather_s(volume, ranks, speed, 0.5).tolist() == [0, 4.5, 6.5]
    assert all_reduce_s(volume, ranks, speed, 0.5).tolist() == [0, 8.5, 12.5]


def test_all_to_all_waits_for_the_slower_tier() -> None:
    """Of 8 GB to 8 ranks, 4 of them in the node, 3 GB stay inside and 4 GB leave: the later of the two decides."""
    for intra, inter, expected in ((1e9, 1e9, 4), (0.5e9, 1e9, 6), (300e9, 1e9, 4)):
        assert all_to_all_s(array(8e9), array(8), array(4), intra, inter, 0.0).tolist() == [expected]
    assert all_to_all_s(array(8e9), array(1), array(4), 1e9, 1e9, 1.0).tolist() == [0]
    assert all_to_all_s(array(8e9), array(4), array(8), 1e9, 1.0, 0.0).tolist() == [6]  # all of them in the node


@pytest.mark.parametrize(
    ("layers", "width", "crossing"),
    [
        ([6, 6], 8, 1),  # a stage is a node: every boundary
        ([3] * 4, 16, 3),  # a stage is two nodes
        ([3] * 4, 4, 1),  # two stages a node, two nodes
        ([3] * 4, 2, 0),  # the pipeline is one node
        ([1] * 12, 2, 2),  # four stages a node, three nodes
        ([1] * 8, 3, 2),  # 24 ranks: each of the three pipelines crosses at two of its seven boundaries
    ],
)
def test_a_pipeline_crosses_each_node_border_once(layers: list[int], width: int, crossing: int) -> None:
    """Ranks in order, tensor innermost and pipeline outermost, nodes of 8: how many boundaries lie between nodes."""
    p = len(layers)
    of = problem(num_gpus=max(p * width, 8), assume=PERFECT)
    inputs = inputs_of(of, plan(layers, data_parallel=width))
    assert boundaries_between_nodes(inputs).tolist() == [crossing]
    for replica in range(width):
        nodes = [(stage * width + replica) // 8 for stage in range(p)]
        assert sum(here != there for here, there in pairwise(nodes)) == crossing


def test_a_hand_off_is_one_tensor_over_the_link_between_two_ranks() -> None:
    """2 s b h / (c t) bytes: at 300 GB/s within a node, at 25 GB/s between nodes, plus the latency of a message.

    Narayanan et al. 2021 (arXiv 2104.04473), section 3.2; Megatron's schedules.py:1184 divides by t under sequence
    parallelism only.
    """
    one = plan([3] * 4, tensor_parallel=2, context_parallel=2, micro_batch_size=4)
    latency = PERFECT.changed({"handoff_latency_s": 1e-3})
    for sequence_parallel, ways in ((True, 4), (False, 2)):
        of = problem(num_gpus=16, assume=latency, sequence_parallel=sequence_parallel)
        volume = 2 * 2048 * 4 * 512 / ways
        found = handoffs(inputs_of(of, one))
        assert found.bytes.tolist() == [volume]
        assert found.intra_s.tolist() == [volume / 300e9 + 1e-3]
        assert found.inter_s.tolist() == [volume / 25e9 + 1e-3]
        assert found.max_s.tolist() == found.inter_s.tolist()  # 16 ranks, two nodes: one boundary of the three
        assert found.sum_s[0] == pytest.approx(2 * found.intra_s[0] + found.inter_s[0], rel=1e-12)


def test_without_a_pipeline_nothing_is_handed_on() -> None:
    """p = 1 has no boundary: no seconds, whatever the links."""
    found = handoffs(inputs_of(problem(num_gpus=16), plan([12], data_parallel=16)))
    assert (found.sum_s.tolist(), found.max_s.tolist()) == ([0], [0])


def test_tensor_parallelism_moves_two_all_reduces_a_layer_and_direction() -> None:
    """Each 2 (t-1)/t x 2 T h bytes: Shoeybi et al. 2019 (arXiv 1909.08053), section 3."""
    of = problem(num_gpus=8, assume=PERFECT)
    inputs = inputs_of(of, plan([12], tensor_parallel=8, micro_batch_size=2))
    volume = 2 * 2048 * 2 * 512
    expected = 2 * 2 * 7 / 8 * volume / 300e9
    for kind in inputs.kinds:
        found = tensor_parallel_pass(inputs, kind)
        assert found.forward[0] == pytest.approx(expected, rel=1e-12)
        assert found.backward[0] == pytest.approx(expected, rel=1e-12)


def test_a_group_that_leaves_the_node_uses_the_slow_links() -> None:
    """Tensor parallelism of 16 in nodes of 8 shares the 8 NICs of a node; faster than inside it never is."""
    of = problem(model(num_attention_heads=16, num_query_groups=16, head_dim=32), num_gpus=16, assume=PERFECT)
    inside, outside = inputs_of(of, plan([6, 6], tensor_parallel=8)), inputs_of(of, plan([12], tensor_parallel=16))
    per_byte = [
        tensor_parallel_pass(inputs, inputs.kinds[0]).forward[0] / (t - 1) * t
        for inputs, t in ((inside, 8), (outside, 16))
    ]
    assert per_byte[1] / per_byte[0] == pytest.approx(300 / (25 * 8**0.8), rel=1e-12)
    odd = problem(machines=cluster(16, inter_node_bandwidth_bytes_per_s=900e9), assume=PERFECT)
    assert Links.of(inputs_of(odd, plan([12]))).for_span(array(16), 8).tolist() == [300e9]


def test_context_parallelism_passes_keys_and_values_around() -> None:
    """(c-1) T (k + v) 16-bit bytes forward, T = s b / c, twice that backward: Liu et al. 2023 (arXiv 2310.01889)."""
    of = problem(model("llama"), num_gpus=8, assume=PERFECT)
    found = context_parallel_pass(inputs_of(of, plan([12], context_parallel=4, tensor_parallel=2)))
    tokens, width = 2048 / 4, 2 * 2 * 64 / 2  # keys and values of 2 groups of 64, over t = 2
    expected = 3 * tokens * width * 2 / 300e9
    assert found.forward[0] == pytest.approx(expected, rel=1e-12)
    assert found.backward[0] == pytest.approx(2 * expected, rel=1e-12)


def test_experts_exchange_the_tokens_they_are_sent() -> None:
    """Dispatch and combine of a rank's T / t tokens, each to k experts, 16 bit: (e-1)/e of them leave the rank."""
    of = problem(model("moe"), num_gpus=8, assume=PERFECT)
    inputs = inputs_of(of, plan([12], expert_parallel=4, data_parallel=8))
    dense, moe = (expert_parallel_pass(inputs, kind) for kind in sorted(inputs.kinds, key=lambda kind: kind.moe))
    assert dense.forward.tolist() == [0]
    expected = 2 * 3 / 4 * 2048 * 2 * 512 * 2 / 300e9
    assert moe.forward[0] == pytest.approx(expected, rel=1e-12)
    assert moe.backward[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("zero", "bytes_a_parameter"),
    [
        (0, 2 * 4),  # gradients all-reduced
        (1, 4 + 2),  # gradients reduce-scattered, weights gathered
        (2, 8 * 4 + 2),  # gradients of each of 8 micro-batches
        (3, 8 * (4 + 2 + 2)),  # and weights gathered for each forward and backward
    ],
)
def test_data_parallelism_moves_what_zero_says(zero: int, bytes_a_parameter: int) -> None:
    """(d-1)/d of these bytes a parameter and step: Rajbhandari et al. 2020 (arXiv 1910.02054), section 7."""
    of = problem(num_gpus=8, assume=PERFECT)
    inputs = inputs_of(of, plan([12], data_parallel=8, optimizer_sharding=zero, num_microbatches=8))
    parameters = float(inputs.parameters[0][0, 0])
    expected = 7 / 8 * bytes_a_parameter * parameters / 300e9
    assert data_parallel_s(inputs, 4)[0, 0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("recompute", "gathers"), [("none", 2), ("full", 3)])
def test_zero_3_by_lists_pays_for_every_rank(recompute: str, gathers: int) -> None:
    """A GPT layer's 4 matrices are gathered 2 or 3 times and its 12 tensors reduced: one piece a rank, each way.

    Without lists, and in ZeRO-1, no piece costs anything.
    """
    slow = PERFECT.changed({"gather_piece_s": 1.0})
    of = problem(num_gpus=8, assume=slow)
    sizes = {"data_parallel": 8, "num_microbatches": 3, "recompute": recompute}
    found = data_parallel_s(inputs_of(of, plan([12], optimizer_sharding=3, **sizes)), 4)[0, 0]
    assert found == pytest.approx(3 * 12 * (4 * gathers + 12) * 8, abs=0.1)
    assert data_parallel_s(inputs_of(of, plan([12], optimizer_sharding=1, **sizes)), 4)[0, 0] < 0.1


def test_only_experts_have_their_own_reduction() -> None:
    """One latency a step for the dense parameters, one more where a stage has routed experts."""
    slow = PERFECT.changed({"collective_latency_s": 1.0})
    for name, collectives in (("llama", 1), ("moe", 2)):
        of, one = problem(model(name), num_gpus=8, assume=slow), plan([12], data_parallel=8)
        assert data_parallel_s(inputs_of(of, one), 4)[0, 0] == pytest.approx(collectives, abs=0.01)


def test_a_tied_table_is_summed_over_both_ends() -> None:
    """Two fp32 copies of V h / t are all-reduced between first and last stage, and nothing where they are one."""
    of = problem(num_gpus=8, assume=PERFECT)
    table = 4 * 5000 * 512 / 2
    assert tied_embedding_s(inputs_of(of, plan([6, 6], tensor_parallel=2, data_parallel=2)))[0] == table / 300e9
    assert tied_embedding_s(inputs_of(of, plan([12], tensor_parallel=2, data_parallel=4))).tolist() == [0]
    untied = problem(model("llama"), num_gpus=8, assume=PERFECT)
    assert tied_embedding_s(inputs_of(untied, plan([6, 6], data_parallel=4))).tolist() == [0]


@pytest.mark.parametrize(
    ("schedule", "v", "apart"), [("interleaved-1f1b", 2, True), ("zb-v", 2, False), ("1f1b-vocab-2", 1, False)]
)
def test_ends_on_one_rank_share_a_tied_table(schedule: str, v: int, apart: bool) -> None:
    """On a V the first rank has one table for both ends, spread over all ranks both are cut alike: nothing to add."""
    of = problem(model(num_layers=8), num_gpus=4, assume=PERFECT)
    one = plan((2,) * 4, schedule=schedule, virtual_stages=v, layers_per_chunk=(2 // v,) * (4 * v))
    inputs = PlanInputs.of(of, single(one), every_stage=True)
    assert tied_embedding_s(inputs)[0] == (4 * 5000 * 512 / 300e9 if apart else 0)


def test_whole_gradients_are_reduced_once() -> None:
    """FSDP2 under pipelining accumulates whole gradients: 4 bytes a parameter are reduced once, 2 gathered."""
    of = problem(num_gpus=8, assume=PERFECT, framework="torchtitan")
    inputs = inputs_of(of, plan([12], data_parallel=8, optimizer_sharding=2, num_microbatches=8))
    expected = 7 / 8 * (4 + 2) * float(inputs.parameters[0][0, 0]) / 300e9
    assert data_parallel_s(inputs, 4)[0, 0] == pytest.approx(expected, rel=1e-12)


def test_reduced_at_the_end_in_fp32() -> None:
    """Aleph Alpha's trainer all-reduces fp32 gradients (2 x 4 bytes) and gathers 16-bit weights (2), nothing hidden.

    Aleph-Alpha/scaling, commit 737f855, core/optimizer/allreduce.py and parameter_group.py.
    """
    perfect = PERFECT.changed({"data_parallel_overlap": 0.9})
    of = problem(num_gpus=8, assume=perfect, framework="scaling")
    inputs = inputs_of(of, plan([12], data_parallel=8, optimizer_sharding=1, num_microbatches=8))
    parameters = float(inputs.parameters[0][0, 0])
    assert data_parallel_s(inputs, 2)[0, 0] == pytest.approx(7 / 8 * 10 * parameters / 300e9, rel=1e-12)
