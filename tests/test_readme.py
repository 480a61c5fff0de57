from __future__ import annotations

import pytest

from tests.readme import README, blocks, output_of

BLOCKS = blocks(README.read_text(encoding="utf-8"))


def test_readme_shows_the_main_commands() -> None:
    """The README shows real output of plan, bubble and sweep, so that the next test has something to hold."""
    assert {command.split()[1] for command, _ in BLOCKS} >= {"plan", "bubble", "sweep"}


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command.split()[1] for command, _ in BLOCKS])
def test_readme_output_is_true(command: str, shown: str) -> None:
    """Every output in the README is what its command prints today (`python -m tests.readme` renews them)."""
    assert output_of(command) == shown
