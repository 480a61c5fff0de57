"""How the axes and the values of a sweep are called and written, in tables and in pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ppadvisor.errors import InputError, unknown_name
from ppadvisor.report.plan_view import COLUMNS as RANKED_COLUMNS
from ppadvisor.report.rows import Column, Row
from ppadvisor.search.ranking import MEMORY_REASONS
from ppadvisor.search.sweep import CONTRADICTION, AxisValue, SweepRow
from ppadvisor.specs.plan import PlanSpec
from ppadvisor.units import format_bandwidth, format_bytes_gib, format_short_tokens, format_tflops

AXIS_HEADERS = {"num_gpus": "GPUs", "sequence_length": "seq len", "global_batch_size": "batch"}

WRITTEN_AS = {"_bytes_per_s": format_bandwidth, "_flops_per_s": format_tflops, "_bytes": format_bytes_gib}
"""How people read an input, by the last words of its name."""

PRIORITIES = {"tokens_per_s": 2, "global_batch_size": 2, "binding_stage": 0}
"""Where they differ from those of the ranked table."""

MEMORY_VALUES = ("peak_bytes", "headroom_bytes")
"""What is worth seeing of a plan that does not fit."""

REASON_WORDS = {MEMORY_REASONS["borderline"]: "borderline", CONTRADICTION: "contradicts"}
"""Why nothing fits, in a word, where that is not the code itself."""


def axis_text(name: str, value: AxisValue) -> str:
    """An axis value as it was understood: every digit of a number."""
    for ending, text in WRITTEN_AS.items():
        if name.endswith(ending) and isinstance(value, int | float):
            return text(value)
    return str(value)


def short_axis_text(name: str, value: AxisValue) -> str:
    """The same where there is little room: `128k` tokens, `4,096` GPUs."""
    if name in ("sequence_length", "tokens_per_step") and isinstance(value, int):
        return format_short_tokens(value)
    plain = isinstance(value, int) and not isinstance(value, bool) and not name.endswith(tuple(WRITTEN_AS))
    return f"{value:,}" if plain else axis_text(name, value)


def axis_header(name: str) -> str:
    """What a column of an input is called."""
    ending = next((ending for ending in WRITTEN_AS if name.endswith(ending)), "")
    return AXIS_HEADERS.get(name, name.removesuffix(ending).replace("_", " "))


def input_column(name: str, values: Sequence[AxisValue]) -> Column:
    """The column of an input that is no quantity of a plan."""
    is_text = any(isinstance(value, str) for value in values)
    return Column(name, axis_header(name), partial(axis_text, name), justify="left" if is_text else "right")


def _verdict(row: Row) -> str:
    return (row["verdict"] or "no plan").replace("_", " ")


SHARED_COLUMNS = tuple(
    replace(column, priority=PRIORITIES.get(column.key, column.priority))
    for column in (input_column("global_batch_size", ()), *RANKED_COLUMNS)
    if column.key in SweepRow.model_fields
)
PLAN_COLUMNS = tuple(c for c in SHARED_COLUMNS if c.key in PlanSpec.names() or c.key == "global_batch_size")
ANSWER_COLUMNS = (
    *(column for column in SHARED_COLUMNS if column not in PLAN_COLUMNS),
    Column("verdict", "verdict", justify="left", derive=_verdict),
)
VALUE_COLUMNS = {column.key: column for column in SHARED_COLUMNS if column.key != "layers_per_stage"}
"""What a pivot table or a picture can show of the best plan."""

WORD_VALUES = ("schedule", "recompute")
"""Values that are no numbers."""

DEFAULT_VALUE = "step_time_s"


def axis_named(text: str, axes: Mapping[str, object], flags: Mapping[str, str], option: str) -> str:
    """The axis that a text means: its name in answers, or that of its option (`flags`: option -> name)."""
    wanted = text.strip().removeprefix("--").replace("-", "_")
    name = wanted if wanted in axes else flags.get(wanted, wanted)
    if name not in axes:
        raise unknown_name("axis", text.strip(), axes, where=option) if axes else _no_axes(option)
    return name


def value_named(text: str, option: str) -> str:
    """The value that a text means."""
    name = text.strip().replace("-", "_")
    if name not in VALUE_COLUMNS:
        raise unknown_name("value", text.strip(), VALUE_COLUMNS, where=option)
    return name


def _no_axes(option: str) -> InputError:
    return InputError(f"{option} has no effect on a sweep without axes: give lists or ranges")


def axis_label(name: str) -> str:
    """What an axis is called: as the column of a plan, where it is a quantity of one."""
    return next((column.header for column in PLAN_COLUMNS if column.key == name), axis_header(name))


def reason_word(code: str) -> str:
    """A reason code in a word or two."""
    return REASON_WORDS.get(code, code.replace("_", " "))
