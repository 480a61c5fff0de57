"""`ppadvisor verify` with the installed torch: orders of every size, and real processes whose work is a sleep.

50 ms units and 6 % for the engine, as by default. Few schedules, so that it takes a minute: more
of them, at more sizes, were run by hand and stand in the README.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from ppadvisor.cli.main import main
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES
from ppadvisor.verify.results import RunReport
from ppadvisor.verify.run import RUNTIME, verify_run
from ppadvisor.verify.torch_engine import TORCH_VERSION, installed_version
from ppadvisor.verify.work import work_of_numbers
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (installed_version() or "").startswith(f"{TORCH_VERSION}."), reason=f"runs on torch {TORCH_VERSION}"
    ),
]
OF_TORCH = (
    ("gpipe", 2, 4),
    ("interleaved-1f1b", 2, 4),
    ("1f1b", 4, 8),
    ("interleaved-zero-bubble", 4, 8),
    ("zb-v", 4, 8),
)
OF_OURS = (("hanayo", 2, 4), ("v-half", 4, 8), ("zb-2p", 4, 8))
"""Torch has no name for them."""
FURTHER_THAN = 0.03
"""Step times that are predicted further apart than that are measured in the same order."""


@cache
def run(name: str, p: int, m: int) -> RunReport:
    """The shorter of two steps of 50 ms units."""
    return verify_run(work_of_numbers(name, p, m, None), steps=2)


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_ops_agree(cli: Cli, name: str) -> None:
    """Each of torch's seven schedules, p from 2 to 8, m = 2p: exit code 0, every rank agrees."""
    for p in range(2, 9):
        result = cli(*f"verify --ops --schedule {name} --pp {p} --microbatches {2 * p} --format json".split())
        assert result.exit_code == 0, p
        assert [row["num_differences"] for row in result.document["rows"]] == [0] * p


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("zb-h1 --pp 4 --microbatches 8", "it runs this one through its list-driven runtime: use --run"),
        ("1f1b --pp 4 --microbatches 3", "must be greater than or equal to the number of stages"),
    ],
)
def test_ops_that_torch_does_not_have(cli: Cli, asked: str, told: str) -> None:
    """A schedule or numbers that torch refuses: exit code 2 and one line with its reason."""
    result = cli("verify", "--ops", "--schedule", *asked.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert told in result.stderr


@pytest.mark.parametrize(("name", "p", "m"), [*OF_TORCH, *OF_OURS])
def test_a_run_agrees_with_its_replay(name: str, p: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step time, bubble, every rank's order, work and end, 0 to 6 % over; a port that is taken does not matter."""
    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    monkeypatch.setenv("MASTER_PORT", "1")
    report = run(name, p, m)
    assert report.agrees, report.disagreements
    assert report.engine == TORCH_NAMES.get(name, RUNTIME)
    assert report.engine_cost.empty_action_s < 0.01


def test_runs_come_out_in_the_predicted_order() -> None:
    """Of the runs at p = 4, m = 8 any two that are predicted more than 3 % apart, per micro-batch of the same work."""
    ours = [run(*asked) for asked in (*OF_TORCH, *OF_OURS) if asked[1:] == (4, 8)]
    times = [[term.predicted / r.virtual_stages for r in ours for term in r.terms[:1]]]
    times.append([term.measured / r.virtual_stages for r in ours for term in r.terms[:1]])
    pairs = [(i, j) for i, j in combinations(range(len(ours)), 2) if abs(times[0][i] / times[0][j] - 1) > FURTHER_THAN]
    assert len(pairs) >= 4
    assert all((times[0][i] < times[0][j]) == (times[1][i] < times[1][j]) for i, j in pairs)


def test_a_run_of_a_plan(cli: Cli, tmp_path: Path) -> None:
    """A plan's own stage times, scaled, and fewer micro-batches than it has; an order that torch does not do itself."""
    path, answer = tmp_path / "plan.json", tmp_path / "answer.json"
    problem = (
        "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 2 --seq-len 1024 --global-batch 16 --pp 2 --micro-batch 1 "
        f"--framework generic --schedule zb-h1 --format json --output {path}"
    )
    assert main(["plan", *problem.split()]) == 0
    asked = f"verify {path} --run --microbatches 4 --unit 40ms --steps 2 --format json --output {answer}"
    assert cli(*asked.split()).exit_code == 0
    document = json.loads(answer.read_text())
    assert (document["num_microbatches"], document["plan"]["num_microbatches"]) == (4, 16)
    assert document["engine"] == RUNTIME
    works = [row["predicted_work_s"] for row in document["rows"]]
    assert works[0] != pytest.approx(works[1], rel=1e-3)  # the head is on the second


def test_a_tolerance_that_no_engine_keeps(cli: Cli) -> None:
    """2 ms units and 0.1 %: the engine's own time is more than that; exit code 4, and the step is named."""
    asked = "verify --run --schedule 1f1b --pp 2 --microbatches 4 --unit 2ms --tolerance 0.1% --format json"
    result = cli(*asked.split())
    assert result.exit_code == 4
    assert any(text.startswith("step time: +") for text in result.document["disagreements"])
