"""Between no recomputation and all of it: the search finds the fewest layers that make a plan fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ppadvisor.engine.balanced import with_split
from ppadvisor.engine.evaluate import VERDICTS, estimate_plan, evaluate
from ppadvisor.errors import InputError
from ppadvisor.search import fewest_layers
from ppadvisor.search.pins import Pins
from ppadvisor.search.ranking import Ranked, rank
from ppadvisor.specs.load import load_cluster, load_model
from ppadvisor.specs.plan import IntArray
from ppadvisor.specs.recomputation import FULL, Recomputation
from tests.problems import cluster, model, problem
from tests.search.asked import TIGHT, ask, every_case, plain, ranked


def partly(search: Ranked) -> IntArray:
    """Rows that recompute some layers."""
    some = np.array([choice.kind == "full" and choice != FULL for choice in search.plans.recomputations])
    return np.flatnonzero(some[search.plans.recompute])


@every_case
def test_they_fit_and_one_layer_less_does_not(name: str, framework: str) -> None:
    """Each such plan fits; with a layer of each chunk less it is over the limit."""
    search = ranked(name, framework)
    rows = partly(search)
    assert len(rows) > 10
    assert (search.estimates.verdict[rows] == VERDICTS.index("fits")).all()
    layers = np.array([choice.num_layers for choice in search.plans.recomputations])[search.plans.recompute[rows]]
    choices = tuple(Recomputation("full", method="block", num_layers=int(n)) for n in range(1, 13))
    fewer = replace(search.plans.take(rows[layers > 1]), recompute=layers[layers > 1] - 2, recomputations=choices)
    assert (evaluate(search.problem, fewer, margin=0.9).verdict > VERDICTS.index("fits")).all()


@every_case
def test_every_plan_that_could_be_helped_is(name: str, framework: str) -> None:
    """Whatever fits with all layers but one recomputed, and not without, is there, if it could come to the top."""
    search = ranked(name, framework)
    plans, of = search.plans, search.problem
    times = evaluate(of, plans, margin=0.9).step_time_s
    names = [column for column in plans.column_names() if column != "recompute"]
    key = [tuple(row) for row in np.stack([getattr(plans, column) for column in names], axis=1).tolist()]
    helped = {key[row] for row in partly(search)}
    fits = search.estimates.verdict == VERDICTS.index("fits")
    slowest = np.sort(times[fits])[min(100, fits.sum() - 1)]
    none = np.array([choice.kind == "none" for choice in plans.recomputations])[plans.recompute]
    tried = np.flatnonzero(none & ~fits & (times < slowest))
    held = [max(*plans.splits[split], plans.splits[split][-1] + of.model.mtp_num_layers) for split in plans.split]
    tried = np.array([row for row in tried if held[row] > 1])
    choices = tuple(Recomputation("full", method="block", num_layers=n) for n in range(1, 14))
    most = replace(plans.take(tried), recompute=np.array([held[row] - 2 for row in tried]), recomputations=choices)
    can = tried[evaluate(of, most, margin=0.9).verdict == VERDICTS.index("fits")]
    assert len(can) > 5
    assert {key[row] for row in can} <= helped


def test_one_number_at_a_time_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried one after the other, numbers of layers lead to the plans that many at once lead to."""
    many = ranked("llama", "megatron")
    monkeypatch.setattr(fewest_layers, "AT_ONCE", 1)
    one = rank(many.problem, plain(many.problem), margin=0.9)
    assert len(partly(many)) == len(partly(one)) > 10
    for search in (many, one):
        assert {choice.method for choice in search.plans.recomputations if choice.kind == "full"} >= {"block"}
    layers = [
        [search.plans.recomputations[choice].text for choice in search.plans.recompute[search.order]]
        for search in (many, one)
    ]
    assert layers[0] == layers[1]


LONG = problem(
    load_model("llama-3.1-70b"),
    machines=load_cluster("dgx-h100-superpod", num_gpus=64),
    sequence_length=32768,
    global_batch_size=128,
    framework="torchtitan",
)
TWO_CHUNKS = Pins(pipeline_parallel=(2,), tensor_parallel=(8,), virtual_stages=(2,), micro_batch_size=(1,))


def test_a_split_does_not_cost_recomputed_layers() -> None:
    """No plan that is shown is behind itself with a layer less, on its own split or the even one, where that fits.

    80 layers on 2 ranks of 2 chunks: 20 20 21 19 looks best with 17 recomputed layers, 20 20 20 20 needs 16.
    """
    report = ask(LONG, TWO_CHUNKS.with_values(schedule=("interleaved-1f1b",)), top=6)
    shown = [estimate for estimate in report.plans if estimate.plan.recompute_method == "block"]
    assert len(shown) > 2
    for estimate in shown:
        layers = estimate.plan.recompute_num_layers
        assert layers is not None
        fewer = estimate.plan.changed(recompute_num_layers=layers - 1)
        for split in (estimate.plan.layers_per_chunk, (20, 20, 20, 20)):
            other = estimate_plan(LONG, with_split(fewer, split), margin=0.9)
            assert not other.memory.fits or other.time.step_time_s >= estimate.time.step_time_s


def test_a_pin_on_recomputation_is_kept() -> None:
    """Where the user fixed the recomputation nothing else is tried."""
    of = problem(model("llama"), machines=cluster(16, **TIGHT))
    search = rank(of, plain(of, Pins(recompute=("none", "full"))), margin=0.9)
    assert not len(partly(search))
    report = ask(of, Pins(recompute=("full:block:2",)))
    assert {one.plan.recomputation.text for one in report.plans} == {"full:block:2"}


@pytest.mark.parametrize(
    ("framework", "text", "message"),
    [
        ("torchtitan", "selective:mlp", "torchtitan cannot recompute mlp by itself; it can: core_attn"),
        ("deepspeed", "full:block:2", "deepspeed knows full recomputation by uniform"),
        ("megatron", "selective:dropout", "megatron cannot recompute dropout by itself"),
    ],
)
def test_a_framework_recomputes_what_it_can(framework: str, text: str, message: str) -> None:
    """A pin that the framework has no flag for is refused, with what it has."""
    with pytest.raises(InputError, match=message):
        ask(problem(model("llama"), framework=framework), Pins(recompute=(text,)))
