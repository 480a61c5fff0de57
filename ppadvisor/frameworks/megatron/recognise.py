"""Whether a file is a configuration of Megatron-LM: by its name, and by the options in it before anything is parsed."""

from __future__ import annotations

import re
from pathlib import Path

from ppadvisor.frameworks.megatron.call import FEWEST_OPTIONS
from ppadvisor.frameworks.megatron.options import by_flag
from ppadvisor.frameworks.megatron.yaml_file import option_of

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
YAML = (".yaml", ".yml")
OTHERS = (".json", ".toml", ".py")
KEY = re.compile(r"^[ \t]*[\"']?((?:--)?[A-Za-z][\w-]{0,80})[\"']?[ \t]*:(?=\s|$)", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]{0,80}(?![\w:-])")


def recognises(path: Path, text: str) -> bool:
    """A script by its name or first line, anything else by FEWEST_OPTIONS of the options."""
    suffix = path.suffix.lower()
    if suffix in OTHERS or text.lstrip().startswith("{"):
        return False
    return suffix in SCRIPTS or text.startswith("#!") or max(_num_keys(text), _num_flags(text)) >= FEWEST_OPTIONS


def is_yaml(path: Path, text: str) -> bool:
    """By its name; of a pipe, whose name says nothing, by more keys than flags among the options in it."""
    suffix = path.suffix.lower()
    return suffix in YAML or (not suffix and not text.startswith("#!") and _num_keys(text) > _num_flags(text))


def _num_keys(text: str) -> int:
    return sum(option_of(key) is not None for key in set(KEY.findall(text)))


def _num_flags(text: str) -> int:
    return len(by_flag().keys() & set(FLAG.findall(text)))
