"""`ppadvisor verify` where torch is not needed: what it says without it, bad input, and its answer in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppadvisor.cli.main import main
from ppadvisor.frameworks.torchtitan.operations import TORCH_NAMES
from ppadvisor.verify.run import replayed
from ppadvisor.verify.work import work_of_numbers
from tests.cli.conftest import Cli
from tests.cli.test_schema import check
from tests.verify.verified import done_as_replayed

NUMBERS = ("--schedule", "1f1b", "--pp", "2", "--microbatches", "3")
PROBLEM = "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 2 --seq-len 1024 --global-batch 8 --pp 2"
THEIRS = [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
"""1F1B, p = 2, m = 3, written by hand."""


@pytest.fixture
def torch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torch were installed; its order is THEIRS, and its ranks keep to the replay."""
    monkeypatch.setattr("ppadvisor.verify.torch_engine.installed_version", lambda: "2.13.0")
    for module in ("ops", "compare_run"):
        monkeypatch.setattr(f"ppadvisor.verify.{module}.installed_version", lambda: "2.13.0")
    monkeypatch.setattr("ppadvisor.verify.ops.torch_words", lambda *_: THEIRS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two stages."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", *PROBLEM.split(), "--format", "json", "--output", str(path)]) == 0
    return path


@pytest.mark.parametrize(("found", "told"), [(None, "is not installed"), ("2.12.1", "found 2.12.1")])
@pytest.mark.parametrize("kind", ["--ops", "--run"])
def test_without_the_right_torch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: str, found: str | None, told: str
) -> None:
    """Exit code 2 and one line, which says which torch and how to get it."""
    monkeypatch.setattr("ppadvisor.verify.torch_engine.installed_version", lambda: found)
    result = cli("verify", kind, *NUMBERS)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert told in result.stderr
    assert "pip install 'torch==2.13.*'" in result.stderr


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("", "exactly one of --ops, --memory, --run, --layers; got none"),
        ("--ops --run", "got --ops and --run"),
        ("--ops --unit 1ms", "--unit has no effect with --ops"),
        ("--ops --steps 3", "--steps has no effect with --ops"),
        ("--ops --tolerance 5%", "--tolerance has no effect with --ops"),
        ("--memory", "--memory needs a plan"),
        ("--ops --scale 1/2", "--scale has no effect with --ops; it belongs to --layers"),
        ("--run --record run.jsonl", "--record has no effect with --run; it belongs to --layers"),
        ("--layers --unit 1ms", "--unit has no effect with --layers; it belongs to --run"),
        ("--layers --scale 1.5 plan.json", "at most 1"),
        ("--layers plan.json", "torchrun --nproc-per-node P -m ppadvisor verify PLAN.json --layers"),
        ("--layers --record nowhere/run.jsonl plan.json", "there is no folder 'nowhere'"),
        ("--ops", "--schedule, --pp, --microbatches are missing"),
        ("--run --schedule 1f1b --pp 2", "--microbatches is missing"),
        ("--ops --schedule 1f2b --pp 2 --microbatches 3", "did you mean '1f1b'"),
        ("--ops --schedule 1f1b --pp 2 --microbatches 3 --vp 2", "virtual_stages must be 1: got 2"),
        ("--run --unit 0 --schedule 1f1b --pp 2 --microbatches 3", "must sleep for some time"),
        ("--run --tolerance 0 --schedule 1f1b --pp 2 --microbatches 3", "above zero"),
        ("--ops nowhere.json", "nowhere.json"),
    ],
)
@pytest.mark.usefixtures("torch_there")
def test_asked_wrongly(cli: Cli, asked: str, told: str) -> None:
    """Exit code 2 and one line that names the option."""
    result = cli("verify", *asked.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert told in result.stderr


@pytest.mark.parametrize("option", ["--schedule 1f1b", "--pp 2", "--vp 1", "--microbatches 4"])
@pytest.mark.usefixtures("torch_there")
def test_bare_numbers_beside_a_plan(cli: Cli, saved: Path, option: str) -> None:
    """A plan has its own: such an option is an error, with its name."""
    result = cli("verify", "--ops", str(saved), *option.split())
    assert result.exit_code == 2
    assert f"{option.split()[0]} has no effect beside a file" in result.stderr


@pytest.mark.usefixtures("torch_there")
def test_orders_that_agree(cli: Cli) -> None:
    """Ours is the order written by hand: exit code 0, a row for each rank."""
    result = cli("verify", "--ops", *NUMBERS, "--format", "json")
    assert result.exit_code == 0
    check(result.document, "verification")
    assert [row["agrees"] for row in result.document["rows"]] == [True, True]
    assert result.document["engine"] == TORCH_NAMES["1f1b"]


@pytest.mark.usefixtures("torch_there")
def test_orders_that_differ(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4; the rank is named, and both orders stand side by side where they differ, one being longer."""
    other = [THEIRS[0], ["1F0", "1F1", "1B0", "1B1", "1F2"]]
    monkeypatch.setattr("ppadvisor.verify.ops.torch_words", lambda *_: other)
    result = cli("verify", "--ops", *NUMBERS, "--format", "json")
    assert result.exit_code == 4
    check(result.document, "verification")
    assert result.document["differences"] == [
        {"rank": 1, "position": 1, "predicted": "1B0", "torch": "1F1"},
        {"rank": 1, "position": 2, "predicted": "1F1", "torch": "1B0"},
        {"rank": 1, "position": 5, "predicted": "1B2", "torch": None},
    ]
    table = cli("verify", "--ops", *NUMBERS)
    assert table.exit_code == 4
    assert "rank 1: order, 3 places" in table.stdout
    assert any(line.split() == ["1", "2", "1F1", "1B0"] for line in table.stdout.splitlines())


@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
@pytest.mark.usefixtures("torch_there")
def test_a_run_in_every_format(cli: Cli, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """A run of made-up processes that keep to the replay: within 80 columns, and the JSON follows its schema."""
    monkeypatch.setattr("ppadvisor.verify.run.runs_itself", lambda _: True)
    monkeypatch.setattr("ppadvisor.verify.run.RankProcesses", MadeUp)
    result = cli("verify", "--run", *NUMBERS, "--unit", "1s", "--format", format)
    assert result.exit_code == 0
    assert result.stderr == ""
    if format == "table":
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert "12 s measured, 12 s replayed: +0.0 %" in result.stdout
    if format == "json":
        check(json.loads(result.stdout), "verification")
    if format == "csv":
        assert len(result.stdout.splitlines()) == 1 + 2


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As a launcher would start the first of two processes, which are on no port."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("changed", "asked", "told"),
    [
        ({}, "", "--layers needs a plan"),
        ({}, "nowhere.json", "nowhere.json: no such file"),
        ({"RANK": "two"}, "{saved}", "RANK: got 'two' in the environment, needs a whole number"),
        ({"RANK": "2"}, "{saved}", "RANK 2 of WORLD_SIZE 2"),
        ({"WORLD_SIZE": "3"}, "{saved}", "started 3 processes; needs one for each stage of the plan, p = 2"),
        ({}, "{saved} --scale 1/24 --record {saved}", "megatron has layers and a pipeline of its own"),
    ],
)
@pytest.mark.usefixtures("torch_there")
def test_layers_asked_wrongly(
    cli: Cli, rank: pytest.MonkeyPatch, saved: Path, changed: dict[str, str], asked: str, told: str
) -> None:
    """On a rank, before torch is imported and before ranks meet: exit code 2 and one line."""
    for name, value in changed.items():
        rank.setenv(name, value)
    result = cli("verify", "--layers", *asked.format(saved=saved).split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert told in result.stderr


def test_without_torch_one_rank_says_so(cli: Cli, rank: pytest.MonkeyPatch, saved: Path) -> None:
    """All ranks end with 2, the first with the line, the other without."""
    rank.setattr("ppadvisor.verify.torch_engine.installed_version", lambda: None)
    rank.setattr("ppadvisor.verify.launched.installed_version", lambda: None)
    first = cli("verify", "--layers", str(saved))
    rank.setenv("RANK", "1")
    rank.setenv("LOCAL_RANK", "1")
    second = cli("verify", "--layers", str(saved))
    assert (first.exit_code, first.stderr.count("\n")) == (2, 1)
    assert "is not installed" in first.stderr
    assert (second.exit_code, second.stdout, second.stderr) == (2, "", "")


class MadeUp:
    """Stands for the processes: three steps, at the times of the replay."""

    num_steps = 3

    def __init__(self, *_told: object) -> None:
        self.work = work_of_numbers("1f1b", 2, 3, None)
        assert replayed(self.work, self.work.times).makespan_s == 12

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def steps(self) -> list[int]:
        return [0, 1, 2]

    def results(self) -> object:
        return done_as_replayed(self.work)
