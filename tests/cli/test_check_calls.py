"""`check` on scripts whose call is printed, handed to another shell, or no configuration by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_check import GPU, MODEL

CALL = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --pipeline-model-parallel-size"


def write(folder: Path, text: str) -> str:
    """A script."""
    path = folder / "train.sh"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"\necho {CALL} 4", "train.sh:2: this call of Megatron-LM is only printed (echo)"),
        (f"\nlogger {CALL} 4", "train.sh:2: this call of Megatron-LM is only printed (logger)"),
        (
            "\ntorchrun pretrain_gpt.py --num-layers 32",
            "train.sh:2: this call of pretrain_gpt.py gives no configuration",
        ),
        ("\ntorchrun pretrain_gpt.py --num-layers 32", "--hidden-size, --num-attention-heads, --seq-length"),
        ("torchrun pretrain_gpt.py $ARGS", "$ARGS is not set in the file, and options in it are not seen"),
        (
            "torchrun pretrain_gpt.py --yaml-cfg x.yaml",
            "train.sh:1: pretrain_gpt.py takes its options from --yaml-cfg x.yaml",
        ),
        (f"set -n\n{CALL} 4", "train.sh:2: this call of Megatron-LM never runs: the script ends on line 1 (set -n)"),
    ],
)
def test_what_is_no_call_is_said_with_its_line(cli: Cli, tmp_path: Path, text: str, message: str) -> None:
    """What is printed, has too few options, or has them in another file: exit 2, the line, and what is missing."""
    result = cli("check", write(tmp_path, text), *GPU)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_what_may_stand_in_unknown_words_is_not_called_missing(cli: Cli, tmp_path: Path) -> None:
    """`--$NAME` is no option called --, and options that may stand in it are not said to be missing: exit 2, a line."""
    text = "A=(--num-layers 8 --bf16 --lr 1)\nA+=(--${K%=*} 4)\ntorchrun --nproc_per_node 8 pretrain_gpt.py ${A[@]}"
    result = cli("check", write(tmp_path, text), *GPU)
    assert result.exit_code == 2
    assert "train.sh:2: --hidden-size, --num-attention-heads" in result.stderr
    assert "may stand in what is not known here (${K%=*} is not executed)" in result.stderr
    answer = cli("check", write(tmp_path, f"{CALL} 4 --${{K%=*}} 4"), *GPU, "--format", "json").document
    assert (answer["rules"], len(answer["notices"])) == ([], 1)


def test_a_call_in_a_loop_is_taken_once(cli: Cli, tmp_path: Path) -> None:
    """Of a loop that calls with p = 4 and 2 the first is judged, and a notice on its line says that there are more."""
    answer = cli("check", write(tmp_path, f"for PP in 4 2; do\n{CALL} $PP\ndone"), *GPU, "--format", "json").document
    (notice,) = answer["notices"]
    assert (answer["plan"]["pipeline_parallel"], notice["line"]) == (4, 2)
    assert "called here more than once" in notice["message"]


@pytest.mark.parametrize(
    "text",
    [
        f"echo {CALL} 2\n{CALL} 4",
        f"srun -n 8 bash -c '{CALL} 4'",
        f'PP=4\nsrun -n 8 bash -c "cd x; {CALL} $PP"',
        f"export PP=4\nbash -lc '{CALL} $PP; PP=2'",
        f"bash -c '{CALL} $1' train 4",
        f"PP=1\nname=PP\neval $name=4\n{CALL} $PP",
        f"set_pp() {{ local -n to=$1; to=4; }}\nPP=1\nset_pp PP\n{CALL} $PP",
    ],
)
def test_the_call_that_runs_is_the_one_that_is_judged(cli: Cli, tmp_path: Path, text: str) -> None:
    """Behind an echo, in the text of `bash -c`, with a value set by name: bash starts each with p = 4."""
    answer = cli("check", write(tmp_path, text), *GPU, "--format", "json").document
    assert (answer["num_gpus"], answer["plan"]["pipeline_parallel"]) == (8, 4)


def test_the_launcher_of_a_shell_says_how_many_gpus(cli: Cli, tmp_path: Path) -> None:
    """`srun -n 16 bash -c "python ..."` starts 16 processes; each is handed its part of the text."""
    text = f'srun -n 16 bash -c "python pretrain_gpt.py {MODEL} --data-path $DATA"'
    assert cli("check", write(tmp_path, text), *GPU, "--format", "json").document["num_gpus"] == 16


@pytest.mark.parametrize(
    "line",
    ["srun bash -c \"$(cat x) 'a'\"", "ssh host 'bash train.sh'", "sbatch <<EOT\nrun\nEOT", "bash <<EOT\nx\nEOT"],
)
def test_what_another_shell_runs_is_told_where_it_is_not_read(cli: Cli, tmp_path: Path, line: str) -> None:
    """Options that stand in a variable are taken for a call elsewhere; the line that may hold it is told too."""
    path = write(tmp_path, f'ARGS="{MODEL}"\n{line}\n')
    notices = cli("check", path, *GPU, "--gpus", "8", "--format", "json").document["notices"]
    told = {notice["line"]: notice["message"] for notice in notices if notice["kind"] == "not_understood"}
    assert "calls in it are not seen" in told[2]
    assert "the options of ARGS are taken" in told[1]


def test_missing_options_are_missing_on_the_line_of_the_call(cli: Cli, tmp_path: Path) -> None:
    """A rule about what is not in the file has the place of the call."""
    path = write(tmp_path, "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 64 --bf16\n")
    (rule,) = [
        one for one in cli("check", path, "--format", "json").document["rules"] if "must be given" in one["message"]
    ]
    assert rule["line"] == 2
