"""JSON: for programs; raw values, the unit in the key, the same bytes for the same answer."""

from __future__ import annotations

import json

from ppadvisor.report.rows import RowTable, View
from ppadvisor.specs.base import Struct
from ppadvisor.specs.version import FORMAT_VERSION, MODEL_VERSION


def dump_json(document: object) -> str:
    """One JSON document with its last line ended; keys in the order given, and no NaN, which JSON does not know.

    A struct is an object of its fields.
    """
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=_fields) + "\n"


def _fields(struct: object) -> dict[str, object]:
    if isinstance(struct, Struct):
        return vars(struct)
    raise TypeError(f"{type(struct).__name__} is not JSON serializable")


def dump_json_line(values: object) -> str:
    """The same on one line, for files that hold one document a line."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"


def render(table: RowTable, view: View) -> str:
    """The versions, what is said beside the rows, and the rows."""
    versions = {"format_version": FORMAT_VERSION, "model_version": MODEL_VERSION}
    return dump_json({**versions, **table.extra, "rows": [dict(row) for row in table.rows]})
