"""Parquet: the rows of a sweep with their types, for data frames. Needs pyarrow, an optional extra."""

from __future__ import annotations

from typing import Any, get_args

from ppadvisor.report.sweep_rows import Values, file_columns, file_values
from ppadvisor.search.sweep import SweepReport, SweepRow


def render_parquet(report: SweepReport) -> bytes:
    """One column a value, of the type that it has in json; what is missing is null."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rows = [file_values(row, report) for row in report.rows]
    schema = pa.schema([(name, _arrow_type(name, rows)) for name in file_columns(report)])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())


def _arrow_type(name: str, rows: list[Values]) -> Any:
    """The type of a column, also where no row has a value."""
    import pyarrow as pa

    known = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    if name == "layers_per_stage":
        return pa.list_(pa.int64())
    kinds = {type(row[name]) for row in rows} & known.keys()
    if name in SweepRow.model_fields:
        kinds = {kind for kind in known if kind in _plain_types(SweepRow.model_fields[name].annotation)} or {str}
    return known[next(kind for kind in (bool, str, float, int) if kind in kinds)]


def _plain_types(annotation: Any) -> set[Any]:
    """The types that an annotation allows: `int | None` allows int."""
    parts = get_args(annotation)
    if not parts:
        return {annotation}
    return set().union(*(_plain_types(part) for part in parts))
