"""Recomputation of some layers and of modules: what stays, what is made again, what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor import frameworks
from ppadvisor.engine.evaluate import estimate_plan
from ppadvisor.engine.inputs import PlanInputs
from ppadvisor.engine.problem import Problem
from ppadvisor.engine.recomputation import layer_saved, saved_per_layer
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from tests.engine.memory_cases import every_case, memory_of, term
from tests.problems import model, plan, problem, table_of

S, H, F, A, G, K = 2048, 512, 1792, 8, 2, 64
"""The small Llama: sequence, hidden, feed-forward, heads, key/value heads, width of a head."""


def recomputed(layers: list[int], text: str, **changed: object) -> PlanSpec:
    """A plan with this recomputation."""
    return plan(layers, **PlanSpec.recomputation_fields(parse_recomputation(text)), **changed)


def of_layer(of: Problem, text: str, kind: int = 0, **changed: object) -> float:
    """Bytes a token that one layer keeps."""
    one = recomputed([of.model.num_layers], text, **changed)
    return float(saved_per_layer(PlanInputs.of(of, table_of([one]), every_stage=True))[0, kind]) / S


@every_case
def test_a_block_of_all_layers_is_full_recomputation(name: str, framework: str) -> None:
    """Recomputing the first N layers of each chunk, N the size of the largest chunk or more, is recomputing all."""
    of = problem(model(name), framework=framework)
    full, four, more = (memory_of(of, recomputed([3] * 4, text)) for text in ("full", "full:block:4", "full:block:9"))
    np.testing.assert_allclose(four.total, full.total, rtol=1e-12)
    np.testing.assert_allclose(more.total, full.total, rtol=1e-12)
    times = [estimate_plan(of, recomputed([3] * 4, text), margin=0.9).time for text in ("full", "full:block:9")]
    assert times[1].step_time_s == pytest.approx(times[0].step_time_s, rel=1e-12)


@pytest.mark.parametrize("framework", ["megatron", "generic"])
@pytest.mark.parametrize("name", ["gpt", "llama", "mla-mtp"])
def test_each_layer_of_a_block_spares_the_same(name: str, framework: str) -> None:
    """With one kind of layer the stash falls by k (A - I) with each further layer of a chunk, and the time rises."""
    of = problem(model(name, moe=None, mtp_num_layers=0), framework=framework)
    texts = ["none", *(f"full:block:{n}" for n in range(1, 6)), "full"]
    stash = np.array([term(of, "saved_activations", recomputed([6, 6], text)) for text in texts])
    falls = -np.diff(stash, axis=0)
    assert (falls > 0).all()
    np.testing.assert_allclose(falls, np.broadcast_to(falls[0], falls.shape), rtol=1e-9)
    times = [estimate_plan(of, recomputed([6, 6], text), margin=0.9).time.step_time_s for text in texts]
    assert times == sorted(times)


def test_groups_of_layers_keep_an_input_each_and_work_on_the_whole_group() -> None:
    """Uniform with N = 4 on 6 layers: 2 inputs of 2 s b h, and 4 layers' tensors alive at once in the backward.

    NVIDIA/Megatron-LM core_v0.19.0, transformer_block.py, _checkpointed_forward: an input for every N layers.
    """
    of = problem(model("llama"), num_gpus=2)
    one = recomputed([6, 6], "full:uniform:4")
    assert term(of, "saved_activations", one) == [2 * (2 * 2 * S * H), 1 * (2 * 2 * S * H)]
    whole = float(layer_saved(PlanInputs.of(of, table_of([one]), every_stage=True))[0, 0])
    assert max(memory_of(of, one).terms["recomputed_layer"][0]) == 4 * whole - 2 * S * H


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        # what is not dropped: norm inputs 4h, attention's norm output 2h, q k v 2ak + 4gk, attention output 2ak
        ("selective:mlp", 4 * H + 2 * H + 2 * A * K + 4 * G * K + 2 * A * K + 4 * A + 8),
        ("selective:core_attn", 4 * H + 4 * H + 2 * A * K + 4 * G * K + 2 * A * K + 6 * F + 8),
        # the norm in front of a dense linear is inside Transformer Engine's linear: nothing to drop
        ("selective:layernorm", 4 * H + 4 * H + 2 * A * K + 4 * G * K + 2 * A * K + 6 * F + 4 * A + 8),
    ],
)
def test_megatrons_modules_on_a_dense_layer(text: str, kept: int) -> None:
    """Bytes a token of a Llama layer: Megatron-Core 0.16.1, transformer_layer.py, gpt_layer_specs.py (:279, :291)."""
    assert of_layer(problem(model("llama"), framework="megatron"), text) == kept


def test_megatrons_modules_on_a_latent_moe_layer() -> None:
    """Bytes a token that each module spares, t = 1. Megatron-Core 0.16.1: moe/experts.py:738-750 (the activation's
    output), moe_layer.py:294-306 and :389-446, multi_latent_attention.py:714-843 (q, k, v and normed latents).
    """
    of = problem(model("mla-mtp"), framework="megatron")
    moe, mla = of.model.moe, of.model.mla
    assert moe is not None
    assert mla is not None
    kind = 1  # dense layers come first
    none = of_layer(of, "none", kind)
    spared = {name: none - of_layer(of, f"selective:{name}", kind) for name in of.framework.recompute_modules}
    inner, top_k, shared = moe.moe_ffn_hidden_size, moe.experts_per_token, moe.shared_expert_ffn_hidden_size or 0
    assert spared["moe_act"] == 2 * inner * top_k
    assert spared["shared_experts"] == 6 * shared
    assert spared["moe"] == top_k * (2 * H + 6 * inner) + 6 * shared + 16 * moe.num_experts
    assert spared["layernorm"] == 4 * H
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    normed = 2 * ((mla.q_lora_rank or 0) + mla.kv_lora_rank)
    # and the fp32 statistics of the two norms
    assert spared["mla_up_proj"] == 2 * A * (2 * qk + mla.v_head_dim) + normed + 2 * 4
    assert spared["mlp"] == 0


def test_linears_keep_their_input_in_fp8() -> None:
    """Megatron's dense layer: norm outputs h + h, the projection's input h and the down-projection's f in one byte.

    The attention core keeps its own output, 2 h, until selective recomputation repeats it.
    NVIDIA/TransformerEngine commit d0067d0d, pytorch/module/linear.py:613-621, layernorm_linear.py:469-532.
    """
    sixteen, eight = (problem(model("llama"), framework="megatron", precision=p) for p in ("bf16", "fp8"))
    assert of_layer(sixteen, "none") - of_layer(eight, "none") == 2 * H + F - H
    assert of_layer(eight, "none") - of_layer(eight, "selective:core_attn") == 2 * H + 4 * A
    many = {"micro_batch_size": 2}
    assert of_layer(eight, "none", **many) == 2 * of_layer(eight, "none")


def test_pipeoffloads_flag_leaves_16_bytes() -> None:
    """--recompute-lgd drops norm outputs 4h, the activation 8h and dropout masks 2h of 34h: 20h stay with as many
    key/value heads as heads (16h + 4kg). sail-sg/PipeOffload, its training script.
    """
    of = problem(model("gpt"), framework="zero-bubble", dropout=True)
    statistics = 4 * A + 2 * 8
    assert of_layer(of, "none") == 34 * H + statistics
    assert of_layer(of, "selective:layernorm+activation+dropout") == 20 * H + statistics


def test_the_halves_of_a_layer_are_not_made_again_together() -> None:
    """Norm outputs and activation: the feed-forward's 2h + 8h are alive at once, attention's 2h only afterwards."""
    of = problem(model("gpt"), framework="zero-bubble")
    one = recomputed([12], "selective:layernorm+activation")
    assert memory_of(of, one).terms["recomputed_layer"][0].tolist() in ([(2 * H + 8 * H) * S], [0.0])
    from_moments = memory_of(of, recomputed([12], "selective:layernorm+activation", num_microbatches=1))
    assert from_moments.terms["recomputed_layer"].max() <= 10 * H * S


@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)
def test_what_is_dropped_is_paid_in_time(framework: str) -> None:
    """Every module that spares memory repeats work, and never as much as full recomputation does."""
    of = problem(model("mla-mtp"), framework=framework)
    full = estimate_plan(of, recomputed([6, 6], "full"), margin=0.9).time
    for name in of.framework.recompute_modules:
        one = recomputed([6, 6], f"selective:{name}")
        spares = term(of, "saved_activations", plan([6, 6]))[0] - term(of, "saved_activations", one)[0]
        repeated = estimate_plan(of, one, margin=0.9).time.terms["recompute_s"]
        assert 0 <= repeated <= full.terms["recompute_s"]
        assert (repeated > 0) or spares == 0


def test_hardware_flops_count_what_is_repeated() -> None:
    """Half of the layers recomputed: HFU - MFU is half of what it is with all; mlp repeats 3 x 2 h f FLOPs a token."""
    of = problem(model("llama"))
    half, full = (estimate_plan(of, recomputed([6, 6], text), margin=0.9).time for text in ("full:block:3", "full"))
    ratio = [t.hardware_flops_utilization / t.model_flops_utilization - 1 for t in (half, full)]
    assert ratio[0] == pytest.approx(ratio[1] / 2, rel=1e-12)
    mlp = estimate_plan(of, recomputed([6, 6], "selective:mlp"), margin=0.9).time
    extra = (mlp.hardware_flops_utilization / mlp.model_flops_utilization - 1) * mlp.model_flops
    assert extra == pytest.approx(of.training.tokens_per_step * 12 * 2 * 3 * H * F, rel=1e-9)
