"""What the layout promises: imports go one way, and start-up imports almost nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import ppadvisor
from ppadvisor.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
HEAVY = {"click", "numpy", "pydantic", "rich", "torch", "yaml"}


def imported_by(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after this code."""
    script = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split()
    )


def test_import_contracts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The contracts of pyproject.toml hold: layers, no looks below the report, independent schedules and frameworks."""
    monkeypatch.chdir(ROOT)
    exit_code = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert exit_code == 0, capsys.readouterr().out


def test_importing_the_package_is_light() -> None:
    """`import ppadvisor` imports none of the libraries that take time."""
    assert not imported_by("import ppadvisor") & HEAVY


def test_help_is_light() -> None:
    """`ppadvisor --help` imports click, no other library that takes time, and no command."""
    modules = imported_by("from ppadvisor.cli.main import main; main(['--help'])")
    assert modules & HEAVY == {"click"}
    assert not modules & {command.module for command in COMMANDS}


def test_a_plan_of_presets_is_light() -> None:
    """`ppadvisor plan` with options and presets alone does without pydantic, which only files and schemas need."""
    question = "plan --model gpt2-124m --gpu a100-sxm-80gb --gpus 2 --seq-len 1k --global-batch 8 --precision bf16"
    for cluster in (
        "--gpu a100-sxm-80gb",
        "--cluster selene-a100",
        "--gpu h100-sxm-80gb --inter-node-bandwidth 25GB/s",
    ):
        asked = question.replace("--gpu a100-sxm-80gb", cluster).split()
        assert "pydantic" not in imported_by(f"from ppadvisor.cli.main import main; main({asked})")


@pytest.mark.parametrize("name", ppadvisor.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name that the package promises can be had from it."""
    assert getattr(ppadvisor, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that the package does not have fails as it does for any module."""
    with pytest.raises(AttributeError, match="module 'ppadvisor' has no attribute 'nothing'"):
        _ = ppadvisor.nothing
