"""The command line as a test calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ppadvisor.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The JSON document that stdout holds, and nothing else."""
        return json.loads(self.stdout)


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line with these words."""

    def run(*args: str) -> Result:
        exit_code = main(args)
        return Result(exit_code, *capsys.readouterr())

    return run
