"""Megatron's options in YAML: `--num-layers: 32` or `num_layers: 32`, flat or one level down; each with its line.

Source: NVIDIA/Megatron-LM d98e8a64, yaml_arguments.py:436-452 (names of values, in sections) and
tests/functional_tests/test_cases/*/model_config.yaml (flags under MODEL_ARGS, variables under ENV_VARS).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ppadvisor.errors import InputError
from ppadvisor.frameworks.megatron.options import Option, by_flag, options
from ppadvisor.frameworks.shell import Field
from ppadvisor.specs.files import Lines, read_lines_of_keys

CORE_NAMES = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "num_moe_experts": "num_experts",
    "overlap_p2p_comm_warmup_flush": "overlap_p2p_comm_warmup_flush",
}
"""Megatron-Core's own names where they are not those of the options."""

MAX_YAML_BYTES = 300_000

ENVIRONMENT = ("ENV_VARS", "env_vars")
SECTIONS = ("MODEL_ARGS", "model_parallel", "language_model", "model", "training")
NOT_OPTIONS = ("TEST_TYPE", "MODE", "LAUNCHER", "METRICS", "THROUGHPUT_TEST_PARAMS", "BEFORE_SCRIPT", "AFTER_SCRIPT")


def read_yaml(path: Path) -> tuple[tuple[Field, ...], dict[str, str]]:
    """(words as a command line would have them, the environment)."""
    data, lines = read_lines_of_keys(path, MAX_YAML_BYTES)
    environment: dict[str, str] = {}
    words: list[Field] = []
    for key, value in data.items():
        if key in ENVIRONMENT and isinstance(value, dict):
            environment |= {str(name): str(one) for name, one in value.items()}
        elif key in SECTIONS and isinstance(value, dict):
            words += _section(value, lines, (key,), path)
        elif key not in NOT_OPTIONS:
            words += _words(key, value, lines.get((key,), 1), path)
    return tuple(words), environment


def option_of(key: str) -> Option | None:
    """The option that a key means: its flag, its name in Megatron's code, or Megatron-Core's."""
    return by_flag().get(key) or options().get(CORE_NAMES.get(key, key.replace("-", "_")))


def _section(values: Mapping[str, Any], lines: Lines, above: tuple[str, ...], path: Path) -> Iterator[Field]:
    for key, value in values.items():
        yield from _words(str(key), value, lines.get((*above, str(key)), 1), path)


def _words(key: str, value: Any, line: int, path: Path) -> list[Field]:
    """An entry as the words of a command line."""
    if isinstance(value, dict):
        raise InputError(f"{path}:{line}: {key}: a section that is not known; known: {', '.join(SECTIONS)}")
    option = option_of(key)
    flag = key if key.startswith("--") or option is None else option.flag
    if option is None and not key.startswith("--"):
        flag = f"--{key.replace('_', '-')}"
    by_name = not key.startswith("--")
    if value is None or (isinstance(value, bool) and not _is_set(option, value, by_name=by_name)):
        return []
    if isinstance(value, bool):
        return [Field(flag, line)]
    values = value if isinstance(value, list) else [value]
    return [Field(flag, line), *(_field(one, line) for one in values)]


def _is_set(option: Option | None, value: bool, *, by_name: bool) -> bool:
    """A name holds the value itself, a flag says whether it is given."""
    if by_name and option is not None and not option.takes_value:
        return value is not (option.default is True)
    return value


def _field(value: Any, line: int) -> Field:
    text = str(value)
    variable = re.search(r"\$\{?(\w+)", text)
    return Field(text, line, f"${variable[1]} is not set in the file" if variable else "")
