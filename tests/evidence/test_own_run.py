"""A run of `verify --layers` as a record: read again it is the same run, and one on a CPU is no measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.engine.problem import Problem
from ppadvisor.errors import InputError
from ppadvisor.evidence.cases import case_of
from ppadvisor.evidence.own_run import Numbers, check_recorded, record_of_run
from ppadvisor.specs.load import assumptions_of, load_gpu
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.verify.run_predicted import Expected, expected_of
from ppadvisor.verify.scaled import Subject, subject_of
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.problems import model, plan, problem


def subject(name: str = "llama", framework: str = "torchtitan", **changed: Any) -> Subject:
    """Two stages on A100s, half of their layers."""
    of = problem(model(name, mtp_num_layers=0), framework=framework, num_gpus=2, global_batch_size=8)
    # a GPU and links that records can name
    gpu = load_gpu("a100-sxm-80gb")
    links = {
        name: getattr(gpu, name) for name in ("intra_node_bandwidth_bytes_per_s", "inter_node_bandwidth_bytes_per_s")
    }
    cluster = of.cluster.changed(gpu=gpu, **links)
    of = Problem(of.model, cluster, of.training, of.framework, assumptions_of(cluster, of.training, of.framework.stack))
    return subject_of(of, plan([6, 6], num_microbatches=8, **changed), scale=0.5, ranks_of_node=2)


def numbers(expected: Expected, *, on_gpu: bool = True) -> Numbers:
    """As predicted."""
    ranks = expected.ranks if on_gpu else ()
    return Numbers(
        step_time_s=expected.step_s,
        allocated_bytes=[round(one.allocated_bytes) for one in ranks],
        reserved_bytes=[round(one.reserved_bytes) for one in ranks],
        on_gpu=on_gpu,
        machine="NVIDIA A100-SXM4-80GB" if on_gpu else "CPU",
        torch_version="2.13.0",
    )


def saved(run: Subject, folder: Path, *, on_gpu: bool = True) -> Path:
    """The file of its record."""
    path = folder / "run.jsonl"
    record = record_of_run(run.problem, run.plan, numbers(expected_of(run), on_gpu=on_gpu))
    path.write_text(record.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["llama", "gpt", "moe", "mla-mtp"])
@pytest.mark.parametrize("framework", ["torchtitan", "generic"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_read_again_it_is_the_same_run(name: str, framework: str, recompute: str) -> None:
    """Model, plan, cluster and training of the case are those that ran, so nothing is partial."""
    run = subject(name, framework, recompute=recompute)
    record = record_of_run(run.problem, run.plan, numbers(expected_of(run)))
    assert (record.usable_for, record.notes) == (("memory", "time"), None)
    case = case_of(record)
    assert case.plan == run.plan
    assert case.problem.training == run.problem.training
    names = ("name", "source")
    assert case.problem.model.as_dict(names) == run.problem.model.as_dict(names)


@pytest.mark.parametrize(("kind", "quantities"), [("memory", ["allocated", "reserved"]), ("time", ["step_time"])])
def test_validate_reads_it(cli: Cli, tmp_path: Path, kind: str, quantities: list[str]) -> None:
    """What was measured as predicted is predicted as measured: errors are zero."""
    path = saved(subject(), tmp_path)
    result = cli("validate", str(path), "--kind", kind, "--label", "all", "--format", "json")
    assert result.exit_code == 0
    assert [row["quantity"] for row in result.document["rows"]] == quantities
    assert [row["error_fraction"] for row in result.document["rows"]] == pytest.approx(
        [0.0] * len(quantities), abs=1e-6
    )


def test_every_stage_is_predicted_too(cli: Cli, tmp_path: Path) -> None:
    """The peaks of both stages, and that of the lowest."""
    path = saved(subject(), tmp_path)
    document = cli("validate", str(path), "--kind", "parts", "--label", "all", "--format", "json").document
    assert [row["quantity"] for row in document["rows"]] == ["lowest rank", "each stage", "each stage"]
    assert [row["error_fraction"] for row in document["rows"]] == pytest.approx([0.0] * 3, abs=1e-6)


def test_calibrate_reads_it(cli: Cli, tmp_path: Path) -> None:
    """A step a tenth slower than predicted: the run is taken, and its error before is what was put in."""
    run = subject()
    expected = expected_of(run)
    slower = replace(numbers(expected), step_time_s=expected.step_s * 1.1)
    path = tmp_path / "run.jsonl"
    record = record_of_run(run.problem, run.plan, slower)
    path.write_text(record.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")
    result = cli("calibrate", "--records", str(path), "--format", "json")
    assert result.exit_code == 0, result.stderr
    (row,) = result.document["runs"]
    assert row["error_before_fraction"] == pytest.approx(1 / 1.1 - 1, abs=1e-6)
    (peak,) = result.document["peaks"]
    assert peak["allocated_bytes"] == pytest.approx(peak["predicted_allocated_bytes"], rel=1e-6)


def test_a_cpu_is_no_measurement(cli: Cli, tmp_path: Path) -> None:
    """The record says that it was a CPU and holds no peak; validate skips it, calibrate refuses it, in words."""
    path = saved(subject(), tmp_path, on_gpu=False)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["cluster"]["device"], "gpu" in document["cluster"]) == ("cpu", False)
    assert set(document["measured"]) == {"step_time_s", "step_time_is"}
    result = cli("validate", str(path), "--kind", "time", "--label", "all", "--format", "json")
    assert result.document["rows"] == []
    assert [one["reason"] for one in result.document["skipped"]] == [
        "cluster.device: it ran on a CPU, which is no measurement of a GPU"
    ]
    assert "ran on a CPU" in cli("validate", str(path), "--kind", "time", "--label", "all").stdout
    refused = cli("calibrate", "--records", str(path))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "it ran on a CPU, which is no measurement of a GPU" in refused.stderr


def test_what_its_form_cannot_tell_makes_it_partial() -> None:
    """A record has no norms of queries and keys: it is said, and the run counts as one with a caveat."""
    run = subject()
    changed = run.problem.model.changed(qk_norm="head")
    record = record_of_run(replace(run.problem, model=changed), run.plan, numbers(expected_of(run)))
    assert record.usable_for == ("memory_partial", "time_partial")
    assert record.notes == "not told: model.qk_norm"


def test_unlike_measurements_of_one_configuration_share_its_group() -> None:
    """The id tells runs apart, the group does not, so that both have one label."""
    run = subject()
    one = numbers(expected_of(run))
    records = [record_of_run(run.problem, run.plan, of) for of in (one, one, replace(one, step_time_s=2.0))]
    assert records[0] == records[1]
    assert records[0].id != records[2].id
    assert len({record.group for record in records}) == 1


@pytest.mark.parametrize(
    ("changed", "told"), [({"tensor_parallel": 2}, "of t = 2, e = 1 only sizes are run"), ({}, "is no preset")]
)
def test_what_cannot_be_recorded(changed: dict[str, Any], told: str) -> None:
    """A division without its messages, and a GPU that records cannot name: refused before anything is run."""
    of = problem(model("llama"), framework="torchtitan")
    asked: PlanSpec = plan([6, 6], **changed)
    with pytest.raises(InputError, match=told):
        check_recorded(of, asked)
