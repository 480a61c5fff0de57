"""The table of what was measured, printed behind the benchmarks."""

from __future__ import annotations

import pytest

FIGURES = pytest.StashKey[list[tuple[str, str, str]]]()
"""(what, figure, beside it) of each benchmark that ran."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was measured, one line a figure."""
    figures = config.stash.get(FIGURES, [])
    if not figures:
        return
    terminalreporter.section("ppadvisor's speed: CPU seconds, the least of several runs")
    wide, middle = (max(len(figure[column]) for figure in figures) for column in (0, 1))
    for what, figure, beside in figures:
        terminalreporter.write_line(f"{what:{wide}}  {figure:>{middle}}  {beside}".rstrip())
