"""All that Megatron checks, in the order in which it is told."""

from __future__ import annotations

from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.configuration import Broken
from ppadvisor.frameworks.megatron import check_experts, check_features, check_sizes, check_stages, check_steps
from ppadvisor.frameworks.megatron.run import Run

CHECKS: tuple[Check[Run], ...] = (
    *check_sizes.CHECKS,
    *check_stages.CHECKS,
    *check_features.CHECKS,
    *check_experts.CHECKS,
    *check_steps.CHECKS,
)
RULES = ("unknown_option", "left_over_words", "option_value", *dict.fromkeys(check.rule for check in CHECKS))
"""Names of what the parser refuses (arguments.py here), then of the checks."""


def broken_rules(run: Run) -> tuple[Broken, ...]:
    """What the parser refused, then every rule that the run breaks."""
    found = [broken for check in CHECKS for broken in [check.broken(run)] if broken]
    return (*run.arguments.broken, *found)
