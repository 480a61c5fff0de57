"""The CI examples of the README: their YAML is what the CI expects, and their shell lines run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.readme import README

SCRIPTS = README.parent / "tests/published/megatron_scripts"
BLOCKS = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8").partition("### In a CI")[2], re.DOTALL)


def example(key: str) -> Any:
    """The example with this key at its top."""
    (found,) = (document for document in map(yaml.safe_load, BLOCKS) if key in document)
    return found


def runs(line: str, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A line as a CI's shell runs it, train.sh being a published script, `ppadvisor` that of this tree."""
    shutil.copy(SCRIPTS / script, folder / "train.sh")
    command = folder / "bin" / "ppadvisor"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ppadvisor "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(README.parent),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def checks(lines: list[str]) -> list[str]:
    """The lines that call us; the one left over installs us, which no offline test can."""
    assert [line for line in lines if not line.startswith("ppadvisor check ")] == ['pip install "$PPADVISOR"']
    return [line for line in lines if line.startswith("ppadvisor check ")]


@pytest.mark.parametrize(("script", "exit_code"), [("mixtral_8x7b.sh", 0), ("gpt_oss_20b.sh", 3)])
def test_github_actions(tmp_path: Path, script: str, exit_code: int) -> None:
    """Annotations on stdout, the summary appended to what is there; a script that Megatron refuses fails both."""
    steps = example("jobs")["jobs"]["launch-scripts"]["steps"]
    annotate, summarize = checks([step["run"] for step in steps if "run" in step])
    if script == "gpt_oss_20b.sh":  # its vocabulary stands in the file
        annotate, summarize = (line.replace(" --vocab 32000", "") for line in (annotate, summarize))
    result = runs(annotate, tmp_path, script)
    assert (result.returncode, result.stderr) == (exit_code, "")
    assert all(
        line.startswith(("::error file=train.sh", "::warning file=train.sh")) for line in result.stdout.splitlines()
    )
    assert ("::error" in result.stdout) == bool(exit_code)
    (tmp_path / "summary.md").write_text("of an earlier step\n")
    assert runs(summarize, tmp_path, script).returncode == exit_code
    assert (tmp_path / "summary.md").read_text().splitlines()[1] == "<!-- ppadvisor check: train.sh -->"


def test_gitlab(tmp_path: Path) -> None:
    """The file that the artifact names is the JUnit that the line writes."""
    job = example("launch-scripts")["launch-scripts"]
    (line,) = checks(job["script"])
    result = runs(line, tmp_path, "mixtral_8x7b.sh")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    suite = ElementTree.parse(tmp_path / job["artifacts"]["reports"]["junit"]).getroot()[0]
    assert suite.attrib["failures"] == "0"
    assert "gate regret<=20%" in [case.attrib["name"] for case in suite]


@pytest.mark.parametrize(("script", "exit_code"), [("mixtral_8x7b.sh", 0), ("gpt_oss_20b.sh", 3)])
def test_pre_commit(tmp_path: Path, script: str, exit_code: int) -> None:
    """The hook's entry with the names of changed files behind it, as pre-commit calls it."""
    (hook,) = example("repos")["repos"][0]["hooks"]
    assert {"id", "name", "language", "entry"} <= hook.keys()
    assert re.search(hook["files"], "train.sh")
    assert runs(f"{hook['entry']} train.sh", tmp_path, script).returncode == exit_code
