"""`check`, `diff` and `launch` on launch scripts that a reader could take for something else than bash does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_check import GPU, write


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ("exit 0; PP=4", (), "train.sh:4: this call of Megatron-LM never runs: the script ends on line 2 (exit 0)"),
        ("PP=4", ("--define", "PPX=4"), "--define PPX=... has no effect: "),
        ("PP=4", ("--define", "PP=8"), "train.sh:2 sets PP itself, before it is read"),
        ("PP=$PPS", ("--define", "PPX=8"), "never reads PPX; did you mean PPS?"),
        ("PP=4\r", (), "train.sh:2: Windows line endings"),
        ("PP=4\nread PP", (), "$PP is set by read (line 3)"),
        ("for PP in $(seq 2); do :; done", (), "$PP is set by a loop (line 2)"),
    ],
)
def test_what_is_not_what_it_seems_is_an_error(
    cli: Cli, tmp_path: Path, sizes: str, options: tuple[str, ...], message: str
) -> None:
    """A call that never runs, a definition without effect, CR LF, a value that only a shell knows: exit 2, a line."""
    result = cli("check", str(write(tmp_path, sizes)), *GPU, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    "sizes",
    ["PP=4; (PP=2)", "PP=4; PP=2 true", "PP=4; export PP=2 &", "PP=2; ((PP*=2))", "f() { PP=$1; }; f 4", "let PP=2+2"],
)
def test_p_is_what_bash_would_start(cli: Cli, tmp_path: Path, sizes: str) -> None:
    """Subshells change nothing, arithmetic and functions do: each of these starts with p = 4 in bash 5.2."""
    answer = cli("check", str(write(tmp_path, sizes)), *GPU, "--format", "json").document
    assert answer["plan"]["pipeline_parallel"] == 4


def test_what_is_taken_as_not_set_is_assumed(cli: Cli, tmp_path: Path) -> None:
    """A condition on a variable that the file does not set is decided as without it; a notice says so, --define not."""
    path = write(tmp_path, 'if [ "$NODES" = 2 ]; then PP=8; else PP=${P:-4}; fi')
    answer = cli("check", str(path), *GPU, "--format", "json").document
    (notice,) = answer["notices"]
    assert (answer["plan"]["pipeline_parallel"], notice["kind"], notice["line"]) == (4, "assumed", 2)
    assert "NODES, P; --define NAME=VALUE" in notice["message"]
    defined = cli("check", str(path), *GPU, "--define", "NODES=2", "--format", "json").document
    assert (defined["plan"]["pipeline_parallel"], defined["notices"]) == (8, [])


@pytest.mark.parametrize(("sizes", "more"), [("PP=2.5", ""), ("PP=4", "--tensor-model-parallel-size two")])
def test_a_value_that_is_none_makes_no_estimate(cli: Cli, tmp_path: Path, sizes: str, more: str) -> None:
    """Where Megatron's parser refuses a value no default stands for it: no plan, no memory, no claim that it fits."""
    result = cli("check", str(write(tmp_path, sizes, more)), *GPU, "--format", "json")
    assert result.exit_code == 3
    assert result.document["fits"] is result.document["estimate"] is result.document["plan"] is None
    assert "fits" not in cli("check", str(tmp_path / "train.sh"), *GPU).stdout


def test_a_definition_may_be_for_one_side(cli: Cli, tmp_path: Path) -> None:
    """`diff` takes a variable that one of the files reads, and refuses one that neither does."""
    (tmp_path / "head").mkdir()
    base, head = write(tmp_path, "PP=4"), write(tmp_path / "head", "PP=${P:-4}")
    changed = cli("diff", str(base), str(head), "--define", "P=2", "--format", "json")
    assert changed.exit_code == 0
    assert changed.document["head"]["plan"]["pipeline_parallel"] == 2
    assert "--define Q=... has no effect" in cli("diff", str(base), str(head), "--define", "Q=2").stderr


@pytest.mark.parametrize("asked", [("launch", "train.sh"), ("check", "train.sh#2"), ("explain", "train.sh")])
def test_a_script_is_no_plan(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]) -> None:
    """Where a saved plan is needed the message says what writes one, and what a script is for."""
    write(tmp_path, "PP=4")
    monkeypatch.chdir(tmp_path)
    result = cli(*asked)
    assert result.exit_code == 2
    assert "train.sh: holds no plans; needs the JSON that `ppadvisor plan --format json` writes" in result.stderr
