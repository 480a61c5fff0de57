"""Points that are answered together: each has the row that it has alone, whichever other points there are."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.search import sweep
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import rank
from ppadvisor.search.shared import Question, Share, shares
from ppadvisor.search.sweep import Point, SweepRow, answers, sweep_rows
from tests.problems import cluster, model, problem

AXES: dict[str, tuple[Any, ...]] = {
    "pipeline_parallel": (1, 2, 4, 8, 13),
    "tensor_parallel": (1, 2, 16),
    "recompute": ("none", "selective", "full:block:1", "full"),
    "schedule": ("none", "gpipe", "1f1b", "interleaved-1f1b", "zb-v", "naive", "pipedream"),
}
"""With values that contradict the problem (13 stages) or each other (`none` with 2), or break a rule (t 16)."""

ASYMMETRIC: dict[str, tuple[Any, ...]] = {
    "pipeline_parallel": (2, 4),
    "virtual_stages": (2, 3),
    "micro_batch_size": (1, 2),
    "recompute": ("none", "full"),
}

OPEN: dict[str, tuple[Any, ...]] = {"pipeline_parallel": (1, 2, 4, 8), "tensor_parallel": (1, 2), "schedule": ("1f1b",)}
"""How much is recomputed is found by looking at the other plans of the question."""


def narrow(framework: str, memory_bytes: int) -> Problem:
    """GPUs into which little fits."""
    return problem(model("llama"), machines=cluster(16, memory_bytes=memory_bytes), framework=framework)


def questions(of: Problem, axes: dict[str, tuple[Any, ...]]) -> list[Question]:
    """One for each combination of the values."""
    return [
        (of, Pins(**{name: (value,) for name, value in zip(axes, values, strict=True)}))
        for values in product(*axes.values())
    ]


def point_of(question: Question) -> Point:
    """A point that asks it."""
    _, pins = question
    return Point({name: values[0] for name, values in pins.given().items()}, lambda: question)


@cache
def points() -> tuple[Point, ...]:
    """Of five problems: roomy and narrow GPUs, a batch that hardly anything divides, experts, unlike layers."""
    roomy = problem(model("llama"))
    odd = problem(model("llama"), global_batch_size=21)
    experts = problem(model("moe"), framework="megatron")
    unlike = problem(model("mla-mtp"))
    asked = [*questions(roomy, AXES), *questions(narrow("generic", 2**31), AXES)[::3], *questions(odd, AXES)[::7]]
    asked += questions(narrow("megatron", 2**32), OPEN)
    asked += [*questions(experts, ASYMMETRIC), *questions(unlike, AXES)[::9]]
    return tuple(map(point_of, asked))


def contradicting() -> tuple[Problem, Pins]:
    """What a point says whose values cannot be brought together at all."""
    raise InputError("12 GPUs in nodes of 8")


def in_batches(asked: Sequence[Point], size: int, *, quick: bool) -> list[SweepRow]:
    """Their rows, so many points at a time."""
    batches = (asked[at : at + size] for at in range(0, len(asked), size))
    return [row for batch in batches for part in answers(batch, margin=0.9, quick=quick) for row in part]


@pytest.mark.parametrize(("quick", "step"), [(True, 5), (False, 17)])
def test_a_row_is_that_of_its_point_alone(quick: bool, step: int) -> None:
    """In the order of the axes or shuffled, in batches of any size: every field of every row is equal, to the bit."""
    asked = [*points()[::step], Point({"num_gpus": 12}, contradicting)]
    alone = in_batches(asked, 1, quick=quick)
    assert in_batches(asked, 64, quick=quick) == alone
    order = random.Random(4).sample(range(len(asked)), len(asked))
    shuffled = in_batches([asked[place] for place in order], 50, quick=quick)
    assert shuffled == [alone[place] for place in order]


def test_much_work_is_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plans are many or have many micro-batches, the rows of the first points are out before the others begin."""
    asked = points()[: len(points()) // 4]
    whole = list(answers(asked, margin=0.9, quick=True))
    monkeypatch.setattr(sweep, "MOST_WORK", 500)
    parts = list(answers(asked, margin=0.9, quick=True))
    assert len(whole) == 1 < 4 <= len(parts)
    assert [row for part in parts for row in part] == [row for part in whole for row in part]


def test_the_points_above_are_of_every_kind() -> None:
    """Rows that fit, that do not, that break a rule and that contradict themselves, many schedules among them."""
    rows = in_batches(points(), 64, quick=True)
    codes = Counter(row.reason_code for row in rows)
    assert min(codes[code] for code in (None, "contradiction", "memory", "attention_heads")) > 0
    assert len({row.schedule for row in rows if row.fits}) >= 6


@pytest.mark.parametrize(
    ("of", "axes"),
    [(problem(model("llama")), AXES), (problem(model("moe")), ASYMMETRIC), (narrow("megatron", 2**32), OPEN)],
)
def test_a_share_is_the_search_for_its_question(of: Problem, axes: dict[str, tuple[Any, ...]]) -> None:
    """Plans in their order, and those that fit in theirs, are those of `rank` with the pins of one question."""
    asked = questions(of, axes)
    for (of, pins), share in zip(asked, shares(asked, margin=0.9), strict=True):
        if isinstance(share, InputError):
            with pytest.raises(InputError) as alone:
                rank(of, pins, margin=0.9)
            assert str(alone.value) == str(share)
            continue
        ranked = rank(of, pins, margin=0.9)
        for rows, own in ((share.rows, np.arange(len(ranked.plans))), (share.order, ranked.order)):
            assert listed(share, rows) == listed(Share(ranked, own, own), own)


def test_how_many_layers_are_recomputed_is_found_for_each_question() -> None:
    """The question above where recomputation is open has plans between none and all layers, which would not fit."""
    found = shares(questions(narrow("megatron", 2**32), OPEN), margin=0.9)
    plans = [share.ranked.plans.take(share.order) for share in found if isinstance(share, Share)]
    some = [{table.recomputations[index].text for index in table.recompute.tolist()} for table in plans]
    assert any(name.startswith("full:block") for names in some for name in names)


def listed(share: Share, rows: Any) -> list[tuple[Any, ...]]:
    """Plans with what the array forms say of them."""
    plans, estimates = share.ranked.plans.take(rows), share.ranked.estimates
    names = (plans.schedule_names, plans.splits, plans.recomputations)
    columns = zip(plans.schedule.tolist(), plans.split.tolist(), plans.recompute.tolist(), strict=True)
    told = [tuple(of[index] for of, index in zip(names, one, strict=True)) for one in columns]
    sizes = zip(*(getattr(plans, name).tolist() for name in plans.column_names()[:9]), strict=True)
    # what stands in a table decides in which order the terms of an array form are added up
    seconds = [f"{step_s:.12g}" for step_s in estimates.step_time_s[rows].tolist()]
    numbers = zip(seconds, np.round(estimates.peak_bytes[rows]).tolist(), strict=True)
    return [(*one, *size, *number) for one, size, number in zip(told, sizes, numbers, strict=True)]


def test_questions_that_fill_no_grid_are_not_searched_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2 x 2 x ... pins along a diagonal no search looks at more than four combinations a question."""
    looked_at: list[int] = []

    def counted(of: Problem, pins: Pins, **more: Any) -> Any:
        looked_at.append(int(np.prod([len(values) for values in pins.given().values()])))
        return rank(of, pins, **more)

    monkeypatch.setattr("ppadvisor.search.shared.rank", counted)
    of = problem(model("llama"))
    sizes = [(p, t, b) for p, t, b in ((1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 1, 1), (1, 8, 8), (2, 1, 16))]
    asked = [
        Pins(pipeline_parallel=(p,), tensor_parallel=(t,), micro_batch_size=(b,), recompute=("none",))
        for p, t, b in sizes
    ]
    found = list(shares([(of, pins) for pins in asked], margin=0.9))
    assert all(isinstance(share, Share) and len(share.rows) for share in found)
    assert sum(looked_at) <= 4 * len(asked)


def test_as_many_points_at_a_time_as_take_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick points are answered by ever more at a time, up to 128; where they turn slow, what is late waits."""
    clock, sizes = [0.0], list[int]()
    seconds = iter([0.001] * 200 + [2.0] * 100)

    def answer(batch: Sequence[Point], **_: object) -> Iterator[list[SweepRow]]:
        sizes.append(len(batch))
        for second in islice(seconds, len(batch)):
            clock[0] += second
            yield [SweepRow(fits=False)]

    monkeypatch.setattr(sweep, "answers", answer)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert len(list(sweep_rows([Point({}, contradicting)] * 300, margin=0.9))) == 300
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, *range(54, 0, -1), *[1] * 45]


def test_no_point_is_asked_before_the_rows_of_the_last_ones_are_out() -> None:
    """Whatever ends a sweep, of what was done only the batch under way is lost."""
    asked, seen = [], []

    def several() -> Iterator[Point]:
        for number in range(20):
            asked.append(number)
            yield Point({"number": number}, contradicting)

    for row in sweep_rows(several(), margin=0.9):
        seen.append(row)
        assert len(asked) <= 2 * len(seen) + 1
    assert len(seen) == 20
