"""Memory: totals keep their parts, the properties that any right model has, and numbers counted by others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppadvisor import frameworks
from ppadvisor.engine.evaluate import estimate_plan, evaluate
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import ALLOWANCES, MOMENTS, TERMS, MemoryTable, memory_table, saved_per_layer
from ppadvisor.engine.parameters import count_parameters
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.load import load_model
from ppadvisor.specs.model import ModelSpec
from ppadvisor.specs.plan import PlanSpec
from tests.problems import MODELS, model, plan, problem, random_plans, table_of

PLANS_A_PROBLEM = 40
CASES = [(name, framework) for name in MODELS for framework in frameworks.FRAMEWORKS]

every_case = pytest.mark.parametrize(("name", "framework"), CASES)
every_model = pytest.mark.parametrize("name", MODELS)
every_framework = pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)


@cache
def case(name: str, framework: str) -> tuple[Problem, tuple[PlanSpec, ...]]:
    """A problem of every kind of model, dropout where the model is a GPT, and random plans for it."""
    of = problem(model(name), framework=framework, dropout=name == "gpt")
    return of, tuple(random_plans(of, PLANS_A_PROBLEM))


def memory_of(of: Problem, *plans: PlanSpec) -> MemoryTable:
    """Memory of these plans, every stage and term."""
    return memory_table(PlanInputs.of(of, table_of(plans), every_stage=True), keep_terms=True)


def term(of: Problem, name: str, one: PlanSpec) -> list[float]:
    """One term of each stage at its highest moment."""
    return [float(value) for value in memory_of(of, one).terms[name][0]]


# --- totals and their parts -------------------------------------------------------------------------------------------


@every_case
def test_a_stage_is_the_sum_of_its_terms_at_its_highest_moment(name: str, framework: str) -> None:
    """What is allocated is the maximum over the moments of the sum of the terms there, and the terms are that sum."""
    of, plans = case(name, framework)
    inputs = PlanInputs.of(of, table_of(plans), every_stage=True)
    table = memory_table(inputs, keep_terms=True)
    shape = (*inputs.stages.count.shape, len(MOMENTS))
    by_moment = np.sum([np.broadcast_to(function(inputs).sum(axis=2), shape) for _, function in TERMS], axis=0)
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
    """Looking at one stage of each run of equal ones finds the peak, the stage and the verdict of looking at all."""
    of, plans = case(name, framework)
    table = evaluate(of, table_of(plans), margin=0.9)
    for row, one in enumerate(plans):
        shown = estimate_plan(of, one, margin=0.9).memory
        # every term of the shown one is rounded up to a byte
        assert 0 <= shown.peak_bytes - table.peak_bytes[row] <= len(TERMS) + len(ALLOWANCES)
        assert shown.conservative_bytes == pytest.approx(table.conservative_bytes[row], abs=1)
        assert shown.binding_stage == table.binding_stage[row]
        assert shown.verdict == ("fits", "borderline", "does_not_fit")[table.verdict[row]]


# --- what may never happen --------------------------------------------------------------------------------------------


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


# --- numbers counted by others ----------------------------------------------------------------------------------------


def layer_bytes_per_token(spec: ModelSpec, recompute: str = "none", micro_batch: int = 1, **run: Any) -> float:
    """What one layer keeps of one token, t = c = 1."""
    of = problem(spec, **run)
    one = plan([spec.num_layers], recompute=recompute, micro_batch_size=micro_batch)
    inputs = PlanInputs.of(of, table_of([one]), every_stage=True)
    return float(saved_per_layer(inputs)[0, 0]) / (of.training.sequence_length * micro_batch)


def gpt(h: int, a: int) -> ModelSpec:
    """A GPT layer of the paper: f = 4 h, as many key/value heads as heads."""
    return model(hidden_size=h, ffn_hidden_size=4 * h, num_attention_heads=a, num_query_groups=a, head_dim=h // a)


STATISTICS = 16
"""Bytes a token for mean and deviation of two LayerNorms in fp32, which formulas in s b h leave out."""


@pytest.mark.parametrize(("h", "a"), [(4096, 32), (1024, 16), (12288, 96)])
def test_a_gpt_layer_keeps_what_the_paper_counts(h: int, a: int) -> None:
    """34 s b h + 5 a s^2 b eager, 34 s b h with flash attention, 2 less without dropout, 2 under full recomputation.

    Korthikanti et al. 2022 (arXiv 2205.05198), equation 1 and section 5; norm statistics and, with flash attention,
    one fp32 number a head and token come on top.
    """
    s = 2048
    assert layer_bytes_per_token(gpt(h, a), dropout=True) == 34 * h + STATISTICS + 4 * a
    assert layer_bytes_per_token(gpt(h, a)) == 32 * h + STATISTICS + 4 * a
    eager = layer_bytes_per_token(gpt(h, a), dropout=True, attention="eager")
    assert eager == 34 * h + STATISTICS + 5 * a * s
    assert layer_bytes_per_token(gpt(h, a), attention="eager") == 32 * h + STATISTICS + 2 * a * s
    # selective recomputation takes away all that is quadratic in s
    for dropout, kept in ((True, 34), (False, 32)):
        selective = layer_bytes_per_token(gpt(h, a), "selective", dropout=dropout, attention="eager")
        assert selective == kept * h + STATISTICS
    assert layer_bytes_per_token(gpt(h, a), "full", dropout=True) == 2 * h


@pytest.mark.parametrize(
    ("h", "a", "s", "b", "flash_dropout", "flash", "eager_dropout", "eager"),
    [
        (4096, 32, 2048, 1, 34.0332, 32.0332, 114.502, 64.502),
        (1024, 16, 1024, 4, 34.0703, 32.0703, 114.2578, 64.2578),
        (12288, 96, 2048, 1, 34.0319, 32.0319, 114.1673, 64.1673),
    ],
)
def test_a_gpt_layer_keeps_what_torch_saves(
    h: int, a: int, s: int, b: int, flash_dropout: float, flash: float, eager_dropout: float, eager: float
) -> None:
    """To a byte a token, what autograd of torch 2.13 saves for a real layer under fake tensors (there in s b h).

    But for two things: the statistics of the norms, fp32 in a GPU's kernels and 16 bit there (8 bytes a token less),
    and the causal mask of the eager layer, s^2 bytes shared by the batch, which a real trainer keeps once for all.
    """
    spec, mask = gpt(h, a), s / b
    for counted, masked, run in (
        (flash_dropout, False, {"dropout": True}),
        (flash, False, {}),
        (eager_dropout, True, {"dropout": True, "attention": "eager"}),
        (eager, True, {"attention": "eager"}),
    ):
        ours = layer_bytes_per_token(spec, sequence_length=s, micro_batch=b, **run)
        assert ours == pytest.approx(counted * h - mask * masked + 8, abs=1)


def test_a_llama_layer_keeps_what_torch_saves() -> None:
    """Llama-3-8B, flash attention with grouped heads: 41.0332 s b h counted on torch 2.13 under fake tensors.

    That is 41 h for the tensors, 4 a for the softmax statistics and 8 for those of two RMSNorms.
    """
    spec = load_model("llama-3-8b")
    for s in (2048, 8192):
        ours = layer_bytes_per_token(spec, sequence_length=s)
        assert ours == 41 * 4096 + 4 * 32 + 8
        assert ours == pytest.approx(41.0332 * 4096, abs=0.5)
        assert layer_bytes_per_token(spec, "full", sequence_length=s) == 2 * 4096


def test_a_llama_layer_keeps_less_in_megatron() -> None:
    """The fused activation keeps 3 inner tensors: 12 h + 4 k g + 6 f, 4 a and norm statistics; b > 1 adds 2 h.

    Tensor by tensor: two residuals, two norm outputs, q, attention output (2 h each); k and v (2 k g each); gate, up
    and their product (2 f each). With several sequences flash attention's own layout is a second copy of its output.
    """
    spec = load_model("llama-3-8b")
    kept = 12 * 4096 + 4 * 128 * 8 + 6 * 14336 + 4 * 32 + 8
    assert layer_bytes_per_token(spec, framework="megatron") == kept
    assert layer_bytes_per_token(spec, framework="megatron", micro_batch=2) == kept + 2 * 4096


@pytest.mark.parametrize(
    ("run", "d", "per_parameter"),
    [
        # Megatron-LM docs/user-guide/features/dist_optimizer.md: bf16 parameters, fp32 gradients; d = 1 is unsharded
        ({"precision": "bf16"}, 1, 18),
        ({"precision": "bf16"}, 8, 6 + 12 / 8),
        # fp16 parameters, fp16 gradients
        ({"precision": "fp16", "gradient_precision": "fp16"}, 1, 20),
        ({"precision": "fp16", "gradient_precision": "fp16"}, 8, 4 + 16 / 8),
        # fp32 parameters, fp32 gradients
        ({"precision": "fp32"}, 1, 16),
        ({"precision": "fp32"}, 8, 8 + 8 / 8),
        # bf16 weight 2, fp32 gradient 4, fp32 main weight 4 and one moment 4, or none
        ({"optimizer": "sgd-momentum"}, 1, 14),
        ({"optimizer": "sgd"}, 1, 10),
        # bf16 moments 2 + 2 beside the main weight; no main weight and bf16 gradients: four times 2
        ({"optimizer": "adam-bf16-moments"}, 1, 14),
        ({"optimizer": "adam-pure-bf16", "gradient_precision": "bf16"}, 1, 8),
    ],
)
@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)
def test_bytes_of_a_parameter_and_its_states(framework: str, run: dict[str, Any], d: int, per_parameter: float) -> None:
    """Weights, gradients and optimizer states are so many bytes times the parameters of each stage."""
    of = problem(model("llama"), framework=framework, **run)
    inputs = PlanInputs.of(of, table_of([plan([6, 6], data_parallel=d, optimizer_sharding=1)]), every_stage=True)
    terms = memory_table(inputs, keep_terms=True).terms
    held = sum(terms[name][0] for name in ("weights", "gradients", "optimizer_states"))
    np.testing.assert_allclose(held, per_parameter * inputs.parameters[0][0], rtol=1e-12)


@every_framework
def test_a_70b_models_weights_over_8_stages(framework: str) -> None:
    """140 GB of fp16 weights over 8 stages: 17.6 GB on average, more at the ends, which hold embedding and head."""
    of = problem(load_model("llama-3.1-70b"), num_gpus=8, framework=framework, precision="fp16")
    stages = estimate_plan(of, plan([10] * 8), margin=0.9).memory.stages
    weights = [stage.terms["weights"] for stage in stages]
    assert sum(weights) == 2 * 70_553_706_496  # Llama-3.1-70B, as published
    assert round(sum(weights) / 8 / 1e9, 1) == 17.6
    assert len(set(weights[1:-1])) == 1
    assert weights[-1] > weights[0] > weights[1]
    assert weights[0] - weights[1] == 2 * 128_256 * 8192  # the token table
    assert weights[-1] - weights[1] == 2 * (128_256 * 8192 + 8192)  # the output layer and the final norm


def test_the_tied_copy_counts_once_per_end() -> None:
    """A tied table is stored on the first and on the last stage, and once where they are the same."""
    of = problem(model("gpt"))
    table, h = 5000 * 512, 512
    alone, two = ([s.parameters for s in estimate_plan(of, plan(x), margin=0.9).memory.stages] for x in ([12], [6, 6]))
    assert sum(two) - sum(alone) == table
    assert two[0] - two[1] == 4096 * h - 2 * h  # both hold the table; the first the positions, the last the final norm


# --- the ends of the pipeline -----------------------------------------------------------------------------------------


def test_a_large_vocabulary_binds_the_last_stage() -> None:
    """With a vocabulary of a million the loss's moments on the last stage are the peak; with a small one stage 0's."""
    peaks = {}
    for vocab_size in (1000, 1_000_000):
        of = problem(model("llama", vocab_size=vocab_size), sequence_length=4096)
        memory = estimate_plan(of, plan([3] * 4), margin=0.9).memory
        peaks[vocab_size] = (memory.binding_stage, memory.stages[memory.binding_stage].moment)
    assert peaks[1000] == (0, "layer_backward")
    assert peaks[1_000_000] == (3, "loss")


@pytest.mark.parametrize(("loss", "per_logit"), [("native", 6), ("fused", 2), ("torch", 14)])
def test_logits_take_the_bytes_of_the_loss(loss: str, per_logit: int) -> None:
    """At the loss's worst moment: 2 (16-bit logits) + 4 (fp32) native, 2 fused, 2 + 4 + 4 + 4 in plain torch.

    Times the logits of one micro-batch, s b V / t.
    """
    of = problem(model("llama", vocab_size=1_000_000), loss=loss, sequence_parallel=False)
    stage = estimate_plan(of, plan([6, 6], tensor_parallel=2, micro_batch_size=2), margin=0.9).memory.stages[-1]
    if stage.moment == "loss":
        assert stage.terms["logits"] == per_logit * 2048 * 2 * 1_000_000 / 2
    else:
        assert (loss, stage.moment) == ("fused", "head_backward")


@every_framework
def test_only_pipelines_have_receive_buffers(framework: str) -> None:
    """Two tensors of s b h / (c t) in 16 bit where p > 1 (with sequence parallelism), none where p = 1."""
    of = problem(model("llama"), framework=framework)
    one = {"tensor_parallel": 2, "context_parallel": 2, "micro_batch_size": 4}
    assert term(of, "handoff_buffers", plan([12], **one)) == [0]
    assert term(of, "handoff_buffers", plan([6, 6], **one)) == [2 * 2 * 2048 * 4 * 512 / (2 * 2)] * 2


def test_unbalanced_experts_widen_the_conservative_end_only() -> None:
    """Assuming 1.5 times the mean tokens on the fullest rank raises the conservative end, not the middle estimate."""
    of = problem(model("moe"))
    balanced = replace(of.assumptions.expert_load_factor, high=1.0)
    calm = replace(of, assumptions=replace(of.assumptions, expert_load_factor=balanced))
    one = plan([6, 6], expert_parallel=4, data_parallel=4)
    first, second = (estimate_plan(x, one, margin=0.9).memory for x in (calm, of))
    assert first.peak_bytes == second.peak_bytes
    assert first.conservative_bytes < second.conservative_bytes
