"""`ppadvisor check`: what it answers, with which exit code, and how it meets hostile files."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

MODEL = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 32 --bf16 --vocab-size 50304 --use-distributed-optimizer"
)
"""GPT-2 medium's sizes (Radford et al. 2019)."""
GPU = ("--gpu", "a100-sxm-80gb")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A launch script that runs and fits: line 2 has p, line 4 the call."""
    return write(tmp_path, "PP=4")


def write(folder: Path, sizes: str, more: str = "") -> Path:
    """A script on 8 GPUs."""
    path = folder / "train.sh"
    path.write_text(
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f"{sizes}\n"
        f'ARGS="{MODEL}"\n'
        f"torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS --pipeline-model-parallel-size $PP {more}\n"
    )
    return path


def test_a_script_that_fits(cli: Cli, script: Path) -> None:
    """Legal, fits, with an estimate and the best plan; GPUs from the file; regret is what the two step times say."""
    result = cli("check", str(script), *GPU, "--format", "json")
    answer = result.document
    assert (result.exit_code, result.stderr) == (0, "")
    assert (answer["accepted_by_framework"], answer["legal"], answer["fits"], answer["num_gpus"]) == (
        True,
        True,
        True,
        8,
    )
    assert answer["rules"] == answer["gates"] == []
    assert answer["plan"]["pipeline_parallel"] == 4
    ours, best = (answer[name]["time"]["step_time_s"] for name in ("estimate", "best"))
    assert answer["regret_fraction"] == pytest.approx(ours / best - 1)
    assert answer["change"]["step_time_s"] < ours


def test_the_same_bytes_again(cli: Cli, script: Path) -> None:
    """The same file gives the same bytes, as text and as JSON."""
    for form in ("text", "json"):
        first, second = (cli("check", str(script), *GPU, "--format", form).stdout for _ in range(2))
        assert first == second


def test_the_estimate_is_that_of_plan(cli: Cli, script: Path) -> None:
    """The engine is one: `plan` with the same pins gives its even split the same step time and peak."""
    checked = cli("check", str(script), *GPU, "--format", "json").document["estimate"]
    assert checked["plan"]["layers_per_stage"] == [6, 6, 6, 6]
    asked = (
        "--layers 24 --hidden 1024 --heads 16 --vocab 50304 --no-gated-mlp --tied-embeddings --dropout --gpus 8 "
        "--seq-len 1024 --global-batch 32 --pp 4 --tp 1 --micro-batch 1 --schedule 1f1b --recompute none --zero 1"
    )
    even = cli("plan", *asked.split(), *GPU, "--format", "json").document["even_split"]
    # the options of `plan` know no biases, no LayerNorm and no learned positions: less than 2 %
    assert checked["time"]["step_time_s"] == pytest.approx(even["step_time_s"], rel=0.02)
    assert checked["memory"]["peak_bytes"] == pytest.approx(even["peak_bytes"], rel=0.02)


def test_without_a_gpu_only_rules(cli: Cli, script: Path) -> None:
    """Without --gpu the rules are checked and nothing is estimated."""
    answer = cli("check", str(script), "--format", "json").document
    assert answer["legal"]
    assert answer["estimate"] is answer["fits"] is answer["best"] is None


@pytest.mark.parametrize(
    ("sizes", "more", "options", "exit_code"),
    [
        ("PP=4", "", (), 0),
        ("PP=5", "", (), 3),  # 24 layers, 8 GPUs
        ("PP=4", "--num-query-groups 4", (), 3),  # accepted, and ignored
        ("PP=1", "--num-layers 96 --hidden-size 12288 --num-attention-heads 96", (), 3),  # 175 B on 8 GPUs
        ("PP=4", "", ("--gate", "peak_memory_fraction<=0.9"), 0),
        ("PP=4", "", ("--gate", "peak_memory_fraction<=0.001"), 4),
        ("PP=4", "", ("--gate", "regret<=0"), 4),
        ("PP=4", "", ("--gate", "bubble_fraction < 50%", "--gate", "step_time_s<=1d"), 2),
        ("PP=4", "", ("--gate", "bubble_fraction < 50%", "--gate", "step_time_s<=100s"), 0),
        ("PP=4", "", ("--gate", "model_flops_utilization>=0.99"), 4),
        ("PP=5", "", ("--gate", "peak_memory_fraction<=0.001"), 3),  # the lowest of 3 and 4
        ("PP=$1", "", (), 2),
        ("PP=$1", "", ("--define", "1=4"), 0),
        ("PP=4", "", ("--define", "1"), 2),
        ("PP=4", "", ("--vocab", "7"), 2),  # the file has one
        ("PP=4", "", ("--gpus", "16"), 0),
    ],
)
def test_exit_codes(cli: Cli, tmp_path: Path, sizes: str, more: str, options: tuple[str, ...], exit_code: int) -> None:
    """0 an answer, 2 bad input, 3 illegal or does not fit, 4 a gate: design, section 4."""
    assert cli("check", str(write(tmp_path, sizes, more)), *GPU, *options).exit_code == exit_code


def test_a_broken_rule_has_its_line_and_flags(cli: Cli, tmp_path: Path) -> None:
    """p = 5 stands in line 2, where the variable is set; JSON is printed with exit code 3 too."""
    result = cli("check", str(write(tmp_path, "PP=5")), "--format", "json")
    assert result.exit_code == 3
    assert not result.document["accepted_by_framework"]
    for rule in result.document["rules"]:
        assert (rule["line"], rule["file"]) == (2, str(tmp_path / "train.sh"))
        assert "--pipeline-model-parallel-size" in rule["flags"]
    text = cli("check", str(tmp_path / "train.sh")).stdout
    assert "train.sh:2: 24 layers are no multiple of p 5" in " ".join(text.split())


def test_accepted_and_not_legal(cli: Cli, tmp_path: Path) -> None:
    """What Megatron accepts and ignores is told as such."""
    answer = cli("check", str(write(tmp_path, "PP=4", "--num-query-groups 4")), "--format", "json").document
    assert answer["accepted_by_framework"]
    assert not answer["legal"]
    assert [rule["outcome"] for rule in answer["rules"]] == ["wrong"]


def test_options_that_no_formula_knows_are_named(cli: Cli, tmp_path: Path) -> None:
    """An option that changes memory or time and is not modelled is a notice with its name and line."""
    path = write(tmp_path, "PP=4", "--fp32-residual-connection $EXTRA")
    notices = cli("check", str(path), "--format", "json").document["notices"]
    assert [(n["kind"], n["line"], n["flags"]) for n in notices] == [
        ("not_understood", 4, []),
        ("not_modelled", 4, ["--fp32-residual-connection"]),
    ]


def test_gates_of_a_file(cli: Cli, script: Path, tmp_path: Path) -> None:
    """A gate on each line, comments behind #; each is told with what was measured."""
    gates = tmp_path / "gates"
    gates.write_text("# of the CI\npeak_memory_fraction<=0.9\n\nbubble_fraction<=0.001 # too strict\n")
    result = cli("check", str(script), *GPU, "--gates", str(gates), "--format", "json")
    assert result.exit_code == 4
    found = result.document["gates"]
    assert [(gate["metric"], gate["limit"], gate["passed"]) for gate in found] == [
        ("peak_memory_fraction", 0.9, True),
        ("bubble_fraction", 0.001, False),
    ]
    assert found[1]["measured"] == result.document["estimate"]["time"]["bubble_fraction"]
    lines = cli("check", str(script), *GPU, "--gates", str(gates)).stdout.splitlines()
    assert [line[0] for line in lines if line[2:].startswith(("peak_memory", "bubble"))] == ["✓", "✗"]


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("peak_memory<=0.9", "did you mean 'peak_memory_fraction'?"),
        ("peak_memory_fraction=0.9", "needs METRIC<=LIMIT"),
        ("peak_memory_fraction<=much", "allowed: a share"),
        ("peak_memory_fraction<=90", "'90' may be meant in percent; allowed: a share such as 0.9 or 90%"),
        ("bubble_fraction<=10", "may be meant in percent"),
        ("regret<=5", "may be meant in percent"),
    ],
)
def test_bad_gates(cli: Cli, script: Path, gate: str, message: str) -> None:
    """An unknown metric is answered with the nearest name, another form with the form."""
    result = cli("check", str(script), *GPU, "--gate", gate)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_shares_above_one_in_percent(cli: Cli, script: Path) -> None:
    """A limit of exactly 1, and one above it that says so, with blanks or without."""
    gates = ("--gate", "peak_memory_fraction<=1", "--gate", "regret<= 900 %")
    result = cli("check", str(script), *GPU, *gates, "--format", "json")
    assert [gate["limit"] for gate in result.document["gates"]] == [1.0, 9.0]
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "gates: holds no gate"),
        ("# later\n\n", "gates: holds no gate"),
        ("bubble_fraction<=0.1\n\nbuble_fraction<=0.1\n", "gates:3: unknown metric 'buble_fraction'"),
        ("bubble_fraction<=10\n", "gates:1 bubble_fraction: the limit '10' may be meant in percent"),
    ],
)
def test_bad_files_of_gates(cli: Cli, script: Path, tmp_path: Path, lines: str, message: str) -> None:
    """A file without a gate would let everything pass; what is wrong in one stands with its line."""
    (tmp_path / "gates").write_text(lines)
    result = cli("check", str(script), *GPU, "--gates", str(tmp_path / "gates"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_the_line_is_that_of_the_wrong_size(cli: Cli, tmp_path: Path) -> None:
    """p stands on line 2: not that of the first option that the rule looks at, and no flag that is right is named."""
    result = cli("check", str(write(tmp_path, "PP=-1")), "--format", "json")
    (rule,) = (rule for rule in result.document["rules"] if rule["rule"] == "positive_sizes")
    assert (rule["line"], rule["flags"]) == (2, ["--pipeline-model-parallel-size"])


@pytest.mark.parametrize("form", ["text", "github", "markdown", "junit", "sarif"])
def test_nothing_of_a_file_drives_a_terminal(cli: Cli, tmp_path: Path, form: str) -> None:
    """Escape sequences and bidirectional overrides in options come out as their codes, in every form."""
    (tmp_path / "head").mkdir()
    base, head = (
        write(folder, "PP=4", f"--ev\x1b[{i}Jil\u202e 1") for i, folder in enumerate((tmp_path, tmp_path / "head"))
    )
    for words in (("check", str(base)), ("diff", str(base), str(head))):
        result = cli(*words, *GPU, "--format", form)
        assert not {"\x1b", "\u202e"} & {*result.stdout, *result.stderr}
        assert "x1b" in result.stdout
        assert "u202e" in result.stdout


def test_annotations_name_the_file_from_the_folder_of_the_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./a/../train.sh` is train.sh to a CI."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    write(tmp_path, "PP=5")
    result = cli("check", "./a/../train.sh", "--format", "github")
    assert result.stdout.startswith("::error file=train.sh,line=")


def test_a_gate_without_an_estimate(cli: Cli, script: Path) -> None:
    """A gate has nothing to measure without a GPU: that is wrong usage, not a pass."""
    result = cli("check", str(script), "--gate", "regret<=0.1")
    assert result.exit_code == 2
    assert "give --gpu" in result.stderr


def test_connections_matter_up_to_hopper(cli: Cli, tmp_path: Path) -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS other than 1 with t > 1 is refused on A100, not on B200 (arguments.py:1453-1479)."""
    path = write(tmp_path, "PP=4", "--tensor-model-parallel-size 2")
    path.write_text(path.read_text().replace("CONNECTIONS=1", "CONNECTIONS=8"))
    assert cli("check", str(path), *GPU).exit_code == 3
    assert cli("check", str(path), "--gpu", "b200").exit_code == 0


HOSTILE: dict[str, bytes] = {
    "command": b"python pretrain_gpt.py --num-layers $(touch pwned) --hidden-size 8 --bf16",
    "open quote": b"python pretrain_gpt.py --num-layers '8",
    "nested": b"x=" + b"$(" * 10_000,
    "blocks": b"{ " * 100_000,
    "latin-1": b"# \xe9\npython pretrain_gpt.py",
    "binary": bytes(range(256)) * 100,
    "empty": b"",
    "huge": b"a" * 100_000_000,
    "doubling": b"A=aaaa\n" + b'A="$A$A"\n' * 100,
}
HOSTILE_YAML: dict[str, bytes] = {
    "alias": b"a: &a [x, x]\nb: [*a, *a]\n",
    "tag": b"a: !!python/object/apply:os.system ['touch pwned']\n",
    "deep": b"a: " + b"[" * 100_000,
    "no mapping": b"- 1\n- 2\n",
    "twice": b"num_layers: 1\nnum_layers: 2\n",
    "section": b"what:\n  num_layers: 1\n",
}


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.sh", content) for content in HOSTILE.values()] + [("x.yaml", content) for content in HOSTILE_YAML.values()],
    ids=[*HOSTILE, *HOSTILE_YAML],
)
def test_hostile_files(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes) -> None:
    """Nothing is executed, nothing hangs, and one line on stderr says what is wrong: exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(content)
    started = time.monotonic()
    result = cli("check", name, "--gpus", "8")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("ppadvisor: ")
    assert result.stderr.count("\n") == 1
    assert "internal error" not in result.stderr
    assert time.monotonic() - started < 20
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_file_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    """A missing file and a directory are one line each."""
    for path in (tmp_path / "none.sh", tmp_path):
        result = cli("check", str(path), "--gpus", "8")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_nothing_is_imported_that_runs_things(cli: Cli, script: Path) -> None:
    """A check starts no process: Python's audit of the run sees none."""
    events: list[str] = []
    active = [True]

    def watch(event: str, _: object) -> None:
        if active[0] and event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "exec"):
            events.append(event)

    cli("check", str(script), *GPU)  # imports compile and run modules
    sys.addaudithook(watch)
    script.write_text(script.read_text() + "$(touch a) `touch b` <(touch c)\neval 'touch d'\n")
    assert cli("check", str(script), *GPU).exit_code == 0
    active[0] = False
    assert [event for event in events if event != "exec"] == []
