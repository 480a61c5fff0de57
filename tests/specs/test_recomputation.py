"""Recomputation in words: what is read is what is written, and what cannot be meant is refused by name."""

from __future__ import annotations

import re

import pytest

from ppadvisor.errors import InputError
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.specs.recomputation import parse_recomputation
from ppadvisor.specs.validation import validate
from tests.problems import plan

TEXTS = ("none", "selective", "full", "full:block:4", "full:uniform:2", "selective:moe_act", "selective:mlp+layernorm")


@pytest.mark.parametrize("text", TEXTS)
def test_the_words_survive_a_plan(text: str) -> None:
    """Text, choice, fields of a plan and back."""
    choice = parse_recomputation(text)
    assert choice.text == text
    one = plan([4, 4], **PlanSpec.recomputation_fields(choice))
    assert one.recomputation == choice
    assert validate(PlanSpec, one.as_dict(), text).recomputation == choice


def test_modules_have_one_order() -> None:
    """The same modules in another order, or twice, are the same choice; the attention core alone is `selective`."""
    assert parse_recomputation("selective:layernorm+mlp+mlp").text == "selective:mlp+layernorm"
    assert parse_recomputation("selective:core_attn") == parse_recomputation("selective")
    assert parse_recomputation("full:uniform:1") == parse_recomputation("full")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("some", "unknown recompute 'some'"),
        ("none:2", "none takes nothing behind it"),
        ("selective:mpl", "did you mean 'mlp'"),
        ("selective:", "unknown recompute module ''"),
        ("full:blok:2", "did you mean 'block'"),
        ("full:block", "needs a whole number of layers from 1, as in full:block:4"),
        ("full:block:0", "needs a whole number of layers"),
        ("full:block:-1", "needs a whole number of layers"),
        ("full:block:1.5", "needs a whole number of layers"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    """The error names what was given and what is allowed."""
    with pytest.raises(InputError, match=re.escape(message)):
        parse_recomputation(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"recompute": "none", "recompute_modules": ("mlp",)},
        {"recompute": "full", "recompute_modules": ("mlp",)},
        {"recompute": "selective", "recompute_modules": ()},
        {"recompute": "selective", "recompute_modules": ("mpl",)},
        {"recompute": "selective", "recompute_method": "block", "recompute_num_layers": 2},
        {"recompute": "full", "recompute_method": "block"},
        {"recompute": "full", "recompute_num_layers": 2},
    ],
)
def test_a_plan_refuses_contradictions(fields: dict[str, object]) -> None:
    """Modules go with selective, method and number of layers with full, and both of these together."""
    with pytest.raises(ValueError, match="recompute"):
        plan([4, 4], **fields)
