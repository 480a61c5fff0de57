"""The command `ppadvisor`: finds the command that was asked for, runs it, turns any failure into one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, cast

import click

from ppadvisor.cli.errors import EXIT_INTERRUPTED, report_error
from ppadvisor.cli.output import silence_stdout
from ppadvisor.errors import EXIT_OK, EXIT_USAGE, unknown_name


class Command(NamedTuple):
    """One line of the command table; the module holds the click command as `command`."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command("plan", "ppadvisor.cli.plan", "Rank (p, m, schedule) for a model on a cluster."),
    Command("explain", "ppadvisor.cli.explain", "Every term of one plan, with its formula."),
    Command("check", "ppadvisor.cli.check", "A trainer's own configuration: its rules, memory, time, gates."),
    Command("diff", "ppadvisor.cli.diff", "What a change of a configuration does to memory, time and cost."),
    Command("launch", "ppadvisor.cli.launch", "A saved plan in the form that its trainer takes."),
    Command("sweep", "ppadvisor.cli.sweep", "The best plan at each point of a grid."),
    Command("size", "ppadvisor.cli.size", "How many GPUs, of which kind, for tokens by a date or a budget."),
    Command("report", "ppadvisor.cli.report", "The answer of `plan` as one HTML page for a meeting."),
    Command("timeline", "ppadvisor.cli.timeline", "Who works when: picture, idle time, trace."),
    Command("bubble", "ppadvisor.cli.bubble", "Bubble and utilisation of a pipeline."),
    Command("validate", "ppadvisor.cli.validate", "How far predictions are from measured runs."),
    Command("verify", "ppadvisor.cli.verify", "A plan run for real on torch's pipeline engine."),
    Command("calibrate", "ppadvisor.cli.calibrate", "Fit assumptions to the logs of your runs."),
    Command("presets", "ppadvisor.cli.presets", "Models, GPUs and clusters known by name, with sources."),
    Command("schema", "ppadvisor.cli.schema", "JSON Schemas of input and output."),
)


class CommandTable(click.Group):
    """A group that imports a command when it is called: `--help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """The command of this name; an unknown one is an InputError that offers the nearest."""
        for command in COMMANDS:
            if command.name == cmd_name:
                return cast(click.Command, import_module(command.module).command)
        raise unknown_name("command", cmd_name, self.list_commands(ctx))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table itself: click would import each command to ask for its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.help) for command in COMMANDS])


@click.group(
    cls=CommandTable,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    epilog="Exit codes: 0 an answer; 1 internal error; 2 wrong usage or bad input; 3 no plan fits; "
    "4 a threshold is broken; 5 worse than the baseline.",
)
@click.version_option(package_name="ppadvisor", message="%(prog)s %(version)s")
def ppadvisor() -> None:
    """Which pipeline-parallel plan trains this model on this cluster: memory, step time and bubble, offline."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        return _run(list(sys.argv[1:] if args is None else args))
    except click.exceptions.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        # Whoever read the help had enough of it.
        silence_stdout()
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return report_error(error)


def _run(args: list[str]) -> int:
    # Not `ppadvisor.main()`: that prints errors in click's own form, over several lines.
    if not args:
        with click.Context(ppadvisor, info_name="ppadvisor") as ctx:
            click.echo(ppadvisor.get_help(ctx), err=True)
        return EXIT_USAGE
    with ppadvisor.make_context("ppadvisor", args) as ctx:
        exit_code = ppadvisor.invoke(ctx)
    return EXIT_OK if exit_code is None else int(exit_code)
