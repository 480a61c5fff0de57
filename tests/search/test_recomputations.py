"""Recomputation that a trainer cannot do, or that does nothing, is neither searched, nor pinned, nor explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ppadvisor import frameworks
from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.search.explain import NothingToExplain, PlanExplanation, explain
from ppadvisor.search.pins import Pins, check_pins
from ppadvisor.search.results import ProblemEcho
from ppadvisor.search.space import build_space
from ppadvisor.specs.model import MoeSpec
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from tests.problems import MODELS, MOE, model, plan, problem
from tests.search.asked import ask

MOE_EVERYWHERE = MOE.changed(first_dense_layers=0)
NO_SHARED = MoeSpec(num_experts=8, experts_per_token=2, moe_ffn_hidden_size=512)


def searched(of: Problem) -> set[str]:
    """What the search tries by itself."""
    return {choice.text for choice in build_space(of, Pins()).plans.recomputations}


@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_searched_may_be_pinned(name: str, framework: str) -> None:
    """No plan is ranked whose recomputation the same question refuses as a pin; each trainer can do none and full."""
    of = problem(model(name), framework=framework)
    tried = searched(of)
    check_pins(of, Pins(recompute=tuple(tried)))
    assert tried >= {"none", "full"}


@pytest.mark.parametrize("framework", frameworks.FRAMEWORKS)
def test_selective_recomputation_is_searched_where_there_is_any(framework: str) -> None:
    """Aleph Alpha's trainer alone has none (core/topology/topology_config.py:14)."""
    assert ("selective" in searched(problem(framework=framework))) == (framework != "scaling")


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("scaling", {}, "selective", "recompute: got selective; scaling has no selective recomputation: none or full"),
    ("megatron", {}, "selective:mla_up_proj", "mla_up_proj has no effect on llama; what has: core_attn, mlp"),
    ("megatron", {}, "selective:core_attn+moe", "moe has no effect on llama"),
    ("megatron", {}, "selective:moe_act", "moe_act has no effect on llama"),
    ("megatron", {}, "selective:shared_experts", "shared_experts has no effect on llama"),
    ("megatron", {"moe": NO_SHARED}, "selective:shared_experts", "shared_experts has no effect on llama"),
    # Transformer Engine has the norms of a dense layer in its linears
    ("megatron", {}, "selective:layernorm", "layernorm has no effect on llama"),
    ("megatron", {"moe": MOE_EVERYWHERE}, "selective:mlp", "mlp has no effect on llama"),
    ("megatron", {}, "selective:activation", "megatron cannot recompute activation by itself"),
    ("generic", {}, "selective:dropout", "dropout has no effect on llama"),
    # the fork's two flags: the attention core; norms, activation and dropout
    ("zero-bubble", {}, "selective:mlp", "zero-bubble cannot recompute mlp by itself; it can: core_attn, layernorm"),
    ("scaling", {}, "full:block:2", "scaling knows full recomputation by uniform"),
    ("torchtitan", {}, "full:uniform:2", "torchtitan knows full recomputation by block"),
    ("megatron", {}, "full:block:13", "got full:block:13, but llama has 12 layers"),
    ("deepspeed", {}, "full:uniform:999", "got full:uniform:999, but llama has 12 layers"),
]
every_refusal = pytest.mark.parametrize(("framework", "changed", "text", "message"), REFUSED)


@every_refusal
def test_such_a_pin_is_refused(framework: str, changed: dict[str, Any], text: str, message: str) -> None:
    """With what is possible, by one message."""
    with pytest.raises(InputError, match=message):
        ask(problem(model("llama", **changed), framework=framework), Pins(recompute=(text,)))


def asked_of(of: Problem) -> ProblemEcho:
    """The problem as a saved answer repeats it."""
    return ask(of, top=1).problem


def saved(text: str, **changed: Any) -> PlanSpec:
    """A plan for 16 GPUs as a file has it."""
    fields = PlanSpec.recomputation_fields(parse_recomputation(text))
    sizes = {"data_parallel": 4, "num_microbatches": 16, "optimizer_sharding": 1}
    return plan([3, 3, 3, 3], **{**sizes, **fields, **changed})


@every_refusal
def test_a_saved_plan_is_held_to_the_same(framework: str, changed: dict[str, Any], text: str, message: str) -> None:
    """A plan in a file is refused for what a pin is refused for."""
    of = problem(model("llama", **changed), framework=framework)
    sharding = of.framework.default_optimizer_sharding
    with pytest.raises(InputError, match=f"plan: recompute: .*{message.removeprefix('recompute: ')}"):
        explain(asked_of(of), saved(text, optimizer_sharding=sharding))


@pytest.mark.parametrize("text", ["selective:layernorm+mla_up_proj+moe_act", "selective:mlp+shared_experts"])
def test_modules_that_a_model_has_are_taken(text: str) -> None:
    """Each of Megatron's modules on a latent model with dense and MoE layers."""
    of = problem(model("mla-mtp"), framework="megatron")
    check_pins(of, Pins(recompute=(text, "full:block:13")))  # 12 layers and a prediction layer
    assert isinstance(explain(asked_of(of), saved(text)), PlanExplanation)


def test_more_layers_than_a_chunk_holds_are_no_plan() -> None:
    """Of the plans for a pinned number those with a chunk of so many layers are left, and no others explained."""
    of = problem(model("llama"), framework="megatron")
    report = ask(of, Pins(recompute=("full:block:5",)), top=100)
    assert report.rejected["recompute_layers"] > 0
    assert report.plans
    for estimate in report.plans:
        assert max(estimate.plan.layers_per_chunk) >= 5
        assert isinstance(explain(report.problem, estimate.plan), PlanExplanation)
    answer = explain(report.problem, saved("full:block:4"))
    assert isinstance(answer, NothingToExplain)
    assert "full:block:4: the largest chunk holds 3 layers" in answer.note
    assert isinstance(explain(report.problem, saved("full:block:3")), PlanExplanation)


def test_prediction_layers_count_with_the_last_chunk() -> None:
    """Three layers and one of multi-token prediction are four."""
    of = problem(model("mla-mtp"), framework="megatron")
    assert isinstance(explain(asked_of(of), saved("full:block:4")), PlanExplanation)


@pytest.mark.parametrize(("text", "legal"), [("full", True), ("full:uniform:3", True), ("full:uniform:2", False)])
def test_aleph_alphas_trainer_recomputes_a_layer_or_a_stage(text: str, legal: bool) -> None:
    """ActivationCheckpointingType: every_layer, every_pipe_stage, disabled (core/topology/topology_config.py:14)."""
    answer = explain(asked_of(problem(framework="scaling")), saved(text))
    assert isinstance(answer, PlanExplanation) == legal
    assert legal or "layer by layer (full) or a whole stage at once (full:uniform:3)" in str(answer)


@pytest.mark.parametrize("framework", ["scaling", "deepspeed"])
def test_trainers_without_context_parallelism(framework: str) -> None:
    """Nothing is ranked with c > 1, and a pin is told why; Megatron ranks such plans."""
    for name in (framework, "megatron"):
        of = problem(framework=name)
        legal = {estimate.plan.context_parallel for estimate in ask(of, top=200).plans}
        assert (legal == {1}) == (name == framework)
    report = ask(problem(framework=framework), Pins(context_parallel=(2,)))
    assert report.plans == ()
    assert set(report.rejected) == {f"{framework}_context_parallel"}


def test_aleph_alphas_trainer_has_no_experts() -> None:
    """No plan for a model with experts, whatever e is."""
    report = ask(problem(model("moe"), framework="scaling"))
    assert report.plans == ()
    assert report.rejected["scaling_experts"] > 0
    assert (
        "scaling has no layers with experts"
        in {e.code: e.message for e in report.rejection_examples}["scaling_experts"]
    )
    assert np.all([code.startswith("scaling_") for code in report.rejected])
