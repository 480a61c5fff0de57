"""`ppadvisor check --format`: what a CI gets, for each way that a check can end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from ppadvisor.report.formats import CHECK_FORMATS
from tests.cli.conftest import Cli, Result
from tests.cli.test_check import GPU, write

CASES: dict[str, tuple[str, str, tuple[str, ...], int]] = {
    "fits": ("PP=4", "", ("--gate", "peak_memory_fraction<=0.9"), 0),
    "illegal": ("PP=5", "", (), 3),  # 24 layers, 8 GPUs; p stands in line 2
    "silently wrong": ("PP=4", "--num-query-groups 4", (), 3),  # in line 4
    "does not fit": ("PP=1", "--num-layers 96 --hidden-size 12288 --num-attention-heads 96", (), 3),
    "broken gate": ("PP=4", "", ("--gate", "bubble_fraction<=0.001"), 4),
    "not modelled": ("PP=4", "--fp32-residual-connection", (), 0),  # in line 4
}
"""Variable in line 2, more options in line 4, options of the check, its exit code."""

FOUND: dict[str, set[tuple[str, str, int | None]]] = {
    "fits": set(),
    "illegal": {("error", "layers_divide", 2), ("error", "world_size", 2)},
    "silently wrong": {("warning", "query_groups_ignored", 4)},
    "does not fit": {("error", "memory", None), ("warning", "no_effect", 4)},
    "broken gate": {("error", "bubble_fraction", 2)},
    "not modelled": {("warning", "not_modelled", 4)},
}
"""(level, rule, line) of each case."""


@pytest.fixture
def checked(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Check a case in its own folder."""
    monkeypatch.chdir(tmp_path)

    def run(case: str, form: str) -> Result:
        sizes, more, options, _ = CASES[case]
        path = write(tmp_path, sizes, more)
        return cli("check", path.name, *GPU, *options, "--format", form)

    return run


@pytest.mark.parametrize("form", CHECK_FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_exit_codes_and_bytes(checked: Any, case: str, form: str) -> None:
    """The form changes no exit code, and the same file gives the same bytes."""
    first, second = checked(case, form), checked(case, form)
    assert (first.exit_code, first.stderr) == (CASES[case][3], "")
    assert first.stdout == second.stdout


COMMAND = re.compile(r"::(error|warning) file=train\.sh(?:,line=(\d+))?,title=([^:,]*)::(.+)")


@pytest.mark.parametrize("case", CASES)
def test_github(checked: Any, case: str) -> None:
    """Workflow commands and nothing else, each at the line where the value stands."""
    lines = checked(case, "github").stdout.splitlines()
    commands = [COMMAND.fullmatch(line) for line in lines]
    assert all(commands), lines
    found = {(one[1], int(one[2]) if one[2] else None) for one in commands if one}
    assert found == {(level, line) for level, _, line in FOUND[case]}


@pytest.mark.parametrize("case", CASES)
def test_sarif(checked: Any, case: str) -> None:
    """A valid log with a result for each finding: level, rule, file and line."""
    log = checked(case, "sarif").document
    jsonschema.validate(log, SARIF)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len({*rules}) == len(rules)
    found = set()
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "train.sh"
        assert rules[result["ruleIndex"]] == result["ruleId"]
        found.add((result["level"], result["ruleId"], place["region"]["startLine"]))
    assert found == {(level, rule, line or 1) for level, rule, line in FOUND[case]}


@pytest.mark.parametrize("case", CASES)
def test_junit(checked: Any, case: str) -> None:
    """A case for each rule, the memory and each gate; what the check fails for is a failure, with the line."""
    root = ElementTree.fromstring(checked(case, "junit").stdout.encode())
    obeys(root, "testsuites")
    (suite,) = root
    cases = {one.attrib["name"]: one for one in suite}
    assert len(cases) == len(suite) == int(suite.attrib["tests"])
    failed = {name.split()[1] if name != "memory" else name for name, one in cases.items() if one.findall("failure")}
    failed = {re.split("[<>]", name)[0] for name in failed}
    assert failed == {rule for _, rule, _ in FOUND[case] if rule not in ("not_modelled", "no_effect")}
    assert int(suite.attrib["failures"]) == len(failed)
    assert bool(failed) == (CASES[case][3] != 0)
    places = {one.text.split(" ")[0] for one in suite.iter("failure") if one.text}
    lines = {line for _, rule, line in FOUND[case] if rule in failed}
    assert places == {"train.sh:" if line is None else f"train.sh:{line}:" for line in lines}
    assert {"rule layers_divide", "rule unknown_option", "memory"} <= cases.keys()


@pytest.mark.parametrize("case", CASES)
def test_markdown(checked: Any, case: str) -> None:
    """The marker, a row for each check with its mark, and the memory of each stage where there is an estimate."""
    answer, text = checked(case, "json").document, checked(case, "markdown").stdout
    lines = text.splitlines()
    assert lines[0] == "<!-- ppadvisor check: train.sh -->"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert any(row[0] == "✗" for row in rows) == (CASES[case][3] != 0)
    assert [row[1] for row in rows if row[1] == "memory"] == ["memory"] * (answer["estimate"] is not None)
    for gate in answer["gates"]:
        assert ["✓" if gate["passed"] else "✗", gate["metric"], f"{gate['measured']:.4g}"] in [row[:3] for row in rows]
    for rule in answer["rules"]:
        assert any(row[0] == "✗" and row[1].startswith(rule["rule"]) and row[-1] == str(rule["line"]) for row in rows)
    stages = answer["estimate"]["memory"]["stages"] if answer["estimate"] else []
    assert len([row for row in rows if row[0].isdigit()]) == len(stages)
    assert any(line.startswith("- best") for line in lines) == bool(answer["estimate"] or answer["best"])


@pytest.mark.parametrize("form", CHECK_FORMATS)
def test_without_a_gpu(cli: Cli, tmp_path: Path, form: str) -> None:
    """Only rules: every form has an answer, and JUnit says that memory was not judged."""
    result = cli("check", str(write(tmp_path, "PP=4")), "--format", form)
    assert result.exit_code == 0
    if form == "junit":
        suite = ElementTree.fromstring(result.stdout.encode())[0]
        assert [case.attrib["name"] for case in suite if case.findall("skipped")] == ["memory"]


def test_names_that_a_form_could_take_for_its_own(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of the file and of options stay text in every form: no new command, tag, comment end or scheme."""
    monkeypatch.chdir(tmp_path)
    name = "a,b:c%\n--><x>&'\".sh"
    write(tmp_path, "PP=4", "'--\x01<b>&::error::|x' 1").rename(name)
    for form in CHECK_FORMATS:
        result = cli("check", name, *GPU, "--format", form)
        assert (result.exit_code, result.stderr) == (3, "")
        if form == "github":
            assert all(
                line.startswith(("::error file=a%2Cb%3Ac%25%0A-->", "::warning")) for line in result.stdout.splitlines()
            )
        if form == "junit":
            suite = ElementTree.fromstring(result.stdout.encode())[0]
            assert r"--\x01<b>&::error::|x" in "".join(one.attrib["message"] for one in suite.iter("failure"))
        if form == "markdown":
            assert result.stdout.splitlines()[0].count("-->") == 1
            assert "<b>" not in result.stdout
        if form == "sarif":
            place = result.document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
            assert place["artifactLocation"]["uri"] == "a%2Cb%3Ac%25%0A--%3E%3Cx%3E%26%27%22.sh"


def test_a_file_elsewhere(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path from the root is shown from the folder of the run, where it lies in it; as a file's URI elsewhere."""
    path = write(tmp_path, "PP=5")
    for folder, uri in ((tmp_path, "train.sh"), (tmp_path.parent, f"{tmp_path.name}/train.sh"), (Path("/"), None)):
        monkeypatch.chdir(folder)
        log = json.loads(cli("check", str(path), "--format", "sarif").stdout)
        place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == (uri or str(path).lstrip("/"))


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


TEXT: dict[str, Any] = _object("text", text={"type": "string", "minLength": 1})
LEVEL = {"enum": ["none", "note", "warning", "error"]}
PLACE = _object(
    "artifactLocation region",
    artifactLocation=_object("uri", uri={"type": "string", "pattern": "^[A-Za-z0-9._~/%!-]+$"}),
    region=_object("startLine", startLine={"type": "integer", "minimum": 1}),
)
RESULT = _object(
    "ruleId level message locations",
    ruleId={"type": "string"},
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    message=TEXT,
    locations={"type": "array", "minItems": 1, "items": _object("physicalLocation", physicalLocation=PLACE)},
)
RULE = _object(
    "id",
    id={"type": "string"},
    shortDescription=TEXT,
    help=TEXT,
    defaultConfiguration=_object("level", level=LEVEL),
)
DRIVER = _object(
    "name rules",
    name={"type": "string"},
    version={"type": "string"},
    rules={"type": "array", "items": RULE, "uniqueItems": True},
)
RUN = _object(
    "tool results",
    tool=_object("driver", driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": RESULT},
)
SARIF = _object(
    "version runs",
    **{"$schema": {"type": "string"}},
    version={"const": "2.1.0"},
    runs={"type": "array", "items": RUN},
)
"""The properties that we write, as OASIS' sarif-schema-2.1.0.json has them; what code scanning needs is required."""

CASE_PARTS = ("skipped", "error", "failure", "system-out", "system-err")
JUNIT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "testsuites": (("testsuite",), (), ("name", "time", "tests", "failures", "errors")),
    "testsuite": (
        ("testsuite", "properties", "testcase", "system-out", "system-err"),
        ("name", "tests", "failures", "errors"),
        ("group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"),
    ),
    "testcase": (CASE_PARTS, ("name",), ("time", "classname", "group")),
    **dict.fromkeys(("skipped", "error", "failure"), ((), (), ("type", "message"))),
    **dict.fromkeys(("system-out", "system-err"), ((), (), ())),
}
"""Element -> its children, required and optional attributes: junit-10.xsd of Jenkins' xunit plugin."""


def obeys(element: ElementTree.Element, tag: str) -> None:
    """Assert that an element and all in it are as JUNIT has them."""
    children, required, optional = JUNIT[tag]
    assert element.tag == tag
    assert {*required} <= element.attrib.keys() <= {*required, *optional}
    for child in element:
        assert child.tag in children
        obeys(child, child.tag)
