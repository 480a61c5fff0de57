"""What the trainer does: one package a framework. `FRAMEWORKS` is the only list of them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ppadvisor.errors import InputError, unknown_name

if TYPE_CHECKING:
    from ppadvisor.frameworks.configuration import Reader
    from ppadvisor.frameworks.logs import LogFormat
    from ppadvisor.frameworks.profile import FrameworkProfile

FRAMEWORKS: dict[str, str] = {
    "megatron": "ppadvisor.frameworks.megatron",
    "torchtitan": "ppadvisor.frameworks.torchtitan",
    "deepspeed": "ppadvisor.frameworks.deepspeed",
    "zero-bubble": "ppadvisor.frameworks.zero_bubble",
    "scaling": "ppadvisor.frameworks.scaling",
    "generic": "ppadvisor.frameworks.generic",
}


class Read(NamedTuple):
    """One line of READERS."""

    module: str
    """Offers what `configuration.Reader` says."""
    form: str
    """What its files are, for a person."""


READERS: dict[str, Read] = {
    "megatron-bridge": Read("ppadvisor.frameworks.megatron_bridge.config", "YAML or overrides of Megatron-Bridge"),
    "nemo": Read("ppadvisor.frameworks.nemo.config", "YAML of NeMo 1"),
    "zero-bubble": Read("ppadvisor.frameworks.zero_bubble.config", "a script of the zero-bubble fork"),
    "torchtitan": Read("ppadvisor.frameworks.torchtitan.config", "TOML of torchtitan"),
    "deepspeed": Read("ppadvisor.frameworks.deepspeed.config", "JSON of DeepSpeed"),
    "megatron": Read("ppadvisor.frameworks.megatron.config", "a shell script or YAML with options of Megatron-LM"),
}
"""Frameworks whose configuration files are read, in the order in which they are asked whether a file is theirs: last
stands Megatron-LM, whose names of options others use too."""
WRITERS: dict[str, str] = {
    "megatron": "ppadvisor.frameworks.megatron.launch",
    "megatron-bridge": "ppadvisor.frameworks.megatron_bridge.launch",
    "zero-bubble": "ppadvisor.frameworks.zero_bubble.launch",
    "torchtitan": "ppadvisor.frameworks.torchtitan.launch",
    "deepspeed": "ppadvisor.frameworks.deepspeed.launch",
}
"""Frameworks whose configurations are written: each module offers `launch(model, training, plan, cluster)`."""
TRAINS_AS: dict[str, str] = {"megatron-bridge": "megatron", "nemo": "megatron"}
"""Forms of configurations that have no memory and schedules of their own -> the framework whose these are."""
LOGS: tuple[str, ...] = ("megatron", "torchtitan", "deepspeed")
"""Frameworks whose logs are read. First come those that may stand around another's: Megatron's lines are whole where
DeepSpeed's stand between them."""


def log_formats() -> tuple[LogFormat, ...]:
    """The logs that are read, in the order in which they are recognised."""
    return tuple(importlib.import_module(f"{FRAMEWORKS[name]}.log").LOG for name in LOGS)


def get(framework: str) -> FrameworkProfile:
    """The profile of a framework by its id; an unknown id is an InputError with the nearest name."""
    if framework not in FRAMEWORKS:
        raise unknown_name("framework", framework, FRAMEWORKS)
    profile: FrameworkProfile = importlib.import_module(FRAMEWORKS[framework]).PROFILE
    return profile


def version(framework: str) -> str:
    """What a framework, or the form of one, is pinned to."""
    if framework in FRAMEWORKS:
        return get(framework).source
    pinned: str = importlib.import_module(READERS[framework].module).VERSION
    return pinned


def reader(framework: str) -> Reader:
    """The reader of a framework's configuration files; one without is an InputError with the nearest name."""
    if framework not in READERS:
        raise unknown_name("framework", framework, READERS)
    module: Reader = importlib.import_module(READERS[framework].module)
    return module


def recognised(path: Path, text: str) -> str:
    """The framework whose configuration this is.

    InputError with what is wrong with the text where it is none of its kind, else with all forms that are read.
    """
    from ppadvisor.specs.files import check_form

    for name in READERS:
        if reader(name).recognises(path, text):
            return name
    check_form(path, text)
    forms = ", or ".join(f"{one.form} (--framework {name})" for name, one in READERS.items())
    raise InputError(f"{path}: no configuration that is known here; needs {forms}")


def who_runs(schedule: str) -> tuple[str, ...]:
    """The frameworks that list a schedule; `generic`, which lists all, is no trainer and left out."""
    return tuple(name for name in FRAMEWORKS if name != "generic" and schedule in get(name).schedules)
