"""Plans that are shown, looked at together: each has the numbers that it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ppadvisor import schedules
from ppadvisor.engine.evaluate import estimate_plan, estimate_plans, estimates_of, measured, quick_steps_s, steps_of
from ppadvisor.engine.pipeline import pipeline_of
from ppadvisor.engine.spans import STEADY_ROUNDS
from ppadvisor.engine.stash import Held, stash_of
from ppadvisor.engine.tables import layers_of_ranks, table_of
from ppadvisor.schedules.base import RankOrder
from ppadvisor.specs.load import load_model
from ppadvisor.specs.plan import PlanSpec
from tests.problems import cluster, model, plan, problem, random_plans
from tests.scheduled import scheduled_plans


def numbers(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value of an answer with its place."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else None
    if items is None:
        yield where, value
        return
    for key, one in items:
        yield from numbers(one, f"{where}.{key}")


@pytest.mark.parametrize("name", ["llama", "mla-mtp"])
def test_plans_together_are_each_alone(name: str) -> None:
    """Plans of many shapes and every schedule, estimated in one table: each number is that of the plan by itself."""
    of = problem(model(name), num_gpus=16)
    each = [one for schedule in schedules.SCHEDULES for one in scheduled_plans(of, schedule, 1, seed=2)]
    plans = [*random_plans(of, 12, seed=1), *each]
    for one, together in zip(plans, estimate_plans(of, plans, margin=0.9), strict=True):
        alone = dict(numbers(estimate_plan(of, one, margin=0.9).as_dict()))
        for where, value in numbers(together.as_dict()):
            expected = pytest.approx(alone[where], rel=1e-12, abs=1e-15) if isinstance(value, float) else alone[where]
            assert value == expected, (one, where)


@pytest.mark.parametrize("name", ["llama", "mla-mtp"])
def test_a_step_is_the_same_to_the_bit_whatever_stands_beside_it(name: str) -> None:
    """What a sweep shows of a plan, alone and in a table of many: no bit differs, nor from the plan's own report."""
    of = problem(model(name), num_gpus=16, machines=cluster(16, gpus_per_node=4))
    each = [one for schedule in schedules.SCHEDULES for one in scheduled_plans(of, schedule, 2, seed=3)]
    plans = [*random_plans(of, 30, seed=5), *each]
    of_plans = measured(of, plans, margin=0.9)
    for one, step, estimate in zip(of_plans, steps_of(of_plans), estimates_of(of_plans), strict=True):
        (alone,) = measured(of, (one.plan,), margin=0.9)
        assert (alone.memory, steps_of([alone])) == (one.memory, [step]), one.plan
        assert vars(step) == {key: getattr(estimate.time, key) for key in vars(step)}


def test_what_is_continued_together_is_the_replay_of_all_micro_batches() -> None:
    """Of many micro-batches a few rounds are replayed where they are periodic; the span is that of them all."""
    of = problem(model("llama"), global_batch_size=4096)
    many = 40 * max(STEADY_ROUNDS)
    plans = [plan([6, 6], num_microbatches=many), plan([5, 7], num_microbatches=many + 1), plan([3] * 4)]
    for one, estimate in zip(plans, estimate_plans(of, plans, margin=0.9), strict=True):
        replayed = pipeline_of(of, one).replayed(links=True)
        assert replayed is not None
        assert estimate.time.pipeline_s == pytest.approx(replayed.makespan_s, rel=1e-12)
        assert estimate.time.bubble_in_span_fraction == pytest.approx(replayed.bubble_in_span_fraction, abs=1e-12)


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_a_few_rounds_say_what_all_take(p: int) -> None:
    """Near-even chunks, a layer moved here or there: a few rounds continued are within 0.1 % of the replay of all."""
    of = problem(load_model("llama-3.1-8b"), num_gpus=p, global_batch_size=20 * p)
    rng, plans = np.random.default_rng(p), list[PlanSpec]()
    for v in (1, 2) * 6:
        chunks = np.full(p * v, of.model.num_layers // (p * v))
        if chunks[0] > 1:
            chunks[rng.choice(p * v, 2, replace=False)] += (1, -1)
        split = tuple(chunks.tolist())
        schedule = "1f1b" if v == 1 else "interleaved-1f1b"
        sizes = {"virtual_stages": v, "layers_per_chunk": split, "num_microbatches": 20 * p}
        plans.append(plan(layers_of_ranks(schedule, split, v), schedule=schedule, **sizes))
    expected = [one.time.step_time_s for one in estimate_plans(of, plans, margin=0.9)]
    assert quick_steps_s(of, table_of(*plans)) == pytest.approx(expected, rel=1e-3)


def test_some_of_those_measured_are_replayed() -> None:
    """Of plans of one shape any may be chosen, in any order; the answers come in that order."""
    of = problem(model("llama"))
    plans: list[PlanSpec] = [plan([6, 6], num_microbatches=m) for m in (4, 8, 16)]
    all_of_them = measured(of, plans, margin=0.9)
    chosen = estimates_of([all_of_them[2], all_of_them[0]])
    assert [one.plan.num_microbatches for one in chosen] == [16, 4]
    assert chosen == [estimate_plan(of, plans[index], margin=0.9) for index in (2, 0)]


def test_ranks_with_unequal_orders_hold_what_each_holds_alone() -> None:
    """Orders of different lengths side by side: every rank's heaviest moments are those of its own order."""
    rng = np.random.default_rng(7)
    names = [name for name in schedules.SCHEDULES if schedules.get(name).problem(4, 16, 2) is None]
    texts = ["F0.0 B0.0", "F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"]
    orders = [RankOrder.parse(text) for text in texts] + [schedules.get(n).rank_orders(4, 16, 2)[1] for n in names]
    one = Held(*(rng.random((len(orders), 2)) for _ in range(3)))
    in_work, head = rng.random((len(orders), 2)), (rng.random((len(orders), 2)) > 0.5).astype(np.float64)
    together = stash_of(orders, one, in_work, head)
    for rank, order in enumerate(orders):
        row = slice(rank, rank + 1)
        of_rank = Held(one.alive[row], one.waiting[row], one.sent[row])
        alone = stash_of([order], of_rank, in_work[row], head[row])
        for moment in ("at_peak", "at_loss"):
            for part in ("alive", "waiting", "sent"):
                side_by_side = getattr(getattr(together, moment), part)[rank]
                assert side_by_side.tolist() == getattr(getattr(alone, moment), part)[0].tolist()


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "hanayo", "1f1b-vocab-1"])
def test_long_orders_are_looked_at_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ranks hold is the same where only a few of them are looked at together."""
    of = problem(model("llama"), num_gpus=16)
    (one,) = scheduled_plans(of, name, 1, seed=1)
    (whole,) = measured(of, (one,), margin=0.9)
    monkeypatch.setattr("ppadvisor.engine.stash.MOST_NUMBERS", 100)
    (in_parts,) = measured(of, (one,), margin=0.9)
    assert in_parts.memory == whole.memory
    assert in_parts.pipelines.inputs.stash is not None
    assert whole.pipelines.inputs.stash is not None
    assert np.array_equal(in_parts.pipelines.inputs.chunk_in_flight, whole.pipelines.inputs.chunk_in_flight)
