"""What `check` and `diff` are about: a trainer's configuration, of a file or stdin, with the machines it is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ppadvisor.cli.answer import answer_options, read_assumptions
from ppadvisor.cli.chosen import given_parameters, naming, note, plan_of_file
from ppadvisor.cli.options import OneOf, Quantity
from ppadvisor.cli.request import ATTENTION, CLUSTER_INPUTS, COUNT, LOSS, Input, Switch
from ppadvisor.errors import InputError, RefusedError
from ppadvisor.frameworks import READERS
from ppadvisor.units import parse_count, parse_sequence_length

if TYPE_CHECKING:
    from ppadvisor.frameworks.configuration import Configuration, Given
    from ppadvisor.search.judge import Subject

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

HF_MODEL = re.compile(r'"(model_type|architectures)"\s*:')
"""Keys of a config.json of Hugging Face, which no trainer's JSON has."""
SEQUENCE = Quantity("tokens", parse_sequence_length)
PROGRAM_INPUTS = (
    Input("--pp", COUNT, "Pipeline stages p (DeepSpeed).", "pipeline_parallel"),
    Input("--tp", COUNT, "Tensor parallel t (DeepSpeed).", "tensor_parallel"),
    Input("--ep", COUNT, "Expert parallel e (DeepSpeed).", "expert_parallel"),
    Input("--recompute", click.STRING, "What the program recomputes (DeepSpeed).", "recompute"),
    Input("--seq-len", SEQUENCE, "Tokens of a sequence (DeepSpeed).", "sequence_length"),
    Input("--partition", click.STRING, "PipelineModule's partition_method (DeepSpeed).", "partition_method"),
    Input("--attention", ATTENTION, "Attention kernel (DeepSpeed).", "attention"),
    Input("--loss", LOSS, "Cross entropy (DeepSpeed).", "loss"),
)
PROGRAM_SWITCHES = (
    Switch("--dropout", "Dropout in the layers (DeepSpeed)."),
    Switch("--fused-norm", "Norms in one kernel (DeepSpeed)."),
    Switch("--sequence-parallel", "Norms and residuals divided over t (DeepSpeed)."),
)
"""What a file leaves to the program that reads it, and the field of `Given` that it fills."""
GIVEN_BY = {
    "vocab_size": "--vocab",
    "variables": "--define",
    "model": "--model",
    **{entry.pin: entry.flag for entry in PROGRAM_INPUTS},
    **{switch.name: switch.flag for switch in PROGRAM_SWITCHES},
}
"""Field of `Given` -> the option that fills it."""
NEWER_THAN_HOPPER = re.compile(r"\bG?B[23]00\b")


def configuration_options(command: CommandT) -> CommandT:
    """What may be said beside a configuration: machines, vocabulary, variables, trainer, margin and assumptions."""
    options = (
        *(click.option(entry.flag, entry.name, type=entry.type, help=entry.help) for entry in CLUSTER_INPUTS),
        click.option("--model", metavar="MODEL", help="Preset or config.json, where the file leaves the model open."),
        *(click.option(entry.flag, entry.name, type=entry.type, help=entry.help) for entry in PROGRAM_INPUTS),
        *(switch.option for switch in PROGRAM_SWITCHES),
        click.option("--vocab", type=Quantity("count", parse_count), help="Vocabulary, where the file has none."),
        click.option(
            "--define",
            multiple=True,
            metavar="NAME=VALUE",
            help="Variable of the shell, or model.x of YAML.",
        ),
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
    subject = _configuration(context, Path(reference))
    _check_definitions(subject)
    return subject


def read_subjects(context: click.Context, base: str, head: str, *, beside: Sequence[str]) -> tuple[Subject, Subject]:
    """Both configurations of a comparison, as `read_subject` reads one; of stdin can only be one.

    Beside a saved plan the options are for the other side, which takes the plan's machines where they name none.
    """
    from ppadvisor.cli.plan_file import holds_plans

    if base == head == "-":
        raise InputError("both sides are -, but standard input holds one configuration; name a file for the other")
    saved = [holds_plans(reference) for reference in (base, head)]
    allowed = beside if all(saved) else tuple(context.params)
    before = _saved_plan(context, base, allowed) if saved[0] else None
    after = _saved_plan(context, head, allowed) if saved[1] else None
    like = before or after
    first = before or _configuration(context, Path(base), like=like, named_as=None if after else Path(head))
    second = after or _configuration(context, Path(head), like=like, named_as=None if before else Path(base))
    _check_definitions(*(subject for subject in (first, second) if subject not in (before, after)))
    return first, second


def _check_definitions(*subjects: Subject) -> None:
    """InputError for a variable of --define that has no effect on any of the files."""
    unread = [subject.configuration.unread for subject in subjects]
    for name, why in unread[0].items() if unread else ():
        if all(name in one for one in unread):
            raise InputError(f"--define {name}=... has no effect: {why}")


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


def _configuration(
    context: click.Context, path: Path, *, like: Subject | None = None, named_as: Path | None = None
) -> Subject:
    """A trainer's own file: `like` gives what no option does, `named_as` the kind of what comes over a pipe."""
    from ppadvisor.cli.specs import read_cluster
    from ppadvisor.frameworks.configuration import GpusUnknown
    from ppadvisor.search.judge import Subject
    from ppadvisor.specs.assumptions import Assumptions
    from ppadvisor.specs.load import with_num_gpus

    values = context.params
    assumptions = Assumptions().changed(read_assumptions(values["assume"]))
    named = any(values[entry.name] is not None for entry in CLUSTER_INPUTS if entry.name != "gpus")
    machines = None if named or like is None else like.cluster
    gpu = _gpu_name(values) if machines is None else machines.gpu.name
    given_beside = _given(values, gpu)
    try:
        configuration = _read(path, values["framework"], given_beside, named_as)
    except GpusUnknown:
        if machines is None:
            raise
        as_many = replace(given_beside, num_gpus=machines.num_gpus)
        configuration = _read(path, values["framework"], as_many, named_as)
    if machines is None or like is None:
        cluster = read_cluster({**values, "gpus": configuration.num_gpus}) if named else None
        return Subject(configuration, cluster, values["margin"], assumptions)
    note(f"{path} is looked at on the GPUs of {like.configuration.file}, with its assumptions")
    given = given_parameters(context)
    return Subject(
        configuration,
        with_num_gpus(machines, configuration.num_gpus),
        values["margin"] if "margin" in given else like.margin,
        assumptions if "assume" in given else like.assumptions,
    )


def _read(path: Path, framework: str | None, given: Given, named_as: Path | None) -> Configuration:
    from ppadvisor import frameworks
    from ppadvisor.specs.files import read_text
    from ppadvisor.specs.pipes import is_pipe

    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: is empty")
    if framework is None and HF_MODEL.search(text) and text.lstrip().startswith("{"):
        raise InputError(
            f"{path}: a model without a plan: `ppadvisor plan --model {path}` looks for plans, and --model takes it "
            "beside a configuration that leaves its model to a recipe"
        )
    name = named_as if named_as is not None and is_pipe(path) and not is_pipe(named_as) else path
    chosen = framework or frameworks.recognised(name, text)
    reader = frameworks.reader(chosen)
    for field, flag in GIVEN_BY.items():
        if getattr(given, field) not in (None, {}) and field not in reader.TAKES:
            raise InputError(f"{flag} has no effect on a file of {chosen}")
    return reader.read(path, given)


def _given(values: Mapping[str, Any], gpu: str) -> Given:
    from ppadvisor.frameworks.configuration import Given
    from ppadvisor.specs.load import load_model

    return Given(
        num_gpus=values["gpus"],
        vocab_size=values["vocab"],
        variables=_defined(values["define"]),
        model=None if values["model"] is None else load_model(values["model"]),
        one_connection=not NEWER_THAN_HOPPER.search(gpu),
        **{entry.pin: values[entry.name] for entry in PROGRAM_INPUTS},
        **{switch.name: values[switch.name] for switch in PROGRAM_SWITCHES},
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
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", name):
            raise InputError(f"--define: got {text[:60]!r}; needs NAME=VALUE")
        found[name] = value
    return found
