"""`ppadvisor verify --layers` as torchrun starts it: two ranks on CPUs, their answer and record, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ppadvisor.cli.main import main
from ppadvisor.evidence.records import read_records
from ppadvisor.verify.torch_engine import TORCH_VERSION, installed_version
from tests.cli.test_schema import check

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (installed_version() or "").startswith(f"{TORCH_VERSION}."), reason=f"runs on torch {TORCH_VERSION}"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
TINY = (
    "--layers 8 --hidden 64 --heads 4 --kv-heads 2 --ffn 160 --vocab 320 --gpu a100-sxm-80gb --gpus 2 --seq-len 64 "
    "--global-batch 8 --pp 2 --tp 1 --dp 1 --micro-batch 1 --recompute none --framework torchtitan --schedule 1f1b"
)
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two stages of four layers."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", *TINY.split(), "--format", "json", "--output", str(path)]) == 0
    return path


def torchrun(*words: str) -> subprocess.Popen[str]:
    """Two ranks."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "ppadvisor", "verify"]
    return subprocess.Popen(
        [sys.executable, *launch, *words],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ranks_of(plan: Path) -> dict[int, int]:
    """Rank -> process, of those that run this plan; torchrun itself left out."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode().split("\0")
            environment = (place / "environ").read_bytes().decode().split("\0")
        except OSError:  # it has just ended, or is none of ours
            continue
        rank = [word.removeprefix("RANK=") for word in environment if word.startswith("RANK=")]
        if str(plan) in words and rank:
            found[int(rank[0])] = int(place.name)
    return found


def ours(stderr: str) -> list[str]:
    """Our lines among torchrun's."""
    return [line for line in stderr.splitlines() if line.startswith("ppadvisor:")]


@pytest.fixture(scope="module")
def ran(saved: Path) -> tuple[dict[str, Any], Path]:
    """(the answer, the file of the record) of a run of half the layers."""
    record, answer = saved.with_name("run.jsonl"), saved.with_name("answer.json")
    process = torchrun(
        str(saved),
        *("--layers", "--scale", "0.5", "--steps", "2", "--format", "json"),
        *("--output", str(answer), "--record", str(record)),
    )
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, ours(stderr)) == (0, "", [])
    return json.loads(answer.read_text(encoding="utf-8")), record


def test_two_ranks_run_the_plan(ran: tuple[dict[str, Any], Path]) -> None:
    """Each did its order of 8 forwards and backwards of 2 layers; one step takes about what the median says."""
    document, _ = ran
    check(document, "verification")
    assert (document["kind"], document["agrees"], document["judged"]) == ("layers", True, False)
    assert (document["device"], document["layers_per_stage"], document["engine"]) == ("cpu", [2, 2], "1F1B")
    assert [(row["num_operations"], row["num_differences"]) for row in document["rows"]] == [(16, 0)] * 2
    assert {row["allocated_bytes"] for row in document["rows"]} == {None}
    parts = {term["name"]: term["measured_s"] for term in document["terms"]}
    assert min(document["steps_s"]) <= parts["step_time"] <= max(document["steps_s"])
    # a rank alone works for 8 micro-batches, in whatever time the processes have
    assert all(8 * (row["forward_s"] + row["backward_s"]) < 1.1 * max(document["steps_s"]) for row in document["rows"])


def test_its_record_is_of_a_cpu(ran: tuple[dict[str, Any], Path]) -> None:
    """One line, that of the scaled run: no GPU, no peak, the measured step."""
    document, path = ran
    (record,) = read_records([path])
    assert (record.cluster.device, record.cluster.gpu, record.measured.peak_allocated_gib) == ("cpu", None, None)
    assert record.measured.step_time_s == document["terms"][0]["measured_s"]
    assert (record.model.num_layers, record.plan.layers_per_stage, record.training.framework) == (
        4,
        (2, 2),
        "torchtitan",
    )


def test_what_is_wrong_on_all_ranks_is_said_by_one(saved: Path) -> None:
    """A plan that is not there: one line of two processes, each of which ends with 2."""
    process = torchrun(str(saved.with_name("none.json")), "--layers")
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode != 0, stdout) == (True, "")
    assert ours(stderr) == [f"ppadvisor: error: {saved.with_name('none.json')}: no such file"]
    assert "exitcode  : 2" in stderr


def amid_its_steps(saved: Path) -> tuple[subprocess.Popen[str], dict[int, int]]:
    """torchrun and the processes of its ranks, which have steps for hours."""
    process = torchrun(str(saved), "--layers", "--steps", "100000")
    give_up_s = time.monotonic() + PATIENCE_S
    while len(found := ranks_of(saved)) < 2:
        assert process.poll() is None
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    time.sleep(3.0)  # into the steps, or the meeting of the ranks where the machine is slow
    return process, found


def test_a_killed_launcher_leaves_no_rank(saved: Path) -> None:
    """SIGKILL of torchrun, which tells its ranks nothing: they end by themselves."""
    process, _ = amid_its_steps(saved)
    process.kill()
    process.communicate(timeout=PATIENCE_S)  # the ranks hold its pipes until they end
    give_up_s = time.monotonic() + 20
    while ranks_of(saved):
        assert time.monotonic() < give_up_s
        time.sleep(0.2)


def test_a_killed_rank_ends_all(saved: Path) -> None:
    """SIGKILL of one of two amid its steps: torchrun ends soon, no rank is left, nothing is printed as an answer."""
    process, found = amid_its_steps(saved)
    os.kill(found[1], signal.SIGKILL)
    killed_s = time.monotonic()
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode != 0, stdout) == (True, "")
    assert time.monotonic() - killed_s < 30
    assert ranks_of(saved) == {}
    assert len(ours(stderr)) <= 1
    assert "Traceback" not in stderr.partition("torch/distributed/elastic")[0]
