"""What memory decides, and what is said beside the ranked plans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from ppadvisor.engine.evaluate import VERDICTS, estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import plan_of
from ppadvisor.search.advise import short_plan
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.specs.plan import PlanSpec
from tests.problems import FRAMEWORKS, cluster, gpu, model, problem
from tests.search.asked import TIGHT, all_pinned, ask, every_case, plain, ranked


def test_the_margin_decides_what_fits() -> None:
    """A peak of at most margin x capacity fits where the conservative end is within the capacity."""
    of = problem(model("llama"), machines=cluster(16, **TIGHT), sequence_length=4096)
    for margin in (0.5, 0.9, 1.0):
        search = rank(of, plain(of), margin=margin)
        within = (search.estimates.peak_bytes <= margin * 4 * 2**30).astype(int)
        conservative = (search.estimates.conservative_bytes <= 4 * 2**30).astype(int)
        expected = np.array(["does_not_fit", "borderline", "fits"])[within + conservative]
        assert np.array(VERDICTS)[search.estimates.verdict].tolist() == expected.tolist()
        assert search.rejected["memory"] == (expected == "does_not_fit").sum()
        assert search.rejected["memory_borderline"] == (expected == "borderline").sum()


def test_more_memory_never_takes_a_plan_away() -> None:
    """What fits into 4 GiB fits into 8, and the best of 8 GiB is at least as fast."""
    small, large = (
        ask(problem(model("llama"), machines=cluster(16, memory_bytes=size * 2**30), sequence_length=4096))
        for size in (4, 8)
    )
    assert large.num_fitting > small.num_fitting
    assert large.plans[0].time.step_time_s <= small.plans[0].time.step_time_s


def with_memory(gib: int, num_gpus: int, framework: str, **sizes: object) -> Problem:
    """A llama-like model on GPUs of so many GiB."""
    machines = cluster(num_gpus, memory_bytes=gib * 2**30)
    return problem(model("llama", **sizes), machines=machines, framework=framework)


LARGE = {"num_layers": 24, "hidden_size": 2048, "head_dim": 256, "ffn_hidden_size": 8192}
ONE_OF_EACH = Pins(pipeline_parallel=(2,), tensor_parallel=(1,), recompute=("none",), micro_batch_size=(8,))


def no_fit() -> Iterator[tuple[str, Problem, Pins]]:
    """Questions that no plan answers, named by a single change that would help."""
    one_stage = Pins(pipeline_parallel=(1,), tensor_parallel=(1,), context_parallel=(1,))
    four_stages = Pins(pipeline_parallel=(4,), tensor_parallel=(1,), micro_batch_size=(1,))
    wide = {"hidden_size": 1024, "head_dim": 128, "vocab_size": 64_000}
    for framework in FRAMEWORKS:
        for title, gib, num_gpus, sizes, pins in (
            ("micro_batch_size", 6, 8, wide, ONE_OF_EACH),
            ("16 GPUs", 5, 4, LARGE, Pins()),
            ("fused", 6, 8, {"vocab_size": 200_000}, four_stages),
            ("ZeRO-3", 8, 8, LARGE, one_stage),
        ):
            of = with_memory(gib, num_gpus, framework, **sizes)
            if title != "ZeRO-3" or 3 in of.framework.optimizer_sharding:
                yield f"{title} {framework}", of, plain(of, pins)


NO_FIT = list(no_fit())
nothing_fits = pytest.mark.parametrize(("title", "of", "pins"), NO_FIT, ids=[title for title, _, _ in NO_FIT])


def changed(of: Problem, pins: Pins, title: str) -> tuple[Problem, Pins]:
    """The question with the change that a title names."""
    if title.startswith("lift the pin on "):
        return of, pins.without(title.removeprefix("lift the pin on "))
    if title.startswith("optimizer_sharding = "):
        return of, pins.with_values(optimizer_sharding=(int(title.split()[2]),))
    if title.startswith("a fused cross entropy"):
        return replace(of, training=of.training.changed(loss="fused")), pins
    gpus, word = title.split()
    assert word == "GPUs"
    # a node that was not full is filled first: these are of 8 at most
    nodes = {"num_gpus": int(gpus), "gpus_per_node": min(8, int(gpus))}
    return replace(of, cluster=of.cluster.changed(**nodes)), pins


@nothing_fits
def test_where_nothing_fits_the_nearest_miss_is_told(title: str, of: Problem, pins: Pins) -> None:
    """The legal plan with the smallest peak, its stage, and by how much it misses the limit it misses."""
    report = ask(of, pins)
    assert (report.plans, report.num_fitting, report.why) == ((), 0, ())
    assert all(hint.startswith("no plan has ") for hint in report.hints)
    miss = report.nearest_miss
    assert miss is not None
    memory, search = miss.estimate.memory, rank(of, pins, margin=0.9)
    assert memory.peak_bytes == pytest.approx(search.estimates.peak_bytes.min(), abs=20)
    capacity = of.cluster.gpu.memory_bytes
    over = max(memory.peak_bytes - int(0.9 * capacity), memory.conservative_bytes - capacity)
    assert miss.short_by_bytes == over > 0
    assert f"stage {memory.binding_stage} " in miss.message
    assert short_plan(miss.estimate.plan) in miss.message


@nothing_fits
def test_each_change_that_is_named_makes_something_fit(title: str, of: Problem, pins: Pins) -> None:
    """Asking again with any one of the changes finds the plan that was named, with its time and peak."""
    miss = ask(of, pins).nearest_miss
    assert miss is not None
    titles = [change.change for change in miss.changes]
    assert any(title.split()[0] in one for one in titles)
    assert len(titles) == len(set(titles))
    for change in miss.changes:
        search = rank(*changed(of, pins, change.change), margin=0.9)
        row = int(search.order[0])
        assert change.peak_bytes == pytest.approx(search.estimates.peak_bytes[row], abs=1)
        assert change.step_time_s == pytest.approx(search.estimates.step_time_s[row], rel=1e-12)
        shown = estimate_plan(search.problem, plan_of(search.plans, row), margin=0.9)
        assert (shown.memory.verdict, short_plan(shown.plan)) == ("fits", change.plan)


@nothing_fits
def test_no_pin_whose_lifting_would_help_is_left_out(title: str, of: Problem, pins: Pins) -> None:
    """Each pin whose lifting alone makes a plan fit is named, and no other."""
    miss = ask(of, pins).nearest_miss
    assert miss is not None
    helps = {f"lift the pin on {name}" for name in pins.given() if len(rank(of, pins.without(name), margin=0.9).order)}
    assert {change.change for change in miss.changes if change.change.startswith("lift")} == helps


def test_the_baselines_are_there() -> None:
    """The best naive plan and the best without pipelining stand beside the answer, whatever was pinned."""
    of = problem(model("llama"))
    for pins in (Pins(), Pins(pipeline_parallel=(4,), num_microbatches=(16,)), Pins(schedule=("gpipe",))):
        baselines = ask(of, pins).baselines
        naive, alone = baselines["naive"].estimate, baselines["no_pipeline"].estimate
        assert naive is not None
        assert alone is not None
        assert (naive.plan.schedule, naive.plan.num_microbatches) == ("naive", 1)
        assert naive.plan.micro_batch_size == 64 // naive.plan.data_parallel
        assert (alone.plan.schedule, alone.plan.pipeline_parallel) == ("none", 1)


def test_a_baseline_that_does_not_fit_says_by_how_much() -> None:
    """`does not fit by N GiB`, N the miss of the plan without pipelining that comes closest."""
    _, of, pins = NO_FIT[-1]
    baseline = ask(of, pins).baselines["no_pipeline"]
    assert baseline.estimate is not None
    missing = -baseline.estimate.memory.headroom_bytes / 2**30
    assert baseline.note == f"does not fit by {missing:.1f} GiB"


def test_few_micro_batches_are_hinted_at() -> None:
    """m below 4 p is said with the bubble of equal stages worked out; from 4 p on nothing is."""
    of = problem(model("llama"))
    few = ask(of, Pins(pipeline_parallel=(4,), num_microbatches=(8,), schedule=("1f1b",))).hints
    enough = ask(of, Pins(pipeline_parallel=(4,), num_microbatches=(16,), schedule=("1f1b",))).hints
    assert any("m = 8 is below 4 p = 16" in hint and "3/11 = 27.3 %" in hint for hint in few)
    assert not any("below 4 p" in hint for hint in enough)


@every_case
def test_only_what_does_not_fit_is_called_too_large(name: str, framework: str) -> None:
    """A hint at more memory names a positive amount and a plan that does not fit now and is faster."""
    of = ranked(name, framework).problem
    for pins in (Pins(), Pins(pipeline_parallel=(4,))):
        report = ask(of, pins)
        for hint in (hint for hint in report.hints if "more memory" in hint):
            assert float(hint.removeprefix("with ").split()[0]) >= 0
            assert all(short_plan(estimate.plan) not in hint for estimate in report.plans)


@pytest.mark.parametrize(
    ("sort", "words"),
    [
        ("step_time_s", "fastest that fits: "),
        ("peak_bytes", "least memory: "),
        ("bubble_fraction", "smallest bubble: "),
    ],
)
def test_why_first_speaks_of_what_was_sorted_by(sort: str, words: str) -> None:
    """The first line says what the first plan is first in."""
    why = ask(problem(model("llama")), sort=sort).why
    assert why[0].startswith(words)
    assert len(why) <= 5


def test_the_only_plan_is_called_so() -> None:
    """Where one plan fits there is no second to compare with."""
    of = problem(model("llama"))
    report = ask(of, all_pinned(ask(of).plans[0].plan))
    assert report.why[0].startswith("the only plan that fits: ")


def test_plans_are_typed_and_frozen() -> None:
    """The answer is a typed record that nobody changes by mistake."""
    report = ask(problem())
    assert isinstance(report.plans[0].plan, PlanSpec)
    with pytest.raises(FrozenInstanceError):
        report.plans = ()  # type: ignore[misc]


def test_one_gpu_is_a_question_too() -> None:
    """On one GPU there is one way to divide it, without a pipeline, and naive is no plan."""
    report = ask(problem(machines=cluster(1, gpus_per_node=1)))
    assert {estimate.plan.schedule for estimate in report.plans} == {"none"}
    assert report.baselines["naive"].estimate is None
    assert gpu().gpus_per_node == 8
