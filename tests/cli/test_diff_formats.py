"""`ppadvisor diff --format`: what a CI gets, for each way that a diff can end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from ppadvisor.report.formats import DIFF_FORMATS
from tests.cli.conftest import Cli, Result
from tests.cli.test_check import GPU, write
from tests.cli.test_check_formats import SARIF, obeys
from tests.cli.test_check_plan import pour
from tests.cli.test_diff import LIMIT, TOO_LARGE, Script, two

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

CASES: dict[str, tuple[Script, Script, tuple[str, ...], int]] = {
    "more stages": (("PP=4", ""), ("PP=8", ""), LIMIT, 5),
    "recomputation": (("PP=4", ""), ("PP=2", FULL), LIMIT, 5),
    "illegal": (("PP=4", ""), ("PP=5", ""), LIMIT, 3),
    "does not fit": (("PP=4", ""), ("PP=4", TOO_LARGE), LIMIT, 3),
    "not modelled": (("PP=4", ""), ("PP=4", "--fp32-residual-connection"), LIMIT, 0),
    "the same": (("PP=4", "--lr 1"), ("PP=4", "--lr 2"), LIMIT, 0),
    "no limit": (("PP=4", ""), ("PP=8", ""), (), 0),
    "base does not run": (("PP=5", ""), ("PP=4", ""), LIMIT, 0),
}
"""(variable in line 2, more options in line 4) of BASE and HEAD, options of the diff, its exit code."""

FOUND: dict[str, set[tuple[str, str, int | None]]] = {
    "more stages": {("error", "step_time_s", 2), ("note", "summary", 2)},
    # p changed too, in line 2; what the time went into is in line 4
    "recomputation": {("error", "step_time_s", 4), ("note", "summary", 2)},
    "illegal": {("error", "layers_divide", 2), ("error", "world_size", 2)},
    "does not fit": {
        *(("error", rule, 4) for rule in ("memory", "step_time_s", "peak_bytes")),
        ("note", "summary", 4),
    },
    "not modelled": {("warning", "not_modelled", 4)},
    "the same": set(),
    "no limit": {("note", "summary", 2)},
    "base does not run": set(),
}
"""(level, rule, line) of each case."""


@pytest.fixture
def compared(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The diff of a case, in its own folder."""
    monkeypatch.chdir(tmp_path)

    def run(case: str, form: str) -> Result:
        base, head, options, _ = CASES[case]
        two(tmp_path, base, head)
        return cli("diff", "base/train.sh", "train.sh", *GPU, *options, "--format", form)

    return run


@pytest.mark.parametrize("form", DIFF_FORMATS)
@pytest.mark.parametrize("case", ["recomputation", "illegal", "not modelled"])
def test_exit_codes_and_bytes(compared: Any, case: str, form: str) -> None:
    """The form changes no exit code, and the same files give the same bytes."""
    first, second = compared(case, form), compared(case, form)
    assert (first.exit_code, first.stderr) == (CASES[case][3], "")
    assert first.stdout == second.stdout


COMMAND = re.compile(r"::(error|warning|notice) file=train\.sh(?:,line=(\d+))?,title=([^:,]*)::(.+)")


@pytest.mark.parametrize("case", CASES)
def test_github(compared: Any, case: str) -> None:
    """Workflow commands and nothing else, each at the line of HEAD that changed."""
    lines = compared(case, "github").stdout.splitlines()
    commands = [COMMAND.fullmatch(line) for line in lines]
    assert all(commands), lines
    found = {(one[1].replace("notice", "note"), int(one[2]) if one[2] else None) for one in commands if one}
    assert found == {(level, line) for level, _, line in FOUND[case]}
    assert len(commands) == len(FOUND[case])


@pytest.mark.parametrize("case", CASES)
def test_sarif(compared: Any, case: str) -> None:
    """A valid log with a result for each finding: level, rule and line; the file is HEAD."""
    log = compared(case, "sarif").document
    jsonschema.validate(log, SARIF)
    found = set()
    for result in log["runs"][0]["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "train.sh"
        found.add((result["level"], result["ruleId"], place["region"]["startLine"]))
    assert found == {(level, rule, line or 1) for level, rule, line in FOUND[case]}


@pytest.mark.parametrize("case", CASES)
def test_junit(compared: Any, case: str) -> None:
    """A case for each rule of HEAD, its memory, and time and memory against BASE; skipped where nothing is judged."""
    root = ElementTree.fromstring(compared(case, "junit").stdout.encode())
    obeys(root, "testsuites")
    (suite,) = root
    cases = {one.attrib["name"]: one for one in suite}
    names = {"step_time_s": "regression step time", "peak_bytes": "regression peak memory", "memory": "memory"}
    assert {*names.values(), "rule layers_divide"} <= cases.keys()
    failed = {name for name, one in cases.items() if one.findall("failure")}
    assert failed == {names.get(rule, f"rule {rule}") for level, rule, _ in FOUND[case] if level == "error"}
    assert bool(failed) == (CASES[case][3] != 0)
    skipped = {name for name, one in cases.items() if one.findall("skipped")}
    nothing = {"regression step time", "regression peak memory"}
    assert skipped == {
        "illegal": {"memory", *nothing},
        "no limit": nothing,
        "base does not run": nothing,
    }.get(case, set())


@pytest.mark.parametrize("case", CASES)
def test_markdown(compared: Any, case: str) -> None:
    """The marker, a mark for each verdict, a row for each changed field, number and stage."""
    answer, text = compared(case, "json").document, compared(case, "markdown").stdout
    lines = text.splitlines()
    assert lines[0] == "<!-- ppadvisor diff: train.sh -->"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert any(row[0] == "✗" for row in rows) == (CASES[case][3] != 0)
    assert len([row for row in rows if row[0] in ("plan", "training", "model")]) == len(answer["changes"])
    assert len([row for row in rows if row[0].isdigit()]) == len(answer["stages"])
    assert [row for row in rows if row[0] == "step time"] != [] or answer["effects"] == []


@pytest.mark.parametrize("case", CASES)
def test_text(compared: Any, case: str) -> None:
    """80 columns where no word is longer, no colour, a mark for each verdict."""
    text = compared(case, "text").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert ("\n✗ " in text) == (CASES[case][3] != 0)
    assert ("nothing to compare with" in text) == (case == "base does not run")
    assert ("Nothing changed that memory or time depend on" in text) == (case == "the same")


def test_head_of_standard_input(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A HEAD without a file has no annotations at one."""
    pour(monkeypatch, write(tmp_path, "PP=8").read_bytes())
    result = cli("diff", str(write(tmp_path, "PP=4")), "-", *GPU, *LIMIT, "--format", "github")
    assert result.exit_code == 5
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == ["::error line=2", "::notice line=2"]


def test_names_that_a_form_could_take_for_its_own(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of options and names of files stay text: no new command, tag, comment end or table cell."""
    monkeypatch.chdir(tmp_path)
    name = "a,b:c%\n--><x>|'\".sh"
    base, head = (Path(one) for one in two(tmp_path, ("PP=4", "--lr 1"), ("PP=4", "--save '<b>|%\n::error::x'")))
    head.rename(name)
    for form in DIFF_FORMATS:
        result = cli("diff", str(base), name, *GPU, "--format", form)
        assert (result.exit_code, result.stderr) == (0, "")
        if form == "github":
            assert all(line.startswith("::notice file=a%2Cb%3Ac%25%0A-->") for line in result.stdout.splitlines())
        if form == "markdown":
            assert result.stdout.splitlines()[0].count("-->") == 1
            assert "<b>" not in result.stdout
            assert "<x>" not in result.stdout.partition("\n")[2]
        if form == "text":
            assert not [line for line in result.stdout.splitlines() if line.startswith("::")]
