"""Memory that others counted: papers, torch, Megatron-LM, published models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.memory import memory_table
from ppadvisor.engine.memory_activations import embedding_gradient_bytes, output_weight_gradient_bytes
from ppadvisor.engine.memory_axes import MOMENTS, in_table
from ppadvisor.engine.memory_states import main_gradients_bytes, weight_gradient_buffers_bytes
from ppadvisor.engine.recomputation import saved_per_layer
from ppadvisor.specs.load import load_model
from ppadvisor.specs.model import ModelSpec
from tests.engine.memory_cases import every_framework
from tests.problems import FRAMEWORKS, model, plan, problem, table_of


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
    # recomputing the attention core leaves q, k, v before it and what the output projection reads behind it
    for micro_batch in (1, 2):
        found = layer_bytes_per_token(spec, "selective", framework="megatron", micro_batch=micro_batch)
        assert found == kept - 4 * 32


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
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bytes_of_a_parameter_and_its_states(framework: str, run: dict[str, Any], d: int, per_parameter: float) -> None:
    """Weights, gradients and optimizer states are so many bytes times the parameters of each stage."""
    of = problem(model("llama"), framework=framework, **run)
    inputs = PlanInputs.of(of, table_of([plan([6, 6], data_parallel=d, optimizer_sharding=1)]), every_stage=True)
    terms = memory_table(inputs, keep_terms=True).terms
    held = sum(terms[name][0] for name in ("weights", "gradients", "optimizer_states"))
    # the step's fp32 copy of 16-bit gradients is alive then, whatever the peak's moment
    main = in_table(main_gradients_bytes(inputs), inputs.stages.count.shape)[0]
    held = held + main[:, MOMENTS.index("optimizer_step")]
    if not of.framework.frees_main_gradients:
        assert np.all(terms["main_gradients"][0] == main[:, MOMENTS.index("loss")])
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


@every_framework
def test_gradients_of_weights_are_as_wide_as_the_weights(framework: str) -> None:
    """What a backward makes of the shape of a weight takes 2 bytes an element, 4 where the weights are fp32."""
    functions = (weight_gradient_buffers_bytes, output_weight_gradient_bytes, embedding_gradient_bytes)
    half, single = (
        PlanInputs.of(
            problem(model("llama"), framework=framework, precision=precision), table_of([plan([12])]), every_stage=True
        )
        for precision in ("bf16", "fp32")
    )
    shape = half.stages.count.shape
    for function in functions:
        assert (in_table(function(single), shape) == 2 * in_table(function(half), shape)).all()
    assert sum(float(in_table(function(half), shape).max()) > 0 for function in functions) == 2


@pytest.mark.parametrize("etp", [1, 2, 4])
def test_dispatched_tokens_follow_the_cut_of_the_experts(etp: int) -> None:
    """Of T tokens to k experts a rank of t keeps T k / t inner rows, and etp times as many whole rows (h wide).

    Expert tensor parallelism gathers the tokens of its ranks, each of which holds a part of every expert's width.
    """
    of = problem(model("moe"))
    inputs = PlanInputs.of(of, table_of([plan([12], tensor_parallel=4, expert_tensor_parallel=etp)]), every_stage=True)
    dense, moe = sorted(range(2), key=lambda i: inputs.kinds[i].moe)
    found = saved_per_layer(inputs)[0]
    # tokens to 2 of 8 experts and back, of width 512 (gate, up, activated gate, product), one shared expert of the same
    # width, router (8 probabilities in fp32, 30 bytes a chosen expert, a sum), where the dense layer has its 1792
    routed = 2 * 2 * 512 * 2 * etp / 4 + 4 * 2 * 512 * 2 / 4
    expected = routed + 4 * 2 * 512 / 4 + (4 * 8 + 30 * 2 + 4) / 4 - 4 * 2 * 1792 / 4
    assert found[moe] - found[dense] == 2048 * expected


def test_keys_and_values_are_copied_beyond_their_groups() -> None:
    """2 key/value groups on 8 ranks: each rank keeps half of the keys and values (Megatron-LM, attention.py)."""
    h, t = 512, 8
    of = problem(model("llama"))
    inputs = PlanInputs.of(of, table_of([plan([12], tensor_parallel=t)]), every_stage=True)
    dense, _ = inputs.layer_parameters
    whole_norms, query_and_output, keys_and_values, feed_forward = 2 * h, 2 * h * 512, 2 * h * 2 * 64, 3 * h * 1792
    assert dense[0, 0] == whole_norms + query_and_output / t + keys_and_values / 2 + feed_forward / t
