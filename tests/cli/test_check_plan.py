"""`ppadvisor check` of what comes another way than in a script: saved plans, standard input, pipes."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Save
from tests.cli.test_check import GPU, write

ASKED = "--model gpt2-medium-355m --gpu a100-sxm-80gb --gpus 8 --seq-len 1024 --global-batch 32"


def pour(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """What the next run finds on its standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


FRAMEWORKS = (
    f"{ASKED} --framework megatron --pp 4",
    f"{ASKED} --framework deepspeed --pp 2",
    f"{ASKED.replace('gpt2-medium-355m', 'pythia-12b')} --framework zero-bubble --pp 4",
    f"{ASKED} --framework generic --pp 4 --schedule zb-v",
)


@pytest.mark.parametrize("options", FRAMEWORKS, ids=[options.partition("framework ")[2] for options in FRAMEWORKS])
def test_a_saved_plan(cli: Cli, save: Save, options: str) -> None:
    """The second plan of a file, of each trainer: judged by its rules, with the numbers that `plan` wrote for it."""
    path = save(options)
    result = cli("check", f"{path}#2", "--format", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer, written = result.document, json.loads(path.read_text())
    assert (answer["file"], answer["plan_rank"]) == (str(path), 2)
    assert (answer["legal"], answer["fits"], answer["rules"]) == (True, True, [])
    assert "schedule" in answer["rules_judged"]
    assert answer["estimate"]["plan"] == written["plans"][1]["plan"]
    assert answer["estimate"]["memory"] == written["plans"][1]["memory"]
    assert answer["estimate"]["time"]["step_time_s"] == written["plans"][1]["time"]["step_time_s"]
    assert answer["cluster"] == written["problem"]["cluster"]
    # the best without the pins is no worse than the first with them
    assert answer["best"]["time"]["step_time_s"] <= written["plans"][0]["time"]["step_time_s"] * 1.005


def test_the_best_plan_has_no_regret(cli: Cli, save: Save) -> None:
    """The first plan of a search without pins is the best one, up to the preference for a simpler one."""
    answer = cli("check", str(save(ASKED)), "--gate", "regret<=1%", "--format", "json")
    assert answer.exit_code == 0
    assert answer.document["gates"][0]["passed"]
    assert answer.document["plan_rank"] is None


def changed(path: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a file with something changed in it."""
    document = json.loads(path.read_text())
    change(document)
    copy = folder / "changed.json"
    copy.write_text(json.dumps(document))
    return copy


def test_a_saved_plan_that_became_illegal(cli: Cli, save: Save, tmp_path: Path) -> None:
    """A plan that its trainer refuses: a broken rule with the reason of `explain`, exit 3, no estimate."""

    def odd(document: dict[str, Any]) -> None:
        document["problem"]["training"]["sequence_length"] = 1023
        plan = document["plans"][0]["plan"]
        plan |= {"tensor_parallel": 2, "data_parallel": plan["data_parallel"] // 2, "num_microbatches": 0}
        plan["num_microbatches"] = 32 // plan["data_parallel"] // plan["micro_batch_size"]

    path = changed(save(f"{ASKED} --pp 2 --tp 1"), tmp_path, odd)
    result = cli("check", str(path), "--format", "json")
    assert result.exit_code == 3
    (rule,) = result.document["rules"]
    assert rule["message"].startswith("sequence length 1023")
    assert (rule["file"], rule["line"], result.document["estimate"]) == (str(path), None, None)


def set_plan(**values: Any) -> Callable[[dict[str, Any]], object]:
    """A change of the first plan of a file."""
    return lambda document: document["plans"][0]["plan"].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(format_version="9.0"), "format_version is '9.0', this program reads 1.x"),
        (lambda document: document.update(plans={}), "'plans' is missing or of another kind"),
        (lambda document: document.pop("problem"), "no plan JSON ('problem' is missing"),
        (set_plan(data_parallel=3), "plan: p t c d 6, needs 8"),
        (set_plan(pipeline_parallel=-1), "pipeline_parallel: got -1"),
        (set_plan(colour="red"), "unknown key 'colour'"),
        (lambda document: document["problem"].update(margin_fraction=7), "margin_fraction: got 7"),
    ],
)
def test_a_saved_plan_that_is_none(
    cli: Cli, save: Save, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Another version, other keys and sizes that contradict each other: one line with the name of the file, exit 2."""
    path = changed(save(f"{ASKED} --pp 2 --tp 1"), tmp_path, change)
    result = cli("check", str(path))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr
    assert str(path) in result.stderr


def test_another_model_version_is_told(cli: Cli, save: Save, tmp_path: Path) -> None:
    """Numbers of another version of the model are estimated again, which stderr says."""
    path = changed(save(f"{ASKED} --pp 2 --tp 1"), tmp_path, lambda document: document.update(model_version="1999.1"))
    result = cli("check", str(path))
    assert result.exit_code == 0
    assert "written by model version 1999.1" in result.stderr


@pytest.mark.parametrize(
    "options",
    [("--gpus", "16"), ("--vocab", "7"), ("--framework", "megatron"), ("--margin", "0.5"), ("--define", "A=1")],
)
def test_what_has_no_effect_beside_a_saved_plan(cli: Cli, save: Save, options: tuple[str, str]) -> None:
    """The file holds problem and plan; an option that would change nothing is an error."""
    result = cli("check", str(save(f"{ASKED} --pp 2 --tp 1")), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{options[0]} has no effect beside a file" in result.stderr


def test_ranks(cli: Cli, save: Save, tmp_path: Path) -> None:
    """A rank that is not there, a rank of what holds no plans, a name with # that is a file."""
    path = save(f"{ASKED} --pp 2 --tp 1")
    for reference, message in (
        (f"{path}#99", "rank 99 is not there"),
        (f"{path}#x", "needs a whole number"),
        (f"{write(tmp_path, 'PP=4')}#2", "holds no plans; needs the JSON that"),
        (f"{tmp_path / 'none.sh'}#2", "no such file"),
    ):
        result = cli("check", reference)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert message in result.stderr
    odd = tmp_path / "a#b.sh"
    write(tmp_path, "PP=4").rename(odd)
    assert cli("check", str(odd)).exit_code == 0


def test_standard_input(cli: Cli, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is stdin, for a script and for saved plans alike: the answer is that of the file, its name aside."""
    for path, options in ((write(tmp_path, "PP=4"), GPU), (save(f"{ASKED} --pp 2 --tp 1"), ())):
        expected = cli("check", str(path), *options, "--format", "json").document
        pour(monkeypatch, path.read_bytes())
        answer = cli("check", "-", *options, "--format", "json").document
        assert answer.pop("file") == "-"
        assert (answer["estimate"], answer["regret_fraction"]) == (expected["estimate"], expected["regret_fraction"])
        assert [rule["line"] for rule in answer["rules"]] == [rule["line"] for rule in expected["rules"]]


def test_a_finding_of_standard_input_names_no_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitHub would look for a file called `-`: the annotation goes to the run."""
    pour(monkeypatch, write(tmp_path, "PP=5").read_bytes())
    lines = cli("check", "-", "--format", "github").stdout.splitlines()
    assert lines
    assert all(line.startswith("::error line=2,title=") for line in lines)


def test_a_named_pipe(cli: Cli, tmp_path: Path) -> None:
    """What can be read only once is: a shell's <(command)."""
    text = write(tmp_path, "PP=4").read_text()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert cli("check", str(pipe)).exit_code == 0
    writer.join()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "-: is empty"),
        (b"what is this", "-: no configuration that is known here; needs "),
        (b"\xff\xfe", "-: not a text file"),
        (b"{" * 100_000, "-: no configuration that is known here"),
        (b'{"format_version": "1.0", "model_version": ' + b"[" * 100_000, "-: nested too deeply"),
        (b'{"format_version": "1.0", "model_version": "1", "plans": []}', "-: no plan JSON"),
        (b"#!/bin/sh\n" + b"a" * 400_000, "-: more than 300,000 bytes"),
    ],
)
def test_hostile_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str) -> None:
    """Nothing that may come in is more than one line: exit code 2."""
    pour(monkeypatch, data)
    result = cli("check", "-")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr


def test_closed_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no stdin where the shell closed it."""
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input is closed" in cli("check", "-").stderr


def test_what_never_ends(cli: Cli) -> None:
    """A device that pours for ever is read as far as any configuration may go."""
    result = cli("check", "/dev/zero")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "/dev/zero: more than 200,000,000 bytes" in result.stderr
