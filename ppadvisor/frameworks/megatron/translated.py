"""Values of Megatron-Bridge and NeMo as words of Megatron-LM's command line, and answers back in their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ppadvisor.errors import InputError
from ppadvisor.frameworks.configuration import Broken, Configuration, Remark
from ppadvisor.frameworks.megatron.config import DEFAULT_TOKENIZER
from ppadvisor.frameworks.megatron.options import Option, options
from ppadvisor.frameworks.omegaconf import Entry
from ppadvisor.frameworks.shell import Field

FLAG = re.compile(r"--[a-z][a-z0-9-]*")

COMMAND_LINE_RULES = (
    *("unknown_option", "left_over_words", "batch_and_schedule", "head_width", "positions"),
    *("virtual_stages_said_once", "ends_by_count", "layers_per_virtual_stage", "overlapped_parameter_gather"),
    *("gather_with_optimizer_step", "torch_fsdp", "megatron_fsdp", "one_connection", "tensor_parallel_overlap"),
    *("hybrid_context_parallel", "fp8_parameters", "position_embedding", "latent_attention", "activation"),
    *("iterations_or_samples", "fused_loss", "query_groups_ignored", "batch_ramp_ignored"),
)
"""Rules of megatron/training/arguments.py and argument_utils.py alone, which no other trainer on Megatron-Core runs."""


class Words:
    """Options for the values of another form, each with the line on which the value stands."""

    def __init__(self) -> None:
        self.fields: list[Field] = []

    def say(self, dest: str, entry: Entry) -> None:
        """The option whose value has this name in Megatron's code; null says nothing."""
        self.fields += option_words(options()[dest], entry.value, entry.line, entry.unknown)

    def take(self, dest: str, value: Any, line: int = 0) -> None:
        """A value that the form takes by itself, or that follows from others."""
        self.say(dest, Entry(value, line))


def option_words(option: Option, value: Any, line: int, unknown: str = "") -> list[Field]:
    """An option that makes Megatron take this value.

    >>> [field.text for field in option_words(options()["add_bias_linear"], False, 1)]
    ['--disable-bias-linear']
    """
    if unknown:
        return [Field(option.flag, line), Field("", line, unknown)]
    if value is None:
        return []
    if not option.takes_value:  # anything else than true and false is what Python makes of it
        flags = [flag for flag in option.flags if option.value_of_flag(flag) == bool(value)]
        return [Field(flags[0], line)] if flags else []
    values = value if isinstance(value, list) else [value]
    return [Field(option.flag, line), *(Field(str(one), line) for one in values)]


def pattern_text(value: Any) -> Any:
    """A list of 0 and 1 as Megatron's patterns write it; a number or a text stays."""
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, list) else value


@contextmanager
def in_names_of(names: Mapping[str, str]) -> Iterator[None]:
    """An InputError inside speaks in the form's own names."""
    try:
        yield
    except InputError as error:
        raise InputError(FLAG.sub(lambda match: names.get(match[0], match[0]), str(error))) from None


def renamed(configuration: Configuration, names: Mapping[str, str]) -> Configuration:
    """The same in the form's own names, Megatron's flag -> its key; a flag without one stays."""

    def name(flag: str) -> str:
        return names.get(flag, flag)

    def text(message: str) -> str:
        # Megatron-LM's own default is no tokenizer of another trainer
        return FLAG.sub(lambda match: name(match[0]), message.replace(f" ({DEFAULT_TOKENIZER})", ""))

    def broken(one: Broken) -> Broken:
        return replace(one, message=text(one.message), flags=tuple(map(name, one.flags)))

    def remark(one: Remark) -> Remark:
        return replace(one, message=text(one.message), flags=tuple(map(name, one.flags)))

    return replace(
        configuration,
        broken=tuple(map(broken, configuration.broken)),
        remarks=tuple(map(remark, configuration.remarks)),
        places={field: (name(flag), line) for field, (flag, line) in configuration.places.items()},
        options={name(flag): said for flag, said in configuration.options.items()},
        names=dict(names),
    )
