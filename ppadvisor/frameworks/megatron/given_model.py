"""A model that the user gives beside a file that leaves it to something that is not read."""

from __future__ import annotations

from collections.abc import Sequence

from ppadvisor.errors import InputError
from ppadvisor.frameworks.megatron.launch_model import model_flags
from ppadvisor.frameworks.megatron.options import by_flag
from ppadvisor.frameworks.shell import Field
from ppadvisor.specs.model import ModelSpec

SIZES = ("num_layers", "hidden_size", "num_attention_heads")
"""Where the file gives all of these it has a model of its own."""
OF_THE_RUN = ("seq_length", "max_position_embeddings")


def with_model(words: Sequence[Field], model: ModelSpec | None, file: str) -> Sequence[Field]:
    """The words of a call behind those of the model. InputError where the file has all sizes of its own."""
    if model is None:
        return words
    given = {option.dest: word for word in words if (option := by_flag().get(word.text.partition("=")[0]))}
    own = [given[dest] for dest in SIZES if dest in given]
    if len(own) == len(SIZES):
        raise InputError(f"{file}:{own[0].line}: --model has no effect: the file gives the model ({own[0].text})")
    before: list[Field] = []
    for flag in model_flags(model, 1):
        if by_flag()[flag.name].dest not in (*OF_THE_RUN, *given):
            before += [Field(flag.name, 0), *(Field(value, 0) for value in flag.values)]
    return [*before, *words]
