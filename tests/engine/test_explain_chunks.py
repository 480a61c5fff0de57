"""Explanations by hand where a rank holds several chunks, splits its backwards, shares the head, keeps old weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ppadvisor import frameworks, load_cluster, load_model
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.explain import explain_estimate
from ppadvisor.engine.explained import PlanParts, StageExplained
from ppadvisor.engine.parameters import count_parameters
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import layers_of_ranks
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.training import TrainingSpec
from tests.problems import model, plan, problem

NO_ALLOWANCES = Assumptions().changed(
    {"allocator_overhead": 1.0, "cuda_context_bytes": 1e12, "workspace_bytes": 1e12, "communicator_bytes": 1e12}
)
"""At the heavy end of their ranges, so that only the routing is uncertain."""


def explained(of: Problem, schedule: str, chunks: tuple[int, ...], **changed: Any) -> PlanParts:
    """A plan of four ranks and eight micro-batches, everything else 1."""
    v = changed.get("virtual_stages", 1)
    one = plan(layers_of_ranks(schedule, chunks, v), schedule=schedule, layers_per_chunk=chunks, **changed)
    return explain_estimate(of, estimate_plan(of, one, margin=0.9))


@cache
def small(name: str, schedule: str, v: int = 1) -> PlanParts:
    """A small model of 8 layers, even chunks."""
    return explained(problem(model(name, num_layers=8), num_gpus=4), schedule, (2 // v,) * (4 * v), virtual_stages=v)


def term(stage: StageExplained, name: str) -> tuple[str, str, int]:
    """(formula, substituted, bytes) of a memory term."""
    found = next(one for one in stage.terms if one.name == name)
    return found.formula, found.substituted, found.bytes


def test_chunks_in_flight_are_those_that_megatron_holds() -> None:
    """p = 4, m = 8, v = 2: rank 0 warms up with ten forwards, fours of chunk 0, of 1 and of 0 again, and does one more.

    So it holds 4 + 3 of chunk 0 and 4 of chunk 1: Megatron-Core `get_schedule_table`, recorded as 11, 9, 7, 5 chunks.
    """
    of = Problem(
        load_model("llama-2-7b"),
        load_cluster("dgx-a100-superpod", num_gpus=4),
        TrainingSpec(sequence_length=4096, global_batch_size=8),
        frameworks.get("megatron"),
    )
    stages = explained(of, "interleaved-1f1b", (4,) * 8, virtual_stages=2).stages
    assert [(chunk.stage, chunk.num_layers, chunk.in_flight) for chunk in stages[0].chunks] == [(0, 4, 7), (4, 4, 4)]
    saved = term(stages[0], "saved_activations")
    assert saved[:2] == ("(k0 * n0 + k1 * n1) * S", "(7 * 4 + 4 * 4) * 539525120")
    assert term(stages[0], "embedding_activations")[:2] == ("k0 * T * 8", "7 * 4096 * 8")
    held = [(stage.in_flight_microbatches.value, stage.in_flight_microbatches.counted) for stage in stages]
    assert held == [(chunks / 2, chunks / 2) for chunks in (11, 9, 7, 5)]


def test_orders_too_long_to_be_made() -> None:
    """With very many micro-batches nothing is counted or replayed: the closed form holds for every chunk alike."""
    of = problem(model(num_layers=8), num_gpus=4)
    parts = explained(of, "interleaved-1f1b", (1,) * 8, virtual_stages=2, num_microbatches=100_000)
    first = parts.stages[0]
    assert (first.in_flight_microbatches.value, first.in_flight_microbatches.counted) == (5.5, None)
    assert [chunk.in_flight for chunk in first.chunks] == [5.5, 5.5]
    assert term(first, "saved_activations")[1].startswith("(5.5 * 1 + 5.5 * 1) * ")
    assert next(part.source for part in parts.time if part.name == "imbalance").startswith("array form of Interleaved")


def test_kinds_of_layer_within_chunks() -> None:
    """Each chunk has its own number of layers of each kind: three dense ones come first, then those with experts."""
    first, *_, last = small("moe", "interleaved-1f1b", 2).stages
    assert term(first, "saved_activations")[0] == "k0 * n0_1 * S1 + k1 * n1_2 * S2"
    assert term(last, "saved_activations")[0] == "k0 * n0_2 * S2 + k1 * n1_2 * S2"
    legend = {symbol.symbol: symbol.meaning for symbol in small("moe", "interleaved-1f1b", 2).symbols}
    assert legend["k"].endswith("of its chunks k0, k1, ...")
    assert {"n1", "n2"} <= legend.keys()


def test_what_waits_for_its_weight_gradient() -> None:
    """ZB-H1's last rank of four does its first weight gradient after the fourth input gradient: at its loss three wait.

    A GPT layer then holds 22 s b h more than it saved: measured on torch 2.13 (`frameworks.generic`).
    """
    parts = small("gpt", "zb-h1")
    (layer,), last = parts.layers, parts.stages[3]
    assert layer.waiting_bytes - layer.saved_bytes == 22 * 2048 * 512
    assert sum(tensor.bytes for tensor in layer.waiting) == layer.waiting_bytes
    waiting = term(last, "waiting_activations")
    assert waiting == ("w * n * S_w", f"3 * 2 * {layer.waiting_bytes}", 3 * 2 * layer.waiting_bytes)
    assert (last.in_flight_microbatches.value, last.in_flight_microbatches.counted) == (4, 4)
    assert small("gpt", "1f1b").layers[0].waiting == ()


def test_the_closed_form_and_the_count_may_differ() -> None:
    """ZB-V, one micro-batch, all recomputed, rank 1 with chunks of two layers and one: the peak is not where most are.

    In I of chunk 1 it holds two checkpoints and one whole layer, two chunks; in I of chunk 0, with W of chunk 1 done,
    one whole layer waits and one is in work, one chunk: half of what the closed form min(2m, 2p, m + 1 + r)/2 counts.
    """
    of = problem(model("llama"), num_gpus=4)
    changed = {"virtual_stages": 2, "num_microbatches": 1, "recompute": "full"}
    stage = explained(of, "zb-v", (2, 2, 2, 2, 1, 1, 1, 1), **changed).stages[1]
    assert (stage.in_flight_microbatches.value, stage.in_flight_microbatches.counted) == (1, 0.5)
    assert [(chunk.in_flight, chunk.waiting) for chunk in stage.chunks] == [(0.5, 0.5), (0, 0)]


def test_old_weights_of_asynchronous_schedules() -> None:
    """PipeDream's rank r keeps p - r versions of its weights, of which one is the current one."""
    stages = small("gpt", "pipedream").stages
    for stage in stages:
        formula, _, size = term(stage, "weight_versions")
        assert formula == "(versions - 1) * 2 * P"
        assert size == pytest.approx((3 - stage.stage) * 2 * stage.parameters.value, abs=4)


def test_asynchronous_schedules_hold_their_steady_state() -> None:
    """With one micro-batch a step PipeDream's first rank still holds those of the steps before, p in all."""
    of = problem(model(num_layers=8), num_gpus=4)
    stages = explained(of, "pipedream", (2,) * 4, num_microbatches=1).stages
    assert [(stage.in_flight_microbatches.value, stage.in_flight_microbatches.counted) for stage in stages] == [
        (4, None),
        (3, None),
        (2, None),
        (1, None),
    ]
    assert [stage.chunks[0].in_flight for stage in stages] == [4, 3, 2, 1]
    assert term(stages[0], "saved_activations")[1].startswith("4 * 2 * ")


@pytest.mark.parametrize(
    ("name", "schedule", "v", "text", "tables"),
    [
        ("gpt", "zb-v", 2, "n * P_layer + P_embedding + P_head - P_shared", 0),
        ("gpt", "interleaved-1f1b", 2, "n * P_layer + P_embedding", 1),
        ("llama", "1f1b-vocab-1", 1, "n * P_layer + (P_embedding + P_head) / p", 0),
        ("gpt", "1f1b-vocab-1", 1, "n * P_layer + (P_embedding + P_head - P_shared) / p", 0),
    ],
)
def test_parameters_of_all_ranks(name: str, schedule: str, v: int, text: str, tables: int) -> None:
    """They are the model's, and a second tied table of 5000 x 512 only where the ends lie on different ranks."""
    parts = small(name, schedule, v)
    assert parts.stages[0].parameters.formula == text
    held = sum(stage.parameters.value for stage in parts.stages)
    assert held == pytest.approx(count_parameters(model(name, num_layers=8)) + tables * 5000 * 512, abs=4)


def test_a_spread_head_holds_one_loss_of_several_micro_batches() -> None:
    """The last rank has three micro-batches in flight, one of them at the loss, of which it holds a quarter."""
    last = small("llama", "1f1b-vocab-1").stages[3]
    assert last.chunks[0].in_flight == 3
    formula, substituted, _ = term(last, "head_activations")
    assert formula == "(k_head * 2 * T * 2 * h / t + max(k_head - 1, 0) * 6 * T * V / t) / p"
    assert substituted.startswith("(1 * 2 * 2048 * 2 * 512 / 1 + max(1 - 1, 0)")


def test_a_micro_batch_passes_one_copy_of_the_model() -> None:
    """DualPipe's ranks hold two stages each, of two copies; the compute is that of one copy's eight layers."""
    parts = small("gpt", "dualpipe")
    assert [[chunk.stage for chunk in stage.chunks] for stage in parts.stages] == [[0, 3], [1, 2], [2, 1], [3, 0]]
    compute = next(part for part in parts.time if part.name == "compute")
    assert compute.substituted.startswith("8 * (8 * ")
    assert parts.layers[0].num_layers == 8


def test_sends_of_a_rank_with_chunks() -> None:
    """A micro-batch crosses a rank once for each chunk: 2 v tensors of 2 s h bytes go out."""
    for schedule, v in (("1f1b", 1), ("interleaved-1f1b", 2), ("dualpipe", 1)):
        sent = {volume.name: volume.bytes for volume in small("gpt", schedule, v).traffic}
        assert sent["handoff_both_ways"] == 2 * v * 2 * 2048 * 512


@pytest.mark.parametrize(("schedule", "v"), [("1f1b", 1), ("interleaved-1f1b", 2), ("dualpipe", 1), ("zb-v", 2)])
def test_unbalanced_routing_loads_what_each_chunk_holds(schedule: str, v: int) -> None:
    """The cautious peak is higher by half (load 1.5 for 1) of the dispatched tokens that are in flight or waiting."""
    of = problem(model("moe", num_layers=8), num_gpus=4, assume=NO_ALLOWANCES)
    parts = explained(of, schedule, (2 // v,) * (4 * v), virtual_stages=v)
    (routed,) = (layer for layer in parts.layers if "MoE" in layer.kind)
    of_layer = sum(tensor.bytes for tensor in routed.tensors if tensor.divided.startswith("T k"))
    for stage in parts.stages:
        held = sum(
            (chunk.in_flight + chunk.waiting) * sum(layer >= 3 for layer in _layers(chunk.stage, 2 // v))
            for chunk in stage.chunks
        )
        assert stage.conservative_bytes == pytest.approx(stage.total_bytes + held * of_layer / 2, abs=30)


def _layers(stage: int, size: int) -> range:
    """The layers of a stage of the model, all stages of one size."""
    return range(stage * size, (stage + 1) * size)
