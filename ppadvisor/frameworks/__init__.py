"""What the trainer does: one package a framework. `FRAMEWORKS` is the only list of them."""

from __future__ import annotations

import importlib

from ppadvisor.errors import unknown_name
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

READERS: dict[str, str] = {"megatron": "ppadvisor.frameworks.megatron.config"}
"""Frameworks whose configuration files are read: each module offers `Given` and `read(path, given)`."""
WRITERS: dict[str, str] = {"megatron": "ppadvisor.frameworks.megatron.launch"}
"""Frameworks whose launch scripts are written: each module offers `launch(model, training, plan, cluster)`."""
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


def who_runs(schedule: str) -> tuple[str, ...]:
    """The frameworks that list a schedule; `generic`, which lists all, is no trainer and left out."""
    return tuple(name for name in FRAMEWORKS if name != "generic" and schedule in get(name).schedules)
