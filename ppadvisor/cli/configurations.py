"""What `check` and `diff` are about: a trainer's configuration, of a file or stdin, with the machines it is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ppadvisor.cli.answer import answer_options, read_assumptions
from ppadvisor.cli.chosen import naming, plan_of_file
from ppadvisor.cli.options import OneOf, Quantity
from ppadvisor.cli.request import CLUSTER_INPUTS
from ppadvisor.errors import InputError, RefusedError
from ppadvisor.frameworks import READERS
from ppadvisor.units import parse_count

if TYPE_CHECKING:
    from ppadvisor.frameworks.configuration import Configuration, Given
    from ppadvisor.search.judge import Subject

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

NEWER_THAN_HOPPER = re.compile(r"\bG?B[23]00\b")


def configuration_options(command: CommandT) -> CommandT:
    """What may be said beside a configuration: machines, vocabulary, variables, trainer, margin and assumptions."""
    options = (
        *(click.option(entry.flag, entry.name, type=entry.type, help=entry.help) for entry in CLUSTER_INPUTS),
        click.option("--vocab", type=Quantity("count", parse_count), help="Vocabulary, where the file has none."),
        click.option("--define", multiple=True, metavar="NAME=VALUE", help="Variable of the shell. Repeatable."),
        click.option("--framework", type=OneOf("framework", tuple(READERS)), help="Trainer (default: recognised)."),
        answer_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


def read_subject(context: click.Context, reference: str, *, beside: Sequence[str]) -> Subject:
    """The configuration of a file, or `FILE#2` of saved plans, with what the options say.

    `beside` are the options that may stand beside a saved plan, which brings everything. InputError for what cannot be
    read or be meant, RefusedError where no plan was legal.
    """
    from ppadvisor.cli.plan_file import holds_plans

    if holds_plans(reference):
        return _saved_plan(context, reference, beside)
    return _configuration(Path(reference), context.params)


def _saved_plan(context: click.Context, reference: str, beside: Sequence[str]) -> Subject:
    from ppadvisor.cli.plan_file import path_and_rank
    from ppadvisor.search.explain import assumptions_in
    from ppadvisor.search.judge import Subject
    from ppadvisor.search.saved import configuration_of

    chosen = plan_of_file(context, reference, beside=beside, told="looked at")
    if chosen.plan is None:
        raise RefusedError(chosen.why_none)
    path, rank = path_and_rank(reference)
    asked = chosen.problem
    with naming(reference):
        configuration = configuration_of(asked, chosen.plan, str(path))
        return Subject(configuration, asked.cluster, asked.margin_fraction, assumptions_in(asked), rank)


def _configuration(path: Path, values: Mapping[str, Any]) -> Subject:
    from ppadvisor.cli.specs import read_cluster
    from ppadvisor.search.judge import Subject
    from ppadvisor.specs.assumptions import Assumptions

    configuration = _read(path, values["framework"], _given(values))
    named = any(values[entry.name] is not None for entry in CLUSTER_INPUTS if entry.name != "gpus")
    cluster = read_cluster({**values, "gpus": configuration.num_gpus}) if named else None
    assumptions = Assumptions().changed(read_assumptions(values["assume"]))
    return Subject(configuration, cluster, values["margin"], assumptions)


def _read(path: Path, framework: str | None, given: Given) -> Configuration:
    from ppadvisor import frameworks
    from ppadvisor.specs.files import read_text

    return frameworks.reader(framework or frameworks.recognised(path, read_text(path))).read(path, given)


def _given(values: Mapping[str, Any]) -> Given:
    from ppadvisor.frameworks.configuration import Given

    return Given(
        num_gpus=values["gpus"],
        vocab_size=values["vocab"],
        variables=_defined(values["define"]),
        one_connection=not NEWER_THAN_HOPPER.search(_gpu_name(values)),
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
