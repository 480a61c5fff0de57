"""The split of a plan that is shown: legal, written as its trainer reads it, never behind the even one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from ppadvisor.engine.balance import Split
from ppadvisor.engine.balanced import balanced_plan, with_split
from ppadvisor.engine.evaluate import estimate_plan, quick_step_time_s
from ppadvisor.engine.partition import balanced_split
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.results import PlanEstimate
from ppadvisor.engine.tables import layers_of_ranks, table_of
from ppadvisor.search.api import make_problem
from ppadvisor.search.balance import fitting_with_best_split, with_fastest_splits
from ppadvisor.search.constraints import legal_plans
from ppadvisor.search.pins import Pins
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import Recompute
from ppadvisor.specs.training import TrainingSpec
from tests.frameworks.megatron_reader import built
from tests.problems import cluster, model, problem
from tests.search.asked import ask

MARGIN = 0.9


@dataclass(frozen=True)
class Case:
    """A published model on a pipeline of p ranks with v chunks each, 64 micro-batches, Megatron, B200s."""

    model: str
    p: int
    v: int
    sizes: dict[str, int]
    recompute: Recompute = "none"


CASES: dict[str, Case] = {
    "126 layers, p 16": Case("llama-3.1-405b", 16, 1, {"tensor_parallel": 8, "data_parallel": 8}),
    "126 layers, p 16, v 2": Case("llama-3.1-405b", 16, 2, {"tensor_parallel": 8, "data_parallel": 8}),
    "61 layers, 3 dense, MTP, p 16, v 2": Case(
        "deepseek-v3", 16, 2, {"data_parallel": 64, "expert_parallel": 64}, "full"
    ),
    "80 layers, p 8, v 5": Case("llama-3-70b", 8, 5, {"tensor_parallel": 4, "data_parallel": 2}),
    "80 layers, p 8": Case("llama-3-70b", 8, 1, {"tensor_parallel": 4, "data_parallel": 2}),
    "92 layers, MTP, p 8": Case("glm-4.5-355b", 8, 1, {"data_parallel": 64, "expert_parallel": 32}, "full"),
    "46 layers, MTP, p 4": Case("glm-4.5-air-106b", 4, 1, {"data_parallel": 16, "expert_parallel": 16}, "full"),
    "46 layers, MTP, p 4, v 2": Case("glm-4.5-air-106b", 4, 2, {"data_parallel": 16, "expert_parallel": 16}, "full"),
}
every_case = pytest.mark.parametrize("name", CASES)


@cache
def asked(name: str) -> tuple[Problem, PlanSpec]:
    """The problem of a case and its plan with the even split."""
    case = CASES[name]
    of = load_model(case.model)
    width = case.sizes.get("tensor_parallel", 1) * case.sizes["data_parallel"]
    run = TrainingSpec(sequence_length=8192, global_batch_size=64 * case.sizes["data_parallel"])
    spec = make_problem(of, load_cluster("dgx-b200-superpod", case.p * width), run)
    split = balanced_split(of.num_layers, case.p * case.v)
    assert split is not None
    schedule = "1f1b" if case.v == 1 else "interleaved-1f1b"
    ones = ("tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel", "micro_batch_size")
    sizes: dict[str, Any] = dict.fromkeys(ones, 1) | case.sizes
    return spec, PlanSpec(
        **sizes,
        pipeline_parallel=case.p,
        virtual_stages=case.v,
        num_microbatches=64,
        schedule=schedule,
        recompute=case.recompute,
        optimizer_sharding=1,
        layers_per_stage=layers_of_ranks(schedule, split, case.v),
        layers_per_chunk=split,
    )


@cache
def estimate_of(name: str, split: Split | None = None) -> PlanEstimate:
    """The engine's answer for a case with a split; the balanced one where none is given."""
    of, even = asked(name)
    plan = balanced_plan(of, even, margin=MARGIN) if split is None else with_split(even, split)
    assert plan is not None
    return estimate_plan(of, plan, margin=MARGIN)


@every_case
def test_the_balanced_split_is_legal_and_megatron_builds_it(name: str) -> None:
    """All layers, none of the stages empty, no rule broken; its flags, read by Megatron's rules, build that split."""
    of, _ = asked(name)
    plan = estimate_of(name).plan
    assert sum(plan.layers_per_chunk) == of.model.num_layers
    assert min(plan.layers_per_chunk) >= 1
    assert not legal_plans(of, table_of(plan))[1]
    flags = of.framework.split_settings(of.model, plan)
    p = int(flags.pop("--pipeline-model-parallel-size"))
    ranks = built(flags, of.model.num_layers, p, of.model.mtp_num_layers)
    assert ranks == [list(plan.layers_per_chunk[rank::p]) for rank in range(p)]


@every_case
def test_the_balanced_split_is_never_behind_the_even_one(name: str) -> None:
    """No longer step and no higher peak than the even (or nearest even) split, by the engine's whole replay."""
    _, even = asked(name)
    mine, theirs = estimate_of(name), estimate_of(name, even.layers_per_chunk)
    assert mine.memory.fits
    assert mine.time.step_time_s <= theirs.time.step_time_s * (1 + 1e-9)
    assert mine.memory.peak_bytes <= theirs.memory.peak_bytes


GAINS = {
    "61 layers, 3 dense, MTP, p 16, v 2": 0.01,
    "80 layers, p 8, v 5": 0.01,
    "92 layers, MTP, p 8": 0.04,
    "46 layers, MTP, p 4": 0.05,
}
"""What the balanced split saves of the step at least: the head is worth one layer (128k words) to three (with MTP)."""


@pytest.mark.parametrize("name", GAINS)
def test_where_the_head_weighs_the_gain_is_plain(name: str) -> None:
    """The heaviest rank decides the pace: a head on top of an even share slows all ranks down."""
    _, even = asked(name)
    mine, theirs = estimate_of(name), estimate_of(name, even.layers_per_chunk)
    assert mine.time.step_time_s < theirs.time.step_time_s * (1 - GAINS[name])


def test_a_layout_that_people_wrote_by_hand_is_not_better() -> None:
    """Llama 3 70B at p = 8, v = 5: NVIDIA-NeMo/Megatron-Bridge, pull request 5391, `Et*2|(t*2|)*34,t*3|(t*2|)*3,tL`."""
    name = "80 layers, p 8, v 5"
    mine, theirs = estimate_of(name), estimate_of(name, (2,) * 35 + (3,) + (2,) * 3 + (1,))
    assert mine.time.step_time_s <= theirs.time.step_time_s
    assert mine.memory.peak_bytes <= theirs.memory.peak_bytes
    # both keep one layer off the head's chunk, and none has more than it on a rank
    assert mine.plan.layers_per_stage[-1] == theirs.plan.layers_per_stage[-1] == 9
    assert max(mine.plan.layers_per_stage) == max(theirs.plan.layers_per_stage) == 11


@pytest.mark.parametrize("name", ["llama", "moe", "mla-mtp"])
def test_what_is_shown_has_the_faster_split(name: str) -> None:
    """No plan that is shown is clearly behind itself with the balanced split, and the comparison is the engine's."""
    of = problem(model(name, num_layers=11, vocab_size=60_000), num_gpus=4, framework="megatron", global_batch_size=16)
    pins = Pins(pipeline_parallel=(4,), micro_batch_size=(1,), schedule=("1f1b", "interleaved-1f1b"))
    report = ask(of, pins)
    assert report.plans
    for estimate, settings in zip(report.plans, report.split_settings, strict=True):
        best = balanced_plan(of, estimate.plan, margin=MARGIN)
        assert best is not None
        assert quick_step_time_s(of, estimate.plan) <= quick_step_time_s(of, best) * 1.003
        assert settings == of.framework.split_settings(of.model, estimate.plan)
    first, even = report.plans[0], report.even_split
    assert even is not None
    again = estimate_plan(of, with_split(first.plan, even.layers_per_chunk), margin=MARGIN)
    assert max(even.layers_per_chunk) - min(even.layers_per_chunk) <= 1
    assert (even.step_time_s, even.peak_bytes) == (again.time.step_time_s, again.memory.peak_bytes)
    assert even.step_time_saved_fraction == pytest.approx(1 - first.time.step_time_s / even.step_time_s)
    assert even.step_time_saved_fraction > 0
    assert even.peak_saved_bytes == even.peak_bytes - first.memory.peak_bytes


def test_the_first_plan_is_looked_at_more_closely() -> None:
    """Two splits with the same heaviest rank, elsewhere in the pipeline: the first plan gets the faster one."""
    of, _ = asked("80 layers, p 8, v 5")
    late = estimate_of("80 layers, p 8, v 5", (2,) * 37 + (3, 2, 1))
    (better,) = with_fastest_splits(of, (late,), margin=MARGIN)
    assert max(better.plan.layers_per_stage) == max(late.plan.layers_per_stage)
    assert better.time.step_time_s < late.time.step_time_s * 0.995
    assert with_fastest_splits(of, (better,), margin=MARGIN) == [better]


def test_another_split_may_be_what_makes_a_plan_fit() -> None:
    """Memory for the best split of a plan and for none that a search looks at: the change is named, and true."""
    pins = Pins(pipeline_parallel=(3,), micro_batch_size=(16,), schedule=("1f1b",), recompute=("none",))

    def question(memory_bytes: int) -> Problem:
        machines = cluster(3, gpus_per_node=8, memory_bytes=memory_bytes)
        return problem(model(num_layers=7), machines=machines, global_batch_size=192, framework="megatron")

    roomy = question(2**40)
    shown = ask(roomy, pins).plans[0].plan
    least = balanced_plan(roomy, shown, margin=MARGIN, objective="memory")
    assert least is not None
    used = max(stage.total_bytes / MARGIN for stage in estimate_plan(roomy, least, margin=MARGIN).memory.stages)
    conservative = estimate_plan(roomy, least, margin=MARGIN).memory.conservative_bytes
    tight = question(int(max(used, conservative)) + 10)
    report = ask(tight, pins)
    assert report.plans == ()
    assert report.nearest_miss is not None
    change = report.nearest_miss.changes[0]
    assert change.change == f"layers {', '.join(map(str, least.layers_per_chunk))} on its stages"
    estimate = estimate_plan(tight, least, margin=MARGIN)
    assert estimate.memory.fits
    assert (change.step_time_s, change.peak_bytes) == (estimate.time.step_time_s, estimate.memory.peak_bytes)


@pytest.mark.parametrize("framework", ["deepspeed", "zero-bubble"])
def test_only_what_the_trainer_builds_is_shown(framework: str) -> None:
    """A trainer without a list of stages gets none of ours: each plan's split is among those that it builds."""
    of = problem(model(num_layers=11, vocab_size=60_000, tied_embeddings=False), num_gpus=8, framework=framework)
    report = ask(of, Pins(schedule=tuple(name for name in of.framework.schedules if name != "none")), top=20)
    assert report.plans
    assert of.framework.splits is not None
    for estimate in report.plans:
        plan = estimate.plan
        assert plan.layers_per_chunk in of.framework.splits(of.model, plan.pipeline_parallel, plan.virtual_stages)
    assert report.even_split is None


def test_a_faster_split_that_does_not_fit_is_not_taken() -> None:
    """Where the balanced split is above the memory by the exact count, the plan keeps its own; else None."""
    of, even = asked("80 layers, p 8, v 5")
    assert fitting_with_best_split(of, even, margin=MARGIN) == estimate_of("80 layers, p 8, v 5")
    assert fitting_with_best_split(of, even, margin=0.2) is None
