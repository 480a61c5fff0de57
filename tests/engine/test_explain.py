"""The explanations say in text what the engine computes: each text is evaluated and held against the number."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

from ppadvisor import frameworks, load_cluster, load_model, schedules
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.explain import explain_estimate
from ppadvisor.engine.explain_memory import MEMORY_FORMULAS
from ppadvisor.engine.explain_symbols import SCHEDULE_SYMBOLS, SYMBOLS
from ppadvisor.engine.explain_time import TIME_FORMULAS
from ppadvisor.engine.explained import PlanParts
from ppadvisor.engine.memory import ALLOWANCES, TERMS
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.step_time import IDLE_PARTS, STEP_PARTS, WORK_PARTS
from ppadvisor.specs.training import TrainingSpec
from tests.problems import MODELS, model, plan, problem, random_plans
from tests.scheduled import RUNS, scheduled_plans

RANDOM = [(name, framework, "any") for name in MODELS for framework in frameworks.FRAMEWORKS]
"""Plans with one chunk a rank."""
SCHEDULED = [
    (name, framework, schedule)
    for turn, (framework, schedule) in enumerate(RUNS)
    for name in (tuple(MODELS)[turn % len(MODELS)], tuple(MODELS)[(turn + 2) % len(MODELS)])
]
"""Plans of one schedule: a few of each that a framework runs, with two models."""
every_case = pytest.mark.parametrize(("name", "framework", "schedule"), RANDOM + SCHEDULED)

Explained = tuple[PlanEstimate, PlanParts]


def worked_out(substituted: str) -> float:
    """The arithmetic by Python itself, not by the code under test."""
    return float(eval(substituted, {"__builtins__": {}, "min": min, "max": max}))


@cache
def explained(name: str, framework: str, schedule: str) -> tuple[Explained, ...]:
    """Random plans of a small problem: every kind of sharding and recomputation, p from 1 to 8."""
    of = problem(
        model(name), num_gpus=64, global_batch_size=256, framework=framework, dropout=name == "gpt", precision="bf16"
    )
    plans = random_plans(of, 6, seed=11) if schedule == "any" else scheduled_plans(of, schedule, 2, seed=11)
    estimates = [estimate_plan(of, one, margin=0.9) for one in plans]
    return tuple((estimate, explain_estimate(of, estimate)) for estimate in estimates)


def test_every_term_has_a_formula() -> None:
    """No memory term, allowance or part of a step was added without its formula, in the same order."""
    assert list(MEMORY_FORMULAS) == [name for name, _ in TERMS] + list(ALLOWANCES)
    assert list(TIME_FORMULAS) == [*WORK_PARTS, *IDLE_PARTS, *STEP_PARTS]


@every_case
def test_memory_formulas_come_to_the_terms(name: str, framework: str, schedule: str) -> None:
    """The substituted text of each memory term of each stage evaluates to the term, up to the byte rounded up."""
    for _, parts in explained(name, framework, schedule):
        for stage in parts.stages:
            for term in stage.terms:
                assert worked_out(term.substituted) == pytest.approx(term.bytes, rel=1e-9, abs=1.001), term


@pytest.mark.parametrize("sequence_length", [32, 4096])
@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)
def test_formulas_hold_with_16_bit_gradients(framework: str, sequence_length: int) -> None:
    """So they do when the peak stands at the optimizer's step (short sequences) and when it does not."""
    bits: dict[str, Any] = {"precision": "bf16", "gradient_precision": "bf16"}
    of = problem(model("moe"), num_gpus=4, framework=framework, sequence_length=sequence_length, **bits)
    estimate = estimate_plan(of, plan([6, 6], data_parallel=2, optimizer_sharding=1), margin=0.9)
    if framework in ("megatron", "zero-bubble"):
        at_step = {stage.moment == "optimizer_step" for stage in estimate.memory.stages}
        assert at_step == {sequence_length == 32}
    parts = explain_estimate(of, estimate)
    copies = [term for stage in parts.stages for term in stage.terms if term.name == "main_gradients"]
    assert any(term.bytes > 0 for term in copies) or sequence_length > 32
    for term in [term for stage in parts.stages for term in stage.terms]:
        assert worked_out(term.substituted) == pytest.approx(term.bytes, rel=1e-9, abs=1.001), term
    for part in parts.time:
        assert worked_out(part.substituted) == pytest.approx(part.seconds, rel=1e-9, abs=1e-9), part


@every_case
def test_the_terms_are_those_of_the_estimate(name: str, framework: str, schedule: str) -> None:
    """Every stage is there with its peak, and the shown terms add up to it."""
    for estimate, parts in explained(name, framework, schedule):
        assert [s.total_bytes for s in parts.stages] == [s.total_bytes for s in estimate.memory.stages]
        assert all(s.total_bytes == sum(term.bytes for term in s.terms) for s in parts.stages)


@every_case
def test_time_formulas_come_to_the_parts(name: str, framework: str, schedule: str) -> None:
    """The substituted text of each part of a step evaluates to the part; the parts add up to the step."""
    for estimate, parts in explained(name, framework, schedule):
        step = estimate.time.step_time_s
        for term in parts.time:
            assert worked_out(term.substituted) == pytest.approx(term.seconds, rel=1e-9, abs=1e-12 * step), term
        assert sum(term.seconds for term in parts.time) == pytest.approx(step)
        assert worked_out(parts.utilization.substituted) == pytest.approx(estimate.time.model_flops_utilization)


@every_case
def test_parameters_and_micro_batches_in_flight(name: str, framework: str, schedule: str) -> None:
    """Both are worked out on every stage; in flight beside what the order of work holds, which is never more.

    But for an order that is made for the times at hand: it may use its whole limit, one more than for equal times.
    """
    for estimate, parts in explained(name, framework, schedule):
        more = schedules.get(estimate.plan.schedule).order_for_times is not None
        for shown, stage in zip(parts.stages, estimate.memory.stages, strict=True):
            assert worked_out(shown.parameters.substituted) == pytest.approx(stage.parameters, abs=0.5)
            in_flight = shown.in_flight_microbatches
            assert worked_out(in_flight.substituted) == in_flight.value
            assert stage.in_flight_microbatches <= in_flight.value + more
            counted = stage.in_flight_microbatches if estimate.time.replayed else None
            assert in_flight.counted == counted


@every_case
def test_chunks_are_those_of_the_plan(name: str, framework: str, schedule: str) -> None:
    """Each chunk has the stage of the model that the schedule puts there, with its layers; they hold the count."""
    for estimate, parts in explained(name, framework, schedule):
        plan, of = estimate.plan, schedules.get(estimate.plan.schedule)
        held = of.placement(plan.pipeline_parallel, plan.virtual_stages).tolist()
        mtp = model(name).mtp_num_layers
        for shown in parts.stages:
            assert [chunk.stage for chunk in shown.chunks] == held[shown.stage]
            for chunk in shown.chunks:
                last = chunk.stage == len(plan.layers_per_chunk) - 1
                assert chunk.num_layers == plan.layers_per_chunk[chunk.stage] + mtp * last
            # at the loss others may be in flight: what a rank holds the most of counts in bytes
            if shown.moment == "layer_backward":
                alive = sum(chunk.in_flight + chunk.waiting for chunk in shown.chunks)
                counted = estimate.memory.stages[shown.stage].in_flight_microbatches
                assert alive == pytest.approx(counted * len(shown.chunks) / of.parameter_copies)


@every_case
def test_a_layer_is_the_sum_of_its_tensors_and_kernels(name: str, framework: str, schedule: str) -> None:
    """What a layer keeps is the sum of the tensors marked as kept, each of them its own formula; likewise its time."""
    for _, parts in explained(name, framework, schedule):
        for layer in parts.layers:
            kept = [worked_out(tensor.substituted) for tensor in layer.tensors if tensor.kept]
            assert sum(kept) == pytest.approx(layer.saved_bytes, abs=1)
            for tensor in layer.tensors:
                assert worked_out(tensor.substituted) == pytest.approx(tensor.bytes, abs=1)
            # a launch may take longer than all kernels together, never less
            assert sum(kernel.forward_s for kernel in layer.kernels) <= layer.forward_s * (1 + 1e-9)
            assert sum(kernel.backward_s for kernel in layer.kernels) <= layer.backward_s * (1 + 1e-9)


@every_case
def test_traffic_is_that_of_the_estimate(name: str, framework: str, schedule: str) -> None:
    """Hand-off and tensor-parallel bytes are the estimate's own."""
    for estimate, parts in explained(name, framework, schedule):
        sent = {volume.name: volume.bytes for volume in parts.traffic}
        p = estimate.plan.pipeline_parallel
        assert sent["handoff_one_way"] == (estimate.time.handoff_bytes if p > 1 else 0)
        assert sent["handoff_both_ways"] == 2 * estimate.plan.virtual_stages * sent["handoff_one_way"]
        assert sent["tensor_parallel_of_a_stage"] == pytest.approx(estimate.time.tensor_parallel_bytes, abs=1)


@every_case
def test_every_symbol_is_explained(name: str, framework: str, schedule: str) -> None:
    """Each symbol is in the legend; one that is a size of the plan has its value there."""
    for estimate, parts in explained(name, framework, schedule):
        legend = {symbol.symbol: symbol for symbol in parts.symbols}
        assert all(symbol.meaning for symbol in parts.symbols)
        assert {symbol.rstrip("0123456789") for symbol in legend} <= SYMBOLS.keys()
        assert legend["m"].value == estimate.plan.num_microbatches
        tokens = 2048 * estimate.plan.micro_batch_size / estimate.plan.context_parallel
        assert legend["T"].value == tokens


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_a_schedule_writes_the_formulas_that_it_computes(name: str) -> None:
    """The bubble and in-flight texts of a schedule evaluate to its closed forms, p and m up to 12, three of its v."""
    schedule = schedules.get(name)
    allowed = [v for v in range(1, 9) if schedule.virtual_stages.allows(v)][:3]
    for p, m, v in product(range(1, 13), range(1, 13), allowed):
        if schedule.problem(p, m, v):
            continue
        further = schedule.formula_symbols(p, m, v) if schedule.formula_symbols else {}
        assert further.keys() <= SCHEDULE_SYMBOLS.keys()
        names = {"__builtins__": {}, "min": min, "max": max, "p": p, "m": m, "v": v, **further}
        assert eval(schedule.bubble_formula, names) == pytest.approx(float(schedule.bubble_fraction(p, m, v)))
        for rank in range(p):
            held = float(schedule.in_flight_microbatches(p, m, v, rank))
            assert eval(schedule.in_flight_formula, {**names, "r": rank}) == held


# --- one plan by hand -------------------------------------------------------------------------------------------------


@cache
def llama() -> PlanParts:
    """Llama-2-7B on four A100: p = 4, everything else 1, m = 32, 4096 tokens."""
    of = Problem(
        load_model("llama-2-7b"),
        load_cluster("dgx-a100-superpod", num_gpus=4),
        TrainingSpec(sequence_length=4096, global_batch_size=32),
        frameworks.get("megatron"),
    )
    return explain_estimate(of, estimate_plan(of, plan((8, 8, 8, 8), num_microbatches=32), margin=0.9))


def term(stage: int, name: str) -> tuple[str, str, int]:
    """(formula, substituted, bytes) of a memory term of that plan."""
    found = next(one for one in llama().stages[stage].terms if one.name == name)
    return found.formula, found.substituted, found.bytes


def test_weights_by_hand() -> None:
    """A middle stage holds 8 layers of 4 h^2 + 3 h f + 2 h = 202,383,360 parameters (h = 4096, f = 11008)."""
    assert term(1, "weights") == ("2 * P", "2 * 1619066880", 2 * 1_619_066_880)
    assert llama().stages[1].parameters.substituted == "8 * 202383360"


def test_the_ends_carry_embedding_and_head_by_hand() -> None:
    """The first stage adds V h = 32,000 x 4096 parameters, the last as many and the final norm of h."""
    assert term(0, "gradients")[2] == 4 * (1_619_066_880 + 131_072_000)
    assert term(3, "optimizer_states")[2] == 12 * (1_619_066_880 + 131_072_000 + 4096)


def test_weights_are_those_that_megatron_instantiates() -> None:
    """GPT-3 175B at p = 8, t = 8: 2 bytes of each parameter that Megatron-LM's own GPTModel has on each stage.

    Counted on GPTModel built on the meta device, NVIDIA/Megatron-LM commit d98e8a64.
    """
    of = Problem(
        load_model("gpt3-175b"),
        load_cluster("dgx-a100-superpod", num_gpus=64),
        TrainingSpec(sequence_length=2048, global_batch_size=64),
        frameworks.get("megatron"),
    )
    one = plan((12,) * 8, tensor_parallel=8, num_microbatches=64)
    stages = explain_estimate(of, estimate_plan(of, one, margin=0.9)).stages
    instantiated = [2_822_731_776, *[2_718_922_752] * 6, 2_797_590_528]
    assert [stage.terms[0].substituted for stage in stages] == [f"2 * {parameters}" for parameters in instantiated]


def test_saved_activations_by_hand() -> None:
    """A layer keeps 131,720 bytes a token, counted tensor by tensor; stage 1 holds min(32, 4-1) = 3 micro-batches.

    Norms' inputs and outputs 4 x 2h, their statistics 2 x 4, q k v 3 x 2h, attention output 2h, softmax statistics
    4 a, gate, up and product 3 x 2f: 32,768 + 8 + 24,576 + 8192 + 128 + 66,048.
    """
    layer = llama().layers[0]
    assert sum(tensor.bytes_per_token for tensor in layer.tensors) == 131_720
    assert layer.saved_bytes == 4096 * 131_720
    assert term(1, "saved_activations") == ("k * n * S", "3 * 8 * 539525120", 3 * 8 * 4096 * 131_720)


def test_the_bubble_by_hand() -> None:
    """(p - 1)/(m + p - 1) at p = 4, m = 32 is 3/35, and the replay, with its longer last stage, is above it."""
    bubble = llama().bubble
    assert (bubble.formula, bubble.substituted, bubble.ratio) == ("(p-1)/(m+p-1)", "(4-1)/(32+4-1)", "3/35")
    assert bubble.value == pytest.approx(3 / 35)
    assert bubble.replayed > bubble.value


def test_hand_offs_against_tensor_parallelism_by_hand() -> None:
    """2 s h = 32 MiB cross a boundary; tensor parallel over 4 ranks would send 32 x 4 x 2 x 3/4 x 32 MiB = 6 GiB."""
    sent = {volume.name: volume.bytes for volume in llama().traffic}
    assert sent == {
        "handoff_one_way": 32 * 2**20,
        "handoff_both_ways": 64 * 2**20,
        "tensor_parallel_of_a_stage": 0,
        "tensor_parallel_instead_of_pipeline": 6 * 2**30,
    }
