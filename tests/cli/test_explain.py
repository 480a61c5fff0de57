"""`ppadvisor explain`: a plan of a file or of a search, taken apart; every way to ask wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.cli.main import main
from tests.cli.conftest import Cli

ASKED = "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 8 --seq-len 1024 --global-batch 32 --pp 8 --micro-batch 1"
"""Eight stages, one GPU each, m = 32."""
CHUNKED = (
    "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 4 --seq-len 1024 --global-batch 32 --pp 4 --micro-batch 1 "
    "--schedule interleaved-1f1b --vp 2 --recompute none"
)
"""Four ranks of two chunks, m = 32."""
TOO_LARGE = "--model llama-3.1-405b --gpu a100-sxm-80gb --gpus 8 --seq-len 8k --global-batch 8"
ILLEGAL = (
    "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 24 --gpus-per-node 3 --seq-len 1024 --global-batch 32 --tp 3"
)
"""16 heads are not divisible by t = 3."""

Edit = Callable[..., Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JSON of `plan` for `ASKED`."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", *ASKED.split(), "--format", "json", "--output", str(path)]) == 0
    return path


@pytest.fixture
def edited(saved: Path, tmp_path: Path) -> Edit:
    """The file with some values changed: edited("model_version", "old"), edited("problem.model.num_layers", 0)."""

    def edit(where: str, value: object) -> Path:
        document = json.loads(saved.read_text())
        *outer, last = [int(key) if key.isdigit() else key for key in where.split(".")]
        place = document
        for key in outer:
            place = place[key]
        place[last] = value
        path = tmp_path / "edited.json"
        path.write_text(json.dumps(document))
        return path

    return edit


def plans_of(path: Path) -> list[dict[str, Any]]:
    """The estimates that `plan` wrote."""
    plans: list[dict[str, Any]] = json.loads(path.read_text())["plans"]
    return plans


def terms_of(document: dict[str, Any]) -> list[dict[str, int]]:
    """Of each stage the memory terms."""
    return [{term["name"]: term["bytes"] for term in stage["terms"]} for stage in document["stages"]]


def test_a_plan_of_a_file_is_estimated_as_it_was(cli: Cli, saved: Path) -> None:
    """FILE#2 explains the second plan, and every term of every stage and of the step is what `plan` wrote."""
    document = cli("explain", f"{saved}#2", "--format", "json").document
    second = plans_of(saved)[1]
    assert document["plan"] == second["plan"]
    assert terms_of(document) == [stage["terms"] for stage in second["memory"]["stages"]]
    assert {f"{part['name']}_s": part["seconds"] for part in document["time"]["terms"]} == second["time"]["terms"]
    assert document["bubble"]["replayed"] == second["time"]["bubble_fraction"]


@pytest.mark.parametrize("rank", ["1", "2"])
def test_options_and_a_file_give_the_same_bytes(cli: Cli, saved: Path, rank: str) -> None:
    """`--rank N` of the same options is plan N of the file, and the document is the same byte for byte."""
    searched = cli("explain", *ASKED.split(), "--rank", rank, "--format", "json")
    assert searched.exit_code == 0
    assert searched.stdout == cli("explain", f"{saved}#{rank}", "--format", "json").stdout


def test_the_document(cli: Cli, saved: Path) -> None:
    """The JSON holds what the contract names, and each substituted text evaluates to its number."""
    document = cli("explain", str(saved), "--format", "json").document
    assert {"format_version", "model_version", "plan", "bubble", "stages", "time", "assumptions"} <= document.keys()
    assert document["bubble"] | {"replayed": None, "source": ""} == {
        "formula": "(p-1)/(m+p-1)",
        "substituted": "(8-1)/(32+8-1)",
        "ratio": "7/39",
        "value": 7 / 39,
        "replayed": None,
        "source": "",
    }
    assert [stage["stage"] for stage in document["stages"]] == list(range(8))
    for stage in document["stages"]:
        for term in stage["terms"]:
            assert {"name", "bytes", "formula", "substituted", "source"} == term.keys()
            value = eval(term["substituted"], {"__builtins__": {}, "max": max, "min": min})
            assert value == pytest.approx(term["bytes"], abs=1.001)
    for assumption in document["assumptions"]:
        assert {"name", "value", "low", "high", "unit", "source", "provenance"} == assumption.keys()


def test_the_page_for_people(cli: Cli, saved: Path) -> None:
    """The bubble is worked out as in the article, nothing is wider than 80 columns, and there is no colour."""
    page = cli("explain", str(saved)).stdout
    assert "(p-1)/(m+p-1) = 7/39 = 17.9 %" in page
    assert max(map(len, page.splitlines())) <= 80
    assert "\x1b" not in page
    for title in ("Where a step", "Stages, each", "One layer, dense", "Sent by one rank", "Numbers of the cluster"):
        assert title in page
    assert "default assumption" in page
    assert "min(m, p-r) = min(32, 8-0) = 8" in page


def test_the_parts_of_a_step_are_bars(cli: Cli, saved: Path) -> None:
    """Each part that takes time has a bar beside it, as long in 24ths of the step as its share, to an eighth of one."""
    table = cli("explain", str(saved)).stdout.partition("mean over the ranks\n")[2].partition("\n\n")[0]
    time = plans_of(saved)[0]["time"]
    eighths = {"█": 8, "▉": 7, "▊": 6, "▋": 5, "▌": 4, "▍": 3, "▎": 2, "▏": 1}
    drawn = {line[:16].strip(): sum(eighths.get(letter, 0) for letter in line) for line in table.splitlines()[2:]}
    for name, seconds in time["terms"].items():
        length = 8 * 24 * seconds / time["step_time_s"]
        assert drawn[name.removesuffix("_s").replace("_", " ")] == pytest.approx(length, abs=1 if length < 1 else 0.51)


def test_stages_are_bars_against_the_memory(cli: Cli, saved: Path) -> None:
    """Each stage has a bar as long in 24ths of what the GPU has as its peak, and a mark where that ends."""
    page = cli("explain", str(saved), "--all-stages").stdout
    table = page.partition("peak of 79.1 GiB\n")[2].partition("\n\n")[0]
    memory = plans_of(saved)[0]["memory"]
    eighths = {"█": 8, "▉": 7, "▊": 6, "▋": 5, "▌": 4, "▍": 3, "▎": 2, "▏": 1}
    lines = table.splitlines()[1:]
    assert len(lines) == len(memory["stages"])
    for line, stage in zip(lines, memory["stages"], strict=True):
        number, bar = line.split(maxsplit=1)
        assert int(number) == stage["stage"]
        assert bar.index("│") == 24
        length = 8 * 24 * stage["total_bytes"] / memory["capacity_bytes"]
        assert sum(eighths.get(letter, 0) for letter in bar) == pytest.approx(length, abs=0.51)


def test_the_page_with_virtual_stages(cli: Cli) -> None:
    """Several chunks a rank: a table of them, sums over them, the closed form and what was counted, 80 columns."""
    page = cli("explain", *CHUNKED.split()).stdout
    assert max(map(len, page.splitlines())) <= 80
    assert "(p-1)/(m*v+p-1) = 3/67 = 4.5 %" in page
    assert "Chunks of stage 0 at that moment" in page
    assert "(k0 × n0 + k1 × n1) × S" in page
    one_line = " ".join(page.split())
    assert "closed form min(m × v, (v-1) × N+2 × (p-r-1)+1)/v =" in one_line
    assert "read off the order of work at its highest moment 5.5" in one_line
    assert "layers of the stage; of its chunks n0, n1, ..." in one_line


def test_chunks_in_json(cli: Cli) -> None:
    """Each stage lists its chunks with the stage of the model that each holds; their layers are those of the plan."""
    document = cli("explain", *CHUNKED.split(), "--format", "json").document
    for stage in document["stages"]:
        held = [(chunk["chunk"], chunk["stage"]) for chunk in stage["chunks"]]
        assert held == [(0, stage["stage"]), (1, stage["stage"] + 4)]
        assert sum(chunk["num_layers"] for chunk in stage["chunks"]) == stage["num_layers"]
        assert stage["in_flight_microbatches"]["counted"] == stage["in_flight_microbatches"]["value"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], {0, 7}), (["--all-stages"], set(range(8))), (["--stage", "3"], {3}), (["--stage", "0"], {0})],
)
def test_stages_shown(cli: Cli, saved: Path, arguments: list[str], expected: set[int]) -> None:
    """Tables show the first, the binding and the last stage unless told otherwise."""
    page = cli("explain", str(saved), *arguments).stdout
    binding = plans_of(saved)[0]["memory"]["binding_stage"]
    shown = {stage for stage in range(8) if f"\nStage {stage}:" in page or f"\nStage {stage}, which binds:" in page}
    assert shown == (expected if arguments else expected | {binding})


def test_one_stage_in_json(cli: Cli, saved: Path) -> None:
    """`--stage` limits the document too."""
    document = cli("explain", str(saved), "--stage", "3", "--format", "json").document
    assert [stage["stage"] for stage in document["stages"]] == [3]


def test_csv_and_markdown(cli: Cli, saved: Path) -> None:
    """CSV holds every part of the step and every term of every stage; markdown has the tables, titles in bold."""
    assert "**Symbols**\n\n| symbol | value | meaning |" in cli("explain", str(saved), "--format", "markdown").stdout
    lines = cli("explain", str(saved), "--format", "csv").stdout.splitlines()
    first = plans_of(saved)[0]
    terms = sum(len(stage["terms"]) for stage in first["memory"]["stages"])
    assert lines[0] == "part,stage,moment,name,bytes,seconds,formula,substituted,source"
    assert sum(line.startswith("time,") for line in lines) == len(first["time"]["terms"])
    assert sum(line.startswith("memory,") for line in lines) == terms


def test_where_numbers_come_from(cli: Cli) -> None:
    """What the user gave is told apart from presets and defaults, for the cluster and for the assumptions."""
    given = ["--gpu-memory", "60GiB", "--intra-node-bandwidth", "200GB/s", "--assume", "gemm_efficiency=0.5"]
    document = cli("explain", *ASKED.split(), *given, "--format", "json").document
    numbers = {number["name"]: number for number in document["cluster_numbers"]}
    assert numbers["gpu.memory_bytes"]["value"] == 60 * 2**30
    assert numbers["gpu.memory_bytes"]["source"] == "given by the user"
    assert numbers["intra_node_bandwidth_bytes_per_s"]["source"] == "given by the user"
    assert numbers["inter_node_bandwidth_bytes_per_s"]["source"].startswith("preset: ")
    assert "datasheet" in numbers["gpu.hbm_bandwidth_bytes_per_s"]["source"].lower()
    provenance = {assumption["name"]: assumption["provenance"] for assumption in document["assumptions"]}
    assert provenance["gemm_efficiency"] == "given by the user"
    assert provenance["hbm_efficiency"] == "default assumption"


def test_a_job_file(cli: Cli, tmp_path: Path) -> None:
    """The options may stand in a job file, with those of `explain` itself."""
    words = ASKED.split()
    job = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**job, "rank": 2}))
    told = cli("explain", *words, "--rank", "2", "--format", "json").stdout
    assert cli("explain", "--job", str(path), "--format", "json").stdout == told


def test_nothing_fits(cli: Cli, tmp_path: Path) -> None:
    """Where no plan fits the nearest miss is explained, from options and from a file alike; exit 3."""
    searched = cli("explain", *TOO_LARGE.split(), "--format", "json")
    assert searched.exit_code == 3
    assert not searched.document["memory"]["fits"]
    assert "no plan fits; the nearest miss is explained" in searched.stderr
    path = tmp_path / "miss.json"
    assert cli("plan", *TOO_LARGE.split(), "--format", "json", "--output", str(path)).exit_code == 3
    read = cli("explain", str(path), "--format", "json")
    assert (read.exit_code, read.stdout) == (3, searched.stdout)
    ranked = cli("explain", f"{path}#1")
    assert (ranked.exit_code, ranked.stdout) == (2, "")
    assert "holds no plan that fits" in ranked.stderr


def test_nothing_is_legal(cli: Cli, tmp_path: Path) -> None:
    """Where no plan is legal the answer says why, as text and as JSON; exit 3."""
    path = tmp_path / "illegal.json"
    cli("plan", *ILLEGAL.split(), "--format", "json", "--output", str(path))
    for arguments in (ILLEGAL.split(), [str(path)]):
        result = cli("explain", *arguments, "--format", "json")
        assert result.exit_code == 3
        assert result.document["plan"] is None
        assert "legal" in result.document["note"]
    assert "16 attention heads are not divisible" in cli("explain", *ILLEGAL.split()).stdout


def test_an_illegal_plan_of_a_file(cli: Cli, edited: Edit) -> None:
    """A plan that the trainer refuses is answered with its reason; exit 3."""
    path = edited("problem.training.sequence_length", 1023)
    plan = json.loads(path.read_text())
    layers = {"layers_per_stage": [6, 6, 6, 6], "layers_per_chunk": [6, 6, 6, 6]}
    plan["plans"][0]["plan"] |= {"pipeline_parallel": 4, "tensor_parallel": 2, **layers}
    path.write_text(json.dumps(plan))
    result = cli("explain", str(path), "--format", "json")
    assert result.exit_code == 3
    assert "sequence length 1023 is not divisible" in result.document["note"]


def test_another_model_version_is_said(cli: Cli, edited: Edit, saved: Path) -> None:
    """Numbers are estimated again; that they may differ from the file is said on stderr, not on stdout."""
    result = cli("explain", str(edited("model_version", "2020.01-1")), "--format", "json")
    assert result.exit_code == 0
    assert "model version 2020.01-1" in result.stderr
    assert result.stdout == cli("explain", str(saved), "--format", "json").stdout


def test_the_assumptions_of_the_file_hold(cli: Cli, edited: Edit) -> None:
    """An assumption as the file has it, with its range and provenance, is the one that is used."""
    path = edited("problem.assumptions.0.value", 0.5)
    document = cli("explain", str(path), "--format", "json").document
    assert document["assumptions"][0]["value"] == 0.5
    assert document["time"]["step_time_s"] > plans_of(path)[0]["time"]["step_time_s"]


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("format_version", "2.0", "format_version is '2.0', this program reads 1.x"),
        ("format_version", 1, "'format_version' is missing or of another kind"),
        ("problem", [], "'problem' is missing or of another kind"),
        ("plans", {}, "'plans' is missing or of another kind"),
        ("plans.0", 7, "plans.0: 'plan' is missing or of another kind"),
        ("plans.0.plan.schedule", "1fb1", "did you mean '1f1b'?"),
        ("plans.0.plan.schedule", "gpipe", "megatron does not run schedule gpipe"),
        ("plans.0.plan.recompute", "some", "recompute: got 'some'"),
        ("plans.0.plan.tensor_parallel", 2, "p t c d 16, needs 8 (GPUs)"),
        ("plans.0.plan.num_microbatches", 16, "d b m 16, needs 32 (sequences of a step)"),
        ("plans.0.plan.layers_per_stage", [3, 3, 3, 3, 3, 3, 3, 4], "layers_per_stage adds up to 25, needs 24"),
        ("plans.0.plan.layers_per_stage", [12, 12], "layers_per_stage has 2, needs 8"),
        ("problem.model.num_layers", -24, "problem: model.num_layers: got -24"),
        ("problem.model.num_layer", 24, "problem: unknown key 'model.num_layer'"),
        ("problem.margin_fraction", 0.0, "margin_fraction: got 0"),
        ("problem.training.optimizer", "adan", "did you mean 'adam'?"),
        ("problem.assumptions.0.name", "gemm_eficiency", "did you mean 'gemm_efficiency'?"),
        ("problem.assumptions.0.value", 0.0, "assumption gemm_efficiency: got 0"),
        ("problem.assumptions.0.high", 0.1, "is not within"),
    ],
)
def test_a_file_that_was_changed(cli: Cli, edited: Edit, where: str, value: object, message: str) -> None:
    """What cannot be meant is one line that names the file and the place; exit 2, nothing on stdout."""
    path = edited(where, value)
    result = cli("explain", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert str(path) in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"\x7fELF\xff\xfe", "not a text file"),
        (b'{"format_version": "1.0", "plans": [', "not valid JSON"),
        (b"[]", "the top level is a list"),
        (b'{"rows": []}', "no plan JSON"),
        (b'{"format_version": NaN}', "NaN is not a number"),
        (b"", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_plan(cli: Cli, tmp_path: Path, content: bytes | None, message: str) -> None:
    """A file that `plan` did not write is one line; exit 2, nothing on stdout."""
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    result = cli("explain", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert str(path) in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{file}#11", "rank 11 is not there; the file holds plans 1 to"),
        ("{file}#0", "the rank behind '#' is '0'"),
        ("{file}#first", "the rank behind '#' is 'first'"),
        ("{file} --pp 8", "--pp has no effect beside a file"),
        ("{file} --rank 1", "--rank has no effect beside a file"),
        ("{file} --margin 0.9", "--margin has no effect beside a file"),
        ("{file} --assume gemm_efficiency=0.5", "--assume has no effect beside a file"),
        ("{file} --job {file}", "unknown key 'format_version'"),
        ("{file} --stage 8", "--stage: got 8; the plan has stages 0 to 7"),
        ("{file} --stage -1", "--stage: '-1' must be above zero"),
        ("{file} --stage 1 --all-stages", "--stage and --all-stages contradict each other"),
        ("", "give a file that `plan --format json` wrote, or the options of `plan`"),
        ("--rank 1", "give a file"),
        (f"{ASKED} --rank 1000000", "--rank: got 1000000, but"),
        (f"{ASKED} --rank 0", "--rank: '0' must be above zero"),
        (f"{TOO_LARGE} --rank 1", "--rank: got 1, but no plans fit"),
        (f"{ASKED} --schedule 1fb1", "did you mean '1f1b'?"),
    ],
)
def test_asked_wrongly(cli: Cli, saved: Path, arguments: str, message: str) -> None:
    """Each wrong or contradicting option is one line on stderr; exit 2, nothing on stdout."""
    result = cli("explain", *arguments.format(file=saved).split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
