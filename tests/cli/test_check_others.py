"""`ppadvisor check` and `launch` of torchtitan's and DeepSpeed's files: there and back, lines, hostile input."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

CONFIGS = Path(__file__).parent.parent / "published"
MAVERICK = CONFIGS / "torchtitan_configs" / "llama4_17bx128e.toml"
ZERO_2 = CONFIGS / "deepspeed_configs" / "megatron_3d_zero_2.json"
GPU = ("--gpu", "h100-sxm-80gb")
QUESTION = (
    *("--model", "llama-3.1-8b", *GPU, "--gpus", "8", "--seq-len", "4k", "--global-batch", "32", "--top", "1"),
    *("--format", "json", "--pp", "2,4", "--schedule", "1f1b"),
)


@pytest.mark.parametrize(("framework", "name"), [("torchtitan", "train.toml"), ("deepspeed", "ds_config.json")])
def test_from_plan_to_check(cli: Cli, tmp_path: Path, framework: str, name: str) -> None:
    """The plan that `plan` shows comes back from `check` the same, at the same time and peak."""
    saved, config = tmp_path / "plan.json", tmp_path / name
    cli("plan", *QUESTION, "--framework", framework, "--recompute", "none,full", "--output", str(saved))
    shown = json.loads(saved.read_text())["plans"]
    assert len(shown) == 1
    for rank, wanted in enumerate(shown, 1):
        result = cli("launch", f"{saved}#{rank}", "--output", str(config))
        assert (result.exit_code, result.stdout) == (0, "")
        again = shlex.split(result.stderr.rpartition("ppadvisor check FILE ")[2]) or ["--gpus", "8"]
        words = ["llama-3.1-8b" if word == "MODEL" else word for word in again]
        answer = cli("check", str(config), *words, *GPU, "--format", "json").document
        assert (answer["framework"], answer["legal"]) == (framework, True)
        assert answer["plan"] == wanted["plan"]
        assert answer["estimate"]["time"]["step_time_s"] == wanted["time"]["step_time_s"]
        assert answer["estimate"]["memory"]["peak_bytes"] == wanted["memory"]["peak_bytes"]


def test_the_framework_is_told_by_the_file(cli: Cli, tmp_path: Path) -> None:
    """By its text, whatever its name; another trainer's reader is asked for by name; nobody's file is an error."""
    copy = tmp_path / "config.txt"
    copy.write_text(ZERO_2.read_text())
    answer = cli("check", str(copy), "--gpus", "16", "--format", "json").document
    assert answer["framework"] == "deepspeed"
    wrong = cli("check", str(MAVERICK), "--gpus", "8", "--framework", "deepspeed")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    copy.with_suffix(".json").write_text('{"a": 1}')
    nobody = cli("check", str(copy.with_suffix(".json")), "--gpus", "8")
    assert nobody.exit_code == 2
    assert "--framework torchtitan" in nobody.stderr


@pytest.mark.parametrize(
    ("file", "options"),
    [
        (MAVERICK, ("--vocab", "1000")),
        (MAVERICK, ("--pp", "4")),
        (MAVERICK, ("--model", "llama-3.1-8b")),
        (ZERO_2, ("--define", "A=1")),
        (ZERO_2, ("--vocab", "1000")),
        (CONFIGS / "megatron_scripts" / "mixtral_8x7b.sh", ("--tp", "2")),
    ],
)
def test_what_has_no_effect_is_an_error(cli: Cli, file: Path, options: tuple[str, ...]) -> None:
    """What the file says itself, or its reader does not take, cannot be said beside it."""
    result = cli("check", str(file), "--gpus", "256", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{options[0]} has no effect" in result.stderr


@pytest.mark.parametrize(
    ("file", "options", "place"),
    [(MAVERICK, (), "line=11"), (ZERO_2, ("--pp", "2", "--tp", "2"), "line=7")],
)
def test_annotations_stand_where_the_value_does(cli: Cli, file: Path, options: tuple[str, ...], place: str) -> None:
    """The line of local_batch_size, and of the ZeRO stage; the same bytes again in every form."""
    for form in ("github", "markdown", "junit", "sarif", "json", "text"):
        first, second = (cli("check", str(file), "--gpus", "256", *options, "--format", form) for _ in range(2))
        assert (first.exit_code, first.stdout) == (3, second.stdout)
        if form == "github":
            errors = [line for line in first.stdout.splitlines() if line.startswith("::error")]
            assert place in errors[0].split(",")
    text = file.read_text().splitlines()[int(place.removeprefix("line=")) - 1]
    assert "local_batch_size" in text or '"stage"' in text


def test_advice_stays_within_what_the_model_can(cli: Cli) -> None:
    """torchtitan's qwen3 takes no pipeline: neither the best plan nor the change has one."""
    file = CONFIGS / "torchtitan_configs" / "qwen3_32b.toml"
    answer = cli("check", str(file), "--gpus", "8", "--gpu", "b200", "--format", "json").document
    assert answer["best"]["plan"]["pipeline_parallel"] == 1
    assert answer["change"] is None or answer["change"]["plan"]["pipeline_parallel"] == 1


def test_zero_bubble_with_recomputation_is_priced(cli: Cli, tmp_path: Path) -> None:
    """A11: accepted, and collapses, as torch repeats a layer for each group of weights: another schedule helps."""
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nflavor = "debugmodel"\n[parallelism]\npipeline_parallel_degree = 2\n'
        'pipeline_parallel_schedule = "ZBVZeroBubble"\n[activation_checkpoint]\nmode = "full"\n'
    )
    answer = cli("check", str(path), "--gpus", "2", *GPU, "--format", "json").document
    assert answer["legal"]
    assert answer["notices"][-1]["kind"] == "slow"
    assert answer["change"]["plan"]["schedule"] not in ("zb-v", "dualpipev", "interleaved-zero-bubble")
    assert answer["change"]["gain_fraction"] > 0.5


HOSTILE: dict[str, bytes] = {
    "deep.toml": b"[training]\na = " + b"[" * 100_000,
    "dotted.toml": b"[training]\n" + b"a." * 60_000 + b"b = 1\n",
    "twice.toml": b"[training]\nseq_len = 1\nseq_len = 2\n",
    "digits.toml": b"[training]\nseq_len = 1" + b"0" * 5000,
    "latin.toml": b"[training]\n# \xe9\n",
    "wide.toml": "[training]\n".encode("utf-16"),
    "large.toml": b"[training]\n" + b"#" * 400_000,
    "deep.json": b'{"train_batch_size": ' + b"[" * 100_000,
    "twice.json": b'{"train_batch_size": 1, "train_batch_size": 2}',
    "nan.json": b'{"train_batch_size": NaN}',
    "digits.json": b'{"train_batch_size": 1' + b"0" * 5000 + b"}",
    "comments.json": b'{"train_batch_size": 1, ' + b"/* " * 90_000 + b"}",
    "quotes.json": b'{"train_batch_size": 1, "' + b'\\"' * 140_000,
    "spaces.json": b'{"train_batch_size": 1,' + b" " * 200_000 + b"x}",
    "latin.json": b'{"train_batch_size": 1, "\xe9": 1}',
    "nobodys.json": b'{"a": ' + b"[" * 3_000,
}
BROKEN: dict[str, bytes] = {
    "nan.toml": b"[training]\nlocal_batch_size = nan\n",
    "text.toml": b'[training]\nlocal_batch_size = "8"\n',
    "negative.toml": b"[training]\nlocal_batch_size = -5\n[parallelism]\ntensor_parallel_degree = -2\n",
    "huge.toml": b"[parallelism]\npipeline_parallel_degree = 1" + b"0" * 30,
    "many.toml": b"[training]\n" + b"".join(b"k%d = 1\n" % i for i in range(20_000)),
    "list.toml": b"[[training]]\nseq_len = 1\n[parallelism]\n",
    "modules.toml": b"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [['layers.-1'], []]\n",
    "kinds.json": b'{"train_batch_size": "many", "zero_optimization": "yes", "fp16": [], "pipeline": 3}',
    "negative.json": b'{"train_batch_size": -1, "train_micro_batch_size_per_gpu": -1}',
    "infinite.json": b'{"train_batch_size": 1e999}',
    "null.json": b'{"train_batch_size": null, "zero_optimization": null, "pipeline": null}',
}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: " + "[" * 300, "nested too deeply"),
        ("a.yaml", "a: !!python/object/apply:os.system [ls]\n", "line 1: the tag"),
        ("a.json", '{"a": ' + "[" * 3_000, "nested too deeply"),
        ("a.toml", "a =\n", "not valid TOML"),
        ("a.yaml", "a: 1\n", "no configuration that is known here"),
    ],
)
def test_why_a_file_is_nobodys(cli: Cli, tmp_path: Path, name: str, text: str, message: str) -> None:
    """What is wrong with the text itself is said before the list of forms that are known."""
    (tmp_path / name).write_text(text)
    result = cli("check", str(tmp_path / name), "--gpus", "8")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr


def test_a_plan_lends_its_gpus(cli: Cli, tmp_path: Path) -> None:
    """Beside a saved plan a file that says no number of GPUs has the plan's; --gpus goes before it."""
    plan, job = str(tmp_path / "plan.json"), str(tmp_path / "train.toml")
    cli(*("plan", *QUESTION, "--framework", "torchtitan", "--output", plan))
    cli("launch", plan, "--output", job)
    same = cli("diff", plan, job, "--format", "json")
    assert (same.exit_code, same.document["head"]["num_gpus"]) == (0, 8)
    assert cli("diff", job, plan, "--format", "json").document["base"]["num_gpus"] == 8
    assert cli("diff", plan, job, "--gpus", "16", "--format", "json").document["head"]["num_gpus"] == 16
    assert cli("check", job).exit_code == 2


@pytest.mark.parametrize(("name", "exit_code"), [*((name, 2) for name in HOSTILE), *((name, 3) for name in BROKEN)])
def test_hostile_files(cli: Cli, tmp_path: Path, name: str, exit_code: int) -> None:
    """One clear line, or broken rules; nothing hangs and nothing is an internal error."""
    path = tmp_path / name
    path.write_bytes((HOSTILE | BROKEN)[name])
    started = time.monotonic()
    result = cli("check", str(path), "--gpus", "8")
    assert result.exit_code == exit_code
    assert time.monotonic() - started < 20
    if exit_code == 2:
        assert (result.stdout, result.stderr.count("\n")) == ("", 1)
        assert result.stderr.startswith("ppadvisor: error: ")
    else:
        assert result.stderr == ""
        assert "✗ " in result.stdout
        assert len(result.stdout) < 30_000
