"""`ppadvisor diff`: what it answers, with which exit code, and how it meets hostile files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Result, Save
from tests.cli.test_check import GPU, MODEL, write
from tests.cli.test_check_plan import ASKED, changed, pour
from tests.cli.test_schema import check as follows_schema

TOO_LARGE = "--num-layers 96 --hidden-size 12288 --num-attention-heads 96"
LIMIT = ("--fail-on-regression", "2%")

Script = tuple[str, str]
"""Variable in line 2, more options in line 4."""


def two(folder: Path, base: Script, head: Script) -> tuple[str, str]:
    """Two scripts of 8 GPUs, base/train.sh and train.sh."""
    (folder / "base").mkdir(exist_ok=True)
    return str(write(folder / "base", *base)), str(write(folder, *head))


CASES: dict[str, tuple[Script, Script, tuple[str, ...], int]] = {
    "the same": (("PP=4", ""), ("PP=4", ""), ("--fail-on-regression", "0"), 0),
    "slower, nobody asked": (("PP=4", ""), ("PP=8", ""), (), 0),
    "slower": (("PP=4", ""), ("PP=8", ""), LIMIT, 5),
    "slower within the limit": (("PP=4", ""), ("PP=8", ""), ("--fail-on-regression", "900%"), 0),
    "faster": (("PP=4", "--recompute-activations"), ("PP=4", ""), ("--fail-on-regression", "10%"), 0),
    "illegal": (("PP=4", ""), ("PP=5", ""), LIMIT, 3),
    "silently wrong": (("PP=4", ""), ("PP=4", "--num-query-groups 4"), (), 3),
    "does not fit": (("PP=4", ""), ("PP=1", TOO_LARGE), LIMIT, 3),
    "repaired": (("PP=5", ""), ("PP=4", ""), ("--fail-on-regression", "0"), 0),
    "fits now": (("PP=1", TOO_LARGE), ("PP=4", ""), ("--fail-on-regression", "0"), 0),
    "not modelled": (("PP=4", ""), ("PP=4", "--fp32-residual-connection"), ("--fail-on-regression", "0"), 0),
    "half of the GPUs": (("PP=4", ""), ("PP=4", ""), ("--gpus", "4", "--fail-on-regression", "0"), 0),
    "a limit that may be percent": (("PP=4", ""), ("PP=4", ""), ("--fail-on-regression", "2"), 2),
    "a price without its hour": (("PP=4", ""), ("PP=4", ""), ("--price", "2"), 2),
    "unreadable": (("PP=4", ""), ("PP=$1", ""), (), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_exit_codes(cli: Cli, tmp_path: Path, case: str) -> None:
    """0 an answer, 2 bad input, 3 HEAD is illegal or does not fit, 5 a regression; of 3 and 5 the lower one."""
    base, head, options, exit_code = CASES[case]
    result = cli("diff", *two(tmp_path, base, head), *GPU, *options)
    assert result.exit_code == exit_code
    assert (result.stdout == "") == (exit_code == 2)
    assert result.stderr.count("\n") == (exit_code == 2)


def test_numbers_are_those_of_check(cli: Cli, tmp_path: Path) -> None:
    """Each side is what `check` says of it; effects, parts and stages are their differences."""
    files = two(tmp_path, ("PP=4", ""), ("PP=8", "--micro-batch-size 2"))
    answer = cli("diff", *files, *GPU, "--format", "json").document
    sides = []
    for name, file in zip(("base", "head"), files, strict=True):
        checked = cli("check", file, *GPU, "--format", "json").document
        assert answer[name] == {key: checked[key] for key in answer[name]}
        sides.append(checked["estimate"])
    effects = {one["name"]: one for one in answer["effects"]}
    times = [side["time"]["step_time_s"] for side in sides]
    peaks = [side["memory"]["peak_bytes"] for side in sides]
    assert effects["step_time_s"]["change_fraction"] == pytest.approx(times[1] / times[0] - 1)
    assert effects["peak_bytes"]["difference"] == peaks[1] - peaks[0]
    for one in answer["parts"]:
        before, after = (side["time"]["terms"][f"{one['name']}_s"] for side in sides)
        assert (one["base_s"], one["head_s"], one["difference_s"]) == (before, after, after - before)
    assert sum(one["difference_s"] for one in answer["parts"]) == pytest.approx(times[1] - times[0])
    totals = [[stage["total_bytes"] for stage in side["memory"]["stages"]] for side in sides]
    assert [one["base"] and one["base"]["total_bytes"] for one in answer["stages"]] == [*totals[0], *[None] * 4]
    assert [one["head"]["total_bytes"] for one in answer["stages"]] == totals[1]
    assert answer["stages"][0]["difference_bytes"] == totals[1][0] - totals[0][0]


def fields(result: Result) -> dict[str, tuple[Any, Any, str | None, int | None]]:
    """Each changed field: base, head, the option that says it in HEAD, its line."""
    keys = ("base", "head", "option", "line")
    return {f"{one['part']}.{one['field']}": tuple(one[key] for key in keys) for one in result.document["changes"]}


def test_what_changed(cli: Cli, tmp_path: Path) -> None:
    """Fields with both values and the line of HEAD; options that no estimate sees, and those that matter to neither."""
    files = two(
        tmp_path,
        ("PP=4", "--lr 0.1 --recompute-activations --fp32-residual-connection"),
        ("PP=8", "--lr 0.2 --seq-length 512 --qk-l2-norm"),
    )
    result = cli("diff", *files, *GPU, "--format", "json")
    found = fields(result)
    assert found["plan.pipeline_parallel"] == (4, 8, "--pipeline-model-parallel-size", 2)
    assert found["plan.data_parallel"] == (2, 1, None, None)
    assert found["plan.recompute"] == ("selective", "none", "--recompute-activations", None)
    assert found["training.sequence_length"] == (1024, 512, "--seq-length", 4)
    assert not [name for name in found if name.startswith(("model", "cluster", "assumptions", "margin"))]
    options = {one["option"]: one for one in result.document["options"]}
    told = {name: (one["base"], one["head"], one["effect"], one["head_line"]) for name, one in options.items()}
    assert told["--lr"] == ("0.1", "0.2", "other", 4)
    assert told["--qk-l2-norm"] == (None, "given", "not_modelled", 4)
    assert told["--fp32-residual-connection"] == ("given", None, "not_modelled", None)
    assert told["--pipeline-model-parallel-size"][2] == "modelled"
    text = " ".join(cli("diff", *files, *GPU).stdout.split())
    assert f"not modelled: {files[1]}:4: --qk-l2-norm added: changes memory" in text
    assert "--fp32-residual-connection dropped: changes memory" in text
    assert "other options: --lr 0.1 -> 0.2" in text


def test_a_change_of_the_model_and_of_the_machines(cli: Cli, tmp_path: Path) -> None:
    """Another model is told field by field, more GPUs by their number; without an estimate too."""
    files = two(tmp_path, ("PP=4", ""), ("PP=4", "--num-layers 48 --swiglu --num-experts 8 --moe-router-topk 2"))
    path = Path(files[1])
    path.write_text(path.read_text().replace("--nproc_per_node 8", "--nnodes 2 --nproc_per_node 8"))
    for options in (GPU, ()):
        result = cli("diff", *files, *options, "--format", "json")
        found = fields(result)
        assert found["model.num_layers"][:2] == (24, 48)
        assert found["model.gated_mlp"] == (False, True, "--swiglu", 4)
        assert found["model.moe.num_experts"] == (None, 8, "--num-experts", 4)
        assert found["cluster.num_gpus"][:2] == (8, 16)
        assert (result.document["head"]["estimate"] is None) == (options == ())
    assert "give --gpu" not in cli("diff", *files, *GPU).stdout
    assert "missing: --gpu or --cluster" in cli("diff", *files).stdout


def test_time_is_held_by_the_token_where_the_batch_changed(cli: Cli, tmp_path: Path) -> None:
    """Twice the batch takes longer and is no regression; half of it takes less time and is one: its bubble."""
    large, small = ("PP=4", "--global-batch-size 64"), ("PP=4", "--global-batch-size 8")
    limit = ("--fail-on-regression", "5%", "--format", "json")
    assert cli("diff", *two(tmp_path, small, large), *GPU, *limit).document["regressions"] == []
    result = cli("diff", *two(tmp_path, large, small), *GPU, *limit)
    assert result.exit_code == 5
    (found,) = result.document["regressions"]
    sides = [result.document[side]["estimate"]["time"] for side in ("base", "head")]
    assert sides[1]["step_time_s"] < sides[0]["step_time_s"]
    assert found["metric"] == "time_per_token_s"
    assert found["worse_fraction"] == pytest.approx(sides[0]["tokens_per_s"] / sides[1]["tokens_per_s"] - 1)


def test_peak_memory_regresses_too(cli: Cli, tmp_path: Path) -> None:
    """Without recomputation the step is faster and the peak higher: a regression of the peak alone, at its option."""
    options = "--recompute-granularity full --micro-batch-size 4 --recompute-method block --recompute-num-layers"
    files = two(tmp_path, ("PP=4", f"{options} 6"), ("PP=4", f"{options} 1"))
    (found,) = cli("diff", *files, *GPU, *LIMIT, "--format", "json").document["regressions"]
    assert (found["metric"], found["option"], found["line"]) == ("peak_bytes", "--recompute-num-layers", 4)
    assert found["worse_fraction"] == found["head"] / found["base"] - 1 > 0.02


def test_how_sure(cli: Cli, tmp_path: Path) -> None:
    """The share of draws in which HEAD is slower: most for a slower one, the rest turned around; none for one time."""
    files = two(tmp_path, ("PP=4", ""), ("PP=8", ""))
    there, back, none = (
        cli("diff", *pair, *GPU, "--format", "json").document["head_slower_in_fraction"]
        for pair in (files, files[::-1], (files[0], files[0]))
    )
    assert there > 0.9
    assert there + back == pytest.approx(1)
    assert none is None


def test_cost(cli: Cli, tmp_path: Path) -> None:
    """Price x GPUs x hours of a step, and the same for 10^9 tokens; no price, no cost."""
    files = two(tmp_path, ("PP=4", ""), ("PP=8", ""))
    answer = cli("diff", *files, *GPU, "--price", "2.50/h", "--format", "json").document
    effects = {one["name"]: one for one in answer["effects"]}
    for side in ("base", "head"):
        hours = answer[side]["estimate"]["time"]["step_time_s"] / 3600
        assert effects["cost_per_step"][side] == pytest.approx(2.5 * 8 * hours)
        assert effects["cost_per_billion_tokens"][side] == pytest.approx(2.5 * 8 * hours / (32 * 1024) * 1e9)
    assert "cost of a step" not in cli("diff", *files, *GPU).stdout


def test_plans_and_scripts(cli: Cli, save: Save, tmp_path: Path) -> None:
    """A script that `launch` wrote is the plan that it was written from: no field, no byte and no second apart."""
    plan, script = save(f"{ASKED} --pp 2 --tp 2"), tmp_path / "train.sh"
    assert cli("launch", str(plan), "--output", str(script)).exit_code == 0
    result = cli("diff", str(plan), str(script), "--fail-on-regression", "0", "--format", "json")
    assert result.exit_code == 0
    assert f"{script} is looked at on the GPUs of {plan}" in result.stderr
    assert (result.document["changes"], result.document["options"]) == ([], [])
    assert {one["difference"] for one in result.document["effects"]} == {0}


def test_a_model_with_shared_experts_and_its_script(cli: Cli, save: Save, tmp_path: Path) -> None:
    """DeepSeek-V2-Lite says two shared experts of 1408, its script one of 2816, as Megatron builds it: no change."""
    asked = "--model deepseek-v2-lite --gpu h100-sxm-80gb --gpus 16 --seq-len 4096 --global-batch 64"
    plan, script = save(asked), tmp_path / "train.sh"
    assert cli("launch", str(plan), "--output", str(script)).exit_code == 0
    assert "--moe-shared-expert-intermediate-size 2816" in script.read_text()
    assert cli("diff", str(plan), str(script), "--format", "json").document["changes"] == []


def test_a_script_over_a_pipe_beside_a_plan(
    cli: Cli, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a plan says nothing of what a pipe brings."""
    plan, script = save(f"{ASKED} --pp 2 --tp 2"), tmp_path / "train.sh"
    cli("launch", str(plan), "--output", str(script))
    pour(monkeypatch, script.read_bytes())
    assert cli("diff", "-", str(plan), "--format", "json").document["changes"] == []


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (("PP=4", ""), "✓ head runs and trains what was asked for"),
        (("PP=5", ""), "✗ head is refused by megatron; base runs and trains what was asked for"),
        (("PP=4", "--num-query-groups 4"), "✗ head runs, and trains something else; base runs"),
        (("PP=4", "--num-experts 4 --moe-router-topk 8"), "✗ head starts, and fails at the first step; base runs"),
    ],
)
def test_what_becomes_of_head(cli: Cli, tmp_path: Path, head: Script, text: str) -> None:
    """Accepted, refused at start-up, failing later and training something else are four answers."""
    assert text in " ".join(cli("diff", *two(tmp_path, ("PP=4", ""), head)).stdout.split())


def test_two_plans_of_a_file(cli: Cli, save: Save) -> None:
    """Saved plans by rank, as `plan` wrote them; options that the files already answer are errors."""
    path = save(f"{ASKED} --pp 8 --micro-batch 1")
    answer = cli("diff", f"{path}#1", f"{path}#2", "--format", "json").document
    assert [answer[side]["plan_rank"] for side in ("base", "head")] == [1, 2]
    assert answer["base"]["plan"] != answer["head"]["plan"]
    assert all(one["part"] == "plan" for one in answer["changes"])
    result = cli("diff", f"{path}#1", f"{path}#2", "--gpu", "b200")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--gpu has no effect beside a file" in result.stderr


def test_standard_input_on_either_side(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`git show REV:train.sh | ppadvisor diff - train.sh`: what the pipe brings is read as a file is."""
    files = two(tmp_path, ("PP=4", ""), ("PP=8", ""))
    expected = cli("diff", *files, *GPU, "--format", "json").document
    for side, name in enumerate(("base", "head")):
        pour(monkeypatch, Path(files[side]).read_bytes())
        answer = cli("diff", *("-" if at == side else file for at, file in enumerate(files)), *GPU, "--format", "json")
        assert answer.document[name]["file"] == "-"
        assert answer.document["effects"] == expected["effects"]
        assert answer.document["changes"] == expected["changes"]
    pour(monkeypatch, b"")
    result = cli("diff", "-", "-")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "both sides are -" in result.stderr


def test_yaml_over_a_pipe(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes over a pipe is taken for what the other file's name says."""
    words = MODEL.replace("--bf16", "--bf16 true").replace("--use-distributed-optimizer", "").split()
    path = tmp_path / "train.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in zip(words[::2], words[1::2], strict=True)))
    pour(monkeypatch, path.read_bytes().replace(b"--micro-batch-size: 1", b"--micro-batch-size: 2"))
    result = cli("diff", "-", str(path), *GPU, "--gpus", "8", "--format", "json")
    assert result.exit_code == 0
    assert fields(result)["plan.micro_batch_size"] == (2, 1, "--micro-batch-size", 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fail-on-regression", "2%"), "--fail-on-regression needs an estimate of BASE: give --gpu or --cluster"),
        (("--price", "2/h"), "--price needs an estimate of BASE: give --gpu or --cluster"),
        (("--fail-on-regression", "-1%", *GPU), "must not be negative"),
        (("--framework", "megatorn"), "did you mean 'megatron'?"),
        (("--gpu", "a100x"), "did you mean"),
    ],
)
def test_asked_wrongly(cli: Cli, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    """A limit without a number to hold, and a wrong word: one line, exit 2."""
    result = cli("diff", *two(tmp_path, ("PP=4", ""), ("PP=4", "")), *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr


def test_one_price_for_two_gpus(cli: Cli, save: Save) -> None:
    """A price that cannot be that of both is refused."""
    one, other = save(f"{ASKED} --pp 2"), save(f"{ASKED} --pp 2".replace("a100-sxm-80gb", "h100-sxm-80gb"))
    result = cli("diff", str(one), str(other), "--price", "2/h")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the two run on different GPUs: NVIDIA A100" in result.stderr
    found = fields(cli("diff", str(one), str(other), "--format", "json"))
    assert found["cluster.gpu.model"][1].startswith("NVIDIA H100")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe\x00", b"a" * 100_000_000, b"{" * 100_000, b"x=" + b"$(" * 10_000, b"- [" * 100_000],
    ids=["empty", "encoding", "huge", "braces", "substitutions", "lists"],
)
def test_hostile_files(cli: Cli, tmp_path: Path, data: bytes) -> None:
    """On either side: nothing hangs, one line names the file, exit 2."""
    good, bad = str(write(tmp_path, "PP=4")), tmp_path / "bad.sh"
    bad.write_bytes(data)
    for files in ((good, str(bad)), (str(bad), good)):
        result = cli("diff", *files, *GPU)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert str(bad) in result.stderr
        assert "internal error" not in result.stderr


def test_a_plan_of_another_version(cli: Cli, save: Save, tmp_path: Path) -> None:
    """A form that we do not know is refused by name, on either side."""
    good = save(f"{ASKED} --pp 2")
    bad = changed(good, tmp_path, lambda document: document.update(format_version="2.0"))
    for files in ((str(good), str(bad)), (str(bad), str(good))):
        result = cli("diff", *files)
        assert result.exit_code == 2
        assert f"{bad}: format_version is '2.0'" in result.stderr


@pytest.mark.parametrize("case", ["slower", "illegal", "not modelled", "repaired"])
def test_the_document_follows_its_schema(cli: Cli, tmp_path: Path, case: str) -> None:
    """`ppadvisor schema diff` describes what is printed, with exit codes 3 and 5 too."""
    base, head, options, exit_code = CASES[case]
    result = cli("diff", *two(tmp_path, base, head), *GPU, *options, "--format", "json")
    assert result.exit_code == exit_code
    follows_schema(result.document, "diff")
