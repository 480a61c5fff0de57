"""What the search refuses, and in which order it puts what is left."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ppadvisor.engine.evaluate import VERDICTS, estimate_plan
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.tables import plan_of
from ppadvisor.frameworks import FRAMEWORKS
from ppadvisor.search.constraints import CONSTRAINTS, legal_plans
from ppadvisor.search.noise import moving_parts_of
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import moving_parts, rank
from ppadvisor.search.shortlist import best_estimates
from ppadvisor.search.space import build_space
from ppadvisor.specs.assumptions import Assumptions
from tests.problems import cluster, model, problem, table_of
from tests.problems import plan as one_plan
from tests.search.asked import TIGHT, ask, every_case, plain, ranked


@every_case
def test_every_combination_fits_or_is_rejected_once(name: str, framework: str) -> None:
    """Combinations = those that fit + the rejections, and each example breaks the rule that it stands for."""
    search = ranked(name, framework)
    rejected = search.rejected
    assert search.space.num_combinations == len(search.order) + rejected.total()
    assert len(search.order) > 0
    assert rejected["memory"] > 0
    assert all(count > 0 for count in rejected.values())
    rules = {rule.code: rule for rule in (*CONSTRAINTS, *search.problem.framework.rules)}
    assert {example.code for example in search.examples} == set(rejected) & set(rules)
    for example in search.examples:
        of = search.problem
        assert rules[example.code].violated(of.model, of.training, table_of([example.plan])).all()


@every_case
def test_rules_are_counted_one_by_one(name: str, framework: str) -> None:
    """Asking every rule about every combination alone, and counting the first that is broken, gives the same counts."""
    search = ranked(name, framework)
    of, plans = search.problem, search.space.plans
    broken: Counter[str] = Counter()
    for row in range(0, len(plans), 7):
        one = plans.take(np.array([row]))
        codes = [
            rule.code for rule in (*CONSTRAINTS, *of.framework.rules) if rule.violated(of.model, of.training, one).any()
        ]
        broken.update(codes[:1])
    sample = plans.take(np.arange(0, len(plans), 7))
    counts: Counter[str] = Counter()
    for rule in (*CONSTRAINTS, *of.framework.rules):
        violated = rule.violated(of.model, of.training, sample)
        counts[rule.code] += int(violated.sum())
        sample = sample.take(~violated)
    assert +counts == broken


@pytest.mark.parametrize(
    ("of", "pins", "code", "words"),
    [
        (
            problem(model(num_attention_heads=6, num_query_groups=6)),
            Pins(tensor_parallel=(4,)),
            "attention_heads",
            "6 4",
        ),
        (
            problem(model(num_attention_heads=12, num_query_groups=6)),
            Pins(tensor_parallel=(4,)),
            "key_value_groups",
            "6 4",
        ),
        (problem(model(ffn_hidden_size=2049)), Pins(tensor_parallel=(2,)), "feed_forward_width", "2049 2"),
        (problem(sequence_length=2050), Pins(context_parallel=(2,)), "sequence_length", "2050 2"),
        (problem(sequence_length=2050), Pins(tensor_parallel=(4,)), "sequence_length", "2050 4"),
        (problem(model("moe"), num_gpus=48, global_batch_size=48), Pins(expert_parallel=(3,)), "expert_count", "8 3"),
        (
            problem(model("moe"), sequence_parallel=False, framework="megatron"),
            Pins(tensor_parallel=(2,)),
            "moe_sequence_parallel",
            "2",
        ),
        (problem(attention="eager"), Pins(context_parallel=(2,)), "context_parallel_attention", "2"),
    ],
)
def test_an_illegal_plan_is_a_rejection_with_numbers(of: Problem, pins: Pins, code: str, words: str) -> None:
    """A rule that every combination breaks leaves no plan: it is counted, and its example says the numbers."""
    report = ask(of, pins)
    assert (report.plans, report.nearest_miss, report.num_fitting) == ((), None, 0)
    assert report.rejected[code] == report.problem.num_combinations - report.rejected.get(
        "global_batch_not_divisible", 0
    )
    (example,) = report.rejection_examples
    assert example.code == code
    for word in words.split():
        assert word in example.message


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_a_rule_of_sizes_asks_for_nothing_else(name: str, framework: str) -> None:
    """Asked once for each size it bars the plans that it bars when asked for each plan; some are barred."""
    of = problem(model(name), num_gpus=48, framework=framework, sequence_length=1000)
    plans = build_space(of, Pins(tensor_parallel=(1, 2, 3, 4))).plans
    first, size = plans.distinct_sizes()
    rules = [rule for rule in of.framework.rules if rule.of_sizes]
    violated = [rule.violated(of.model, of.training, plans) for rule in rules]
    for rule, of_plans in zip(rules, violated, strict=True):
        of_sizes = rule.violated(of.model, of.training, plans.take(first))
        np.testing.assert_array_equal(of_sizes[size], of_plans)
    assert 0 < np.any(violated, axis=0).sum() < len(plans)


def test_weights_in_fp8_alone_need_zero_1() -> None:
    """As Megatron's --fp8-param-gather needs --use-distributed-optimizer (arguments.py:1092-1094)."""
    of = problem(precision="fp8", fp8_weights=True, framework="megatron")
    plans = table_of([one_plan([3] * 4, optimizer_sharding=stage) for stage in (0, 1)])
    legal, counts, _ = legal_plans(of, plans)
    assert (legal.optimizer_sharding.tolist(), counts) == ([1], {"fp8_weights": 1})


def test_a_batch_that_some_divisions_cannot_share() -> None:
    """B = 20 on 16 GPUs: d = 8 and 16 are rejected and counted, once a division, and no plan has them."""
    report = ask(problem(num_gpus=16, global_batch_size=20, sequence_length=1024))
    # d = 8: (p, t) = (2, 1), (1, 2); d = 16: (1, 1); c = 1 alone at this length
    assert report.rejected["global_batch_not_divisible"] == 3
    assert set(report.problem.searched["data_parallel"]) == {1, 2, 4}


BAND = {"step_time_low_s", "step_time_high_s"}
"""What `plan` says of a time and an estimate alone does not."""


def four_digits(value: float) -> float:
    """A number as it is printed: equal ones are a tie."""
    return float(f"{value:.3e}")


@every_case
@pytest.mark.parametrize("sort", ["step_time_s", "peak_bytes", "bubble_fraction"])
def test_fitting_plans_are_in_order(name: str, framework: str, sort: str) -> None:
    """By the sort key, then step time, then less memory, then fewer moving parts; only plans that fit are ranked."""
    of = ranked(name, framework).problem
    search = rank(of, plain(of), margin=0.9, sort=sort)
    estimates = search.estimates
    key = getattr(estimates, sort)
    parts = moving_parts(search.plans)
    keys = [
        (four_digits(key[i]), four_digits(estimates.step_time_s[i]), estimates.peak_bytes[i], parts[i])
        for i in search.order
    ]
    assert keys == sorted(keys)
    assert {VERDICTS[v] for v in estimates.verdict[search.order]} == {"fits"}
    assert len(search.order) == (estimates.verdict == VERDICTS.index("fits")).sum()


def test_a_tie_in_time_goes_to_less_memory() -> None:
    """ZeRO 1 to 3 take the same time where all traffic hides: the one that holds least is first."""
    hidden = Assumptions().changed({"data_parallel_overlap": 1.0})
    of = problem(num_gpus=8, assume=hidden)
    pins = Pins(pipeline_parallel=(2,), tensor_parallel=(1,), data_parallel=(4,), micro_batch_size=(1,))
    pins = pins.with_values(optimizer_sharding=(1, 2, 3), recompute=("none",), schedule=("1f1b",))
    search = rank(of, pins, margin=0.9)
    first = plan_of(search.plans, int(search.order[0]))
    same = np.flatnonzero(search.plans.split == search.plans.split[search.order[0]])
    assert len(set(search.estimates.step_time_s[same].tolist())) == 1
    assert search.estimates.peak_bytes[search.order[0]] == search.estimates.peak_bytes[same].min()
    assert first.optimizer_sharding == 3


def test_moving_parts_are_counted() -> None:
    """Each kind of parallelism beyond data parallelism, recomputation and an uneven split is one."""
    plans = [
        one_plan([12], data_parallel=8),
        one_plan([6, 6]),
        one_plan([5, 7]),
        one_plan([6, 6], tensor_parallel=2, context_parallel=2, expert_parallel=2, recompute="full"),
    ]
    assert moving_parts(table_of(plans)).tolist() == [0, 1, 2, 5]


@every_case
def test_what_is_shown_is_ordered_by_its_own_numbers(name: str, framework: str) -> None:
    """The plans shown are in the order of the step times shown, fit, and are as many as asked for.

    One may stand in front of the fastest: simpler, and within the noise.
    """
    report = ask(ranked(name, framework).problem, top=5)
    times = [four_digits(estimate.time.step_time_s) for estimate in report.plans]
    assert times[1:] == sorted(times[1:])
    if times[0] > times[1]:
        assert moving_parts_of(report.plans[0].plan) < moving_parts_of(report.plans[1].plan)
        assert report.why[0].startswith("simplest within the noise: ")
    assert len(times) == 5
    assert all(estimate.memory.verdict == "fits" for estimate in report.plans)
    for estimate in report.plans:
        again = estimate_plan(ranked(name, framework).problem, estimate.plan, margin=0.9)
        assert estimate.as_dict() | {"time": estimate.time.as_dict(BAND)} == again.as_dict()
        assert estimate.time.step_time_low_s < estimate.time.step_time_s < estimate.time.step_time_high_s


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_the_first_is_the_fastest_of_all_that_fit(name: str) -> None:
    """Replaying every plan that fits finds none that is more than 5 % faster, the stated error of the array forms."""
    of = problem(model(name), num_gpus=8, global_batch_size=8)
    pins = Pins(context_parallel=(1,), recompute=("none", "full"))
    if name == "moe":
        pins = pins.with_values(expert_tensor_parallel=(1,), expert_parallel=(1, 4))
    search = rank(of, plain(of, pins), margin=0.9)
    replayed = [estimate_plan(of, plan_of(search.plans, int(row)), margin=0.9).time.step_time_s for row in search.order]
    (first,) = best_estimates(search, 1, margin=0.9)
    assert first.time.step_time_s <= min(replayed) * 1.05


def test_the_same_question_has_the_same_answer() -> None:
    """Two searches give equal reports."""
    of = problem(model("moe"), machines=cluster(16, **TIGHT))
    assert ask(of) == ask(of)
