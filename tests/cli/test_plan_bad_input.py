"""Every bad input to `ppadvisor plan`: one clear line on stderr, exit 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Result

SIZES = ("--layers", "12", "--hidden", "512", "--heads", "8", "--kv-heads", "2", "--vocab", "5000")
GPUS = ("--gpu", "h100-sxm-80gb", "--gpus", "8")
RUN = ("--seq-len", "2k", "--global-batch", "64")
SMALL = (*SIZES, *GPUS, *RUN)
"""A question that is answered in a moment."""
PINNED = ("--pp", "4", "--tp", "1", "--cp", "1", "--micro-batch", "2", "--schedule", "1f1b", "--recompute", "full")
TOO_LARGE = ("--model", "llama-3.1-405b", *GPUS, "--seq-len", "8k", "--global-batch", "64", "--pp", "8", "--zero", "1")


def refused(result: Result, *words: str) -> None:
    """One line on stderr that has these words, exit 2, nothing on stdout."""
    assert result.exit_code == 2, result
    assert result.stdout == ""
    assert result.stderr.startswith("ppadvisor: error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


LLAMA = ("--model", "llama-3-8b")
WITHOUT_RUN = (*SIZES, *GPUS)
WITHOUT_GPU = (*SIZES, *RUN)
WITHOUT_MODEL = (*GPUS, *RUN)

BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    # names
    (("--model", "lama-3-8b", *WITHOUT_MODEL), ("unknown model 'lama-3-8b'", "did you mean 'llama-3-8b'")),
    (("--model", "llama", *WITHOUT_MODEL), ("'llama' is ambiguous", "llama-3-8b")),
    (("--model", "", *WITHOUT_MODEL), ("model: the name is empty",)),
    ((*WITHOUT_GPU, "--gpu", "h1000", "--gpus", "8"), ("unknown gpu 'h1000'", "did you mean 'h100")),
    ((*WITHOUT_GPU, "--gpu", "h100", "--gpus", "8"), ("'h100' is ambiguous", "h100-pcie-80gb")),
    ((*WITHOUT_GPU, "--cluster", "dgx-z100"), ("unknown cluster 'dgx-z100'", "did you mean 'dgx-")),
    ((*SMALL, "--schedule", "1f2b"), ("unknown schedule '1f2b'", "did you mean '1f1b'")),
    ((*SMALL, "--schedule", "gpipe", "--framework", "megatron"), ("'gpipe'", "megatron", "generic")),
    ((*SMALL, "--framework", "megatrn"), ("unknown framework 'megatrn'", "did you mean 'megatron'")),
    ((*SMALL, "--optimizer", "adma"), ("unknown optimizer 'adma'", "did you mean 'adam")),
    ((*SMALL, "--precision", "fp61"), ("--precision", "'fp61'", "fp16")),
    ((*SMALL, "--fp8-weights"), ("fp8_weights needs precision fp8, got bf16",)),
    (
        (*SMALL, "--precision", "fp8", "--fp8-weights", "--framework", "torchtitan"),
        ("fp8_weights: torchtitan does not keep",),
    ),
    ((*SMALL, "--recompute", "ful"), ("unknown recompute 'ful'", "did you mean 'full'")),
    ((*SMALL, "--sort", "speed"), ("--sort", "'speed'", "step_time_s")),
    ((*SMALL, "--format", "yaml"), ("--format", "'yaml'", "json")),
    ((*SMALL, "--layer", "3"), ("no such option '--layer'",)),
    ((*SMALL, "stray"), ("stray",)),
    # what is missing
    (WITHOUT_MODEL, ("--model is missing",)),
    (WITHOUT_GPU, ("--gpu is missing",)),
    ((*WITHOUT_GPU, "--gpu", "h100-sxm-80gb"), ("--gpus is missing",)),
    ((*WITHOUT_RUN, "--seq-len", "2048"), ("--global-batch is missing",)),
    ((*WITHOUT_RUN, "--global-batch", "8"), ("--seq-len is missing",)),
    (("--layers", "12", "--hidden", "512", "--heads", "8", *WITHOUT_MODEL), ("--vocab is missing",)),
    ((*WITHOUT_GPU, "--gpu-memory", "80GB", "--gpus", "8"), ("--gpu-tflops is missing",)),
    # units
    ((*SMALL, "--intra-node-bandwidth", "450"), ("--intra-node-bandwidth", "'450' has no unit", "450GB/s")),
    ((*SMALL, "--inter-node-bandwidth", "400GiB"), ("'400GiB' has the wrong unit 'GiB'", "400Gb/s")),
    ((*SMALL, "--gpu-memory", "80"), ("'80' has no unit", "80GB")),
    ((*SMALL, "--gpu-memory", "80GB/s"), ("wrong unit 'GB/s'",)),
    ((*SMALL, "--hbm-bandwidth", "0TB/s"), ("'0TB/s' must be above zero",)),
    ((*SMALL, "--gpu-tflops", "989T"), ("wrong unit 'T'",)),
    ((*WITHOUT_RUN, "--seq-len", "4kb", "--global-batch", "8"), ("'4kb' has the wrong unit",)),
    ((*WITHOUT_RUN, "--seq-len", "2k", "--global-batch", "4MB"), ("'4MB' has the wrong unit", "4Mtok")),
    ((*WITHOUT_RUN, "--seq-len", "2k", "--global-batch", "3ktok"), ("3072 tokens", "2048")),
    # sizes
    ((*WITHOUT_RUN, "--seq-len", "0", "--global-batch", "8"), ("'0' must be above zero",)),
    ((*WITHOUT_RUN, "--seq-len", "-1", "--global-batch", "8"), ("'-1' must be above zero",)),
    ((*WITHOUT_RUN, "--seq-len", "nan", "--global-batch", "8"), ("'nan' is not a quantity",)),
    ((*WITHOUT_RUN, "--seq-len", "2048.5", "--global-batch", "8"), ("'2048.5' is not a whole number",)),
    ((*WITHOUT_RUN, "--seq-len", "2k", "--global-batch", "999999999999"), ("global_batch_size", "1000000")),
    ((*WITHOUT_GPU, "--gpu", "h100-sxm-80gb", "--gpus", "999999999999"), ("num_gpus", "10000000")),
    (("--layers", "999999999999", *SIZES[2:], *WITHOUT_MODEL), ("num_layers", "10000")),
    (("--layers", "1.5", *SIZES[2:], *WITHOUT_MODEL), ("--layers: '1.5' is not a whole number",)),
    ((*SIZES[:6], "--vocab", "9", "--kv-heads", "3", *WITHOUT_MODEL), ("8 heads and 3 groups",)),
    (("--layers", "12", "--hidden", "500", "--heads", "8", "--vocab", "9", *WITHOUT_MODEL), ("500", "8", "--head-dim")),
    ((*SMALL, "--experts", "2", "--experts-per-token", "3"), ("3 of 2",)),
    ((*SMALL, "--experts", "8"), ("--experts-per-token is missing",)),
    ((*WITHOUT_GPU, "--gpu", "h100-sxm-80gb", "--gpus", "12"), ("12 GPUs in nodes of 8",)),
    ((*SMALL, "--gpus-per-node", "16"), ("--gpus-per-node 16 is more than --gpus 8",)),
    ((*SMALL, "--top", "0"), ("--top: '0' must be above zero",)),
    ((*SMALL, "--margin", "90"), ("--margin: '90' is above 1",)),
    (("--model", "gpt2-124m", *GPUS, "--seq-len", "2k", "--global-batch", "8"), ("2048", "1024 learned positions")),
    ((*WITHOUT_GPU, "--gpu", "v100-sxm-32gb", "--gpus", "8"), ("bf16", "V100", "fp16")),
    # pins
    ((*SMALL, "--pp", "16"), ("pipeline_parallel: got 16", "12 layers")),
    ((*SMALL, "--pp", "3"), ("8 GPUs", "pipeline_parallel = 3")),
    ((*SMALL, "--pp", "4", "--tp", "4"), ("8 GPUs", "pipeline_parallel = 4", "tensor_parallel = 4")),
    ((*SMALL, "--pp", "2,x"), ("--pp: 'x' is not a quantity",)),
    ((*SMALL, "--pp", "2,,4"), ("--pp: '2,,4' has an empty item",)),
    ((*SMALL, "--microbatches", "7"), ("num_microbatches: pinned 7", "B = 64")),
    ((*SMALL, "--microbatches", "7", "--micro-batch", "2", "--dp", "2"), ("pinned 7", "d = 2", "m is 16")),
    ((*SMALL, "--schedule", "naive", "--microbatches", "8"), ("num_microbatches: got 8", "naive", "m = 1")),
    ((*SMALL, "--schedule", "none", "--pp", "4"), ("schedule = none", "pipeline_parallel = 4")),
    ((*SMALL, "--ep", "2"), ("expert_parallel: got 2", "no experts", "no effect")),
    ((*SMALL, "--vp", "2", "--schedule", "1f1b"), ("virtual_stages: got 2", "1f1b: 1")),
    ((*SMALL, "--zero", "3"), ("optimizer_sharding: got 3", "megatron offers ZeRO 0, 1")),
    ((*SMALL, "--zero", "-1"), ("--zero", "'-1'")),
    # no effect, or a contradiction
    ((*LLAMA, "--layers", "3", *WITHOUT_MODEL), ("--layers has no effect beside --model",)),
    ((*LLAMA, "--tied-embeddings", *WITHOUT_MODEL), ("--tied-embeddings has no effect beside --model",)),
    ((*SMALL, "--experts-per-token", "2"), ("--experts-per-token has no effect without --experts",)),
    ((*SMALL, "--cluster", "dgx-h100"), ("--gpu contradicts --cluster",)),
    # assumptions
    ((*SMALL, "--assume", "gemm_efficiency"), ("NAME=VALUE",)),
    ((*SMALL, "--assume", "gemm_eficiency=0.5"), ("'gemm_eficiency'", "did you mean 'gemm_efficiency'")),
    ((*SMALL, "--assume", "gemm_efficiency=high"), ("'high'", "needs a number")),
    ((*SMALL, "--assume", "gemm_efficiency=0"), ("gemm_efficiency: got 0", "above 0")),
    ((*SMALL, "--assume", "gemm_efficiency=1.1"), ("gemm_efficiency: got 1.1", "at most 1")),
    ((*SMALL, "--assume", "step_overhead_s=inf"), ("step_overhead_s: got inf",)),
    ((*SMALL, "--assume", "step_overhead_s=nan"), ("step_overhead_s: got nan",)),
    ((*SMALL, "--assume", "step_overhead_s=-1"), ("step_overhead_s: got -1",)),
    ((*SMALL, "--assume", "expert_load_factor=0"), ("expert_load_factor: got 0", "at least 1")),
    ((*SMALL, "--assume", "gemm_efficiency=0.5", "--assume", "gemm_efficiency=0.6"), ("given twice",)),
]


def label(arguments: tuple[str, ...]) -> str:
    """What is unlike the plain question."""
    plain = set(SMALL)
    return " ".join(word if word else "''" for word in arguments if word not in plain) or "missing"


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[label(arguments) for arguments, _ in BAD])
def test_bad_options_are_one_clear_line(
    cli: Cli, arguments: tuple[str, ...], words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is answered on stderr with what was given and what is allowed, exit 2; the output file is not made."""
    monkeypatch.chdir(tmp_path)
    refused(cli("plan", *arguments, "--output", "answer.txt"), *words)
    assert list(tmp_path.iterdir()) == []


CONFIG: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def config(**changed: object) -> bytes:
    """A config.json, some of its keys changed."""
    return json.dumps(CONFIG | changed).encode()


BAD_FILES: list[tuple[str, bytes | None, tuple[str, ...]]] = [
    ("config.json", None, ("no such file",)),
    ("config.json", b"", ("not valid JSON", "line 1")),
    ("config.json", b"hello", ("not valid JSON",)),
    ("config.json", config()[:90], ("not valid JSON",)),
    ("config.json", b"[" + config() + b"]", ("top level is a list",)),
    ("config.json", b"5", ("top level",)),
    ("config.json", b"null", ("top level",)),
    ("config.json", b'{"a":' * 100_000, ("nested too deeply",)),
    ("config.json", b'{"a": "' + b"x" * 11_000_000 + b'"}', ("11,000,009 bytes", "10,000,000")),
    ("config.json", bytes(range(256)), ("not a text file",)),
    ("config.json", config(hidden_size=float("nan")), ("NaN is not a number",)),
    ("config.json", config(hidden_size=float("inf")), ("Infinity is not a number",)),
    ("config.json", config(hidden_size=-4096), ("hidden_size: got -4096",)),
    ("config.json", config(hidden_size=0), ("hidden_size: got 0",)),
    ("config.json", config(hidden_size=4096.5), ("hidden_size: got 4096.5",)),
    ("config.json", config(hidden_size="4096"), ('hidden_size: got "4096"',)),
    ("config.json", config(hidden_size=True), ("hidden_size: got true",)),
    ("config.json", config(hidden_size=None), ("hidden_size: got null",)),
    ("config.json", config(num_hidden_layers=10**8), ("num_hidden_layers", "100000000", "10000")),
    ("config.json", config(num_attention_heads=33, num_key_value_heads=33), ("4096", "33")),
    ("config.json", config(model_type="lama"), ("'lama'", "llama")),
    ("config.json", config(model_type="mamba"), ("mamba", "attention")),
    ("config.json", b"{}", ("model_type is missing",)),
    ("model.toml", b"num_layers = \n", ("not valid TOML",)),
    ("model.toml", b"num_layers = 2\nhiden_size = 4\n", ("unknown key 'hiden_size'", "did you mean 'hidden_size'")),
    ("model.toml", b"num_layers = 2\nhidden_size = 64\n", ("is missing",)),
    ("model.toml", b"num_layers = -2\n", ("num_layers",)),
    ("model.ini", b"num_layers = 2\n", ("unknown model",)),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), BAD_FILES, ids=[f"{name}-{words[0]}" for name, _, words in BAD_FILES]
)
def test_bad_model_files_are_one_clear_line(
    cli: Cli,
    name: str,
    content: bytes | None,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever stands in the file: its name, what is wrong and what is allowed, exit 2, and nothing beside it."""
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_bytes(content)
    result = cli("plan", "--model", name, *WITHOUT_MODEL, "--output", "answer.txt")
    refused(result, name, *words)
    assert [path.name for path in tmp_path.iterdir()] == ([] if content is None else [name])


BAD_JOBS: list[tuple[str, str | None, tuple[str, ...]]] = [
    ("job.toml", None, ("no such file",)),
    ("job.toml", "modle = 'llama-3-8b'", ("unknown key 'modle'", "did you mean 'model'")),
    ("job.toml", "format = 'json'", ("unknown key 'format'",)),
    ("job.toml", "pp = []", ("pp",)),
    ("job.toml", "pp = [2, {a = 1}]", ("pp", "needs a text, a number or a list")),
    ("job.toml", "model = 2020-01-01", ("model", "needs a text")),
    ("job.toml", "seq-len = 2048\nseq_len = 4096", ("given twice",)),
    ("job.toml", "assumptions = 5", ("assumptions", "table of names and numbers")),
    ("job.toml", "gpus = 8\n[assumptions]\ngemm_eficiency = 0.5", ("'gemm_eficiency'",)),
    ("job.toml", "dropout = 'perhaps'", ("dropout", "'perhaps'")),
    ("job.toml", "top = 'many'", ("--top", "'many'")),
    ("job.json", "[1]", ("top level is a list",)),
    ("job.json", '{"gpus": 8', ("not valid JSON",)),
    ("job.json", '{"gpus": NaN}', ("NaN",)),
    ("job.json", '{"gpus": 8.5}', ("--gpus", "'8.5'")),
    ("job.yaml", "a: &x 1\nb: *x", ("aliases",)),
    ("job.yaml", "a: [1", ("not valid YAML",)),
    ("job.yaml", "model: null", ("model", "None")),
    ("job.yaml", "seq-len: yes", ("seq-len", "True", "needs a text, a number or a list")),
    ("job.yaml", "gpus: off", ("gpus", "False", "needs a text, a number or a list")),
    ("job.yaml", "inter-node-bandwidth: off", ("inter-node-bandwidth", "False")),
    ("job.yaml", "pp: true", ("pp", "True")),
    ("job.json", '{"model": "\\ud800"}', ("half of a character",)),
    ("job.yaml", "1: 2", ("unknown key '1'",)),
    ("job.ini", "pp=2", ("unknown kind of file '.ini'", ".toml")),
    ("job", "{}", ("unknown kind of file",)),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), BAD_JOBS, ids=[f"{name}-{content}" for name, content, _ in BAD_JOBS]
)
def test_bad_job_files_are_one_clear_line(
    cli: Cli, name: str, content: str | None, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown key, a wrong value or a broken file is one line, exit 2."""
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(name).write_text(content, encoding="utf-8")
    refused(cli("plan", *SIZES, *RUN, "--gpu", "h100-sxm-80gb", "--job", name, "--output", "answer.txt"), *words)
    assert not Path("answer.txt").exists()


@pytest.mark.parametrize("target", ["missing/answer.json", "."])
def test_an_output_that_cannot_be_written(
    cli: Cli, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not there, or one where a file should be: one line, exit 2."""
    monkeypatch.chdir(tmp_path)
    refused(cli("plan", *SMALL, "--output", target), "--output: cannot write", target)
    assert list(tmp_path.iterdir()) == []


def test_a_name_too_long_for_a_file(cli: Cli) -> None:
    """A model name of thousands of letters is an unknown name, and with a suffix a file that cannot be read."""
    refused(cli("plan", "--model", "x" * 5000, *WITHOUT_MODEL), "unknown model")
    refused(cli("plan", "--model", f"{'x' * 5000}.json", *WITHOUT_MODEL), "cannot be read")
