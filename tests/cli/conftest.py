"""The command line as a test calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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
Save = Callable[[str], Path]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line with these words."""

    def run(*args: str) -> Result:
        exit_code = main(args)
        return Result(exit_code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def save(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """The JSON that `plan` writes for these options, asked once each."""
    folder, known = tmp_path_factory.mktemp("plans"), dict[str, Path]()

    def saved(options: str) -> Path:
        if options not in known:
            known[options] = folder / f"{len(known)}.json"
            main(["plan", *options.split(), "--format", "json", "--output", str(known[options])])
        return known[options]

    return saved
