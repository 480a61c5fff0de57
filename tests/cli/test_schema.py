"""`ppadvisor schema`: what the commands print, and what they read, validates against what it prints."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, ValidationError

from ppadvisor.cli.plan import command as plan_command
from ppadvisor.cli.schema import KINDS, command
from ppadvisor.engine.results import Result
from ppadvisor.evidence.validate import Validation
from ppadvisor.report.json_ import dump_json
from ppadvisor.report.timeline_document import TimelineShown
from ppadvisor.search.check_results import CheckReport
from ppadvisor.search.diff_results import DiffReport
from ppadvisor.search.explain import NothingToExplain, PlanExplanation
from ppadvisor.search.results import PlanReport
from ppadvisor.search.size_results import SizeReport
from ppadvisor.specs.validation import validate
from tests.cli.conftest import Cli

SMALL = "--model gpt2-124m --gpu a100-sxm-80gb --gpus 4 --seq-len 1024 --global-batch 32"
MOE = "--model mixtral-8x7b --gpu h100-sxm-80gb --gpus 16 --seq-len 4k --global-batch 64"
TOO_LARGE = "--model llama-3.1-405b --gpu a100-sxm-80gb --gpus 8 --seq-len 8k --global-batch 8"
BASE, HEAD = (Path(__file__).parent.parent / "pull_request" / f"{name}.sh" for name in ("base", "head"))
ILLEGAL = "--model gpt2-124m --gpu a100-sxm-80gb --gpus 10 --gpus-per-node 5 --seq-len 1024 --global-batch 32 --tp 5"


@cache
def schema(kind: str) -> dict[str, Any]:
    """The schema as the command prints it."""
    printed = CliRunner().invoke(command, [kind])
    assert printed.exit_code == 0
    document: dict[str, Any] = json.loads(printed.stdout)
    return document


def check(document: object, kind: str) -> None:
    """Raise where the document does not follow the printed schema."""
    Draft202012Validator(schema(kind)).validate(document)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_a_schema(kind: str) -> None:
    """What is printed is itself valid JSON Schema, of the dialect that it names, and says which keys it takes."""
    Draft202012Validator.check_schema(schema(kind))
    assert schema(kind)["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    parts = [schema(kind), *schema(kind).get("$defs", {}).values()]
    assert all(part.get("additionalProperties", True) is not True for part in parts if part.get("type") == "object")


@pytest.mark.parametrize("name", ["plan", "explain"])
@pytest.mark.parametrize(("asked", "exit_code"), [(SMALL, 0), (MOE, 0), (TOO_LARGE, 3), (ILLEGAL, 3)])
def test_answers_follow_their_schema(cli: Cli, name: str, asked: str, exit_code: int) -> None:
    """The JSON of `plan` and `explain` validates: with plans, with experts, with a nearest miss, with nothing legal."""
    result = cli(name, *asked.split(), "--format", "json")
    assert result.exit_code == exit_code
    check(result.document, name)


@pytest.mark.parametrize(("name", "asked"), [("mixtral_8x7b", "--gpus 64 --vocab 32000"), ("gpt3_175b", "")])
def test_a_check_follows_its_schema(cli: Cli, name: str, asked: str) -> None:
    """The JSON of `check` validates: with an estimate, a better plan and gates, and with broken rules alone."""
    gates = ("--gpu", "h100-sxm-80gb", "--gate", "regret<=0.5") if asked else ()
    script = Path(__file__).parent.parent / "published" / "megatron_scripts" / f"{name}.sh"
    check(cli("check", str(script), *asked.split(), *gates, "--format", "json").document, "check")


def test_a_sweep_follows_its_schema(cli: Cli) -> None:
    """The JSON of `sweep` validates."""
    check(cli("sweep", *SMALL.split(), "--pp", "1,2", "--format", "json").document, "sweep")


@pytest.mark.parametrize(("asked", "exit_code"), [(MOE, 0), (TOO_LARGE, 3), (ILLEGAL, 3)])
def test_two_plans_follow_their_schema(cli: Cli, tmp_path: Path, asked: str, exit_code: int) -> None:
    """The JSON of `explain A B` validates: of plans that fit, of a nearest miss, and where nothing is legal."""
    path = tmp_path / "plan.json"
    cli("plan", *asked.split(), "--format", "json", "--output", str(path))
    result = cli("explain", str(path), str(path), "--format", "json")
    assert result.exit_code == exit_code
    check(result.document, "comparison")


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (f"plan {MOE}", PlanReport),
        (f"plan {TOO_LARGE}", PlanReport),
        (f"explain {MOE}", PlanExplanation),
        (f"explain {ILLEGAL}", NothingToExplain),
        (f"check {BASE} --gpu h100-sxm-80gb --gate regret<=5%", CheckReport),
        (f"diff {BASE} {HEAD} --gpu h100-sxm-80gb --fail-on-regression 2%", DiffReport),
        (f"size {SMALL.replace('--gpus 4', '')} --tokens 10B --days 30", SizeReport),
        ("timeline --schedule zb-v --pp 2 --microbatches 4", TimelineShown),
        ("validate --kind bubble", Validation),
    ],
)
def test_answers_hold_the_kinds_that_they_name(cli: Cli, asked: str, kind: type[Result]) -> None:
    """An answer is built unseen: read by its types it is the same text again, with 8.0 where a real number stands."""
    text = cli(*asked.split(), "--format", "json").stdout
    assert dump_json(validate(kind, json.loads(text), asked)) == text


@pytest.mark.parametrize("key", ["plans", "problem", "format_version"])
def test_the_schema_refuses_what_is_not_whole(cli: Cli, key: str) -> None:
    """A document without one of its parts does not validate."""
    document = cli("plan", *SMALL.split(), "--format", "json").document
    del document[key]
    with pytest.raises(ValidationError):
        check(document, "plan")


def test_without_a_kind_it_is_that_of_plan(cli: Cli) -> None:
    """`ppadvisor schema` alone prints the schema of what `plan` prints."""
    assert cli("schema").stdout == cli("schema", "plan").stdout


def test_an_unknown_kind_is_one_line(cli: Cli) -> None:
    """An unknown kind of document offers the nearest; exit 2, nothing on stdout."""
    result = cli("schema", "plans")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'plan'?" in result.stderr


def test_into_a_file(cli: Cli, tmp_path: Path) -> None:
    """`--output` writes the same document."""
    path = tmp_path / "schema.json"
    assert cli("schema", "job", "--output", str(path)).stdout == ""
    assert path.read_text() == cli("schema", "job").stdout


@pytest.mark.parametrize("preset", ["models/mixtral-8x7b", "models/gemma-2-9b", "gpus/h100-sxm-80gb"])
def test_preset_files_follow_their_schema(preset: str) -> None:
    """Models and GPUs as TOML files are what the schemas of the specifications say."""
    text = (resources.files("ppadvisor") / "presets" / f"{preset}.toml").read_text(encoding="utf-8")
    check(tomllib.loads(text), preset.partition("s/")[0])


# --- the job file -----------------------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "model": "gpt2-124m",
    "gpu": "a100-sxm-80gb",
    "gpus": 4,
    "inter_node_bandwidth": "200Gb/s",
    "seq_len": "1k",
    "global_batch": 32,
    "pp": [1, 2],
    "tp": 1,
    "recompute": "none,full",
    "zero": 1,
    "dropout": True,
    "margin": 0.8,
    "top": 3,
    "assumptions": {"gemm_efficiency": 0.5},
}


def test_a_job_that_runs_follows_the_schema(cli: Cli, tmp_path: Path) -> None:
    """A job file of every kind of value is read by `plan`, and validates."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    assert cli("plan", "--job", str(path), "--format", "json").exit_code == 0
    check(JOB, "job")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpu_count", 4),
        ("gpus", 0),
        ("gpus", [4, 8]),
        ("inter_node_bandwidth", 25),
        ("precision", "bf17"),
        ("dropout", "yes please"),
        ("margin", 1.5),
        ("pp", []),
        ("format", "json"),
        ("assumptions", ["gemm_efficiency=0.5"]),
    ],
)
def test_what_a_job_may_not_say_is_refused_by_both(cli: Cli, tmp_path: Path, key: str, value: object) -> None:
    """What the schema refuses `plan` refuses too, with exit code 2."""
    job = {**JOB, key: value}
    with pytest.raises(ValidationError):
        check(job, "job")
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job))
    result = cli("plan", "--job", str(path))
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_job_may_say_whatever_plan_takes() -> None:
    """Every option of `plan` that a job file may hold is a key of the schema, with its help."""
    options = {param.name for param in plan_command.params} - {"job", "format", "output", "assume"}
    properties = schema("job")["properties"]
    assert properties.keys() == options | {"assumptions"}
    assert all(entry["description"] for entry in properties.values())
