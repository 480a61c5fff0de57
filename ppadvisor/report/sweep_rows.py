"""The rows of a sweep as they stand in files: flat, the axes first, each with the question that it answers.

A line is written and read back to the same bytes, so that a file can be gone on with.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from ppadvisor.report.csv_ import csv_lines
from ppadvisor.report.json_ import dump_json_line
from ppadvisor.search.sweep import AxisValue, SweepQuestion, SweepRow, digest_of

Values = dict[str, Any]


ROW_DIGEST = "row_digest"
"""The last value of a line: a number of it that was edited is not taken for an answer."""


class LineForm(Protocol):
    """How rows stand in lines."""

    def head(self, columns: Sequence[str]) -> str:
        """What stands above the first row, its line ended; nothing, where rows name their columns."""

    def line(self, values: Values) -> str:
        """One row, its line ended."""

    def begins(self, values: Values) -> str:
        """What a line begins with that begins with these values, and is not all of them."""

    def read(self, line: str, columns: Sequence[str]) -> Values:
        """The values of a line. ValueError where it is none."""


class CsvLines:
    """A header, and values between commas."""

    def head(self, columns: Sequence[str]) -> str:
        """The names of the columns."""
        return csv_lines([columns])

    def line(self, values: Values) -> str:
        """The values."""
        return csv_lines([list(values.values())])

    def begins(self, values: Values) -> str:
        """The values and a comma."""
        return csv_lines([list(values.values())]).rstrip("\n") + "," if values else ""

    def read(self, line: str, columns: Sequence[str]) -> Values:
        """Texts as they stand; what is empty is None."""
        (cells,) = csv.reader(io.StringIO(line))
        values = dict(zip(columns, (cell or None for cell in cells), strict=True))
        splits = values["layers_per_stage"]
        return values | {"layers_per_stage": json.loads(splits) if splits else None}


class JsonLines:
    """One object a line."""

    def head(self, columns: Sequence[str]) -> str:
        """Nothing."""
        return ""

    def line(self, values: Values) -> str:
        """The object."""
        return dump_json_line(values)

    def begins(self, values: Values) -> str:
        """The object up to these values."""
        return dump_json_line(values).rstrip("}\n") + (", " if values else "")

    def read(self, line: str, columns: Sequence[str]) -> Values:
        """The object."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError("no object")
        return values


LINE_FORMS: dict[str, LineForm] = {"csv": CsvLines(), "jsonl": JsonLines()}
"""Forms in which rows can be added to a file one by one; the name is also the ending of the file's name."""


def row_values(row: SweepRow, axes: Mapping[str, object]) -> Values:
    """The row as one flat mapping, its axes first."""
    values = row.model_dump(mode="json")
    return {name: values[name] for name in axes} | values


def file_values(row: SweepRow, question: SweepQuestion) -> Values:
    """The same with what its file is known by, and a digest of all that, which changes with any number of the line."""
    values = row_values(row, question.axes) | _marks(question)
    return values | {ROW_DIGEST: digest_of(values)}


def _marks(question: SweepQuestion) -> Values:
    return {"model_version": question.model_version, "question": question.question}


def file_columns(question: SweepQuestion) -> list[str]:
    """The names of the values, in their order."""
    rest = [name for name in SweepRow.model_fields if name not in question.axes]
    return [*question.axes, *rest, *_marks(question), ROW_DIGEST]


def read_row(form: LineForm, line: str, at: Mapping[str, AxisValue], question: SweepQuestion) -> SweepRow:
    """The row that a line holds, which must be that of the point `at`. ValueError says why it is not."""
    try:
        values = form.read(line, file_columns(question))
        marks = {name: values.pop(name, None) for name in (*_marks(question), ROW_DIGEST)}
        # the axes are those of the point: whether the line says the same shows below
        row = SweepRow.model_validate({**values, **at})
    except (ValueError, ValidationError, TypeError, KeyError):
        raise ValueError("it is no row of such a sweep") from None
    if marks["model_version"] != question.model_version:
        raise ValueError(f"it is of model version {marks['model_version']}, and this is {question.model_version}")
    if marks["question"] != question.question:
        raise ValueError("it answers another question (other options, or another file that they name)")
    if form.line(file_values(row, question)) != line:
        raise ValueError("it was changed, or is not the row of this point")
    return row
