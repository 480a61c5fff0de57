"""Megatron-Bridge, NeMo and the zero-bubble fork on the command line, and questions that users had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

PUBLISHED = Path(__file__).parent.parent / "published"
BRIDGE, NEMO = PUBLISHED / "bridge_configs", PUBLISHED / "nemo_configs"
GPU = ("--gpu", "h100-sxm-80gb")
QUESTION = (
    *("plan", "--model", "llama-3.2-3b", *GPU, "--gpus", "8", "--seq-len", "2k", "--global-batch", "32"),
    *("--pp", "4", "--cp", "1", "--top", "2", "--format", "json"),
)
UNTIED = ("--model", "llama-3.1-8b")
"""Of these the fork has both embeddings."""
RECIPE = ("check", str(BRIDGE / "llama32_1b_pretrain.yaml"), "--model", "llama-3.2-1b", "--gpus", "8")


@pytest.mark.parametrize(
    ("trainer", "form", "name", "beside"),
    [
        ("megatron", "megatron-bridge", "plan.yaml", ("--gpus", "8")),
        ("zero-bubble", "zero-bubble", "train.sh", ()),
        ("zero-bubble --schedule 1f1b", "zero-bubble", "train.sh", ()),
        ("zero-bubble --schedule interleaved-1f1b", "zero-bubble", "train.sh", ()),
        ("zero-bubble --schedule gis-h", "zero-bubble", "train.sh", ()),
    ],
)
def test_from_plan_to_check(
    cli: Cli, tmp_path: Path, trainer: str, form: str, name: str, beside: tuple[str, ...]
) -> None:
    """Every plan that `plan` shows comes back from `check` the same, at the same time and peak; bytes repeat."""
    path, written = tmp_path / "plans.json", tmp_path / name
    cli(*QUESTION, *UNTIED, "--framework", *trainer.split(), "--output", str(path))
    shown = json.loads(path.read_text())["plans"]
    for rank, wanted in enumerate(shown, 1):
        result = cli("launch", f"{path}#{rank}", "--framework", form, "--output", str(written))
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
        assert cli("launch", f"{path}#{rank}", "--framework", form).stdout == written.read_text()
        answer = cli("check", str(written), *GPU, *beside, "--format", "json").document
        assert answer["framework"] == form
        assert answer["plan"] == wanted["plan"]
        assert answer["estimate"]["time"]["step_time_s"] == wanted["time"]["step_time_s"]
        assert answer["estimate"]["memory"]["peak_bytes"] == wanted["memory"]["peak_bytes"]
    assert len(shown) == 2


def test_what_a_form_cannot_run(cli: Cli, tmp_path: Path) -> None:
    """Megatron-Core has no zero bubble, the fork no uneven stages: exit code 3, nothing written, who would."""
    path = tmp_path / "plans.json"
    cli(*QUESTION, *UNTIED, "--framework", "zero-bubble", "--schedule", "zb-h1", "--output", str(path))
    result = cli("launch", str(path), "--framework", "megatron-bridge", "--output", str(tmp_path / "out.yaml"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "does not run schedule zb-h1; zero-bubble would" in result.stderr
    cli(*QUESTION, "--framework", "megatron", "--output", str(path))
    result = cli("launch", str(path), "--framework", "zero-bubble")
    assert (result.exit_code, result.stdout) == (3, "")
    assert not (tmp_path / "out.yaml").exists()


def test_the_model_beside_a_recipe(cli: Cli, tmp_path: Path) -> None:
    """A preset or a config.json says the model that a recipe has; where the file says it, --model is an error."""
    script = str(BRIDGE / "gpt_oss_slurm_pretrain.sh")
    found = cli("check", script, "--model", "gpt-oss-20b", "--format", "json").document
    assert (found["framework"], found["num_gpus"], found["legal"]) == ("megatron-bridge", 32, True)
    assert found["framework_version"].startswith("NVIDIA-NeMo/Megatron-Bridge, commit")
    assert found["model"]["num_layers"] == 24
    without = cli("check", script)
    assert (without.exit_code, without.stderr.count("\n")) == (2, 1)
    assert "give --model" in without.stderr
    (tmp_path / "config.json").write_bytes((PUBLISHED / "hf_configs" / "Llama-3.2-1B-Instruct.json").read_bytes())
    read = cli(*RECIPE[:2], "--gpus", "8", "--model", str(tmp_path), "--format", "json").document
    assert (read["model"]["num_layers"], read["model"]["vocab_size"]) == (16, 128256)
    alone = cli("check", str(tmp_path / "config.json"), "--gpus", "8")
    assert (alone.exit_code, alone.stdout, alone.stderr.count("\n")) == (2, "", 1)
    assert "a model without a plan: `ppadvisor plan --model" in alone.stderr
    extra = cli("check", str(NEMO / "175b.yaml"), "--model", "llama-3.1-8b")
    assert (extra.exit_code, extra.stdout) == (2, "")
    assert "--model has no effect" in extra.stderr


def test_values_from_outside(cli: Cli) -> None:
    """--define sets a value by its key; a gate judges what comes of it; the change to make is named by keys too."""
    pipelined = ("--define", "model.pipeline_model_parallel_size=4", "--define", "train.global_batch_size=16")
    result = cli(*RECIPE, *GPU, *pipelined, "--gate", "bubble_fraction<=2%", "--format", "json")
    answer = result.document
    assert result.exit_code == 4
    assert (answer["plan"]["pipeline_parallel"], answer["plan"]["num_microbatches"]) == (4, 8)
    assert answer["gates"][0]["measured"] > 0.2  # 3/11 for equal stages and free links
    assert answer["change"]["flags"]
    assert not [flag for flag in answer["change"]["flags"] if not flag.startswith(("model.", "train.", "ddp."))]
    strange = cli(*RECIPE, "--define", "nothing=1")
    assert (strange.exit_code, strange.stdout) == (2, "")


def test_a_published_recipe_that_cannot_start(cli: Cli) -> None:
    """NeMo's Falcon 7B, 128 replicas for a batch of 32: exit code 3 in a second, in NeMo's words, on the right line."""
    path = NEMO / "falcon_7b.yaml"
    result = cli("check", str(path), "--vocab", "65024", "--format", "github")
    assert result.exit_code == 3
    line = 1 + path.read_text().splitlines().index("  global_batch_size: 32")
    assert f"line={line}," in result.stdout
    assert "a batch of 32 is no multiple of b 1 x d 128" in result.stdout
    assert "--global-batch-size" not in result.stdout


HOSTILE: dict[str, bytes] = {
    "tag": b"model:\n  x: !!python/object/apply:os.system ['touch pwned']\ntrain: {}\n",
    "bomb": b"model:\n  a0: &a0 [x, x]\n"
    + b"".join(b"  a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 30))
    + b"train: {}\n",
    "deep": b"model:\n  x: " + b"[" * 50_000 + b"\ntrain: {}\n",
    "huge": b"model:\ntrain:\n" + b"#" * 100_000_000,
    "latin-1": b"model:\n  name: \xe9\ntrain: {}\n",
    "command": b"model:\n  tensor_model_parallel_size: $(touch pwned)\ntrain:\n  global_batch_size: 8\n",
    "target": b"model:\n  _target_: os.system\n  command: touch pwned\ntrain: {}\n",
    "number": b"model:\n  tensor_model_parallel_size: " + b"9" * 5_000 + b"\ntrain: {}\n",
    "nemo": b"trainer: {num_nodes: 1e999, devices: -1}\nmodel:\n  encoder_seq_length: .inf\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Nothing is executed and nothing hangs; what cannot be read is one line with exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_bytes(content)
    for form in ((), ("--framework", "megatron-bridge"), ("--framework", "nemo")):
        result = cli("check", "x.yaml", "--gpus", "8", *form)
        assert (result.exit_code, result.stdout) == (2, "") or result.exit_code == 3
        assert "internal error" not in result.stderr
        assert result.stderr.count("\n") <= 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


@pytest.mark.parametrize(
    ("gpus", "fits"),
    [(2, False), (16, False), (24, True)],
)
def test_llama_2_70b_on_few_gpus(cli: Cli, gpus: int, fits: bool) -> None:
    """NVIDIA/Megatron-LM issue 783: 70 B parameters of 18 bytes are 1.26 TB, on 16 GPUs 73 GiB each."""
    asked = ("--model", "llama-2-70b", *GPU, "--gpus", str(gpus), "--seq-len", "4k", "--global-batch", "96")
    result = cli(
        "plan", *asked, "--top", "1", "--recompute", "full", "--cp", "1", "--schedule", "1f1b,none", "--format", "json"
    )
    assert bool(result.document["plans"]) == fits
    assert result.exit_code == (0 if fits else 3)
    if not fits:
        peak = result.document["nearest_miss"]["estimate"]["memory"]["peak_bytes"]
        assert peak > 18 * 68.98e9 / gpus


def test_falcon_40b_on_8_gpus(cli: Cli) -> None:
    """epfLLM/Megatron-LLM issue 6: 41.3 B x 18 / 8 = 93 GB with one replica, where sharding helps nothing."""
    asked = (
        "--model",
        "falcon-40b",
        "--gpu",
        "a100-sxm-80gb",
        "--gpus",
        "8",
        "--seq-len",
        "2k",
        "--global-batch",
        "64",
    )
    result = cli("plan", *asked, "--tp", "8", "--pp", "1", "--format", "json")
    assert result.exit_code == 3
    stage = result.document["nearest_miss"]["estimate"]["memory"]["stages"][0]["terms"]
    states = stage["weights"] + stage["gradients"] + stage["optimizer_states"]
    assert states == pytest.approx(18 * 41.3e9 / 8, rel=0.01)


def test_qwen3_235b_on_128_gpus(cli: Cli) -> None:
    """verl issue 1638: p 2 x e 32 x etp 2 = 128, so one copy of each expert: 12 bytes a parameter of it unsharded."""
    asked = ("--model", "qwen3-235b-a22b", "--gpu", "h200-sxm-141gb", "--gpus", "128", "--seq-len", "8k")
    pins = ("--pp", "2", "--tp", "2", "--cp", "1", "--ep", "32", "--etp", "2", "--micro-batch", "1", "--vp", "1")
    result = cli(
        "plan", *asked, "--global-batch", "128", *pins, "--recompute", "full", "--top", "1", "--format", "json"
    )
    estimate = result.document["plans"][0]
    stage = estimate["memory"]["stages"][0]["terms"]
    experts = estimate["plan"]["layers_per_stage"][0] * 128 * 3 * 4096 * 1536 / 64
    assert 12 * experts < stage["optimizer_states"] < 1.1 * 12 * experts
