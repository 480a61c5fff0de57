"""Compute: the FLOPs of the model, no more and no less, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from ppadvisor.engine.compute import attention_core, embedding_compute, head_compute, layer_compute
from ppadvisor.engine.flops import megatron_flops_per_token
from ppadvisor.engine.inputs import FloatArray, PlanInputs
from ppadvisor.engine.problem import Problem
from ppadvisor.specs.assumptions import Assumptions
from ppadvisor.specs.plan import PlanSpec
from tests.problems import MODELS, cluster, model, plan, problem, table_of

every_model = pytest.mark.parametrize("name", MODELS)


def inputs_of(of: Problem, *plans: PlanSpec, every_stage: bool = True) -> PlanInputs:
    """The plans as a table."""
    return PlanInputs.of(of, table_of(plans), every_stage=every_stage)


ONLY_FLOPS = Assumptions().changed(
    {"gemm_efficiency": 1.0, "attention_efficiency": 1.0, "gemm_launch_s": 0.0, "layer_launch_s": 0.0}
)


def forward_s(inputs: PlanInputs) -> FloatArray:
    """Forward compute of the whole model, (plans,)."""
    kinds, of_layer = inputs.problem.model.layer_kinds()
    layers = [layer_compute(inputs, kinds[index]).forward for index in of_layer]
    layers += [layers[-1]] * inputs.problem.model.mtp_num_layers
    return np.asarray(np.sum([*layers, head_compute(inputs).forward, embedding_compute(inputs).forward], axis=0))


@every_model
@pytest.mark.parametrize("t", [1, 2])
def test_compute_is_the_models_flops(name: str, t: int) -> None:
    """With memory infinitely fast and no losses, a forward takes a third of Megatron's model FLOPs, and the router's.

    Over t ranks a t-th of it. Megatron leaves the router out, counts norms of latents as products (below 1e-3) and
    credits no window.
    """
    spec = model(name, sliding_window=None, sliding_window_period=None) if name == "windowed" else model(name)
    machines = cluster(8, peak_flops_per_s={"bf16": 1e12}, hbm_bandwidth_bytes_per_s=1e30)
    of = problem(spec, machines=machines, assume=ONLY_FLOPS)
    found = forward_s(inputs_of(of, plan([12], tensor_parallel=t, expert_tensor_parallel=t if spec.moe else 1)))[0]
    tokens = of.training.sequence_length
    flops = megatron_flops_per_token(spec, tokens, spec.vocab_size) / 3 * tokens
    if spec.moe:
        moe_layers = sum(spec.is_moe_layer(i) for i in range(12)) + spec.mtp_num_layers
        flops += 2 * tokens * spec.hidden_size * spec.moe.num_experts * moe_layers
    assert found * 1e12 * t == pytest.approx(flops, rel=1e-9 if spec.mla is None else 2e-3)


@every_model
def test_a_backward_is_two_products_for_one(name: str) -> None:
    """With no losses a layer's backward takes twice its forward, and the attention core two and a half times.

    Gradients of input and of weight; FlashAttention's five products for two (Dao 2023, arXiv 2307.08691, 3.1).
    """
    machines = cluster(8, hbm_bandwidth_bytes_per_s=1e30)
    of = problem(model(name), machines=machines, assume=ONLY_FLOPS.changed({"attention_backward_efficiency": 1.0}))
    inputs = inputs_of(of, plan([12], tensor_parallel=2))
    for kind in inputs.kinds:
        layer, core = layer_compute(inputs, kind), attention_core(inputs, kind)
        expected = 2 * (layer.forward - core.forward) + 2.5 * core.forward
        np.testing.assert_allclose(layer.backward, expected, rtol=1e-9)
    head = head_compute(inputs)
    np.testing.assert_allclose(head.backward, 2 * head.forward, rtol=1e-9)


def test_a_window_makes_attention_cheaper() -> None:
    """A windowed layer meets w (1 - w / 2s) keys a token where a full one meets s / 2: less, and the same at w = s."""
    machines = cluster(8, hbm_bandwidth_bytes_per_s=1e30)
    for window, share in ((512, 512 * (1 - 512 / 4096) / 1024), (2048, 1.0), (100_000, 1.0)):
        narrow, full = (
            problem(model("llama", sliding_window=w), machines=machines, assume=ONLY_FLOPS) for w in (window, None)
        )
        narrow_s, full_s = (
            layer_compute(inputs, inputs.kinds[0]).forward[0]
            for inputs in (inputs_of(narrow, plan([12])), inputs_of(full, plan([12])))
        )
        core = 2 * 2048 * 8 * 64 * 2048 / 400e12  # 2 T a k s: scores and values, half of them each
        assert full_s - narrow_s == pytest.approx((1 - share) * core, rel=1e-9, abs=1e-18)
