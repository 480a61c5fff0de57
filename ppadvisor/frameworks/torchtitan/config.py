"""A configuration of torchtitan, from TOML, in our words.

Source: pytorch/torchtitan commit 238fa995, torchtitan/config/manager.py: TOML over defaults, an unknown name is an
error, and values are taken of whatever type they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError, nearest
from ppadvisor.frameworks.checks import Check
from ppadvisor.frameworks.configuration import Broken, Configuration, Given, GpusUnknown, Outcome, Remark, Said
from ppadvisor.frameworks.places import Places, toml_places
from ppadvisor.frameworks.torchtitan import check_features, check_sizes, check_stages
from ppadvisor.frameworks.torchtitan.check_features import context_attention
from ppadvisor.frameworks.torchtitan.flavors import EXPERIMENTS, FLAVORS, NO_PIPELINE, OTHER_MODELS, model_of
from ppadvisor.frameworks.torchtitan.job import CSV, FROM_CSV, MODULES, Job
from ppadvisor.frameworks.torchtitan.options import RENAMED, SECTIONS, NoDefault
from ppadvisor.frameworks.torchtitan.plan import places_of, plan_of, training_of
from ppadvisor.frameworks.torchtitan.remarks import remarks
from ppadvisor.frameworks.torchtitan.toml_split import settings
from ppadvisor.specs.files import parse_mapping, read_text
from ppadvisor.specs.model import ModelSpec

MAX_TOML_BYTES = 300_000
"""A train config has a few thousand bytes."""
MOST_TOLD = 40
"""Unknown options of one file."""
TAKES = ("num_gpus", "model")
"""What the user may say beside the file."""

CHECKS: tuple[Check[Job], ...] = (*check_sizes.CHECKS, *check_stages.CHECKS, *check_features.CHECKS)
RULES = ("unknown_option", "option_value", *(check.rule for check in CHECKS))
DECIDES = ("parallelism.", "training.", "model.", "activation_checkpoint.mode", "compile.enable", "optimizer.name")
"""Options whose value has to be of its type for anything to follow."""
TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list of texts"}

_HEADER = re.compile(r"^\s*\[\s*(?:parallelism|training|activation_checkpoint|lr_scheduler|job)\s*\]", re.MULTILINE)


def recognises(path: Path, text: str) -> bool:
    """Whether a file is a train config: TOML with one of torchtitan's sections."""
    other = path.suffix.lower() in (".sh", ".bash", ".yaml", ".yml", ".json")
    return not other and _HEADER.search(text) is not None


def read(path: Path, given: Given) -> Configuration:
    """Read a file. InputError for what cannot be read."""
    return read_toml_text(read_text(path, MAX_TOML_BYTES), str(path), given)


def read_toml_text(text: str, file: str, given: Given) -> Configuration:
    """Read a train config; `file` is its name in messages."""
    data, places = parse_mapping(text, ".toml", file), toml_places(text)
    values: dict[str, Any] = {}
    unknown: list[tuple[str, tuple[str, ...]]] = []
    misplaced = [*_read_section(data, "", values, places, unknown)]
    broken = [*(_unknown(*one, places) for one in unknown[:MOST_TOLD]), *misplaced]
    broken += _unlike(values, places)
    if given.num_gpus is None:
        raise GpusUnknown(file)
    job, missing = _job(values, places, given, file)
    readable = not any(_hides_a_value(one) for one in broken)
    if readable:
        broken += [one for check in CHECKS for one in [check.broken(job)] if one]
    plan = plan_of(job, file) if readable else None
    found = [*missing, *_order_unknown(job), *_untyped(values, places)]
    if plan is None and not broken and not found:
        found.append(Remark("not_modelled", "no plan that is known here follows: nothing is estimated"))
    return Configuration(
        framework="torchtitan",
        file=file,
        num_gpus=given.num_gpus,
        judged=RULES if readable else RULES[:2],
        broken=tuple(broken),
        remarks=tuple(found + (remarks(job, plan) if readable else [])),
        model=job.model,
        training=training_of(job, file) if readable else None,
        plan=plan,
        places=places_of(job),
        options=_said(job),
        fixed=_fixed(job),
        settings=settings,
    )


def _read_section(
    data: Mapping[str, Any],
    section: str,
    values: dict[str, Any],
    places: Places,
    unknown: list[tuple[str, tuple[str, ...]]],
) -> Iterator[Broken]:
    """The options of a section and those below it; what torchtitan does not know, with what it knows there."""
    options = SECTIONS.get(section, {})
    below = {name.rpartition(".")[2] for name in SECTIONS if name.rpartition(".")[0] == section}
    for key, value in data.items():
        name = f"{section}.{key}" if section else key
        if key in below and isinstance(value, dict):
            yield from _read_section(value, name, values, places, unknown)
        elif key in options:
            values[name] = value
        elif key in below:
            yield _broken("option_value", f"{name}: got {_short(value)}; needs a section", name, places)
        else:
            unknown.append((name, tuple(options) or tuple(below)))


def _unknown(name: str, known: tuple[str, ...], places: Places) -> Broken:
    """A name that torchtitan refuses, with what it is called today or the nearest."""
    now, near = RENAMED.get(name), nearest(name.rpartition(".")[2], known)
    hint = f"; torchtitan has {now} since" if now else f"; did you mean {near!r}?" if near else ""
    noun = "section" if "." not in name else "option"
    message = f"torchtitan has no {noun} {name!r} and refuses the file{hint}"
    return Broken(
        "unknown_option", Outcome.REJECTED, message, (name,), _line(name, places), "config/manager.py:165-171"
    )


def _line(name: str, places: Places) -> int | None:
    return places.get(tuple(name.split(".")))


def _broken(rule: str, message: str, name: str, places: Places) -> Broken:
    return Broken(rule, Outcome.REJECTED, message, (name,), _line(name, places), "config/manager.py:160-183")


def _hides_a_value(broken: Broken) -> bool:
    """Whether what the file wants is not known: a value of another kind, or one under an earlier name."""
    return broken.rule == "option_value" or any(name in RENAMED for name in broken.flags)


def _unlike(values: Mapping[str, Any], places: Places) -> Iterator[Broken]:
    """Values that decide and are of another type than their option: arithmetic or a look-up fails at start-up."""
    for name, value in values.items():
        if name.startswith(DECIDES) and (needs := _needs(name, value)):
            yield _broken("option_value", f"{name}: got {_short(value)}; needs {needs}", name, places)


def _untyped(values: Mapping[str, Any], places: Places) -> Iterator[Remark]:
    for name, value in values.items():
        needs = None if name.startswith((*DECIDES, check_features.OPTION)) else _needs(name, value)
        if needs:
            text = f"{name}: got {_short(value)}; torchtitan expects {needs} and does not look"
            yield Remark("not_understood", text, (name,), _line(name, places))


def _needs(name: str, value: Any) -> str | None:
    """What the option takes, where the value is none of it."""
    section, _, option = name.rpartition(".")
    default = SECTIONS[section][option]
    kind = default.kind if isinstance(default, NoDefault) else type(default)
    if name == MODULES:
        fits = isinstance(value, list) and all(_texts(stage) for stage in value)
        return None if fits else "a list of lists of texts"
    if kind is list:
        fits = _texts(value) or (isinstance(value, str) and option == "fqns")
    elif kind is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    else:
        fits = type(value) is kind
    return None if fits else TYPES[kind]


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _job(values: Mapping[str, Any], places: Places, given: Given, file: str) -> tuple[Job, list[Remark]]:
    """The job, and the remark that says what is missing for its model."""
    name, flavor = (values.get(key, default) for key, default in (("model.name", "llama3"), ("model.flavor", "")))
    flavor = flavor or "debugmodel"
    known = isinstance(name, str) and isinstance(flavor, str)
    if known and (name in OTHER_MODELS or name.startswith(EXPERIMENTS)):
        raise InputError(f"{file}: model.name {name!r}: models of this kind are not known here")
    named = name if known and name in FLAVORS else ""
    model: ModelSpec | None = None
    attention = "sdpa"
    if named and flavor in FLAVORS[named]:
        model, attention = model_of(named, flavor), FLAVORS[named][flavor].attention
        if given.model is not None:
            raise InputError(f"--model has no effect: {file} says {named} {flavor}")
    else:
        model = given.model
    job = Job(values, places, given.num_gpus or 1, model, attention, named)
    if model is not None:
        return job, []
    text = f"the sizes of model {_short(name)}, flavor {_short(flavor)} are not known: give --model for memory and time"
    return job, [Remark("missing", text, ("model.flavor",), job.line("model.flavor") or job.line("model.name"))]


def _order_unknown(job: Job) -> list[Remark]:
    if job.p == 1 or not (job.schedule in FROM_CSV or job.text(CSV)):
        return []
    text = f"the order of work stands in {job.text(CSV)[:60]!r}: nothing is estimated"
    return [Remark("not_modelled", text, (CSV,), job.line(CSV))]


def _fixed(job: Job) -> dict[str, tuple[int, ...]]:
    """What torchtitan cannot do for this model."""
    fixed: dict[str, tuple[int, ...]] = {}
    if job.named in NO_PIPELINE:
        fixed["pipeline_parallel"] = (1,)
    if job.named and job.attention not in context_attention(job.named):
        fixed["context_parallel"] = (1,)
    return fixed


def _said(job: Job) -> dict[str, Said]:
    """All that the file says; which field of the plan each decides."""
    fields = {option: name for name, (option, _) in places_of(job).items()}
    return {name: Said(_short(value), job.line(name), fields.get(name)) for name, value in job.given.items()}
