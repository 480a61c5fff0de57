"""The command line as a whole: how commands are found, and how any failure is answered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import IO

import click
import pytest
from pydantic import BaseModel, Field

from ppadvisor.cli import main as main_module
from ppadvisor.cli.main import COMMANDS, Command
from ppadvisor.errors import InputError, PpadvisorError
from tests.cli.conftest import Cli

SCRIPT = (sys.executable, "-m", "ppadvisor")

Plant = Callable[[Callable[[], object]], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Make `ppadvisor planted` run a function of the test."""

    def as_command(run: Callable[[], object]) -> None:
        module = ModuleType("planted")
        module.command = click.command("planted")(run)  # type: ignore[attr-defined]  # a module made here
        monkeypatch.setitem(sys.modules, "planted", module)
        monkeypatch.setattr(main_module, "COMMANDS", (Command("planted", "planted", "A test's."),))

    return as_command


def raising(error: BaseException) -> Callable[[], object]:
    """A command that fails in this way."""

    def run() -> object:
        raise error

    return run


def test_help_lists_every_command(cli: Cli) -> None:
    """`--help` and `-h` print the command table, name and sentence, on stdout."""
    result = cli("--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    width = max(len(command.name) for command in COMMANDS)
    for command in COMMANDS:
        assert f"  {command.name:{width}}  {command.help}\n" in result.stdout
    assert cli("-h") == result


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_has_help(cli: Cli, name: str) -> None:
    """Each line of the command table leads to a command that explains itself."""
    result = cli(name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: ppadvisor {name}")


def test_version(cli: Cli) -> None:
    """`--version` prints name and version."""
    assert cli("--version").stdout == "ppadvisor 0.1.0\n"


def test_without_a_command_the_help_is_talk(cli: Cli) -> None:
    """A bare `ppadvisor` is wrong usage: help on stderr, nothing on stdout, exit 2."""
    result = cli()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Usage: ppadvisor")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plam"], "unknown command 'plam'; did you mean 'plan'? known: "),
        (["bubbel", "--pp", "8"], "did you mean 'bubble'?"),
        (["--vresion"], "no such option '--vresion'. Did you mean '--version'? see 'ppadvisor --help'"),
        (["bubble", "--microbatchs", "8"], "Did you mean '--microbatches'? see 'ppadvisor bubble --help'"),
        (["bubble"], "missing option '--pp'; see 'ppadvisor bubble --help'"),
        (["bubble", "--pp"], "option '--pp' requires an argument"),
        (["bubble", "--pp", "8", "stray"], "got unexpected extra argument (stray)"),
        (["bubble", "--pp", "8", "--format", "jsn"], "--format: unknown format 'jsn'; did you mean 'json'?"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, args: list[str], message: str) -> None:
    """Each way to call wrongly is answered by one line on stderr that names the nearest valid word, and exit 2."""
    result = cli(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ppadvisor: error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_exit_code_is_what_the_command_returns(cli: Cli, plant: Plant) -> None:
    """A command's integer is the exit code, and None is 0."""
    plant(lambda: 3)
    assert cli("planted").exit_code == 3
    plant(lambda: None)
    assert cli("planted").exit_code == 0


def test_our_errors_carry_their_exit_code(cli: Cli, plant: Plant) -> None:
    """A PpadvisorError is one line, however its message was broken, and ends with its own exit code."""

    class NoPlan(PpadvisorError):
        exit_code = 3

    plant(raising(NoPlan("no plan\n  fits")))
    result = cli("planted")
    assert (result.exit_code, result.stderr) == (3, "ppadvisor: error: no plan fits\n")
    plant(raising(InputError("bad")))
    assert cli("planted").exit_code == 2


class Sizes(BaseModel):
    """A specification of the test."""

    layers: int = Field(gt=0)


def test_a_validation_error_is_bad_input(cli: Cli, plant: Plant) -> None:
    """What pydantic refuses is one line with the model, the field, the value and the rule, exit 2."""
    plant(lambda: Sizes.model_validate({"layers": -1}))
    result = cli("planted")
    assert result.exit_code == 2
    assert result.stderr == "ppadvisor: error: Sizes: layers: got -1; input should be greater than 0\n"


def test_an_unforeseen_error_is_internal(cli: Cli, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is one line and exit 1; the traceback is shown only where PPADVISOR_TRACEBACK=1 asks for it."""
    plant(raising(RuntimeError("boom")))
    monkeypatch.delenv("PPADVISOR_TRACEBACK", raising=False)
    result = cli("planted")
    assert result.exit_code == 1
    assert result.stderr.startswith("ppadvisor: internal error: RuntimeError: boom; please report it")
    assert result.stderr.count("\n") == 1
    monkeypatch.setenv("PPADVISOR_TRACEBACK", "1")
    result = cli("planted")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last):\n")


def test_an_interrupt_exits_130(cli: Cli, plant: Plant) -> None:
    """Ctrl-C ends the run with 130 and no traceback."""
    plant(raising(KeyboardInterrupt()))
    result = cli("planted")
    assert (result.exit_code, result.stderr) == (130, "")


def test_a_reader_that_leaves_is_no_error() -> None:
    """Where `head` closes the pipe early, nothing is complained about and the answer's exit code stands."""
    counts = ",".join(map(str, range(1, 5001)))  # far more output than a pipe holds
    arguments = [*SCRIPT, "bubble", "--pp", "8", "--microbatches", counts, "--format", "json"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    with process.stdout, process.stderr:
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.wait() == 0


def test_a_full_disk_is_told() -> None:
    """Where stdout cannot be written, one line says so, and Python's last flush adds nothing."""
    try:
        full = open("/dev/full", "w")  # noqa: SIM115  # closed by the `with` below
    except OSError:
        pytest.skip("no /dev/full on this system")
    with full:
        arguments = [*SCRIPT, "bubble", "--pp", "8", "--target", "5%"]
        result = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "ppadvisor: error: standard output: cannot write: No space left on device\n"


def test_a_pipe_gets_utf8_under_any_locale() -> None:
    """The bytes of an answer do not depend on the locale of the process."""
    command = [*SCRIPT, "bubble", "--pp", "8", "--target", "5%"]
    plain = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"})
    utf8 = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "utf-8"})
    assert plain.stdout == utf8.stdout
    assert "─".encode() in plain.stdout


LIFE = """
import atexit, sys
from ppadvisor.cli import main, process
atexit.register(sys.stdout.write, "registered")
main.main = lambda: sys.stdout.write("not flushed, ") and 3
sys.exit(process.process())
"""
"""A process whose command writes and does not flush, with something to run at its end."""


def lived(stdout: int | IO[str]) -> subprocess.CompletedProcess[str]:
    """That process, whose stdout is buffered, as it ended."""
    script = [sys.executable, "-c", LIFE]
    return subprocess.run(script, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env={})


def test_a_process_that_ends_at_once_loses_nothing() -> None:
    """What stands in the buffer is written, what was registered for the end is run, the exit code is the command's."""
    result = lived(subprocess.PIPE)
    assert (result.returncode, result.stdout, result.stderr) == (3, "not flushed, registered", "")


def test_what_cannot_be_written_at_the_end_is_told() -> None:
    """Where the last flush fails, Python ends the process as it always does: with a complaint and its exit code 120."""
    try:
        full = open("/dev/full", "w")  # noqa: SIM115  # closed by the `with` below
    except OSError:
        pytest.skip("no /dev/full on this system")
    with full:
        result = lived(full)
    assert result.returncode == 120
    assert "No space left on device" in result.stderr
