"""`ppadvisor check`: a trainer's own configuration, judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ppadvisor.cli.answer import answer_options, read_assumptions
from ppadvisor.cli.options import OneOf, Quantity
from ppadvisor.cli.output import view_of, write
from ppadvisor.cli.request import CLUSTER_INPUTS
from ppadvisor.errors import EXIT_NO_PLAN, EXIT_OK, EXIT_THRESHOLD, InputError
from ppadvisor.frameworks import READERS
from ppadvisor.report.formats import CHECK_FORMATS
from ppadvisor.units import parse_count

if TYPE_CHECKING:
    from ppadvisor.search.check_results import CheckReport

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

MAX_GATES_BYTES = 100_000
NEWER_THAN_HOPPER = re.compile(r"\bG?B[23]00\b")


def cluster_options(command: CommandT) -> CommandT:
    """The machines, as `plan` asks for them."""
    for entry in reversed(CLUSTER_INPUTS):
        command = click.option(entry.flag, entry.name, type=entry.type, help=entry.help)(command)
    return command


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@cluster_options
@click.option("--vocab", type=Quantity("count", parse_count), help="Vocabulary, where the file has none.")
@click.option("--define", multiple=True, metavar="NAME=VALUE", help="Variable of the script's shell. Repeatable.")
@click.option("--gate", multiple=True, metavar="METRIC<=LIMIT", help="Threshold: bubble_fraction<=0.1. Repeatable.")
@click.option("--gates", type=click.Path(path_type=Path), metavar="GATES", help="File with a gate on each line.")
@click.option("--framework", type=OneOf("framework", tuple(READERS)), default="megatron", show_default=True)
@answer_options
@click.option(
    "--format",
    type=OneOf("format", tuple(CHECK_FORMATS)),
    default="text",
    show_default=True,
    help="Form of the answer; from markdown on for a CI.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="OUT", help="Write to OUT; it is replaced whole.")
def command(file: Path, format: str, output: Path | None, **values: Any) -> int:
    """Judge FILE, a launch script or YAML of Megatron-LM: does it run, does it fit, how far is it from the best plan.

    Nothing of the file is executed. GPUs that it does not name come from --gpus; without --gpu or --cluster only the
    trainer's rules are checked. Exit code 3: illegal or does not fit; 4: a gate is broken.

    \b
    ppadvisor check train.sh --gpu h100-sxm-80gb --gate 'peak_memory_fraction<=0.9' --gate 'regret<=0.1'
    """
    from ppadvisor.report.check_view import render_check

    report = _checked(file, values)
    view = view_of(output)
    write(render_check(report, format, width=view.width, color=view.color), output)
    if not report.legal or report.fits is False:
        return EXIT_NO_PLAN
    return EXIT_OK if report.gates_passed else EXIT_THRESHOLD


def _checked(file: Path, values: Mapping[str, Any]) -> CheckReport:
    from ppadvisor.cli.specs import read_cluster
    from ppadvisor.search.check import check
    from ppadvisor.search.gates import parse_gate
    from ppadvisor.specs.assumptions import Assumptions

    gates = [parse_gate(text) for text in (*values["gate"], *_gates_of_file(values["gates"]))]
    reader = import_module(READERS[values["framework"]])
    given = reader.Given(
        num_gpus=values["gpus"],
        vocab_size=values["vocab"],
        variables=_defined(values["define"]),
        one_connection=not NEWER_THAN_HOPPER.search(_gpu_name(values)),
    )
    configuration = reader.read(file, given)
    named = any(values[entry.name] is not None for entry in CLUSTER_INPUTS if entry.name != "gpus")
    return check(
        configuration,
        read_cluster({**values, "gpus": configuration.num_gpus}) if named else None,
        gates=gates,
        margin=values["margin"],
        assumptions=Assumptions().changed(read_assumptions(values["assume"])),
    )


def _gpu_name(values: Mapping[str, Any]) -> str:
    """The GPU in its maker's words; a misspelt one is told before the file is read."""
    from ppadvisor.specs.load import load_cluster, load_gpu

    if values["cluster"] is not None:
        return load_cluster(values["cluster"]).gpu.name
    return load_gpu(values["gpu"]).name if values["gpu"] is not None else ""


def _defined(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+", name):
            raise InputError(f"--define: got {text[:60]!r}; needs NAME=VALUE")
        found[name] = value
    return found


def _gates_of_file(path: Path | None) -> list[str]:
    """The gates of a file: a line each, what follows # is a comment."""
    from ppadvisor.specs.files import read_text

    if path is None:
        return []
    lines = (line.partition("#")[0].strip() for line in read_text(path, MAX_GATES_BYTES).splitlines())
    return [line for line in lines if line]
