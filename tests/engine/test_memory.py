"""Memory: totals keep their parts, and the properties that any right model has."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppadvisor.engine.evaluate import estimate_plan, evaluate
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import ALLOWANCES, TERMS, memory_table
from ppadvisor.engine.memory_axes import in_table
from ppadvisor.engine.parameters import count_parameters
from tests.engine.memory_cases import case, every_case, every_framework, every_model, memory_of, term
from tests.problems import MODELS, model, plan, problem, table_of


@every_case
def test_a_stage_is_the_sum_of_its_terms_at_its_highest_moment(name: str, framework: str) -> None:
    """What is allocated is the maximum over the moments of the sum of the terms there, and the terms are that sum."""
    of, plans = case(name, framework)
    inputs = PlanInputs.of(of, table_of(plans), every_stage=True)
    table = memory_table(inputs, keep_terms=True)
    by_moment = np.sum([in_table(function(inputs), inputs.stages.count.shape) for _, function in TERMS], axis=0)
    real = inputs.stages.count > 0
    assert np.allclose(table.allocated[real], by_moment.max(axis=-1)[real], rtol=1e-12)
    at_moment = np.take_along_axis(by_moment, table.moment[..., None], axis=-1)[..., 0]
    assert np.allclose(table.allocated[real], at_moment[real], rtol=1e-12)
    tensors = sum(table.terms[term_name] for term_name, _ in TERMS)
    assert np.allclose(table.allocated[real], np.asarray(tensors)[real], rtol=1e-12)
    everything = tensors + sum(table.terms[allowance] for allowance in ALLOWANCES)
    assert np.allclose(table.total[real], np.asarray(everything)[real], rtol=1e-12)
    assert (table.high >= table.total).all()


@every_case
def test_a_plan_is_its_fullest_stage(name: str, framework: str) -> None:
    """Shown terms are whole bytes that add up to the stage, and the plan's peak is that of the stage it names."""
    of, plans = case(name, framework)
    for one in plans[:8]:
        memory = estimate_plan(of, one, margin=0.9).memory
        assert [sum(stage.terms.values()) for stage in memory.stages] == [s.total_bytes for s in memory.stages]
        assert memory.peak_bytes == max(stage.total_bytes for stage in memory.stages)
        assert memory.stages[memory.binding_stage].total_bytes == memory.peak_bytes
        assert memory.conservative_bytes == max(stage.conservative_bytes for stage in memory.stages)
        assert sum(stage.num_layers for stage in memory.stages) == of.model.num_layers
        assert memory.headroom_bytes == memory.limit_bytes - memory.peak_bytes
        assert set(memory.stages[0].terms) == {*dict(TERMS), *ALLOWANCES}


@every_case
def test_no_term_is_negative(name: str, framework: str) -> None:
    """Nothing frees memory that was not taken."""
    of, plans = case(name, framework)
    for values in memory_of(of, *plans).terms.values():
        assert (values >= 0).all()


@every_case
def test_rows_do_not_know_each_other(name: str, framework: str) -> None:
    """A plan evaluated alone has, term by term, the bytes that it has in a table of many."""
    of, plans = case(name, framework)
    many = memory_of(of, *plans)
    for row, one in enumerate(plans):
        alone, p = memory_of(of, one), one.pipeline_parallel
        for name_of_term, values in alone.terms.items():
            np.testing.assert_allclose(values[0], many.terms[name_of_term][row, :p], rtol=1e-12, err_msg=name_of_term)
        np.testing.assert_allclose(alone.total[0], many.total[row, :p], rtol=1e-12)
        assert (many.total[row, p:] == 0).all()
        assert (many.high[row, p:] == 0).all()


@every_case
def test_the_search_sees_the_peak_that_is_shown(name: str, framework: str) -> None:
    """Looking at one stage of each run of equal ones finds the peak and the verdict of looking at all."""
    of, plans = case(name, framework)
    table = evaluate(of, table_of(plans), margin=0.9)
    for row, one in enumerate(plans):
        shown = estimate_plan(of, one, margin=0.9).memory
        # every term of the shown one is rounded up to a byte
        assert 0 <= shown.peak_bytes - table.peak_bytes[row] <= len(TERMS) + len(ALLOWANCES)
        assert shown.conservative_bytes == pytest.approx(table.conservative_bytes[row], abs=1)
        assert shown.verdict == ("fits", "borderline", "does_not_fit")[table.verdict[row]]


@every_case
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_more_recomputation_never_adds(name: str, framework: str, schedule: str) -> None:
    """With two or more micro-batches of several layers in flight: full <= selective <= none, on every such stage."""
    of = problem(model(name), framework=framework)
    for p, m in ((2, 4), (4, 8), (6, 3)):
        plans = [
            plan([12 // p] * p, schedule=schedule, num_microbatches=m, recompute=recompute)
            for recompute in ("full", "selective", "none")
        ]
        table = memory_of(of, *plans)
        several = [stage for stage in range(p) if (m if schedule == "gpipe" else min(m, p - stage)) >= 2]
        assert len(several) >= 1
        for values in (table.allocated, table.total, table.high):
            full, selective, none = values[:, several]
            assert (full <= selective).all()
            assert (selective <= none).all()


@every_case
def test_micro_batches_raise_the_stash_of_gpipe_and_not_that_of_1f1b(name: str, framework: str) -> None:
    """GPipe's stash is m times that of one micro-batch; 1F1B's grows up to m = p and never after, on every stage."""
    of, p = problem(model(name), framework=framework), 4

    def stash(schedule: str, m: int) -> list[float]:
        return term(of, "saved_activations", plan([3] * p, schedule=schedule, num_microbatches=m))

    one = stash("gpipe", 1)
    assert min(one) > 0
    for m in range(1, 20):
        assert stash("gpipe", m) == pytest.approx([m * x for x in one], rel=1e-12)
        # Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1, and Megatron's warm-up: min(m, p - r)
        assert stash("1f1b", m) == pytest.approx([min(m, p - r) * x for r, x in enumerate(one)], rel=1e-12)


@every_case
def test_sharding_over_more_ranks_never_raises_a_state(name: str, framework: str) -> None:
    """Twice the data-parallel or context-parallel ranks: no state term grows, and those that ZeRO shards halve."""
    of = problem(model(name), framework=framework)
    for zero in of.framework.optimizer_sharding:
        for axis in ("data_parallel", "context_parallel"):
            tables = [
                memory_of(of, plan([6, 6], optimizer_sharding=zero, **{axis: ways})).terms for ways in (1, 2, 4, 16)
            ]
            for first_sharded_by, state in ((3, "weights"), (2, "gradients"), (1, "optimizer_states")):
                values = [table[state][0] for table in tables]
                expected = [values[0] / (ways if zero >= first_sharded_by else 1) for ways in (1, 2, 4, 16)]
                np.testing.assert_allclose(values, expected, rtol=1e-12)


@every_case
def test_a_higher_zero_stage_never_raises_a_state(name: str, framework: str) -> None:
    """ZeRO-1 divides the optimizer states, 2 also the gradients, 3 also the weights, each by d = 4, and no other."""
    of = problem(model(name), framework=framework)
    tables = [
        memory_of(of, plan([6, 6], optimizer_sharding=zero, data_parallel=4)).terms
        for zero in of.framework.optimizer_sharding
    ]
    for zero, table in zip(of.framework.optimizer_sharding, tables, strict=True):
        for first_sharded_by, state in ((3, "weights"), (2, "gradients"), (1, "optimizer_states")):
            ways = 4 if zero >= first_sharded_by else 1
            np.testing.assert_allclose(table[state], tables[0][state] / ways, rtol=1e-12)


@every_framework
@given(st.integers(min_value=1, max_value=300_000), st.sampled_from(tuple(MODELS)))
def test_more_tensor_parallelism_never_adds_weights(framework: str, vocab_size: int, name: str) -> None:
    """Twice t: no stage holds more weights, whatever the vocabulary and its padding to a multiple that grows with t."""
    of = problem(model(name, vocab_size=vocab_size), framework=framework)
    weights = [term(of, "weights", plan([4, 4, 4], tensor_parallel=t)) for t in (1, 2, 4, 8)]
    for fewer, more in pairwise(weights):
        assert all(y <= x for x, y in zip(fewer, more, strict=True))


@every_framework
@every_model
def test_stages_hold_the_model_and_named_copies(name: str, framework: str) -> None:
    """For any p the parameters of the stages add up to the model's and: padding, the tied copy, the copy for MTP."""
    of = problem(model(name), framework=framework)
    spec, unit = of.model, of.framework.vocab_size_multiple
    stored = -(-spec.vocab_size // unit) * unit
    for p in range(1, spec.num_layers + 1):
        sizes = [spec.num_layers // p + (stage < spec.num_layers % p) for stage in range(p)]
        inputs = PlanInputs.of(of, table_of([plan(sizes)]), every_stage=True)
        held = sum(inputs.parameters)
        tables = 1 + (not spec.tied_embeddings)  # of the model itself
        copies = (spec.tied_embeddings and p > 1) + (spec.mtp_num_layers > 0 and p > 1)
        padding = (stored - spec.vocab_size) * spec.hidden_size * tables
        expected = count_parameters(spec) + padding + copies * stored * spec.hidden_size
        assert np.asarray(held).sum() == expected


@every_model
def test_every_rank_of_a_stage_together_holds_the_stage(name: str) -> None:
    """Over the t ranks of a stage nothing is lost: t times a rank's share is the stage and the copies on each rank."""
    of = problem(model(name, vocab_size=8192))
    one, four = (
        PlanInputs.of(of, table_of([plan([6, 6], tensor_parallel=t)]), every_stage=True).parameters for t in (1, 4)
    )
    (whole, experts), (dense, expert) = one, four
    assert (4 * dense >= whole).all()
    assert (4 * dense <= 1.5 * whole).all()  # norms, biases, positions, and keys and values beyond the groups
    assert (expert == experts).all()  # cut by e and etp, which are 1
