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
PULL_REQUEST = README.parent / "tests/pull_request"
BLOCKS = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8").partition("### In a CI")[2], re.DOTALL)


def example(key: str, job: str = "") -> Any:
    """The example with this key at its top, and this job in it."""
    found = [document for document in map(yaml.safe_load, BLOCKS) if key in document and job in (*document[key], "")]
    assert len(found) == 1
    return found[0]


def runs(line: str, folder: Path, script: Path) -> subprocess.CompletedProcess[str]:
    """A line as a CI's shell runs it, train.sh being a copy of a script, `ppadvisor` that of this tree."""
    shutil.copy(script, folder / "train.sh")
    command = folder / "bin" / "ppadvisor"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ppadvisor "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(README.parent),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_BASE_REF": "main",
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
    assert [line for line in lines if "ppadvisor " not in line] == ['pip install "$PPADVISOR"']
    return [line for line in lines if "ppadvisor " in line]


@pytest.mark.parametrize(("script", "exit_code"), [("mixtral_8x7b.sh", 0), ("gpt_oss_20b.sh", 3)])
def test_github_actions(tmp_path: Path, script: str, exit_code: int) -> None:
    """Annotations on stdout, the summary appended to what is there; a script that Megatron refuses fails both."""
    steps = example("jobs", "launch-scripts")["jobs"]["launch-scripts"]["steps"]
    annotate, summarize = checks([step["run"] for step in steps if "run" in step])
    if script == "gpt_oss_20b.sh":  # its vocabulary stands in the file
        annotate, summarize = (line.replace(" --vocab 32000", "") for line in (annotate, summarize))
    result = runs(annotate, tmp_path, SCRIPTS / script)
    assert (result.returncode, result.stderr) == (exit_code, "")
    assert all(
        line.startswith(("::error file=train.sh", "::warning file=train.sh")) for line in result.stdout.splitlines()
    )
    assert ("::error" in result.stdout) == bool(exit_code)
    (tmp_path / "summary.md").write_text("of an earlier step\n")
    assert runs(summarize, tmp_path, SCRIPTS / script).returncode == exit_code
    assert (tmp_path / "summary.md").read_text().splitlines()[1] == "<!-- ppadvisor check: train.sh -->"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(("script", "exit_code"), [("head.sh", 5), ("base.sh", 0)])
def test_github_pull_request(tmp_path: Path, script: str, exit_code: int) -> None:
    """In a repository whose main branch has base.sh: a regression at the line that changed, or nothing to say."""
    job = example("jobs", "what-it-costs")["jobs"]["what-it-costs"]
    annotate, summarize = checks([step["run"] for step in job["steps"] if "run" in step])
    shutil.copy(PULL_REQUEST / "base.sh", tmp_path / "train.sh")
    author = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    for words in (("init", "-q"), ("add", "train.sh"), (*author, "commit", "-qm", "The script of the main branch")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    subprocess.run(["git", "update-ref", "refs/remotes/origin/main", "HEAD"], cwd=tmp_path, check=True)
    result = runs(annotate, tmp_path, PULL_REQUEST / script)
    assert (result.returncode, result.stderr) == (exit_code, "")
    found = [line.partition(",title")[0] for line in result.stdout.splitlines()]
    assert found == (["::error file=train.sh,line=3", "::notice file=train.sh,line=3"] if exit_code else [])
    assert runs(summarize, tmp_path, PULL_REQUEST / script).returncode == 0
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[0] == "<!-- ppadvisor diff: train.sh -->"
    assert any(line.startswith("| plan | pipeline parallel | 2 | 4 |") for line in lines) == bool(exit_code)


def test_gitlab(tmp_path: Path) -> None:
    """The file that the artifact names is the JUnit that the line writes."""
    job = example("launch-scripts")["launch-scripts"]
    (line,) = checks(job["script"])
    result = runs(line, tmp_path, SCRIPTS / "mixtral_8x7b.sh")
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
    assert runs(f"{hook['entry']} train.sh", tmp_path, SCRIPTS / script).returncode == exit_code
